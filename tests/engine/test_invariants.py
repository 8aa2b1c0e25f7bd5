"""Random life against the invariants: requests come, fork, are pushed out, aborted and failed, in pools of 1 to 40 blocks.

After every action `check_integrity()` holds; the fake runner reads every context back from its memory in every step;
in the end every accepted candidate has ended once, with the text that it yields alone, and no block is live.
"""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.errors import RequestError
from engine.outputs import FinishReason, SequenceEnd, StepOutput
from engine.sampling_params import SamplingParams
from engine.scheduler import Scheduler
from engine.sequence import Request
from tests.fakes import EOS_TOKEN_ID, FakeModelRunner, expected_tokens, make_config

FAMILIES = tuple([family * 50 + i % 40 + 3 for i in range(90)] for family in range(3))

configs = st.fixed_dictionaries(
    {
        "block_size": st.sampled_from([1, 2, 16]),
        "num_blocks": st.integers(1, 40),
        "max_num_seqs": st.integers(1, 6),
        "max_num_batched_tokens": st.sampled_from([6, 7, 16, 64]),
        "max_model_len": st.sampled_from([24, 80]),
        "enable_prefix_caching": st.booleans(),
    }
)
all_params = st.builds(
    SamplingParams,
    n=st.integers(1, 4),
    seed=st.none() | st.just(2**64 - 2),
    max_tokens=st.sampled_from([0, 1, 3, 9, 40]),
    min_tokens=st.sampled_from([0, 0, 5]),
    ignore_eos=st.booleans(),
    stop_token_ids=st.sampled_from([(), (), tuple(range(0, 250, 25))]),
    cache_salt=st.sampled_from([None, None, "", "a"]),
)


class EngineLife(RuleBasedStateMachine):
    """Everything that may happen to a scheduler, in any order."""

    @initialize(changes=configs)
    def start(self, changes: dict[str, Any]) -> None:
        self.config = make_config(**changes)
        self.scheduler = Scheduler(self.config)
        self.runner = FakeModelRunner(self.config)
        self.accepted: dict[int, Request] = {}
        self.texts: dict[tuple[int, int], list[int]] = {}
        self.ends: dict[tuple[int, int], SequenceEnd] = {}

    @rule(family=st.sampled_from(FAMILIES), length=st.integers(1, 45), params=all_params)
    def add(self, family: list[int], length: int, params: SamplingParams) -> None:
        request = Request(len(self.accepted), family[:length], params, 0.0)
        capacity = min(self.config.max_model_len, self.config.num_blocks * self.config.block_size)
        if length + 1 > capacity or params.n > self.config.max_num_seqs:
            with pytest.raises(RequestError):
                self.scheduler.add_request(request)
        else:
            self.scheduler.add_request(request)
            self.accepted[request.request_id] = request

    @precondition(lambda self: self.scheduler.has_work)
    @rule()
    def step(self) -> None:
        self._step(())

    @precondition(lambda self: self.scheduler.has_work)
    @rule(aborts=st.lists(st.tuples(st.integers(0, 6), st.none() | st.integers(0, 3)), max_size=3))
    def step_with_aborts_under_way(self, aborts: list[tuple[int, int | None]]) -> None:
        self._step(aborts)

    @precondition(lambda self: self.scheduler.has_work)
    @rule()
    def step_that_fails(self) -> None:
        self.scheduler.schedule()
        self._take(self.scheduler.fail_step("broken"))

    @precondition(lambda self: self.accepted)
    @rule(data=st.data(), index=st.none() | st.integers(0, 3))
    def abort(self, data: st.DataObject, index: int | None) -> None:
        request_id = data.draw(st.sampled_from(list(self.accepted)))
        self._take(self.scheduler.abort(request_id, index))

    @rule(seq_id=st.integers(0, 12))
    def finish(self, seq_id: int) -> None:
        self._take(self.scheduler.finish(seq_id, FinishReason.STOP))

    @precondition(lambda self: self.scheduler._roster.running)
    @rule()
    def preempt(self) -> None:
        self.scheduler._planner.preempt_youngest()

    @invariant()
    def is_sound(self) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.check_integrity()
            stats = self.scheduler.stats()
            assert stats.tokens_stored <= stats.tokens_capacity
            assert stats.waiting_budget + stats.waiting_capacity == stats.num_waiting

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for _ in range(5000):
            if not self.scheduler.has_work:
                break
            self._step(())
        self.is_sound()
        counts = self.scheduler.stats().blocks
        assert counts.private == counts.shared == 0
        assert self.scheduler.requests() == ()
        candidates = {(i, k) for i, r in self.accepted.items() for k in range(r.params.n)}
        assert set(self.ends) == candidates

    def _step(self, aborts: Any) -> None:
        plan = self.scheduler.schedule()
        for request_id, index in aborts:
            self._take(self.scheduler.abort(request_id, index))
        self.scheduler.kv.check_integrity(self.scheduler._roster.sequences.values())
        output = self.runner.execute(plan)
        self._take(self.scheduler.update(plan, output))

    def _take(self, outputs: list[StepOutput]) -> None:
        for output in outputs:
            key = (output.request_id, output.index)
            assert key not in self.ends, f"{key}: an output after the end"
            text = self.texts.setdefault(key, [])
            if output.sampled is not None:
                text.append(output.sampled.token_id)
            if output.end is not None:
                self.ends[key] = output.end
                self._check_end(key, output.end)

    def _check_end(self, key: tuple[int, int], end: SequenceEnd) -> None:
        request, text = self.accepted[key[0]], self.texts[key]
        expected = expected_tokens(request.prompt_token_ids, request.params, key[1], self.config)
        assert end.usage.prompt_tokens == len(request.prompt_token_ids)
        assert end.usage.completion_tokens == len(text)
        assert text == expected[: len(text)]
        is_eos = text[-1:] == [EOS_TOKEN_ID] and not request.params.ignore_eos
        if end.reason is FinishReason.LENGTH or is_eos:
            assert text == expected


TestEngineLife = EngineLife.TestCase
TestEngineLife.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, derandomize=True, database=None
)
