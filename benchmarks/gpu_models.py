"""Decode steps of whole models with random weights, with and without recorded steps, against the floor of their bytes."""

import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import LlamaConfig

from benchmarks.gpu_rows import Row
from benchmarks.gpu_speed import Machine, random_pool
from engine.attention_metadata import StepArrays, StepInputs, forward_context, gather_step
from engine.decode_graphs import CudaRecorder, DecodeGraphs
from engine.kv_cache import make_layout
from engine.loader.weights import EightBits, ModelWeights
from engine.models.config import ModelConfig, parse_config
from engine.models.llama import LlamaForCausalLM
from engine.outputs import ScheduledSequence

BLOCK_SIZE, CONTEXT, NUM_STEPS = 16, 1024, 24
BATCHES = (1, 64)
SHAPES: dict[str, dict[str, Any]] = {
    "Llama 3 8B": {
        "vocab_size": 128_256,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "SmolLM2 135M": {
        "vocab_size": 49_152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "tie_word_embeddings": True,
    },
}
TINY: dict[str, dict[str, Any]] = {
    "a tiny model": SHAPES["SmolLM2 135M"] | {"vocab_size": 320, "num_hidden_layers": 1},
}


class RandomTensors:
    """What a file of random weights would give, made on the device."""

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        self._config, self._device = config, device
        self.unused: set[str] = set()

    def dense(self, name: str) -> torch.Tensor:
        shape = self._shape(name.removesuffix(".weight").rsplit(".", 1)[-1])
        return torch.empty(shape, dtype=torch.bfloat16, device=self._device).normal_(0, 0.02)

    def int4(self, name: str) -> None:
        return None

    def int8(self, name: str) -> None:
        return None

    def is_quantized(self, name: str) -> bool:
        return False

    def rope_factors(self) -> None:
        return None

    def _shape(self, layer: str) -> tuple[int, ...]:
        c = self._config
        query, kv = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        return {
            "q_proj": (query, c.hidden_size),
            "k_proj": (kv, c.hidden_size),
            "v_proj": (kv, c.hidden_size),
            "o_proj": (c.hidden_size, query),
            "gate_proj": (c.intermediate_size, c.hidden_size),
            "up_proj": (c.intermediate_size, c.hidden_size),
            "down_proj": (c.hidden_size, c.intermediate_size),
            "embed_tokens": (c.vocab_size, c.hidden_size),
            "lm_head": (c.vocab_size, c.hidden_size),
        }.get(layer, (c.hidden_size,))


class Decoder:
    """A model with a pool for the largest batch; `step` is what an engine's greedy step does, sampling included."""

    def __init__(
        self, config: ModelConfig, machine: Machine, context: int, *, eight_bits: bool
    ) -> None:
        self.config, self.machine, self.context = config, machine, context
        self.per_seq = -(-(context + NUM_STEPS) // BLOCK_SIZE)
        tensors = RandomTensors(config, machine.device)
        multiply = machine.ops.quantized_linear if eight_bits else None
        rounded = None if multiply is None else EightBits(torch.int8, multiply)
        weights = ModelWeights(
            tensors, dtype=machine.dtype, device=machine.device, eight_bits=rounded
        )
        self.model = LlamaForCausalLM(
            config,
            weights,
            machine.ops,
            max_model_len=context + NUM_STEPS,
            progress=lambda share: None,
        )
        stored = torch.int8 if eight_bits else machine.dtype
        self.layout = make_layout(config, BLOCK_SIZE, stored)
        pool = random_pool(self.layout, self.largest_batch * self.per_seq, machine.device)
        self.model.bind_kv_cache(pool.layers)
        # A table of its own for the way in is read by the row.
        unread = 0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size
        itemsize = 1 if eight_bits else machine.dtype.itemsize
        self.weight_bytes = (weights.num_parameters - unread) * itemsize
        self.graphs: DecodeGraphs | None = None

    @property
    def largest_batch(self) -> int:
        return 1 if self.machine.dry_run else max(BATCHES)

    def record(self) -> None:
        """From now on steps are replayed."""
        self.graphs = DecodeGraphs(
            self.compute, CudaRecorder(), self.largest_batch, max_blocks=self.per_seq
        )
        self.graphs.capture(self.machine.device)

    def compute(self, inputs: StepInputs) -> torch.Tensor:
        with forward_context(inputs.metadata):
            return self.model(inputs.input_ids, inputs.positions)

    def step(self, tokens: Sequence[int], position: int) -> list[int]:
        """The likeliest next tokens."""
        step = self._gather(tokens, position)
        if self.graphs is not None and self.graphs.can_run(step):
            states = self.graphs.run(step)
        else:
            states = self.compute(step.to(self.machine.device))
        return self.model.compute_logits(states).argmax(-1).tolist()

    def floor_seconds(self, batch: int) -> float:
        """Weights and keys read once."""
        kv_bytes = batch * self.context * self.layout.token_bytes
        return (self.weight_bytes + kv_bytes) / self.machine.bandwidth

    def _gather(self, tokens: Sequence[int], position: int) -> StepArrays:
        runs = [
            ScheduledSequence(
                i, [token], position, range(i * self.per_seq, (i + 1) * self.per_seq), ()
            )
            for i, token in enumerate(tokens)
        ]
        return gather_step(runs, BLOCK_SIZE)


@torch.inference_mode()
def decode_whole_models(machine: Machine) -> Iterator[Row]:
    """Tokens per second, and the share of what reading all bytes once would allow."""
    context = 20 if machine.dry_run else CONTEXT
    shapes = TINY if machine.dry_run else SHAPES
    for (name, shape), eight_bits in itertools.product(shapes.items(), (False, True)):
        source = LlamaConfig(
            architectures=["LlamaForCausalLM"], max_position_embeddings=8192, **shape
        )
        decoder = Decoder(parse_config(source), machine, context, eight_bits=eight_bits)
        kind = f"{name}, int8 weights and KV" if eight_bits else name
        if machine.dry_run or not eight_bits:
            yield from _decode_rows(f"{kind}, eager", decoder, None)
        if not machine.dry_run:
            decoder.record()
            yield from _decode_rows(f"{kind}, recorded", decoder, 0.8)
            del decoder
            torch.cuda.empty_cache()


def _decode_rows(name: str, decoder: Decoder, goal: float | None) -> Iterator[Row]:
    for batch in BATCHES if decoder.largest_batch > 1 else (1,):
        seconds = _step_seconds(decoder, batch)
        what = f"{name}, batch {batch}, {decoder.context} keys"
        yield Row(what, batch / seconds, "tokens/s")
        wanted = goal if decoder.config.hidden_size >= 4096 else None
        yield Row(f"{what}, share of floor", decoder.floor_seconds(batch) / seconds, "", wanted)


def _step_seconds(decoder: Decoder, batch: int) -> float:
    """Mean of the steps after a few to warm up; each ends with tokens on the host."""
    tokens, num_cold = [5] * batch, 1 if decoder.machine.dry_run else 4
    num_steps = 2 if decoder.machine.dry_run else NUM_STEPS
    start = 0.0
    for index in range(num_steps):
        if index == num_cold:
            start = time.perf_counter()
        tokens = decoder.step(tokens, decoder.context + index)
    return (time.perf_counter() - start) / (num_steps - num_cold)
