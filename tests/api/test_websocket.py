"""Sockets against a real server with a fake engine."""

from tests.api.conftest import Running


async def test_send_streams_numbered_events_to_the_end(running: Running) -> None:
    async with running.ready_socket() as client:
        await client.send("send", content="hello", request_id="r1")
        started = await client.expect("started")
        events = await client.until("finished")
    assert started["request_id"] == "r1"
    assert [c["index"] for c in started["candidates"]] == [0]
    assert [event["seq"] for event in events] == list(range(len(events)))
    text = "".join(event["text"] for event in events if event["type"] == "delta")
    assert text == "".join(f"word0-{i} " for i in range(12))
