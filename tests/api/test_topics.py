"""The polled topics: what their frames hold, and that they wait for the model."""

import struct
from array import array

from api.documents import owner_number
from api.topics import encode_cells
from engine.stats import BlockCells, EngineStatus
from tests.api.conftest import Running, Start
from tests.fake_engine import FakeEngine


def test_a_block_is_two_bytes_state_above_owner() -> None:
    owners = array("Q", [0, 0, 1, 9, 2**14 - 1, 2**14, 2**40])
    cells = struct.unpack("<7H", encode_cells(BlockCells(bytes([0, 1, 2, 3, 2, 2, 3]), owners)))
    assert [cell >> 14 for cell in cells] == [0, 1, 2, 3, 2, 2, 3]
    assert [cell & 0x3FFF for cell in cells[:6]] == [0, 0, 1, 9, 2**14 - 1, 1]
    assert cells[6] & 0x3FFF == owner_number(2**40)


async def test_stats_requests_and_blocks_reach_a_socket(start: Start) -> None:
    engine = FakeEngine(token_interval=0.05)
    running = await start(engine)
    async with running.ready_socket() as client, running.ready_socket() as talker:
        await client.send("subscribe", topic="stats")
        stats = (await client.expect("stats"))["stats"]
        assert stats["blocks"]["total"] == 256
        await client.send("unsubscribe", topic="stats")
        await client.skip_to("unsubscribed")
        await client.send("subscribe", topic="blocks")
        data = await client.socket.recv()
        assert isinstance(data, bytes)
        assert struct.unpack("<256H", data) == (0,) * 256
        await talker.send("send", content="hello")
        data = await client.socket.recv()
        assert isinstance(data, bytes)
        assert struct.unpack("<256H", data)[:5] == (2 << 14 | 1,) * 4 + (0,)
        await client.send("unsubscribe", topic="blocks")
        await client.send("subscribe", topic="requests")
        frame = await client.skip_to("requests")
        (item,) = frame["items"]
        assert (item["state"], item["owner_number"], item["title"]) == ("running", 1, "hello")
        assert item["conversation_id"]
        assert frame["recent"] == []
        assert frame["blocks_saved"] == {"by_forks": 3, "by_prefix_cache": 1}


async def test_topics_wait_for_the_model(start: Start) -> None:
    engine = FakeEngine()
    engine.status = EngineStatus("loading", "reading", 0.0)
    running: Running = await start(engine)
    async with running.socket() as client:
        await client.send("subscribe", topic="stats")
        await client.expect("loading")
        engine.status = EngineStatus("ready", "ready", 1.0)
        await client.skip_to("stats")
