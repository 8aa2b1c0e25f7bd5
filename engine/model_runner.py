"""The torch runner: turns a step's plan into tensors, runs the model over paged memory, draws tokens.

It knows no queue and no text. One thread calls it; torch's own threads share the work of a step.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from engine import kv_cache
from engine.attention_metadata import StepInputs, forward_context, gather_step
from engine.config import EngineConfig, SchedulerConfig
from engine.decode_graphs import CudaRecorder, DecodeGraphs, Recorder
from engine.device_sampler import DeviceSampler
from engine.draws import find_draws
from engine.errors import ConfigError, ModelLoadError
from engine.gpu_memory import GRAPHS_AND_LIBRARIES, activation_bytes, kv_budget, needs_memory
from engine.limits import make_scheduler_config, resolve_max_model_len
from engine.loader.model import OpenModel, open_configured
from engine.loader.weights import EightBits, ModelWeights
from engine.models.config import ModelConfig
from engine.models.llama import LlamaForCausalLM
from engine.outputs import (
    BlockCopy,
    ModelRunnerOutput,
    ScheduledSequence,
    SchedulerOutput,
    ScoredToken,
    ScoreRequest,
)
from engine.placement import KV_DTYPES, Placement, choose_placement, use_physical_cores
from engine.pooling import STATE_UNIT
from engine.prompt_scoring import ROWS_AT_A_TIME, score_rows
from engine.sampler import Sampler
from engine.stats import ModelInfo
from engine.transfer import to_device
from kernels.kv_pool import KVPool
from kernels.ops import KernelBackend, select_backend, usable_backends

Progress = Callable[[str, float | None], None]

CPU_WARM_UP_TOKENS = 64
SUMMED_ROWS = 512
"""Rows whose states are summed at a time: their float64 copies take little memory."""
FREE_MORE = "lower --gpu-memory-utilization, --max-num-batched-tokens or --max-num-seqs"


class ModelRunner:
    """A loaded model and its KV pool."""

    def __init__(
        self,
        model: LlamaForCausalLM,
        pool: KVPool,
        ops: KernelBackend,
        sampler: Sampler | DeviceSampler,
        scheduler_config: SchedulerConfig,
        info: ModelInfo,
    ) -> None:
        self.scheduler_config, self.info = scheduler_config, info
        self._model, self._memory, self._ops, self._sampler = model, pool.memory, ops, sampler
        self._graphs: DecodeGraphs | None = None
        model.bind_kv_cache(pool.layers)

    @classmethod
    def load(cls, config: EngineConfig, progress: Progress) -> "ModelRunner":
        """Load what `config` names; `progress` is told the stage and its share, if it knows one. Raises ConfigError, ModelLoadError."""
        started = time.monotonic()
        progress("opening the model", None)
        opened = open_configured(config)
        place = choose_placement(config)
        use_physical_cores()
        ops = _select_ops(config, place.device)
        _check_eight_bits(config, ops, place)
        _check_head_dim(ops, opened.config.head_dim)
        max_model_len = resolve_max_model_len(config, opened.config)
        with needs_memory("the weights", "use a smaller model or a shorter --dtype"):
            model, weights = _load_model(opened, place, ops, max_model_len, progress)
        progress("allocating KV memory", None)
        layout = kv_cache.make_layout(opened.config, config.block_size, place.kv_dtype)
        budget = _gpu_budget(config, opened.config, place.device)
        size = kv_cache.choose_size(config, layout.token_bytes, max_model_len, budget)
        pool = kv_cache.allocate(layout, size, place.device)
        limits = make_scheduler_config(config, opened, size, max_model_len, 0)
        info = _info(config, opened.config, place, ops, weights, size, limits)
        sampler = Sampler(config.seed)
        if place.device.type == "cuda":
            sampler = DeviceSampler(sampler)
        runner = cls(model, pool, ops, sampler, limits, info)
        progress("warming up", None)
        with needs_memory("a step of --max-num-batched-tokens", FREE_MORE):
            runner.warm_up()
        if place.device.type == "cuda" and ops.name == "triton" and not config.enforce_eager:
            progress("recording decode steps", None)
            with needs_memory("recorded decode steps", f"use --enforce-eager, or {FREE_MORE}"):
                runner.record_decodes(CudaRecorder())
        runner.info = replace(info, load_seconds=time.monotonic() - started)
        return runner

    @torch.inference_mode()
    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Do the block copies, compute the scheduled tokens, draw one token per SampleRequest."""
        self._copy_blocks(plan.block_copies)
        draws = find_draws(plan.scheduled)
        self._sampler.prepare(draws.requests)
        logits, state_sums, scores = self._forward(plan.scheduled, draws.rows)
        if not draws.has_own_rows:
            logits = logits[draws.sources]
        tokens = self._sampler.sample(logits, draws.requests) if draws.requests else []
        return replace(draws.output(tokens, state_sums), scores=scores)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Run decodes and a chunk, so that nothing is compiled or set up during a request.

        On a GPU the largest batch and the largest chunk there can be, which finds out whether memory is enough for them.
        Leaves its traces in the pool: call it before the first request.
        """
        config = self.scheduler_config
        room = min(config.max_model_len, config.num_blocks * config.block_size)
        on_gpu = self._memory.is_cuda
        longest = config.max_num_batched_tokens if on_gpu else CPU_WARM_UP_TOKENS
        chunk = min(longest, config.max_num_batched_tokens, room)
        for num_seqs, num_tokens in ((1, 1), (config.max_num_seqs if on_gpu else 1, 1), (1, chunk)):
            block_table = range(-(-num_tokens // config.block_size))
            run = ScheduledSequence(0, [0] * num_tokens, 0, block_table, ())
            self._forward([run] * num_seqs, list(range(num_seqs)))

    @torch.inference_mode()
    def record_decodes(self, record: Recorder) -> None:
        """Record decode steps for every batch size; from now on they are replayed. Before the first request."""
        config = self.scheduler_config
        max_blocks = -(-config.max_model_len // config.block_size)
        graphs = DecodeGraphs(self._compute, record, config.max_num_seqs, max_blocks)
        graphs.capture(self._memory.device)
        self._graphs = graphs

    def _forward(
        self, scheduled: Sequence[ScheduledSequence], rows: list[int]
    ) -> tuple[torch.Tensor, dict[int, list[float]], dict[int, list[ScoredToken]]]:
        """Logits [len(rows), vocab_size] at the tokens `rows` of the step; sums of states; scores."""
        step, device = gather_step(scheduled, self.scheduler_config.block_size), self._memory.device
        if self._graphs is not None and self._graphs.can_run(step):
            states = self._graphs.run(step)
        else:
            states = self._compute(step.to(device))
        state_sums, scores = self._sum_states(states, scheduled), self._score(states, scheduled)
        if not rows:
            return states.new_empty(0, self.info.vocab_size), state_sums, scores
        chosen = to_device([np.array(rows, np.int64)], device)[0]
        return self._model.compute_logits(states[chosen]), state_sums, scores

    def _compute(self, inputs: StepInputs) -> torch.Tensor:
        """Final states [num_tokens, hidden_size]."""
        with forward_context(inputs.metadata):
            return self._model(inputs.input_ids, inputs.positions)

    def _sum_states(
        self, states: torch.Tensor, scheduled: Sequence[ScheduledSequence]
    ) -> dict[int, list[float]]:
        """Of those that want states the sum over the step, of `states` [num_tokens, hidden_size] after the norm."""
        if not any(sequence.wants_states for sequence in scheduled):
            return {}
        parts = states.split([len(sequence.token_ids) for sequence in scheduled])
        sums = {
            sequence.seq_id: self._sum_rows(part)
            for sequence, part in zip(scheduled, parts, strict=True)
            if sequence.wants_states
        }
        return dict(zip(sums, torch.stack(list(sums.values())).tolist(), strict=True))

    def _score(
        self, states: torch.Tensor, scheduled: Sequence[ScheduledSequence]
    ) -> dict[int, list[ScoredToken]]:
        """How likely the tokens were that are to be judged, from `states` [num_tokens, hidden_size]."""
        parts = states.split([len(sequence.token_ids) for sequence in scheduled])
        return {
            sequence.seq_id: self._score_rows(part, sequence.score)
            for sequence, part in zip(scheduled, parts, strict=True)
            if sequence.score is not None
        }

    def _score_rows(self, states: torch.Tensor, request: ScoreRequest) -> list[ScoredToken]:
        scores: list[ScoredToken] = []
        for begin in range(0, len(request.token_ids), ROWS_AT_A_TIME):
            token_ids = request.token_ids[begin : begin + ROWS_AT_A_TIME]
            logits = self._model.compute_logits(states[begin : begin + len(token_ids)])
            scores += score_rows(logits, token_ids, request.num_top)
        return scores

    def _sum_rows(self, states: torch.Tensor) -> torch.Tensor:
        total = states.new_zeros(states.shape[1], dtype=torch.float64)
        for part in states.split(SUMMED_ROWS):
            total += (self._model.norm(part).double() / STATE_UNIT).round().sum(0)
        return total * STATE_UNIT

    def _copy_blocks(self, copies: tuple[BlockCopy, ...]) -> None:
        if copies:
            src, dst = torch.tensor(
                [[copy.src for copy in copies], [copy.dst for copy in copies]],
                device=self._memory.device,
            )
            self._ops.copy_blocks(self._memory, src, dst)


def _select_ops(config: EngineConfig, device: torch.device) -> KernelBackend:
    try:
        return select_backend(config.attention_backend, device)
    except ValueError as error:
        allowed = f"{', '.join(['auto', *usable_backends(device)])} work here: {error}"
        raise ConfigError("--attention-backend", config.attention_backend, allowed) from error


def _check_eight_bits(config: EngineConfig, ops: KernelBackend, place: Placement) -> None:
    """Raises ConfigError for numbers in which the kernels keep no keys and values, or no weights."""
    here = f"with the attention backend {ops.name}; eight bits need a GPU here"
    if place.kv_dtype not in ops.cache_dtypes:
        allowed = f"auto, float32 or bfloat16 works {here}"
        raise ConfigError("--kv-cache-dtype", config.kv_cache_dtype, allowed)
    if place.weight_dtype is not None and ops.quantized_linear is None:
        raise ConfigError("--quantization", config.quantization, f"auto or none works {here}")


def _check_head_dim(ops: KernelBackend, head_dim: int) -> None:
    """Raises ModelLoadError for a model whose heads the kernels cannot do."""
    if head_dim % 2 or head_dim > ops.max_head_dim:
        raise ModelLoadError(
            f"head_dim {head_dim} is not supported by the {ops.name} backend; "
            f"supported: even numbers up to {ops.max_head_dim}"
        )


def _gpu_budget(
    config: EngineConfig, model: ModelConfig, device: torch.device
) -> tuple[int, str] | None:
    """Bytes of a GPU that KV blocks may take, weights being there; None on a CPU."""
    if device.type == "cpu":
        return None
    activations = activation_bytes(model, config.max_num_batched_tokens, config.max_num_seqs)
    reserved = activations + GRAPHS_AND_LIBRARIES
    return kv_budget(config.gpu_memory_utilization, reserved, device)


def _load_model(
    opened: OpenModel,
    place: Placement,
    ops: KernelBackend,
    max_model_len: int,
    progress: Progress,
) -> tuple[LlamaForCausalLM, ModelWeights]:
    eight_bits = None
    if place.weight_dtype is not None and ops.quantized_linear is not None:
        eight_bits = EightBits(place.weight_dtype, ops.quantized_linear)
    weights = ModelWeights(
        opened.tensors,
        dtype=place.dtype,
        device=place.device,
        packed=place.packed,
        eight_bits=eight_bits,
    )
    model = LlamaForCausalLM(
        opened.config,
        weights,
        ops,
        max_model_len=max_model_len,
        progress=lambda share: progress("loading weights", share),
    )
    weights.check_all_used()
    return model, weights


def _info(
    config: EngineConfig,
    model: ModelConfig,
    place: Placement,
    ops: KernelBackend,
    weights: ModelWeights,
    size: kv_cache.KVCacheSize,
    limits: SchedulerConfig,
) -> ModelInfo:
    share = weights.num_packed / weights.num_parameters
    bits = config.quantization if place.weight_dtype is not None else "int4"
    return ModelInfo(
        model_name=config.model_name,
        architecture=model.architecture,
        num_parameters=weights.num_parameters,
        quantization=f"{bits} ({share:.0%} of the weights)" if share else "none",
        dtype=str(place.dtype).removeprefix("torch."),
        kv_cache_dtype=next(name for name, dtype in KV_DTYPES.items() if dtype is place.kv_dtype),
        attention_backend=ops.name,
        backend_reason=ops.reason,
        device=str(place.device),
        max_model_len=limits.max_model_len,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_size,
        block_size=limits.block_size,
        num_blocks=size.num_blocks,
        num_blocks_reason=size.reason,
        bytes_per_block=size.bytes_per_block,
        load_seconds=0.0,
    )
