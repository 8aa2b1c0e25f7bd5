"""The events of a request: in order, with the blocks held; a long life stays a short list. Blocks of four tokens."""

from engine.beam_params import BeamParams
from engine.timeline import MAX_EVENTS, RequestEvent, Timeline
from tests.fakes import Harness


def prompt(length: int, start: int = 0) -> list[int]:
    return [3 + (start + i) % 250 for i in range(length)]


def told(engine: Harness, request_id: int = 0) -> list[tuple[str, int, int, int]]:
    detail = engine.scheduler.view.request(request_id)
    assert detail is not None
    times = [event.time_s for event in detail.events]
    assert times == sorted(times)
    return [(e.kind, e.index, e.num_tokens, e.num_blocks) for e in detail.events]


def test_candidates_from_the_queue_to_their_end() -> None:
    engine = Harness(max_num_batched_tokens=8)
    engine.add(prompt(9), n=2, seed=1, max_tokens=5)
    engine.run()
    assert told(engine) == [
        ("queued", 0, 9, 0),
        ("started", 0, 0, 0),
        ("chunk", 0, 8, 2),
        ("chunk", 0, 1, 3),
        ("fork", 1, 0, 3),
        ("first_token", 0, 0, 3),
        ("first_token", 1, 0, 3),
        ("copy_on_write", 0, 0, 4),
        ("block", 0, 13, 6),
        ("end", 0, 5, 4),
        ("block", 1, 13, 4),
        ("end", 1, 5, 0),
    ]


def test_preemption_and_the_way_back() -> None:
    engine = Harness(enable_prefix_caching=False)
    engine.add(prompt(5), max_tokens=4)
    engine.steps(2)
    engine.preempt()
    engine.run()
    assert told(engine) == [
        ("queued", 0, 5, 0),
        ("started", 0, 0, 0),
        ("chunk", 0, 5, 2),
        ("first_token", 0, 0, 2),
        ("preempted", 0, 0, 0),
        ("resumed", 0, 0, 0),
        ("chunk", 0, 7, 2),
        ("end", 0, 4, 0),
    ]


def test_what_the_prefix_cache_had_is_told() -> None:
    engine = Harness()
    engine.add(prompt(9), max_tokens=1)
    engine.run()
    engine.add(prompt(9), max_tokens=1)
    engine.run()
    assert told(engine, 1)[1:3] == [("started", 0, 8, 2), ("chunk", 0, 1, 3)]


def test_an_abort_in_the_queue_is_an_end_with_its_reason() -> None:
    engine = Harness()
    request = engine.add(prompt(3), n=2)
    engine.abort(request)
    detail = engine.scheduler.view.request(0)
    assert detail is not None
    assert [(e.kind, e.index, e.reason) for e in detail.events] == [
        ("queued", 0, None),
        ("end", 1, "abort"),
        ("end", 0, "abort"),
    ]


def test_a_beam_search_ends_once() -> None:
    engine = Harness()
    request = engine.add(prompt(5), n=2, beams=BeamParams(width=2), temperature=0.0, max_tokens=3)
    engine.run()
    assert [entry for entry in told(engine) if entry[0] == "end"] == [
        ("end", 0, len(engine.texts[0, 0]), 0),
        ("end", 1, len(engine.texts[0, 1]), 0),
    ]
    engine.abort(request)
    assert len(engine.scheduler.view.requests_report().recent) == 1


def events(kind: str, count: int) -> list[RequestEvent]:
    return [RequestEvent(float(i), kind, 0, i, i) for i in range(count)]  # pyright: ignore[reportArgumentType]


def test_a_full_list_keeps_an_even_choice_of_what_comes_often() -> None:
    timeline = Timeline()
    first = RequestEvent(0.0, "queued", 0, 0, 0)
    for event in (first, *events("block", 5000)):
        timeline.add(event)
    assert len(timeline.events) <= MAX_EVENTS
    assert timeline.events[0] == first
    assert timeline.events[-1].num_tokens >= 4999 - 32
    gaps = [
        b.num_tokens - a.num_tokens
        for a, b in zip(timeline.events[1:], timeline.events[2:], strict=False)
    ]
    assert max(gaps) <= 64
    assert len(timeline.events) >= MAX_EVENTS // 3


def test_a_life_of_preemptions_keeps_its_beginning_and_its_end() -> None:
    timeline = Timeline()
    for event in events("preempted", 1000):
        timeline.add(event)
    assert len(timeline.events) <= MAX_EVENTS
    assert [event.num_tokens for event in timeline.events[:50]] == list(range(50))
    assert timeline.events[-1].num_tokens == 999
