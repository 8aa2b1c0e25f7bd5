"""A model runner without a model, whose KV memory is a real array: it proves the memory right while it runs.

`FakeModelRunner` stores (token, position) in the slots that the plan names. Before drawing a token it reads the whole
context back through the block table, and fails unless every slot holds exactly the sequence's token at that position.
Tokens drawn are a pure function of (context, seed), so batching, chunking, caching and preemption must not
change them: `expected_tokens` says what a sequence yields alone, `expected_embedding` what an embedding request does, `expected_scores` what is thought of a prompt.
"""

import itertools
import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from engine.config import SchedulerConfig
from engine.outputs import (
    BlockCopy,
    FinishReason,
    ModelRunnerOutput,
    SampledToken,
    SampleRequest,
    ScheduledSequence,
    SchedulerOutput,
    ScoredToken,
    SequenceEnd,
    StepOutput,
    TokenLogprob,
)
from engine.pooling import StateSum
from engine.sampling_params import SamplingParams
from engine.scheduler import Scheduler
from engine.sequence import Request
from engine.stats import ModelInfo

VOCAB_SIZE = 256
EOS_TOKEN_ID = 2
HIDDEN_SIZE = 3

Script = Callable[[SampleRequest, Sequence[int]], int]


def make_config(**changes: Any) -> SchedulerConfig:
    """A small scheduler configuration: ten blocks of four tokens, unless changed."""
    defaults: dict[str, Any] = {
        "block_size": 4,
        "num_blocks": 10,
        "max_model_len": 1000,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "enable_prefix_caching": True,
        "scheduling_policy": "priority",
        "model_identity": "fake",
        "eos_token_ids": frozenset({EOS_TOKEN_ID}),
        "bytes_per_token": 10,
        "num_speculative_tokens": 0,
    }
    return SchedulerConfig(**(defaults | changes))


def pseudo_random_token(request: SampleRequest, context: Sequence[int]) -> int:
    """A token from 0 to VOCAB_SIZE - 1 that depends on every token of the context and on the seed, nothing else."""
    text = repr((list(context), request.seed)).encode()
    return blake2b(text, digest_size=1).digest()[0]


def repetitive_token(request: SampleRequest, context: Sequence[int]) -> int:
    """Depends on all of the context too, but is mostly what followed where the last two tokens stood before.

    Else it is one of a few tokens, now and then EOS.
    """
    token_id = pseudo_random_token(request, context)
    pair = list(context[-2:])
    places = (i for i in range(len(context) - 1, 1, -1) if list(context[i - 2 : i]) == pair)
    place = next(places, None)
    if place is not None and token_id % 5:
        return context[place]
    return EOS_TOKEN_ID if token_id % 16 == 0 else 97 + token_id % 4


def best_tokens(context: Sequence[int], count: int) -> tuple[TokenLogprob, ...]:
    """The best of a context's `ranking`."""
    return ranking(tuple(context))[:count]


# The runner and whoever checks it ask of the same contexts, again and again.
@lru_cache(maxsize=2**12)
def ranking(context: tuple[int, ...]) -> tuple[TokenLogprob, ...]:
    """What a beam search sees of a context: all tokens, the best first. Depends on all of it; often EOS is among the first."""
    digest = blake2b(repr(list(context)).encode(), digest_size=32).digest()
    tokens = [(digest[0] + i * (digest[1] | 1)) % VOCAB_SIZE for i in range(VOCAB_SIZE)]
    if digest[2] % 3 == 0:
        tokens.remove(EOS_TOKEN_ID)
        tokens.insert(digest[3] % 5, EOS_TOKEN_ID)
    gaps = itertools.accumulate((1 + digest[4 + i % 28]) / 200 for i in range(VOCAB_SIZE))
    entries = zip(tokens, gaps, range(1, VOCAB_SIZE + 1), strict=True)
    return tuple(TokenLogprob(token, -gap, rank) for token, gap, rank in entries)


def expected_scores(prompt: Sequence[int], num_top: int) -> tuple[ScoredToken, ...]:
    """What is thought of a prompt's tokens but the first, worked out without an engine."""
    return tuple(_score(prompt[:i], prompt[i], num_top) for i in range(1, len(prompt)))


def _score(context: Sequence[int], token_id: int, num_top: int) -> ScoredToken:
    ranked = best_tokens(context, VOCAB_SIZE)
    unlikely = TokenLogprob(token_id, -99.0, VOCAB_SIZE)
    logprob = next((entry for entry in ranked if entry.token_id == token_id), unlikely)
    return ScoredToken(logprob, ranked[:num_top])


def expected_tokens(
    prompt: Sequence[int],
    params: SamplingParams,
    index: int,
    config: SchedulerConfig,
    script: Script = pseudo_random_token,
) -> list[int]:
    """What candidate `index` yields, worked out without an engine."""
    ends = set(params.stop_token_ids) | (set() if params.ignore_eos else config.eos_token_ids)
    limit = 1024 if params.max_tokens is None else params.max_tokens
    longest = min(config.max_model_len, config.num_blocks * config.block_size + 1)
    limit = min(limit, longest - len(prompt))
    seed = None if params.seed is None else (params.seed + index) % 2**64
    output: list[int] = []
    while len(output) < limit and not (output and output[-1] in ends):
        forbidden = tuple(ends) if len(output) < params.min_tokens else ()
        request = SampleRequest(0, params, seed, prompt, output, forbidden)
        output.append(_draw(script, request, [*prompt, *output]))
    return output


class Harness:
    """A scheduler over a `FakeModelRunner`, with what came out of it by (request_id, index).

    Integrity is checked after every step. `run` also checks that each text is what the candidate yields alone; answers of
    beam searches are the test's to check.
    """

    def __init__(self, script: Script = pseudo_random_token, **changes: Any) -> None:
        self.config = make_config(**changes)
        self.script = script
        self.scheduler = Scheduler(self.config)
        self.runner = FakeModelRunner(self.config, script)
        self.requests: list[Request] = []
        self.texts: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        self.ends: dict[tuple[int, int], SequenceEnd] = {}
        self.embeddings: dict[int, tuple[float, ...]] = {}
        self.scores: defaultdict[int, tuple[ScoredToken, ...]] = defaultdict(tuple)
        self.progress: list[tuple[int, int]] = []

    def add(self, prompt: Sequence[int], **params: Any) -> Request:
        """Add a request; sampling parameters by name, 8 tokens at most and no EOS unless said."""
        defaults: dict[str, Any] = {"max_tokens": 8, "ignore_eos": True}
        params_ = SamplingParams(**(defaults | params))
        request = Request(len(self.requests), list(prompt), params_, time.monotonic())
        self.scheduler.add_request(request)
        self.requests.append(request)
        return request

    def embed(self, prompt: Sequence[int], **params: Any) -> Request:
        """Add a request for an embedding."""
        params_ = SamplingParams(max_tokens=0, **params)
        request = Request(len(self.requests), list(prompt), params_, time.monotonic(), StateSum())
        self.scheduler.add_request(request)
        self.requests.append(request)
        return request

    def step(self) -> SchedulerOutput:
        """One step; returns its plan."""
        plan = self.scheduler.schedule()
        output = self.runner.execute(plan) if plan.scheduled else ModelRunnerOutput({})
        self.take(self.scheduler.update(plan, output))
        self.scheduler.check_integrity()
        return plan

    def steps(self, count: int) -> None:
        """Several steps."""
        for _ in range(count):
            self.step()

    def run(self) -> None:
        """Steps until nothing is left to do; fails when that does not come, or when a text is not as alone."""
        for _ in range(10_000):
            if not self.scheduler.has_work:
                break
            self.step()
        assert not self.scheduler.has_work, "the engine does not come to rest"
        for request_id, embedding in self.embeddings.items():
            assert embedding == expected_embedding(self.requests[request_id].prompt_token_ids)
        for request_id, scores in self.scores.items():
            request = self.requests[request_id]
            num_top = request.params.prompt_logprobs or 0
            assert scores == expected_scores(request.prompt_token_ids, num_top)
        for (request_id, index), text in self.texts.items():
            request = self.requests[request_id]
            if request.group is not None:
                continue
            expected = expected_tokens(
                request.prompt_token_ids, request.params, index, self.config, self.script
            )
            is_whole = self.ends[request_id, index].reason is FinishReason.LENGTH
            assert text == (expected if is_whole else expected[: len(text)])

    def abort(self, request: Request, index: int | None = None) -> list[int]:
        """Abort; returns the indices that ended."""
        outputs = self.scheduler.abort(request.request_id, index)
        self.take(outputs)
        return [output.index for output in outputs]

    def preempt(self, position: int = -1) -> None:
        """Push out a running sequence, by its position in order of rank."""
        self.scheduler._planner.preempt(self.scheduler._roster.running[position])

    def take(self, outputs: Sequence[StepOutput]) -> None:
        """Collect outputs; nothing may follow a sequence's end."""
        for output in outputs:
            key = (output.request_id, output.index)
            assert key not in self.ends, f"{key}: an output after the end"
            if output.progress is not None:
                self.progress.append((output.request_id, output.progress.computed_tokens))
            if output.sampled is not None:
                self.texts[key].append(output.sampled.token_id)
            if output.embedding is not None:
                self.embeddings[output.request_id] = output.embedding.values
            if output.prompt_scores is not None:
                assert not self.texts.get(key), "the prompt is judged behind its text"
                self.scores[output.request_id] += output.prompt_scores
            if output.end is not None:
                self.ends[key] = output.end

    @property
    def num_live_blocks(self) -> int:
        """Blocks that a sequence refers to: what a leak would leave."""
        counts = self.scheduler.view.stats().blocks
        return counts.private + counts.shared

    @property
    def free_block_ids(self) -> list[int]:
        """The free queue, front first."""
        return [block.block_id for block in self.scheduler.kv.pool.free_queue]


class FakeModelRunner:
    """Executes plans on an array of (token, position) per slot. `script` draws the tokens."""

    def __init__(self, config: SchedulerConfig, script: Script = pseudo_random_token) -> None:
        self.scheduler_config = config
        self.plans: list[SchedulerOutput] = []
        self._script = script
        self._slots: list[tuple[int, int] | None] = [None] * (config.num_blocks * config.block_size)

    @property
    def info(self) -> ModelInfo:
        """As a real runner would describe itself."""
        config = self.scheduler_config
        return ModelInfo(
            model_name="fake",
            architecture="FakeForCausalLM",
            num_parameters=0,
            quantization="none",
            dtype="float32",
            kv_cache_dtype="float32",
            attention_backend="reference",
            backend_reason="a test",
            device="cpu",
            max_model_len=config.max_model_len,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            vocab_size=VOCAB_SIZE,
            hidden_size=HIDDEN_SIZE,
            block_size=config.block_size,
            num_blocks=config.num_blocks,
            num_blocks_reason="a test",
            bytes_per_block=config.block_size * config.bytes_per_token,
            load_seconds=0.0,
        )

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Copy, store, read back, draw. AssertionError when the plan would read or write what it must not."""
        self.plans.append(plan)
        assert plan.scheduled, "an empty plan was executed"
        num_tokens = sum(len(entry.token_ids) for entry in plan.scheduled)
        assert num_tokens == plan.num_scheduled_tokens, "scheduled tokens miscounted"
        assert num_tokens <= self.scheduler_config.max_num_batched_tokens, "over the token budget"
        self._copy_blocks(plan.block_copies)
        self._store(plan.scheduled)
        samples: dict[int, SampledToken] = {}
        state_sums: dict[int, list[float]] = {}
        behind_drafts: dict[int, list[SampledToken]] = {}
        scores: dict[int, list[ScoredToken]] = {}
        for entry in plan.scheduled:
            context = self._read_context(entry)
            if entry.wants_states:
                assert not entry.samples, "a sequence wants states and tokens"
                state_sums[entry.seq_id] = _sum_states(context, entry.start_position)
            if entry.score is not None:
                scores[entry.seq_id] = [
                    _score(context[: entry.start_position + i], token_id, entry.score.num_top)
                    for i, token_id in enumerate(entry.score.token_ids, start=1)
                ]
            num_known = len(context) - entry.num_drafts
            drawn = [
                self._draw(request, context[: num_known + i * (entry.num_drafts > 0)])
                for i, request in enumerate(entry.samples)
            ]
            if entry.num_drafts:
                assert {r.seq_id for r in entry.samples} == {entry.seq_id}, (
                    "others draw from drafts"
                )
                assert len(drawn) == 1 + entry.num_drafts, "draws and drafts do not match"
                behind_drafts[entry.seq_id] = drawn[1:]
                del drawn[1:]
            for request, token in zip(entry.samples, drawn, strict=False):
                assert request.seq_id not in samples, f"sequence {request.seq_id} is drawn twice"
                samples[request.seq_id] = token
        return ModelRunnerOutput(samples, state_sums, behind_drafts, scores)

    def _draw(self, request: SampleRequest, context: Sequence[int]) -> SampledToken:
        known = [*request.prompt_token_ids, *request.output_token_ids]
        assert context == known, f"sequence {request.seq_id}: read {context}, not {known}"
        return self._sample(request, context)

    def _slot(self, entry: ScheduledSequence, position: int) -> int:
        size = self.scheduler_config.block_size
        return entry.block_table[position // size] * size + position % size

    def _copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        size = self.scheduler_config.block_size
        targets = [copy.dst for copy in copies]
        assert len(set(targets)) == len(targets), "two copies into one block"
        assert not set(targets) & {copy.src for copy in copies}, "a copy's source is overwritten"
        for copy in copies:
            source = self._slots[copy.src * size : (copy.src + 1) * size]
            self._slots[copy.dst * size : (copy.dst + 1) * size] = source

    def _store(self, scheduled: Sequence[ScheduledSequence]) -> None:
        written: set[int] = set()
        for entry in scheduled:
            for position, token_id in enumerate(entry.token_ids, entry.start_position):
                slot = self._slot(entry, position)
                assert slot not in written, f"slot {slot} is written twice in one step"
                written.add(slot)
                self._slots[slot] = (token_id, position)

    def _read_context(self, entry: ScheduledSequence) -> list[int]:
        context: list[int] = []
        for position in range(entry.start_position + len(entry.token_ids)):
            slot = self._slot(entry, position)
            stored = self._slots[slot]
            assert stored is not None, f"slot {slot} was never written"
            assert stored[1] == position, f"slot {slot}: position {stored[1]}, not {position}"
            context.append(stored[0])
        return context

    def _sample(self, request: SampleRequest, context: Sequence[int]) -> SampledToken:
        if request.num_candidates:
            best = best_tokens(context, max(request.num_candidates, request.params.logprobs or 0))
            return SampledToken(best[0].token_id, best[0], best)
        token_id = _draw(self._script, request, context)
        if request.params.logprobs is None:
            return SampledToken(token_id)
        best = [TokenLogprob((token_id + i) % VOCAB_SIZE, -1.0 - i, i + 1) for i in range(20)]
        return SampledToken(token_id, best[0], tuple(best[: request.params.logprobs]))


def expected_embedding(prompt: Sequence[int]) -> tuple[float, ...]:
    """What a prompt yields, worked out without an engine."""
    sums = _sum_states(prompt, 0)
    return tuple(value / math.hypot(*sums) for value in sums)


def _sum_states(context: Sequence[int], start: int) -> list[float]:
    """Of the tokens from `start` on; a token's state [HIDDEN_SIZE] depends on every token up to it."""
    states = [
        (token_id, position, sum(context[: position + 1]) % 251)
        for position, token_id in enumerate(context)
    ]
    return [float(sum(column)) for column in zip(*states[start:], strict=True)]


def _draw(script: Script, request: SampleRequest, context: Sequence[int]) -> int:
    token_id = script(request, context)
    while token_id in request.forbidden_token_ids:
        token_id = (token_id + 1) % VOCAB_SIZE
    return token_id
