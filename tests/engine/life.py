"""Random life against the invariants: requests come, fork, are pushed out, aborted and failed, in pools of 1 to 40 blocks.

After every action `check_integrity()` holds; the fake runner reads every context back from its memory in every step;
in the end every accepted candidate has ended once, with the text or embedding that it yields alone, every prompt that was to be
judged has been, once and before the first token, and no block is live.

The tests run some hundred examples for each block size, always the same ones. For others, as many as you like:
`python -m tests.engine.life --examples 10000 --seed 1`
"""

import argparse
import random
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from engine.beam_params import BeamParams
from engine.errors import RequestError
from engine.outputs import Failure, FinishReason, ScoredToken, SequenceEnd, StepOutput
from engine.pooling import StateSum
from engine.sampling_params import SamplingParams
from engine.scheduler import Scheduler
from engine.sequence import Request
from tests.beams import expected_answers
from tests.fakes import (
    EOS_TOKEN_ID,
    FakeModelRunner,
    expected_embedding,
    expected_scores,
    expected_tokens,
    make_config,
    repetitive_token,
)

BLOCK_SIZES = (1, 2, 16)
FAMILIES = tuple([family * 50 + i % 40 + 3 for i in range(90)] for family in range(3))


def _any_params(draw: random.Random) -> SamplingParams:
    if draw.random() < 0.35:
        return _any_search(draw)
    return SamplingParams(
        n=draw.randint(1, 4),
        seed=draw.choice([None, 2**64 - 2]),
        max_tokens=draw.choice([0, 1, 3, 9, 40]),
        min_tokens=draw.choice([0, 0, 5]),
        ignore_eos=draw.random() < 0.5,
        stop_token_ids=draw.choice([(), (), tuple(range(0, 250, 25))]),
        cache_salt=draw.choice([None, None, "", "a"]),
        priority=draw.choice([0, 0, 0, -1, 1]),
        prompt_logprobs=draw.choice([None, None, None, 0, 2]),
    )


def _any_search(draw: random.Random) -> SamplingParams:
    width = draw.randint(1, 4)
    return SamplingParams(
        n=draw.randint(1, width),
        max_tokens=draw.choice([0, 1, 3, 9, 30]),
        ignore_eos=draw.random() < 0.3,
        stop_token_ids=draw.choice([(), (), tuple(range(0, 250, 25))]),
        cache_salt=draw.choice([None, None, "", "a"]),
        priority=draw.choice([0, 0, 0, -1, 1]),
        beams=BeamParams(
            width=width,
            length_penalty=draw.choice([0.0, 1.0, 1.0, 2.0, -1.0]),
            early_stopping=draw.choice([True, False, False, "never"]),
        ),
        prompt_logprobs=draw.choice([None, None, None, 0, 2]),
    )


ALL_PARAMS = tuple(_any_params(random.Random(i)) for i in range(500))
"""Drawn once: hypothesis spends most of its time on draws, so it draws one index instead of eight values."""

configs = st.fixed_dictionaries(
    {
        "num_blocks": st.integers(1, 40),
        "max_num_seqs": st.integers(1, 6),
        "max_num_batched_tokens": st.sampled_from([6, 7, 16, 64]),
        "max_model_len": st.sampled_from([24, 80]),
        "enable_prefix_caching": st.booleans(),
        "num_speculative_tokens": st.sampled_from([0, 3, 11]),
    }
)


class EngineLife(RuleBasedStateMachine):
    """Everything that may happen to a scheduler, in any order."""

    block_size = 1

    @initialize(changes=configs)
    def start(self, changes: dict[str, Any]) -> None:
        self.config = make_config(block_size=self.block_size, **changes)
        self.scheduler = Scheduler(self.config)
        self.runner = FakeModelRunner(self.config, repetitive_token)
        self.accepted: dict[int, Request] = {}
        self.texts: dict[tuple[int, int], list[int]] = {}
        self.ends: dict[tuple[int, int], SequenceEnd] = {}
        self.judged: dict[int, list[ScoredToken]] = {}
        self.answers: dict[int, list[tuple[list[int], float]]] = {}

    @rule(
        family=st.sampled_from(FAMILIES),
        length=st.integers(1, 45),
        params=st.sampled_from(ALL_PARAMS),
    )
    def add(self, family: list[int], length: int, params: SamplingParams) -> None:
        self._add(family[:length], params)

    @rule(
        family=st.sampled_from(FAMILIES),
        length=st.integers(1, 30),
        num_new=st.integers(1, 15),
        params=st.sampled_from(ALL_PARAMS),
    )
    def add_edited(
        self, family: list[int], length: int, num_new: int, params: SamplingParams
    ) -> None:
        """Leaves the family's text at any token, inside a block or at its edge."""
        self._add(family[:length] + [family[length] + 1] * num_new, params)

    @precondition(lambda self: self.texts)
    @rule(
        data=st.data(),
        share=st.floats(0, 1),
        num_new=st.integers(1, 3),
        params=st.sampled_from(ALL_PARAMS),
    )
    def add_continuation(
        self, data: st.DataObject, share: float, num_new: int, params: SamplingParams
    ) -> None:
        """Goes on from the middle of an answer, which may still be written."""
        key = data.draw(st.sampled_from(list(self.texts)))
        text = self.texts[key]
        kept = text[: round(share * len(text))]
        self._add([*self.accepted[key[0]].prompt_token_ids, *kept, *[250] * num_new], params)

    @rule(
        family=st.sampled_from(FAMILIES),
        length=st.integers(1, 45),
        priority=st.sampled_from([0, 0, -1, 1]),
    )
    def embed(self, family: list[int], length: int, priority: int) -> None:
        params = SamplingParams(max_tokens=0, priority=priority)
        self._add(family[:length], params, StateSum())

    def _add(
        self, prompt: list[int], params: SamplingParams, state_sum: StateSum | None = None
    ) -> None:
        request = Request(len(self.accepted), prompt, params, 0.0, state_sum)
        capacity = min(self.config.max_model_len, self.config.num_blocks * self.config.block_size)
        num_needed = len(prompt) + (params.max_tokens != 0)
        num_beams = 0 if params.beams is None else params.beams.width
        num_blocks = len(prompt) // self.config.block_size + num_beams
        if (
            num_needed > capacity
            or params.num_sequences > self.config.max_num_seqs
            or num_blocks > self.config.num_blocks
        ):
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
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(self.scheduler._roster.running))
        self.scheduler._planner.preempt(seq)

    @invariant()
    def is_sound(self) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.check_integrity()
            stats = self.scheduler.view.stats()
            assert stats.tokens_stored <= stats.tokens_capacity
            reasons = stats.waiting_budget, stats.waiting_capacity, stats.waiting_deferred
            assert sum(reasons) == stats.num_waiting

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for _ in range(5000):
            if not self.scheduler.has_work:
                break
            self._step(())
        self.is_sound()
        counts = self.scheduler.view.stats().blocks
        assert counts.private == counts.shared == 0
        assert self.scheduler.view.requests() == ()
        candidates = {(i, k) for i, r in self.accepted.items() for k in range(r.params.n)}
        assert set(self.ends) == candidates

    def _step(self, aborts: Any) -> None:
        plan = self.scheduler.schedule()
        for request_id, index in aborts:
            self._take(self.scheduler.abort(request_id, index))
        self.scheduler.kv.check_integrity(self.scheduler._roster.sequences.values())
        output = self.runner.execute(plan)
        outputs = self.scheduler.update(plan, output)
        for end in (output for output in outputs if output.end is not None):
            wants_embedding = self.accepted[end.request_id].state_sum is not None
            assert (end.embedding is not None) == wants_embedding
        self._take(outputs)

    def _take(self, outputs: list[StepOutput]) -> None:
        for output in outputs:
            key = (output.request_id, output.index)
            assert key not in self.ends, f"{key}: an output after the end"
            text = self.texts.setdefault(key, [])
            if output.prompt_scores is not None:
                self._check_scores(self.accepted[output.request_id], output.prompt_scores)
            if output.sampled is not None:
                text.append(output.sampled.token_id)
            if output.embedding is not None:
                assert output.embedding.values == expected_embedding(
                    self.accepted[output.request_id].prompt_token_ids
                )
            if output.end is not None:
                self.ends[key] = output.end
                self._check_end(key, output.end)

    def _check_end(self, key: tuple[int, int], end: SequenceEnd) -> None:
        request, text = self.accepted[key[0]], self.texts[key]
        assert end.usage.prompt_tokens == len(request.prompt_token_ids)
        assert end.usage.completion_tokens == len(text)
        assert end.error in (None, Failure("broken")), end.error
        if request.params.beams is not None:
            self._check_answer(request, key[1], end)
            return
        expected = expected_tokens(
            request.prompt_token_ids, request.params, key[1], self.config, repetitive_token
        )
        assert text == expected[: len(text)]
        is_eos = text[-1:] == [EOS_TOKEN_ID] and not request.params.ignore_eos
        if end.reason is FinishReason.LENGTH or is_eos:
            assert text == expected

        if text and request.params.prompt_logprobs is not None:
            assert len(self.judged[key[0]]) == len(request.prompt_token_ids) - 1

    def _check_scores(self, request: Request, scores: tuple[ScoredToken, ...]) -> None:
        assert not any(self.texts.get((request.request_id, i)) for i in range(request.params.n))
        judged = self.judged.setdefault(request.request_id, [])
        judged += scores
        num_top = request.params.prompt_logprobs
        assert num_top is not None
        expected = expected_scores(request.prompt_token_ids, num_top)
        assert tuple(judged) == expected[: len(judged)]

    def _check_answer(self, request: Request, index: int, end: SequenceEnd) -> None:
        """A search that came to its own end has the answer of a plain search; else it has none."""
        text, expected = self.texts[request.request_id, index], []
        if end.cumulative_logprob is not None:
            expected, logprob = self._answers(request)[index]
            assert abs(end.cumulative_logprob - logprob) < 1e-9
        assert text == expected

    def _answers(self, request: Request) -> list[tuple[list[int], float]]:
        """What a plain search yields, worked out once for all of its answers."""
        if request.request_id not in self.answers:
            self.answers[request.request_id] = expected_answers(
                request.prompt_token_ids, request.params, self.config
            )
        return self.answers[request.request_id]


def life_in_blocks_of(block_size: int, max_examples: int) -> Any:
    """A test case: that many lives, the same ones every time."""

    class Life(EngineLife):
        pass

    Life.block_size = block_size
    Life.__qualname__ = f"LifeInBlocksOf{block_size}"
    Life.TestCase.settings = settings(
        max_examples=max_examples,
        stateful_step_count=40,
        deadline=None,
        derandomize=True,
        database=None,
    )
    return Life.TestCase


def main() -> None:
    """Lives that no test has seen: other ones for every seed."""
    parser = argparse.ArgumentParser(description="Random lives of the scheduler.")
    parser.add_argument("--examples", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    batch = settings(
        max_examples=100,
        stateful_step_count=40,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    started = time.monotonic()
    for done in range(0, options.examples, 100):
        EngineLife.block_size = BLOCK_SIZES[done // 100 % 3]
        run_state_machine_as_test(seed(options.seed * 10**6 + done)(EngineLife), settings=batch)
        print(f"{done + 100} examples, {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
