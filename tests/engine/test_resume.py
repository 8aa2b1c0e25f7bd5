"""A preemption at any moment is invisible in what a reader gets: text, stop strings, tokens, log-probabilities, counts.

Scheduler and output processor together; tokens are the bytes of a text that the script spells.
"""

from collections.abc import Sequence

import pytest

from engine.output_processor import OutputProcessor
from engine.outputs import (
    CandidateFinished,
    EngineEvent,
    FinishReason,
    RequestFinished,
    SampleRequest,
    StepOutput,
    TextDelta,
)
from tests.fakes import Harness

ANSWER = "one two three four five"


class ByteTokens:
    """Token i is byte i."""

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id])

    visible_bytes = token_bytes


class Reader(Harness):
    """Reads what comes of the steps as a client does."""

    def __init__(self, **changes: object) -> None:
        super().__init__(_spell, **changes)
        self.processor = OutputProcessor(ByteTokens())
        self.events: list[EngineEvent] = []

    def ask(self, length: int, **params: object) -> None:
        prompt = [100 + i for i in range(length)]
        options = {"max_tokens": len(ANSWER), "logprobs": 2, "repetition_penalty": 1.3}
        self.processor.add_request(self.add(prompt, **(options | params)))

    def take(self, outputs: Sequence[StepOutput]) -> None:
        super().take(outputs)
        processed = self.processor.process(outputs)
        self.events += [event for _, event in processed.events]
        for seq_id, num_unused in processed.stopped.items():
            self.take(self.scheduler.finish(seq_id, FinishReason.STOP, num_unused))


def _spell(request: SampleRequest, context: Sequence[int]) -> int:
    return ANSWER.encode()[len(request.output_token_ids)]


def read(length: int, preempted_before: int | None, caching: bool, **params: object) -> Reader:
    """One request to its end; pushed out before the step of that number, when all that it had may be taken by others."""
    engine = Reader(max_num_batched_tokens=8, num_blocks=12, enable_prefix_caching=caching)
    engine.ask(length, **params)
    num_steps = 0
    while engine.scheduler.has_work:
        if num_steps == preempted_before and engine.scheduler._roster.running:
            engine.preempt()
        engine.step()
        num_steps += 1
    assert engine.num_live_blocks == 0
    return engine


def told(events: Sequence[EngineEvent]) -> tuple[object, ...]:
    """All that a reader can tell two runs apart by, but for progress and times."""
    deltas = [event for event in events if isinstance(event, TextDelta)]
    (end,) = [event for event in events if isinstance(event, CandidateFinished)]
    assert isinstance(events[-1], RequestFinished)
    return deltas, end.finish_reason, end.stop_reason, end.usage


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("length", [3, 4, 5, 9, 17])
@pytest.mark.parametrize("params", [{}, {"stop": ("o thr",)}, {"stop": ("five!",)}], ids=str)
def test_preemption_before_any_step_is_not_seen(
    length: int, caching: bool, params: dict[str, object]
) -> None:
    expected = told(read(length, None, caching, **params).events)
    num_seen = 0
    for num_steps in range(1, 26):
        engine = read(length, num_steps, caching, **params)
        assert told(engine.events) == expected
        num_seen += engine.scheduler.view.stats().counters.preemptions
    assert num_seen >= 10


def test_reader_gets_the_text_up_to_the_stop_string_and_a_logprob_per_token() -> None:
    deltas, reason, stop, usage = told(read(5, 8, True, stop=("o thr",)).events)
    assert isinstance(deltas, list)
    assert "".join(delta.text for delta in deltas) == "one tw"
    assert [token for delta in deltas for token in delta.token_ids] == list(b"one two thr")
    assert all(len(delta.logprobs) == len(delta.token_ids) for delta in deltas)
    assert (reason, stop) == (FinishReason.STOP, "o thr")
    assert (usage.prompt_tokens, usage.completion_tokens) == (5, 11)  # pyright: ignore[reportAttributeAccessIssue]
