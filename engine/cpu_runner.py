"""The fused CPU runner: a step of the scheduler becomes one compiled call, from token ids to logits.

It stands beside the torch runner with the same surface. Activations are 8-bit, keys and values bfloat16 or 8-bit; a sequence's
logits are bitwise the same whatever else is in the batch and however its tokens came to be computed. Where it cannot run,
`fused_runner_reason` says why.
"""

import logging
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import accumulate, chain, pairwise

import numpy as np
import torch

from engine import kv_cache
from engine.config import RANGES, EngineConfig, SchedulerConfig
from engine.drafts import MAX_ROWS
from engine.draws import find_draws
from engine.errors import ModelLoadError
from engine.fused_sampler import FusedSampler
from engine.fused_scoring import judge_rows
from engine.limits import make_scheduler_config, resolve_max_model_len
from engine.loader.cpu_weights import (
    LoadedWeights,
    fused_shape,
    load_fused_weights,
)
from engine.loader.model import OpenModel, open_configured
from engine.models.config import ModelConfig
from engine.outputs import (
    BlockCopy,
    ModelRunnerOutput,
    ScheduledSequence,
    SchedulerOutput,
    ScoredToken,
)
from engine.pooling import STATE_UNIT
from engine.prompt_scoring import ROWS_AT_A_TIME, split_scored
from engine.sampler import Sampler
from engine.stats import ModelInfo
from kernels.cpu.fused.compiled import is_compiled
from kernels.cpu.fused.features import (
    INSTRUCTION_SETS,
    best_instruction_set,
    cpu_features,
    missing_features,
    num_physical_cores,
)
from kernels.cpu.fused.model import FusedModel, FusedShape, StepInput, unsupported_reason

Progress = Callable[[str, float | None], None]

ROWS_IN_CACHE = 64
"""Rows whose states are summed at a time."""

SET_NAMES = {"avx512": "AVX-512 VNNI and BF16", "avx2": "AVX2"}

logger = logging.getLogger(__name__)


def instruction_set(config: EngineConfig, features: Collection[str]) -> str:
    """What the step is built for: the set that was asked for, else the fastest one of the processor."""
    asked = config.cpu_isa
    return asked if asked in INSTRUCTION_SETS else best_instruction_set(features)


def fused_runner_reason(
    config: EngineConfig, model: ModelConfig, features: frozenset[str]
) -> str | None:
    """Why the fused runner cannot serve this model with these options on a CPU of these features; None: it can."""
    missing = missing_features(instruction_set(config, features), features)
    max_model_len = resolve_max_model_len(config, model)
    windows = [window for window in model.windows(max_model_len) if window is not None]
    rules = (
        (config.attention_backend not in ("auto", "cpu"),
         f"--attention-backend {config.attention_backend} was asked for"),
        (config.cpu_isa == "torch", "--cpu-isa torch was asked for"),
        (config.dtype != "auto", f"--dtype {config.dtype} was asked for"),
        (config.kv_cache_dtype not in ("auto", "bfloat16", "int8"),
         f"--kv-cache-dtype {config.kv_cache_dtype} was asked for"),
        (config.quantization in ("none", "fp8"),
         f"--quantization {config.quantization} was asked for"),
        (bool(missing), f"this CPU lacks {', '.join(missing)}"),
        (model.output_bias, "the output projection has a bias"),
        (model.mlp_bias, "the MLP has biases"),
        (bool(windows), f"the context of {max_model_len} tokens is longer than a sliding window; "
         f"--max-model-len {min(windows, default=0)} fits in one"),
    )  # fmt: skip
    reason = next((reason for holds, reason in rules if holds), None)
    return reason or unsupported_reason(fused_shape(model), config.block_size)


class CpuRunner:
    """A loaded model, its KV pool and its worker threads."""

    def __init__(
        self,
        model: FusedModel,
        sampler: FusedSampler,
        scheduler_config: SchedulerConfig,
        info: ModelInfo,
    ) -> None:
        self.scheduler_config, self.info = scheduler_config, info
        self._model, self._sampler = model, sampler

    @classmethod
    def load(cls, config: EngineConfig, progress: Progress) -> "CpuRunner":
        """Load what `config` names; `progress` is told the stage and its share, if it knows one.

        Raises ConfigError and ModelLoadError, the latter also when `fused_runner_reason` has one.
        """
        started = time.monotonic()
        progress("opening the model", None)
        opened = open_configured(config)
        reason = fused_runner_reason(config, opened.config, cpu_features())
        if reason is not None:
            raise ModelLoadError(f"the fused CPU runner cannot be used: {reason}")
        max_model_len = resolve_max_model_len(config, opened.config)
        num_threads = num_physical_cores()
        loaded = load_fused_weights(
            opened.tensors,
            opened.config,
            quantization=config.quantization,
            num_positions=max_model_len,
            num_threads=num_threads,
            progress=progress,
        )
        shape = replace(fused_shape(opened.config), int8_kv=config.kv_cache_dtype == "int8")
        size = kv_cache.choose_size(config, shape.kv_token_bytes, max_model_len, gpu_budget=None)
        progress(_compile_stage(), None)
        model = _fused_model(config, shape, loaded, size, num_threads)
        limits = make_scheduler_config(
            config, opened, size, max_model_len, RANGES["num_speculative_tokens"][1]
        )
        info = _info(config, opened, loaded, size, limits, num_threads)
        logger.info("the fused CPU runner computes the steps: %s", info.backend_reason)
        runner = cls(model, FusedSampler(Sampler(config.seed), model), limits, info)
        progress("warming up", None)
        runner.warm_up()
        runner.info = replace(info, load_seconds=time.monotonic() - started)
        logger.info("weights: %s, %d MiB", loaded.description, loaded.num_bytes >> 20)
        return runner

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Do the block copies, compute the scheduled tokens, draw one token per SampleRequest."""
        self._copy_blocks(plan.block_copies)
        runs, scheduled = split_scored(plan.scheduled, self._model.max_outputs)
        draws = find_draws(scheduled)
        self._sampler.prepare(draws.requests)
        scores = self._score(runs)
        if not scheduled:
            return ModelRunnerOutput({}, scores=scores)
        step = build_step_input(scheduled, draws.rows)
        logits = torch.from_numpy(self._model.run(step, self._sampler.draws_of_step(draws)))
        if not draws.has_own_rows:
            logits = logits[draws.sources]
        tokens = self._sampler.sample(logits, draws.requests) if draws.requests else []
        return replace(draws.output(tokens, self._sum_states(scheduled)), scores=scores)

    def warm_up(self) -> None:
        """Touch all memory of a step: one decode and one chunk of the largest size. Before the first request only."""
        limits = self.scheduler_config
        room = min(limits.max_model_len, limits.num_blocks * limits.block_size)
        for num_tokens in (1, min(limits.max_num_batched_tokens, room)):
            blocks = range(-(-num_tokens // limits.block_size))
            run = ScheduledSequence(0, [0] * num_tokens, 0, blocks, ())
            self._model.run(build_step_input([run]))

    def close(self) -> None:
        """End the worker threads; no step can follow."""
        self._model.close()

    def _score(self, runs: Sequence[ScheduledSequence]) -> dict[int, list[ScoredToken]]:
        """Computes runs of which every token's logits are wanted, as the step keeps those of a few rows only."""
        scores: dict[int, list[ScoredToken]] = defaultdict(list)
        for run in runs:
            assert run.score is not None, "a run without tokens to judge"
            rows = _int32(range(len(run.token_ids)))
            logits = self._model.run(replace(build_step_input([run]), output_rows=rows))
            ids, num_top = run.score.token_ids, run.score.num_top
            scores[run.seq_id] += judge_rows(self._model, logits, ids, num_top)
        return scores

    def _sum_states(self, scheduled: Sequence[ScheduledSequence]) -> dict[int, list[float]]:
        """Of those that want states the sum over the step that has just run."""
        sums, first = {}, 0
        for sequence in scheduled:
            if sequence.wants_states:
                assert not sequence.samples, "rows with logits have no final states"
                end = first + len(sequence.token_ids)
                sums[sequence.seq_id] = self._sum_rows(first, end)
                first = end
        return sums

    def _sum_rows(self, begin: int, end: int) -> list[float]:
        total = np.zeros(self.info.hidden_size)
        for first in range(begin, end, ROWS_IN_CACHE):
            states = self._model.final_states(first, min(first + ROWS_IN_CACHE, end))
            total += np.rint(states / STATE_UNIT).sum(0)
        return (total * STATE_UNIT).tolist()

    def _copy_blocks(self, copies: tuple[BlockCopy, ...]) -> None:
        if copies:
            self._model.copy_blocks([copy.src for copy in copies], [copy.dst for copy in copies])


def build_step_input(scheduled: Sequence[ScheduledSequence], rows: Sequence[int] = ()) -> StepInput:
    """The arrays of a step with logits for `rows`, and states for the runs that want them: per sequence a few list operations, none per token."""
    lengths = [len(sequence.token_ids) for sequence in scheduled]
    ends = list(accumulate(lengths, initial=0))
    table_ends = accumulate((len(s.block_table) for s in scheduled), initial=0)
    with_states = (
        range(*run) for s, run in zip(scheduled, pairwise(ends), strict=True) if s.wants_states
    )
    return StepInput(
        token_ids=_int32(chain.from_iterable(s.token_ids for s in scheduled)),
        seq_rows=_int32(ends),
        positions=_int32([s.start_position for s in scheduled]),
        tables=_int32(table_ends),
        block_tables=_int32(chain.from_iterable(s.block_table for s in scheduled)),
        output_rows=_int32(rows),
        state_rows=_int32(chain.from_iterable(with_states)),
    )


def _int32(numbers) -> np.ndarray:
    return np.frombuffer(array("i", numbers), dtype=np.int32)


def _compile_stage() -> str:
    return "loading CPU kernels" if is_compiled() else "compiling CPU kernels, once on this machine"


def _fused_model(
    config: EngineConfig,
    shape: FusedShape,
    loaded: LoadedWeights,
    size: kv_cache.KVCacheSize,
    num_threads: int,
) -> FusedModel:
    try:
        return FusedModel(
            shape,
            loaded.weights,
            num_blocks=size.num_blocks,
            block_size=config.block_size,
            max_rows=config.max_num_batched_tokens,
            max_outputs=max(config.max_num_seqs, MAX_ROWS, ROWS_AT_A_TIME),
            num_threads=num_threads,
            instruction_set=instruction_set(config, cpu_features()),
        )
    except MemoryError as error:
        raise ModelLoadError(
            f"{size.num_blocks} KV blocks need {size.num_blocks * size.bytes_per_block} bytes, which cannot "
            f"be had ({size.reason}); use a smaller --num-blocks or --kv-cache-memory"
        ) from error


def _why(config: EngineConfig) -> str:
    """Why the step is built for its instruction set, where that is not simply the fastest there is."""
    fastest, features = next(iter(INSTRUCTION_SETS)), cpu_features()
    if config.cpu_isa in INSTRUCTION_SETS:
        return f": --cpu-isa {config.cpu_isa} was asked for"
    missing = missing_features(fastest, features)
    return f": this CPU lacks {', '.join(missing)} for {SET_NAMES[fastest]}" if missing else ""


def _info(
    config: EngineConfig,
    opened: OpenModel,
    loaded: LoadedWeights,
    size: kv_cache.KVCacheSize,
    limits: SchedulerConfig,
    num_threads: int,
) -> ModelInfo:
    built_for = instruction_set(config, cpu_features())
    return ModelInfo(
        model_name=config.model_name,
        architecture=opened.config.architecture,
        num_parameters=loaded.num_parameters,
        quantization=f"{8 * loaded.num_bytes / loaded.num_parameters:.1f} bits, {loaded.description}",
        dtype="int8 activations",
        kv_cache_dtype="int8" if config.kv_cache_dtype == "int8" else "bfloat16",
        attention_backend="cpu",
        backend_reason=f"one compiled step on {num_threads} cores with {SET_NAMES[built_for]}{_why(config)}",
        device="cpu",
        max_model_len=limits.max_model_len,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        vocab_size=opened.config.vocab_size,
        hidden_size=opened.config.hidden_size,
        block_size=limits.block_size,
        num_blocks=size.num_blocks,
        num_blocks_reason=size.reason,
        bytes_per_block=size.bytes_per_block,
        load_seconds=0.0,
    )
