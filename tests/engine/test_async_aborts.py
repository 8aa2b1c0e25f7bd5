"""The end of a request by its user, from every state, whoever reads its stream."""

import asyncio
import gc

import pytest

from engine.outputs import (
    FinishReason,
    PrefillProgress,
)
from engine.sampling_params import SamplingParams
from tests.engine.rig import (
    assert_aborted,
    ends_of,
    ids_of,
    letters,
    read,
    running,
    spelled,
    text_of,
)
from tests.fakes import (
    expected_tokens,
)


async def test_abort_before_the_first_iteration() -> None:
    async with running() as rig:
        rig.runner.hold()
        stream = rig.submit([1, 2, 3])
        stream.abort()
        rig.runner.release()
        assert_aborted(await read(stream))
        assert await rig.settled_blocks() == 0


async def test_abort_in_the_queue_leaves_the_running_alone() -> None:
    async with running(num_blocks=4, max_num_seqs=8) as rig:
        rig.runner.hold()
        runs = rig.submit(list(range(12)), SamplingParams(max_tokens=4, ignore_eos=True))
        waits = rig.submit(list(range(20, 30)))
        await rig.runner.held()
        await rig.runner.advance()
        assert rig.engine.stats.num_waiting == 1
        waits.abort()
        rig.runner.release()
        assert_aborted(await read(waits))
        assert ends_of(await read(runs))[0].finish_reason is FinishReason.LENGTH
        assert rig.live_blocks() == 0


async def test_abort_in_the_middle_of_a_prefill() -> None:
    async with running(num_blocks=30, max_num_batched_tokens=8) as rig:
        rig.runner.hold()
        stream = rig.submit(list(range(100)), SamplingParams(n=3, max_tokens=5))
        await rig.runner.held()
        await rig.runner.advance()
        assert await anext(stream) == PrefillProgress(8, 100)
        assert rig.live_blocks() > 0
        stream.abort()
        rig.runner.release()
        assert_aborted(await read(stream), 3)
        assert rig.live_blocks() == 0
        assert rig.engine.stats.counters.generated_tokens == 0


async def test_abort_while_decoding_frees_within_a_step() -> None:
    async with running(num_blocks=200) as rig:
        rig.runner.hold()
        stream = rig.submit([1, 2, 3])
        await rig.runner.held()
        for _ in range(5):
            await rig.runner.advance()
        assert rig.live_blocks() > 0
        stream.abort()
        rig.runner.release()
        assert_aborted(await read(stream))
        assert rig.live_blocks() == 0
        assert len(rig.runner.plans) == 6


async def test_abort_one_of_three_forked_candidates() -> None:
    async with running(num_blocks=100) as rig:
        params = SamplingParams(n=3, max_tokens=30, ignore_eos=True, seed=1)
        rig.runner.hold()
        stream = rig.submit([1, 2, 3], params)
        await rig.runner.held()
        for _ in range(3):
            await rig.runner.advance()
        stream.abort(1)
        rig.runner.release()
        events = await read(stream)
        assert len(ids_of(events, 1)) == 4
        ends = ends_of(events)
        assert [ends[i].finish_reason for i in range(3)] == ["length", "abort", "length"]
        for index in (0, 2):
            expected = expected_tokens([1, 2, 3], params, index, rig.runner.scheduler_config)
            assert ids_of(events, index) == expected
        assert rig.live_blocks() == 0


async def test_abort_of_a_preempted_sequence() -> None:
    async with running(num_blocks=6, max_num_seqs=4) as rig:
        rig.runner.hold()
        params = SamplingParams(max_tokens=14, ignore_eos=True)
        streams = [rig.submit([i] * 6, params) for i in range(3)]
        await rig.runner.held()
        while rig.engine.stats.counters.preemptions == 0:
            await rig.runner.advance()
        assert rig.engine.stats.num_waiting == 1
        streams[2].abort()
        rig.runner.release()
        assert_aborted(await read(streams[2]))
        for stream in streams[:2]:
            assert ends_of(await read(stream))[0].usage.completion_tokens == 14
        assert rig.live_blocks() == 0


async def test_abort_after_the_end_and_twice_is_nothing() -> None:
    async with running(spelled("a")) as rig:
        stream = rig.submit([1], SamplingParams())
        events = await read(stream)
        stream.abort()
        stream.abort(5)
        await stream.aclose()
        assert ends_of(events)[0].finish_reason is FinishReason.STOP
        assert text_of(await read(rig.submit([1], SamplingParams()))) == letters("a")


async def test_aclose_returns_when_the_blocks_are_free() -> None:
    async with running(num_blocks=200) as rig:
        rig.runner.hold()
        stream = rig.submit([1, 2, 3])
        await rig.runner.held()
        await rig.runner.advance()
        assert rig.live_blocks() == 1
        asyncio.get_running_loop().call_soon(rig.runner.release)
        await stream.aclose()
        assert rig.live_blocks() == 0
        assert_aborted(await read(stream))


async def test_leaving_the_context_aborts_also_on_an_exception() -> None:
    async with running(num_blocks=200) as rig:

        async def fail_while_reading() -> None:
            async with rig.submit([1, 2, 3]):
                await rig.runner.held()
                asyncio.get_running_loop().call_soon(rig.runner.release)
                raise KeyError

        rig.runner.hold()

        with pytest.raises(KeyError):
            await fail_while_reading()
        assert rig.live_blocks() == 0


async def test_a_dropped_stream_aborts() -> None:
    async with running(num_blocks=200) as rig:
        rig.runner.hold()
        stream = rig.submit([1, 2, 3])
        await rig.runner.held()
        del stream
        gc.collect()
        rig.runner.release()
        assert await rig.settled_blocks() == 0
        assert await rig.engine.requests() == ()


async def test_a_stream_that_is_awaited_is_not_dropped() -> None:
    async with running(spelled("abc")) as rig:
        texts: list[str] = []

        async def consume() -> None:
            texts.append(text_of(await read(rig.submit([1, 2], SamplingParams()))))

        rig.runner.hold()
        consumer = consume()
        task = asyncio.create_task(consumer)
        await rig.runner.held()
        del task, consumer
        gc.collect()
        rig.runner.release()
        while not texts:
            await rig.engine.requests()
        assert texts == [letters("abc")]


async def test_a_cancelled_reader_can_come_back() -> None:
    async with running(spelled("abc")) as rig:
        rig.runner.hold()
        stream = rig.submit([1, 2], SamplingParams())
        task = asyncio.create_task(read(stream))
        await rig.runner.held()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        rig.runner.release()
        assert text_of(await read(stream)) == letters("abc")
