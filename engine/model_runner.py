"""The torch runner: turns a step's plan into tensors, runs the model over paged memory, draws tokens.

It knows no queue and no text. One thread calls it; torch's own threads share the work of a step.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from engine import kv_cache
from engine.attention_metadata import build_step_inputs, forward_context
from engine.config import EngineConfig, SchedulerConfig
from engine.errors import ConfigError
from engine.limits import make_scheduler_config, resolve_max_model_len
from engine.loader.model import OpenModel, open_configured
from engine.loader.weights import ModelWeights
from engine.models.config import ModelConfig
from engine.models.llama import LlamaForCausalLM
from engine.outputs import BlockCopy, ModelRunnerOutput, ScheduledSequence, SchedulerOutput
from engine.placement import Placement, choose_placement, use_physical_cores
from engine.pooling import STATE_UNIT
from engine.sampler import Sampler
from engine.stats import ModelInfo
from kernels.ops import KernelBackend, select_backend

Progress = Callable[[str, float], None]

CPU_WARM_UP_TOKENS = 64


class ModelRunner:
    """A loaded model and its KV pool."""

    def __init__(
        self,
        model: LlamaForCausalLM,
        pool: torch.Tensor,
        ops: KernelBackend,
        sampler: Sampler,
        scheduler_config: SchedulerConfig,
        info: ModelInfo,
    ) -> None:
        self.scheduler_config, self.info = scheduler_config, info
        self._model, self._pool, self._ops, self._sampler = model, pool, ops, sampler
        model.bind_kv_cache(pool)

    @classmethod
    def load(cls, config: EngineConfig, progress: Progress) -> "ModelRunner":
        """Load what `config` names; `progress` is told the stage and its share. Raises ConfigError, ModelLoadError."""
        started = time.monotonic()
        progress("opening the model", 0.0)
        opened = open_configured(config)
        place = choose_placement(config)
        use_physical_cores()
        ops = _select_ops(config, place.device)
        max_model_len = resolve_max_model_len(config, opened.config)
        model, weights = _load_model(opened, place, ops, max_model_len, progress)
        progress("allocating KV memory", 0.0)
        token_bytes = kv_cache.bytes_per_token(opened.config, place.kv_dtype)
        size = kv_cache.choose_size(config, token_bytes, max_model_len, place.device)
        pool = kv_cache.allocate(
            opened.config, size, config.block_size, place.kv_dtype, place.device
        )
        limits = make_scheduler_config(config, opened, size, max_model_len)
        info = _info(config, opened.config, place, ops, weights, size, limits)
        runner = cls(model, pool, ops, Sampler(config.seed), limits, info)
        progress("warming up", 0.0)
        runner.warm_up()
        runner.info = replace(info, load_seconds=time.monotonic() - started)
        return runner

    @torch.inference_mode()
    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Do the block copies, compute the scheduled tokens, draw one token per SampleRequest."""
        self._copy_blocks(plan.block_copies)
        sampled = [
            (row, sequence.samples)
            for row, sequence in enumerate(plan.scheduled)
            if sequence.samples
        ]
        logits, state_sums = self._forward(plan.scheduled, [row for row, _ in sampled])
        # The candidates of one prompt draw from one row.
        rows = [i for i, (_, samples) in enumerate(sampled) for _ in samples]
        requests = [request for _, samples in sampled for request in samples]
        if len(rows) > len(sampled):
            logits = logits[rows]
        tokens = self._sampler.sample(logits, requests) if requests else []
        return ModelRunnerOutput(
            {request.seq_id: token for request, token in zip(requests, tokens, strict=True)},
            state_sums,
        )

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Run one decode and one chunk, so that nothing is compiled or set up during a request.

        On a GPU the chunk is the largest there can be, which finds out whether memory is enough for it. Leaves its
        traces in the pool: call it before the first request.
        """
        config = self.scheduler_config
        room = min(config.max_model_len, config.num_blocks * config.block_size)
        longest = config.max_num_batched_tokens if self._pool.is_cuda else CPU_WARM_UP_TOKENS
        for num_tokens in (1, min(longest, config.max_num_batched_tokens, room)):
            block_table = range(-(-num_tokens // config.block_size))
            self._forward([ScheduledSequence(0, [0] * num_tokens, 0, block_table, ())], [0])

    def _forward(
        self, scheduled: Sequence[ScheduledSequence], rows: list[int]
    ) -> tuple[torch.Tensor, dict[int, list[float]]]:
        """Logits [len(rows), vocab_size] at the last token of the scheduled sequences `rows`; sums of states."""
        inputs = build_step_inputs(scheduled, self.scheduler_config.block_size, self._pool.device)
        with forward_context(inputs.metadata):
            states = self._model(inputs.input_ids, inputs.positions)
        state_sums = self._sum_states(states, scheduled)
        if not rows:
            return states.new_empty(0, self.info.vocab_size), state_sums
        last = inputs.metadata.query_start_loc[1:].long() - 1
        return self._model.compute_logits(states[last[rows]]), state_sums

    def _sum_states(
        self, states: torch.Tensor, scheduled: Sequence[ScheduledSequence]
    ) -> dict[int, list[float]]:
        """Of those that want states the sum over the step, of `states` [num_tokens, hidden_size] after the norm."""
        if not any(sequence.wants_states for sequence in scheduled):
            return {}
        parts = states.split([len(sequence.token_ids) for sequence in scheduled])
        sums = {
            sequence.seq_id: (self._model.norm(part).double() / STATE_UNIT).round().sum(0)
            for sequence, part in zip(scheduled, parts, strict=True)
            if sequence.wants_states
        }
        values = (torch.stack(list(sums.values())) * STATE_UNIT).tolist()
        return dict(zip(sums, values, strict=True))

    def _copy_blocks(self, copies: tuple[BlockCopy, ...]) -> None:
        if copies:
            src, dst = torch.tensor(
                [[copy.src for copy in copies], [copy.dst for copy in copies]],
                device=self._pool.device,
            )
            self._ops.copy_blocks(self._pool, src, dst)


def _select_ops(config: EngineConfig, device: torch.device) -> KernelBackend:
    try:
        return select_backend(config.attention_backend, device)
    except ValueError as error:
        raise ConfigError(
            "--attention-backend", config.attention_backend, f"auto works here: {error}"
        ) from error


def _load_model(
    opened: OpenModel,
    place: Placement,
    ops: KernelBackend,
    max_model_len: int,
    progress: Progress,
) -> tuple[LlamaForCausalLM, ModelWeights]:
    weights = ModelWeights(
        opened.tensors, dtype=place.dtype, device=place.device, packed=place.packed
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
    return ModelInfo(
        model_name=config.model_name,
        architecture=model.architecture,
        num_parameters=weights.num_parameters,
        quantization=f"int4 ({share:.0%} of the weights)" if share else "none",
        dtype=str(place.dtype).removeprefix("torch."),
        kv_cache_dtype=str(place.kv_dtype).removeprefix("torch."),
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
