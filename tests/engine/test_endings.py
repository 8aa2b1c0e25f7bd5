"""What an end tells of the memory that a sequence held. Ten blocks of four tokens unless said."""

from engine.outputs import SequenceEnd
from tests.fakes import Harness


def prompt(length: int, start: int = 0) -> list[int]:
    return [3 + (start + i) % 250 for i in range(length)]


def test_end_tells_what_was_held_and_released() -> None:
    engine = Harness()
    request = engine.add(prompt(9), n=2)
    engine.steps(2)

    def kv(end: SequenceEnd) -> tuple[int, int, int]:
        return end.kv.blocks_private, end.kv.blocks_shared, end.kv.blocks_released

    engine.abort(request, 1)
    engine.abort(request, 0)
    assert (kv(engine.ends[0, 1]), kv(engine.ends[0, 0])) == ((1, 2, 1), (1, 2, 3))
    assert engine.ends[0, 0].kv.release_ms > 0


def test_candidate_that_was_preempted_ends_with_what_it_shares_then() -> None:
    engine = Harness()
    request = engine.add(prompt(9), n=2)
    engine.steps(2)
    engine.abort(request, 1)
    engine.preempt()
    engine.abort(request, 0)
    assert engine.ends[0, 0].kv.blocks_shared == 0
