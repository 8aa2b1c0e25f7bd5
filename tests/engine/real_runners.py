"""One loaded model behind pools of any shape, and what a load of requests yields there.

Weights are read once. Pools are full of NaN: whatever is read before it was written spoils the text.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from engine.config import SchedulerConfig
from engine.cpu_runner import CpuRunner
from engine.engine_core import EngineCore
from engine.fused_sampler import FusedSampler
from engine.grammar_spec import Grammar
from engine.model_runner import ModelRunner
from engine.outputs import SampledToken
from engine.sampler import Sampler
from engine.sampling_params import SamplingParams
from engine.scheduler import Scheduler
from engine.sequence import Request
from engine.stats import Counters
from kernels.cpu.fused.features import num_physical_cores
from kernels.cpu.fused.model import FusedModel
from kernels.kv_pool import KVPool
from tests.kernels.fused_reference import INSTRUCTION_SET

BFLOAT16_NAN = 0x7FC0
Runner = ModelRunner | CpuRunner
Answer = list[SampledToken]


def with_pool(base: Runner, **limits: Any) -> Runner:
    """A runner with the weights of `base` and a pool of its own; `limits` are fields of SchedulerConfig.

    Two torch runners with the same weights take turns: the one made last works.
    """
    config = replace(base.scheduler_config, **limits)
    if isinstance(base, ModelRunner):
        return _torch_runner(base, config)
    return _fused_runner(base, config)


def _torch_runner(base: ModelRunner, config: SchedulerConfig) -> ModelRunner:
    num_layers, _, _, num_kv_heads, _, head_dim = base._memory.shape
    shape = (num_layers, 2, config.num_blocks, num_kv_heads, config.block_size, head_dim)
    pool = KVPool.over(torch.full(shape, float("nan"), dtype=base._memory.dtype))
    return ModelRunner(base._model, pool, base._ops, Sampler(0), config, base.info)


def _fused_runner(base: CpuRunner, config: SchedulerConfig) -> CpuRunner:
    model = FusedModel(
        base._model.shape,
        base._model._weights,
        num_blocks=config.num_blocks,
        block_size=config.block_size,
        max_rows=config.max_num_batched_tokens,
        max_outputs=config.max_num_seqs,
        num_threads=num_physical_cores(),
        instruction_set=INSTRUCTION_SET,
    )
    model.kv.fill(BFLOAT16_NAN)
    return CpuRunner(model, FusedSampler(Sampler(0), model), config, base.info)


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """On a busy machine two threads wait for each other most of the time."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@dataclass(frozen=True)
class Call:
    """A prompt and how to answer it; `grammar` is that of `params`, compiled."""

    prompt: Sequence[int]
    params: SamplingParams
    grammar: Grammar | None = None


class Bench:
    """A runner and its scheduler, step by step in this thread."""

    def __init__(self, runner: Runner) -> None:
        self._scheduler = Scheduler(runner.scheduler_config)
        self._core = EngineCore(self._scheduler, runner)
        self._num_requests = 0

    @property
    def counters(self) -> Counters:
        """Totals of all loads."""
        return self._scheduler.view.stats().counters

    def shuffle_blocks(self) -> None:
        """Hand blocks out in random order from now on. For a pool that nobody has used."""
        pool = self._scheduler.kv.pool
        blocks = [pool.allocate() for _ in pool.blocks]
        pool.free(np.random.default_rng(0).permutation(blocks).tolist())

    def answer(self, calls: Iterable[Call]) -> list[Answer]:
        """Answers to all calls at once: those of a call's candidates stand one after another."""
        requests = [self._add(call) for call in calls]
        answers = {seq.seq_id: Answer() for request in requests for seq in request.sequences}
        while self._core.has_work:
            for output in self._core.step():
                if output.sampled:
                    answers[output.seq_id].append(output.sampled)
        return list(answers.values())

    def _add(self, call: Call) -> Request:
        request = Request(
            self._num_requests, list(call.prompt), call.params, 0.0, grammar=call.grammar
        )
        self._num_requests += 1
        self._core.add_request(request)
        return request


def token_ids(answers: Iterable[Answer]) -> list[list[int]]:
    """Only what was drawn."""
    return [[token.token_id for token in answer] for answer in answers]
