"""Pending work of which nothing comes: one log line, and the culprit ends."""

import logging

import pytest

from engine.outputs import FinishReason
from engine.watchdog import SLACK
from tests.fakes import Harness


def prompt(length: int, start: int = 0) -> list[int]:
    return [3 + (start + i) % 250 for i in range(length)]


def step_with_lost_progress(engine: Harness) -> None:
    """A step after which all that runs is pushed out, as if planning had gone wrong."""
    engine.step()
    while engine.scheduler._roster.running:
        engine.preempt()


def spinning() -> Harness:
    """A prompt that never gets beyond its first chunk. 100 + 2 * (48 / 4) idle steps are allowed."""
    engine = Harness(max_num_batched_tokens=8, max_model_len=48, enable_prefix_caching=False)
    engine.add(prompt(20), n=2)
    engine.add(prompt(20, 50))
    return engine


@pytest.mark.parametrize(
    ("max_model_len", "budget", "steps"),
    [(48, 8, 2 * 12), (49, 8, 2 * 13), (100, 9, 2 * 20), (131_072, 512, 2 * 512)],
)
def test_idle_steps_allowed_are_twice_those_of_the_longest_context(
    max_model_len: int, budget: int, steps: int
) -> None:
    engine = Harness(max_model_len=max_model_len, max_num_batched_tokens=budget)
    assert engine.scheduler._watchdog.max_idle_steps == SLACK + steps


def test_first_in_rank_ends_when_nothing_comes_of_the_steps(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = spinning()
    with caplog.at_level(logging.ERROR):
        for _ in range(SLACK + 24):
            step_with_lost_progress(engine)
        assert not engine.ends
        step_with_lost_progress(engine)
    assert [engine.ends[0, i].reason for i in (0, 1)] == [FinishReason.ERROR] * 2
    failure = engine.ends[0, 0].error
    assert failure is not None
    assert failure.message.startswith("nothing came of 124 steps: ")
    (record,) = caplog.records
    assert "request 0: nothing came of 124 steps" in record.getMessage()
    assert "it has computed 0 of 20 tokens" in record.getMessage()
    engine.run()
    assert len(engine.texts[1, 0]) == 8


def test_next_culprit_ends_too_and_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    engine = spinning()
    with caplog.at_level(logging.ERROR):
        for _ in range(2 * (SLACK + 25)):
            step_with_lost_progress(engine)
    assert set(engine.ends) == {(0, 0), (0, 1), (1, 0)}
    assert not engine.scheduler.has_work
    assert len(caplog.records) == 1


def test_alarm_is_logged_again_after_progress(caplog: pytest.LogCaptureFixture) -> None:
    engine = spinning()
    with caplog.at_level(logging.ERROR):
        for _ in range(SLACK + 25):
            step_with_lost_progress(engine)
        engine.run()
        engine.add(prompt(20, 100))
        for _ in range(SLACK + 25):
            step_with_lost_progress(engine)
    assert len(caplog.records) == 2


def test_what_is_judged_for_the_first_time_is_progress() -> None:
    engine = Harness(max_num_batched_tokens=8, num_blocks=40)
    engine.scheduler._watchdog.max_idle_steps = 10
    engine.add(prompt(120), max_tokens=1, prompt_logprobs=0)
    engine.run()
    assert engine.ends[0, 0].reason is FinishReason.LENGTH


def test_what_is_judged_again_is_no_progress() -> None:
    engine = Harness(max_num_batched_tokens=8, max_model_len=48, enable_prefix_caching=False)
    engine.add(prompt(20), prompt_logprobs=0)
    for _ in range(SLACK + 26):
        assert not engine.ends
        step_with_lost_progress(engine)
    assert engine.ends[0, 0].reason is FinishReason.ERROR


def test_an_end_is_progress() -> None:
    engine = spinning()
    for _ in range(SLACK + 20):
        step_with_lost_progress(engine)
    engine.abort(engine.requests[0], 1)
    for _ in range(SLACK + 20):
        step_with_lost_progress(engine)
    assert set(engine.ends) == {(0, 1)}


def test_long_prefill_under_a_small_budget_is_no_alarm() -> None:
    engine = Harness(max_num_batched_tokens=8, max_model_len=1000, num_blocks=300)
    engine.add(prompt(8 * (SLACK + 10)), max_tokens=1)
    engine.run()
    assert engine.scheduler.view.stats().num_steps == SLACK + 10
    assert engine.ends[0, 0].reason is FinishReason.LENGTH
