"""Asking what the pool still holds of a prompt: exact counts, and no trace. Ten blocks of four tokens unless said."""

from engine.scheduler import Scheduler
from tests.fakes import Harness

PROMPT = list(range(3, 17))


def trace(scheduler: Scheduler) -> object:
    """Everything that looking something up could change."""
    pool = scheduler.kv.pool
    blocks = [(b.block_id, b.ref_count, b.key, b.num_tokens) for b in pool.blocks]
    order = [block.block_id for block in pool.free_queue]
    return blocks, order, scheduler.view.stats().counters, pool.counts


def ask(engine: Harness, tokens: list[int]) -> int:
    before = trace(engine.scheduler)
    count = engine.scheduler.view.count_resident(tokens)
    assert trace(engine.scheduler) == before
    return count


def test_whole_blocks_and_what_agrees_of_one_more_are_resident() -> None:
    engine = Harness()
    assert ask(engine, PROMPT) == 0
    engine.add(PROMPT, max_tokens=1)
    engine.run()
    assert ask(engine, PROMPT) == 12
    assert ask(engine, PROMPT[:12]) == 12
    assert ask(engine, PROMPT[:11]) == 11
    assert ask(engine, [*PROMPT[:10], 99, 98]) == 10
    assert ask(engine, PROMPT[:2]) == 2
    assert ask(engine, [99, *PROMPT]) == 0
    assert ask(engine, []) == 0


def test_blocks_of_a_running_sequence_count() -> None:
    engine = Harness()
    engine.add(PROMPT)
    engine.step()
    assert ask(engine, PROMPT) == 12


def test_evicted_blocks_do_not_count() -> None:
    engine = Harness()
    engine.add(PROMPT, max_tokens=1)
    engine.run()
    engine.add(list(range(100, 136)), max_tokens=1)
    engine.run()
    assert ask(engine, PROMPT) == 4


def test_another_model_or_no_cache_has_nothing() -> None:
    engine = Harness(enable_prefix_caching=False)
    engine.add(PROMPT, max_tokens=1)
    engine.run()
    assert ask(engine, PROMPT) == 0


def test_a_salted_request_is_not_found_without_its_salt() -> None:
    engine = Harness()
    engine.add(PROMPT, max_tokens=1, cache_salt="a")
    engine.run()
    assert ask(engine, PROMPT) == 0
