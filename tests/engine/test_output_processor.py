"""From step outputs to events: text, stop strings, log-probabilities, ends."""

import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from engine.output_processor import OutputProcessor, ProcessedOutputs
from engine.outputs import (
    CandidateFinished,
    FinishReason,
    KVUsage,
    PrefillProgress,
    RequestFinished,
    SampledToken,
    SequenceEnd,
    StepOutput,
    TextDelta,
    TextLogprob,
    Timings,
    TokenLogprob,
    Usage,
)
from engine.sampling_params import SamplingParams
from engine.sequence import Request

EOS = 0
USAGE, TIMINGS, KV = Usage(5, 7, 0), Timings(1.0, 2.0, 3.0, 4.0, 5.0, 1.0), KVUsage(1, 2, 1, 0.1)


class Pieces:
    """Token i is the i-th piece; token 0 is special."""

    def __init__(self, *pieces: str | bytes) -> None:
        self.pieces = [b"<eos>", *(p.encode() if isinstance(p, str) else p for p in pieces)]

    def token_bytes(self, token_id: int) -> bytes:
        return self.pieces[token_id]

    def visible_bytes(self, token_id: int) -> bytes:
        return self.pieces[token_id] if token_id else b""


def processor_for(params: SamplingParams, *pieces: str | bytes) -> OutputProcessor:
    processor = OutputProcessor(Pieces(*pieces))
    processor.add_request(Request(7, [1], params, time.monotonic()))
    return processor


def token(token_id: int, end: SequenceEnd | None = None, index: int = 0) -> StepOutput:
    return StepOutput(7, 70 + index, index, SampledToken(token_id), None, end)


def end(reason: FinishReason, stop_token_id: int | None = None) -> SequenceEnd:
    return SequenceEnd(reason, USAGE, TIMINGS, KV, stop_token_id)


def ended(reason: FinishReason, index: int = 0) -> StepOutput:
    return StepOutput(7, 70 + index, index, end=end(reason))


def finished(
    reason: FinishReason, stop_reason: str | int | None = None, index: int = 0
) -> CandidateFinished:
    return CandidateFinished(index, reason, stop_reason, USAGE, TIMINGS, KV)


def stopped(stop: str, num_tokens: int) -> CandidateFinished:
    """Ended by a stop string that this many tokens hold."""
    return replace(finished(FinishReason.STOP, stop), usage=Usage(5, num_tokens, 0))


def run(processor: OutputProcessor, *outputs: StepOutput) -> list[object]:
    return [event for _, event in processor.process(outputs).events]


def shown(events: Sequence[object]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def test_events_come_in_order_and_eos_is_not_shown() -> None:
    processor = processor_for(SamplingParams(), "he", "llo")
    progress = PrefillProgress(1, 1)
    assert run(processor, StepOutput(7, 70, 0, progress=progress)) == [progress]
    both = StepOutput(7, 70, 0, SampledToken(1), progress)
    assert run(processor, both) == [progress, TextDelta(0, "he", (1,))]
    assert run(processor, token(2)) == [TextDelta(0, "llo", (2,))]
    last = run(processor, token(EOS, end(FinishReason.STOP)))
    assert last == [finished(FinishReason.STOP), RequestFinished()]


def test_a_stop_token_is_named_and_not_shown() -> None:
    processor = processor_for(SamplingParams(stop_token_ids=(1,)), "x")
    events = run(processor, token(1, end(FinishReason.STOP, stop_token_id=1)))
    assert events == [finished(FinishReason.STOP, 1), RequestFinished()]


def test_the_token_at_the_limit_is_shown() -> None:
    processor = processor_for(SamplingParams(), "x")
    events = run(processor, token(1, end(FinishReason.LENGTH)))
    assert events == [
        TextDelta(0, "x", (1,)),
        finished(FinishReason.LENGTH),
        RequestFinished(),
    ]


def test_an_ignored_eos_is_a_token_without_text() -> None:
    processor = processor_for(SamplingParams(ignore_eos=True), "x")
    assert run(processor, token(EOS), token(1)) == [
        TextDelta(0, "", (EOS,)),
        TextDelta(0, "x", (1,)),
    ]


def test_a_stop_string_across_tokens_asks_for_the_end_and_is_cut() -> None:
    processor = processor_for(SamplingParams(stop=("END",)), "aE", "ND", "b")
    assert run(processor, token(1)) == [TextDelta(0, "a", (1,))]
    processed = processor.process([token(2)])
    assert processed.stopped == {70: 0}
    assert processed.events == [(7, TextDelta(0, "", (2,)))]
    assert run(processor, ended(FinishReason.STOP)) == [
        stopped("END", 2),
        RequestFinished(),
    ]


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.ABORT, FinishReason.ERROR])
def test_what_was_held_is_flushed_at_the_end(reason: FinishReason) -> None:
    processor = processor_for(SamplingParams(stop=("END",)), "aEN")
    assert shown(run(processor, token(1))) == "a"
    assert run(processor, ended(reason))[0] == TextDelta(0, "EN", ())


def test_what_was_held_is_flushed_at_eos() -> None:
    processor = processor_for(SamplingParams(stop=("END",)), "aEN")
    events = run(processor, token(1), token(EOS, end(FinishReason.STOP)))
    assert shown(events) == "aEN"
    assert events[-2] == finished(FinishReason.STOP)


def test_a_stop_string_completed_by_the_last_allowed_token_is_a_stop() -> None:
    processor = processor_for(SamplingParams(stop=("END",)), "aEND")
    processed = processor.process([token(1, end(FinishReason.LENGTH))])
    assert processed.stopped == {}
    assert [event for _, event in processed.events] == [
        TextDelta(0, "a", (1,)),
        stopped("END", 1),
        RequestFinished(),
    ]
    assert processed.finished[0].finish_reason is FinishReason.STOP


def test_an_aborted_candidate_keeps_its_reason_after_a_match() -> None:
    processor = processor_for(SamplingParams(stop=("a",)), "a")
    run(processor, token(1))
    assert run(processor, ended(FinishReason.ABORT))[0] == finished(FinishReason.ABORT)


def test_half_characters_wait_and_are_replaced_at_the_end() -> None:
    processor = processor_for(SamplingParams(), b"\xf0\x9f", b"\x91\xa9", b"\xe2")
    events = run(processor, token(1), token(2), token(3, end(FinishReason.LENGTH)))
    assert [e.text for e in events if isinstance(e, TextDelta)] == ["", "👩", "\ufffd"]


def test_min_tokens_are_not_searched_for_stop_strings() -> None:
    params = SamplingParams(stop=("ab",), min_tokens=2)
    processor = processor_for(params, "ab", "a", "b", "xab")
    assert shown(run(processor, token(1), token(2), token(3))) == "abab"
    processed = processor.process([token(4)])
    assert (shown([e for _, e in processed.events]), processed.stopped) == ("x", {70: 0})


def test_candidates_are_apart_and_the_request_ends_once() -> None:
    processor = processor_for(SamplingParams(n=2, stop=("b",)), "a", "b")
    assert run(processor, token(1), token(1, index=1)) == [
        TextDelta(0, "a", (1,)),
        TextDelta(1, "a", (1,)),
    ]
    first = run(processor, token(1, end(FinishReason.LENGTH), index=1))
    assert first == [TextDelta(1, "a", (1,)), finished(FinishReason.LENGTH, index=1)]
    assert processor.process([token(2)]).stopped == {70: 0}
    last = run(processor, ended(FinishReason.STOP))
    assert last == [stopped("b", 2), RequestFinished()]


def test_logprobs_carry_text_and_true_bytes() -> None:
    processor = processor_for(SamplingParams(logprobs=2), b"\xe2\x98", "x")
    best = (TokenLogprob(2, -0.5, 1), TokenLogprob(EOS, -1.0, 2))
    drawn = SampledToken(1, TokenLogprob(1, -2.0, 3), best)
    (event,) = run(processor, StepOutput(7, 70, 0, drawn))
    assert isinstance(event, TextDelta)
    assert event.logprobs == (
        TextLogprob(
            1,
            "\ufffd",
            -2.0,
            b"\xe2\x98",
            (TextLogprob(2, "x", -0.5, b"x"), TextLogprob(EOS, "<eos>", -1.0, b"<eos>")),
        ),
    )


def test_listeners_learn_about_every_candidate() -> None:
    processor = processor_for(SamplingParams(n=2), "a")
    processed = processor.process([ended(FinishReason.ABORT, i) for i in range(2)])
    assert [(f.request_id, f.index, f.finish_reason) for f in processed.finished] == [
        (7, 0, FinishReason.ABORT),
        (7, 1, FinishReason.ABORT),
    ]
    assert all(f.e2e_ms >= 0 and f.usage == USAGE for f in processed.finished)


def test_processed_outputs_join() -> None:
    joined = ProcessedOutputs()
    assert not joined
    joined.extend(ProcessedOutputs([(1, RequestFinished())], [], {3: 1}))
    assert joined
    assert joined.stopped == {3: 1}


def test_tokens_of_the_same_step_behind_a_stop_string_are_neither_shown_nor_counted() -> None:
    processor = processor_for(SamplingParams(stop=("b",)), "a", "b")
    processed = processor.process([token(1), token(2), token(1), token(1)])
    assert [event for _, event in processed.events] == [
        TextDelta(0, "a", (1,)),
        TextDelta(0, "", (2,)),
    ]
    assert processed.stopped == {70: 2}
    told = processor.process([ended(FinishReason.STOP)])
    assert [event for _, event in told.events] == [stopped("b", 2), RequestFinished()]
    assert told.stopped == {}


@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.LENGTH])
def test_an_end_in_the_same_step_behind_a_stop_string_is_a_stop_there(reason: FinishReason) -> None:
    processor = processor_for(SamplingParams(stop=("b",)), "a", "b")
    last = token(1, end(reason, stop_token_id=1))
    processed = processor.process([token(2), token(1), last])
    assert [event for _, event in processed.events] == [
        TextDelta(0, "", (2,)),
        stopped("b", 1),
        RequestFinished(),
    ]
    assert processed.stopped == {70: 2}, "they were counted as generated"
