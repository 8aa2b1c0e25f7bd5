"""What people see of the scheduling half: stats, the block map, requests. Ten blocks of four tokens unless said."""

from engine.reports import MAX_ENDED
from tests.fakes import Harness


def prompt(length: int, start: int = 0) -> list[int]:
    return [3 + (start + i) % 250 for i in range(length)]


def test_requests_that_have_ended_are_remembered_newest_first() -> None:
    engine = Harness()
    engine.add(prompt(9), n=2, max_tokens=4)
    engine.run()
    engine.abort(engine.add(prompt(5)))
    aborted, done = engine.scheduler.view.requests_report().recent
    assert (aborted.request_id, aborted.state, aborted.finish_reasons) == (
        1,
        "finished",
        ("abort",),
    )
    assert (aborted.generated_tokens, aborted.ttft_ms, aborted.queue_ms) == (0, None, None)
    assert (done.num_candidates, done.generated_tokens) == (2, 8)
    assert done.finish_reasons == ("length", "length")
    assert (done.blocks_private, done.blocks_shared) == (0, 0)
    assert done.ttft_ms is not None
    assert done.queue_ms is not None
    assert 0 < done.queue_ms <= done.ttft_ms <= done.age_s * 1e3
    assert done.tokens_per_second > 0


def test_a_request_for_an_embedding_is_called_one_alive_and_ended() -> None:
    engine = Harness(max_num_batched_tokens=8)
    engine.add(prompt(5), max_tokens=2)
    engine.embed(prompt(17, 40))
    engine.step()
    assert [info.kind for info in engine.scheduler.view.requests()] == ["answer", "embedding"]
    engine.run()
    ended = engine.scheduler.view.requests_report().recent
    assert {info.request_id: info.kind for info in ended} == {0: "answer", 1: "embedding"}


def test_only_the_last_ended_requests_are_remembered() -> None:
    engine = Harness()
    for _ in range(MAX_ENDED + 1):
        engine.abort(engine.add(prompt(5)))
    recent = engine.scheduler.view.requests_report().recent
    assert [info.request_id for info in recent] == list(range(MAX_ENDED, 0, -1))
    assert engine.scheduler.view.request(0) is None
    assert engine.scheduler.view.request(1) is not None


def test_tokens_and_steps_are_timed() -> None:
    engine = Harness(max_num_batched_tokens=8)
    engine.add(prompt(9), n=2, max_tokens=4)
    engine.abort(engine.add(prompt(5)))
    engine.run()
    times = engine.scheduler.view.stats().distributions
    assert (times.ttft.count, times.itl.count, times.queue.count) == (2, 2 * 3, 1)
    assert times.release.count == 1
    assert (times.step_tokens.count, times.step_tokens.sum) == (5, 8 + 1 + 3 * 2)
