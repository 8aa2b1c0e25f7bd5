"""The whole engine around a fake model: streams, what is refused, what can be seen."""

import asyncio
import inspect
import threading
from dataclasses import replace

import pytest

from engine.async_engine import AsyncEngine
from engine.chat_template import TemplateOptions
from engine.errors import (
    OverloadedError,
    RequestError,
)
from engine.outputs import (
    CandidateFinished,
    FinishReason,
    PrefillProgress,
    TextDelta,
)
from engine.request_stream import RequestStream
from engine.sampling_params import SamplingParams
from engine.stats import FinishedCandidate
from tests.engine.rig import CONFIG, ends_of, ids_of, letters, read, running, spelled, text_of
from tests.fake_engine import FakeEngine
from tests.fake_streams import FakeStream
from tests.fakes import (
    EOS_TOKEN_ID,
    VOCAB_SIZE,
    expected_tokens,
)


async def test_sixteen_at_once_equal_each_alone() -> None:
    async with running(num_blocks=60, max_num_seqs=16, max_num_batched_tokens=24) as rig:
        prompts = [list(range(i, 3 * i + 5)) for i in range(16)]
        params = [SamplingParams(max_tokens=20 + i, seed=i) for i in range(16)]
        streams = [rig.submit(p, s) for p, s in zip(prompts, params, strict=True)]
        events = await asyncio.gather(*map(read, streams))
        for prompt, asked, got in zip(prompts, params, events, strict=True):
            expected = expected_tokens(prompt, asked, 0, rig.runner.scheduler_config)
            shown = [t for t in expected if t != EOS_TOKEN_ID]
            assert ids_of(got) == shown
            assert text_of(got) == "".join(chr(0x100 + t) for t in shown)
            assert ends_of(got)[0].usage.completion_tokens == len(expected)
        assert rig.live_blocks() == 0


async def test_events_come_in_order() -> None:
    async with running(spelled("abc"), max_num_batched_tokens=8) as rig:
        events = []
        async for event in rig.submit(list(range(10)), SamplingParams()):
            events.append(event)
        progress = [e for e in events if isinstance(e, PrefillProgress)]
        assert progress[-1] == PrefillProgress(10, 10)
        assert events[: len(progress)] == progress
        assert text_of(events) == letters("abc")
        assert isinstance(events[-2], CandidateFinished)
        assert ends_of(events)[0].finish_reason is FinishReason.STOP
        assert ends_of(events)[0].usage.completion_tokens == 4


async def test_candidates_differ_end_apart_and_repeat() -> None:
    async with running(spelled("ab", "abcdef", "x")) as rig:
        for _ in range(2):
            events = await read(rig.submit([1, 2, 3], SamplingParams(n=3, seed=0)))
            assert [text_of(events, i) for i in range(3)] == list(
                map(letters, ["ab", "abcdef", "x"])
            )
            assert {e.finish_reason for e in ends_of(events).values()} == {FinishReason.STOP}
        assert rig.live_blocks() == 0


async def test_a_stop_string_ends_one_candidate_and_frees_its_blocks() -> None:
    async with running(spelled("abcdefgh", "abzzzzzzz")) as rig:
        stop = (letters("def"), letters("zzzz"))
        events = await read(rig.submit([1, 2, 3], SamplingParams(n=2, seed=0, stop=stop)))
        assert [text_of(events, i) for i in range(2)] == [letters("abc"), letters("ab")]
        ends = ends_of(events)
        assert [ends[i].stop_reason for i in range(2)] == list(stop)
        assert [ends[i].usage.completion_tokens for i in range(2)] == [6, 6]
        assert {e.finish_reason for e in ends.values()} == {FinishReason.STOP}
        assert rig.live_blocks() == 0


async def test_an_unread_stream_stays_small_and_loses_nothing() -> None:
    async with running(max_num_batched_tokens=8) as rig:
        params = SamplingParams(n=2, seed=3, ignore_eos=True, max_tokens=12, logprobs=1)
        stream = rig.submit(list(range(9)), params)
        while rig.engine.stats.counters.generated_tokens < 24:
            await rig.engine.requests()
        await rig.engine.requests()
        events = await read(stream)
        assert [type(e) for e in events].count(TextDelta) == 2
        assert len(events) == 6
        for index in range(2):
            expected = expected_tokens(range(9), params, index, rig.runner.scheduler_config)
            assert ids_of(events, index) == expected
        assert all(len(e.logprobs) == 12 for e in events if isinstance(e, TextDelta))
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


async def test_zero_tokens_is_an_answer_without_text() -> None:
    async with running() as rig:
        events = await read(rig.submit([1, 2], SamplingParams(max_tokens=0)))
        assert text_of(events) == ""
        assert ends_of(events)[0].finish_reason is FinishReason.LENGTH
        assert ends_of(events)[0].usage.completion_tokens == 0


@pytest.mark.parametrize(
    ("prompt", "params", "param"),
    [
        ([], SamplingParams(), "prompt"),
        ([1] * 40, SamplingParams(), "prompt"),
        ([VOCAB_SIZE], SamplingParams(), "prompt"),
        ([3, -1], SamplingParams(), "prompt"),
        ([1], SamplingParams(n=9), "n"),
        ([1], SamplingParams(logit_bias={VOCAB_SIZE: 1.0}), f"logit_bias.{VOCAB_SIZE}"),
        ([1], SamplingParams(stop_token_ids=(VOCAB_SIZE,)), "stop_token_ids[0]"),
    ],
)
async def test_what_can_never_run_is_refused_and_holds_nothing(
    prompt: list[int], params: SamplingParams, param: str
) -> None:
    async with running() as rig:
        for refuse in (rig.engine.check_request, rig.engine.submit):
            with pytest.raises(RequestError) as caught:
                refuse(prompt, params)
            assert caught.value.param == param
        assert await rig.engine.requests() == ()
        assert rig.engine.stats.counters.requests == 0


async def test_requests_and_blocks_are_shown_between_steps() -> None:
    async with running(num_blocks=4) as rig:
        rig.runner.hold()
        first, second = rig.submit(list(range(8))), rig.submit(list(range(20, 32)))
        await rig.runner.held()
        await rig.runner.advance()
        question = asyncio.gather(rig.engine.requests(), rig.engine.block_map())
        await asyncio.sleep(0)
        rig.runner.release()
        requests, blocks = await question
        assert [(r.request_id, r.state, r.waiting_reason) for r in requests] == [
            (first.request_id, "running", None),
            (second.request_id, "waiting", "capacity"),
        ]
        assert [b.block_id for b in blocks] == [0, 1, 2, 3]
        assert {b.owners for b in blocks if b.ref_count} == {(first.request_id,)}
        await first.aclose()
        await second.aclose()


async def test_listeners_hear_of_every_candidate_in_the_loop() -> None:
    async with running(spelled("a", "b")) as rig:
        heard: list[tuple[str, FinishedCandidate]] = []

        def fail(candidate: FinishedCandidate) -> None:
            raise ValueError("a bad listener")

        rig.engine.add_finished_listener(fail)
        rig.engine.add_finished_listener(
            lambda c: heard.append((threading.current_thread().name, c))
        )
        stream = rig.submit([1, 2], SamplingParams(n=2, seed=0))
        await read(stream)
        assert {name for name, _ in heard} == {threading.current_thread().name}
        assert [(c.request_id, c.index) for _, c in heard] == [
            (stream.request_id, 0),
            (stream.request_id, 1),
        ]


async def test_text_is_made_off_the_loop() -> None:
    async with running(spelled("a")) as rig:
        assert await rig.engine.render_chat([{}, {}]) == [2, 1]
        assert await rig.engine.render_chat([{}], TemplateOptions(add_generation_prompt=False)) == [
            1,
            0,
        ]
        assert await rig.engine.encode("ĀĂ") == [0, 2]
        assert await rig.engine.encode_answer("ĀĂ") == [0, 2]
        assert await rig.engine.decode([0, 2]) == "ĀĂ"
        texts = await rig.engine.token_texts([0, EOS_TOKEN_ID, 3])
        assert [each.text for each in texts] == ["Ā", "", "ă"]
        await read(rig.submit([1], SamplingParams()))
        assert rig.letters.threads
        assert all(name.startswith(("tokenizer", "engine")) for name in rig.letters.threads)


async def test_a_burst_fills_the_waiting_room_and_no_more() -> None:
    config = replace(CONFIG, max_waiting=3)
    async with running(config=config, max_num_seqs=1) as rig:
        rig.runner.hold()
        first = rig.submit([1])
        await rig.runner.advance()
        await asyncio.wait_for(anext(first), 10)
        streams = [rig.submit([1]) for _ in range(2)]
        give_back = rig.engine.keep_place()
        for refused in (
            rig.engine.keep_place,
            lambda: rig.submit([1]),
            lambda: rig.engine.embed([1]),
        ):
            with pytest.raises(OverloadedError, match="3 requests are waiting"):
                refused()
        give_back()
        streams.append(rig.submit([1]))
        with pytest.raises(OverloadedError):
            rig.submit([1])
        rig.runner.release()
        await streams[0].aclose()
        streams.append(rig.submit([1]))
        for stream in (first, *streams):
            await stream.aclose()
        assert await rig.settled_blocks() == 0
        await read(rig.submit([1], SamplingParams(max_tokens=1)))


async def test_ids_are_the_engines_own() -> None:
    async with running() as rig:
        ids = [rig.submit([1]).request_id for _ in range(3)]
        assert len(set(ids)) == 3


def surface(kind: type) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, member in inspect.getmembers(kind):
        if name in ("__aiter__", "__aenter__", "__aexit__") or not name.startswith("_"):
            is_function = inspect.isfunction(member)
            found[name] = (
                list(inspect.signature(member).parameters.values()) if is_function else None
            )
    return found


def plain(parameters: object) -> object:
    """Names, kinds and defaults."""
    if not isinstance(parameters, list):
        return parameters
    return [(p.name, p.kind, p.default) for p in parameters]


def test_the_fake_engine_has_the_same_surface() -> None:
    real, fake = surface(AsyncEngine), surface(FakeEngine)
    assert set(real) - {"status"} == set(fake)
    assert all(plain(real[name]) == plain(fake[name]) for name in fake)
    stream = surface(RequestStream)
    assert all(plain(stream[name]) == plain(p) for name, p in surface(FakeStream).items())
    coroutines = ("block_map", "requests", "render_chat", "encode", "decode", "wait_ready")
    for name in (*coroutines, "encode_answer", "token_texts"):
        assert inspect.iscoroutinefunction(getattr(AsyncEngine, name))
