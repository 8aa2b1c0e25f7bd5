"""Embeddings among other requests, with a fake model whose states depend on every token and position of their prompt."""

import asyncio

import pytest

from engine.errors import RequestError
from engine.outputs import (
    CandidateFinished,
    Embedding,
    Failure,
    FinishReason,
    ModelRunnerOutput,
    PrefillProgress,
    RequestFinished,
    SchedulerOutput,
)
from engine.sampling_params import SamplingParams
from tests.engine.rig import assert_aborted, ends_of, ids_of, read, running
from tests.fakes import Harness, expected_embedding, expected_tokens


def prompt(length: int, start: int = 0) -> list[int]:
    return [3 + (start + i) % 250 for i in range(length)]


# --- in the scheduler ----------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [1, 2, 3, 7, 64])
def test_chunks_and_neighbours_change_nothing(budget: int) -> None:
    engine = Harness(max_num_batched_tokens=budget, num_blocks=40)
    texts = [engine.add(prompt(n), seed=n) for n in (2, 9)]
    embedded = [engine.embed(prompt(n, 50)) for n in (1, 4, 11, 23)]
    engine.run()
    for request in embedded:
        assert engine.embeddings[request.request_id] == expected_embedding(request.prompt_token_ids)
        assert engine.ends[request.request_id, 0].reason is FinishReason.STOP
        assert engine.texts[request.request_id, 0] == []
    assert len(engine.embeddings) == 4
    assert all(len(engine.texts[request.request_id, 0]) == 8 for request in texts)
    assert engine.num_live_blocks == 0


def test_embeddings_and_tokens_share_a_step() -> None:
    engine = Harness()
    engine.add(prompt(5))
    engine.step()
    engine.embed(prompt(6, 50))
    plan = engine.step()
    assert [(len(run.token_ids), run.wants_states, len(run.samples)) for run in plan.scheduled] == [
        (1, False, 1),
        (6, True, 0),
    ]
    assert set(engine.embeddings) == {1}


@pytest.mark.parametrize("num_steps", [1, 2, 3])
def test_what_was_pushed_out_begins_anew(num_steps: int) -> None:
    engine = Harness(max_num_batched_tokens=4)
    request = engine.embed(prompt(14))
    for _ in range(num_steps):
        engine.steps(num_steps)
        engine.preempt()
    engine.run()
    assert engine.embeddings == {0: expected_embedding(request.prompt_token_ids)}


def test_pressure_pushes_out_and_the_sums_are_right() -> None:
    engine = Harness(num_blocks=6, max_num_batched_tokens=8)
    engine.add(prompt(3), max_tokens=12)
    engine.add(prompt(3, 20), max_tokens=12)
    engine.embed(prompt(14, 50))
    engine.steps(2)
    engine.embed(prompt(9, 100))
    engine.run()
    assert set(engine.embeddings) == {2, 3}


@pytest.mark.parametrize("num_steps", [0, 1, 2])
def test_an_abort_frees_the_blocks_and_gives_no_embedding(num_steps: int) -> None:
    engine = Harness(max_num_batched_tokens=4)
    request = engine.embed(prompt(14))
    engine.steps(num_steps)
    assert engine.abort(request) == [0]
    assert engine.num_live_blocks == 0
    assert not engine.scheduler.has_work
    assert engine.embeddings == {}


def test_the_cache_is_filled_but_not_used() -> None:
    engine = Harness()
    engine.add(prompt(9), max_tokens=1)
    engine.run()
    engine.embed(prompt(13))
    plan = engine.step()
    assert [(run.start_position, len(run.token_ids)) for run in plan.scheduled] == [(0, 13)]
    assert plan.block_copies == ()
    assert engine.ends[1, 0].usage.cached_tokens == 0
    engine.add(prompt(14), max_tokens=1)
    engine.run()
    assert engine.ends[2, 0].usage.cached_tokens == 12
    counters = engine.scheduler.view.stats().counters
    assert (counters.prefix_queries, counters.prefix_hits) == (9 + 14, 12)
    assert (counters.prompt_tokens, counters.generated_tokens) == (9 + 13 + 14, 2)


def test_shared_blocks_are_lost_to_an_embedding() -> None:
    """A reader of its blocks makes them cheap to give up for a text, but not for a sum of states."""
    engine = Harness(max_num_batched_tokens=9, num_blocks=20)
    embedded = engine.embed(prompt(18))
    engine.step()
    text = engine.add(prompt(9), max_tokens=2)
    engine.scheduler.schedule()
    kv = engine.scheduler.kv
    assert kv.count_shared(embedded.sequences[0]) == 2
    assert kv.num_lost_tokens(embedded.sequences[0]) == 9
    assert kv.num_lost_tokens(text.sequences[0]) == 0


def test_a_prompt_may_fill_the_context_and_the_pool() -> None:
    engine = Harness(max_model_len=40, num_blocks=10)
    engine.add(prompt(3), max_tokens=5)
    engine.embed(prompt(40, 50))
    engine.run()
    assert set(engine.embeddings) == {1}
    with pytest.raises(RequestError, match=r"has 41 tokens; the model's context has room for 40$"):
        engine.embed(prompt(41))
    with pytest.raises(RequestError, match=r"has 40 tokens; the KV block pool has room for 36$"):
        Harness(max_model_len=50, num_blocks=9).embed(prompt(40))
    with pytest.raises(RequestError, match="the prompt is empty"):
        engine.embed([])


def test_states_that_are_no_numbers_are_an_error() -> None:
    engine = Harness(max_num_batched_tokens=4)
    engine.embed(prompt(6))
    for _ in range(2):
        plan = engine.scheduler.schedule()
        sums = {run.seq_id: [1.0, float("nan"), 0.0] for run in plan.scheduled}
        engine.take(engine.scheduler.update(plan, ModelRunnerOutput({}, sums)))
    assert engine.embeddings == {}
    assert engine.ends[0, 0].reason is FinishReason.ERROR
    assert engine.ends[0, 0].error == Failure("the model's states are not finite numbers")
    assert engine.num_live_blocks == 0


# --- in the whole engine -------------------------------------------------------------------------


async def test_a_stream_has_the_embedding_before_its_end() -> None:
    async with running(max_num_batched_tokens=8) as rig:
        events = await read(rig.engine.embed(prompt(20)))
        progress, embedding, end, last = events[-4:]
        assert progress == PrefillProgress(20, 20)
        assert embedding == Embedding(expected_embedding(prompt(20)))
        assert isinstance(end, CandidateFinished)
        assert (end.finish_reason, end.usage.prompt_tokens) == (FinishReason.STOP, 20)
        assert end.usage.completion_tokens == 0
        assert last == RequestFinished()


async def test_many_embeddings_beside_answers() -> None:
    async with running(num_blocks=60, max_num_seqs=8, max_num_batched_tokens=24) as rig:
        params = SamplingParams(max_tokens=20, seed=1, ignore_eos=True)
        answers = [rig.submit(prompt(3 + i), params) for i in range(4)]
        embedded = [rig.engine.embed(prompt(5 + 3 * i, i)) for i in range(12)]
        texts = await asyncio.gather(*map(read, answers))
        vectors = await asyncio.gather(*map(read, embedded))
        for i, events in enumerate(vectors):
            assert Embedding(expected_embedding(prompt(5 + 3 * i, i))) in events
        for i, events in enumerate(texts):
            expected = expected_tokens(prompt(3 + i), params, 0, rig.runner.scheduler_config)
            assert ids_of(events) == expected
        assert rig.live_blocks() == 0
        assert rig.engine.stats.counters.generated_tokens == 80


async def test_an_embedding_is_aborted_queued_and_half_computed() -> None:
    async with running(num_blocks=30, max_num_seqs=1, max_num_batched_tokens=8) as rig:
        rig.runner.hold()
        computing, waiting = rig.engine.embed(prompt(60)), rig.engine.embed(prompt(5))
        await rig.runner.held()
        await rig.runner.advance()
        computing.abort()
        waiting.abort()
        rig.runner.release()
        for stream in (computing, waiting):
            events = await read(stream)
            assert_aborted(events)
            assert not any(isinstance(event, Embedding) for event in events)
        assert rig.live_blocks() == 0


async def test_a_failed_step_ends_it_with_an_error() -> None:
    def break_down(plan: SchedulerOutput) -> None:
        raise RuntimeError("broken")

    async with running() as rig:
        rig.runner.fault = break_down
        end = ends_of(await read(rig.engine.embed(prompt(5))))[0]
        assert end.finish_reason is FinishReason.ERROR


async def test_what_can_never_run_is_refused() -> None:
    async with running() as rig:
        for bad, text in (([], "is empty"), ([1, 256], "token id 256"), ([-1], "token id -1")):
            with pytest.raises(RequestError, match=text):
                rig.engine.embed(bad)
