"""Small random models of every supported architecture, and a way to run ours as the engine does."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from engine.attention_metadata import build_step_inputs, forward_context
from engine.loader.model import open_model
from engine.loader.weights import ModelWeights
from engine.models.llama import LlamaForCausalLM as OurModel
from engine.outputs import ScheduledSequence
from kernels.kv_pool import KVPool
from kernels.ops import BackendName, select_backend

CPU = torch.device("cpu")
VOCAB_SIZE = 320
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 192,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "max_position_embeddings": 128,
    "initializer_range": 0.1,
    "sliding_window": None,
}
CLASSES: dict[str, tuple[type, type]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}


def make_reference(model_type: str, **changes: Any) -> PreTrainedModel:
    """transformers' model with random weights, norms and biases included."""
    config_class, model_class = CLASSES[model_type]
    torch.manual_seed(7)
    model = model_class(config_class(**(SIZES | changes))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def reference_logits(model: PreTrainedModel, token_ids: Sequence[int]) -> torch.Tensor:
    """Logits [num_tokens, vocab_size] at every position."""
    with torch.inference_mode():
        return model(torch.tensor([list(token_ids)])).logits[0]


def load_ours(
    path: Path,
    backend: BackendName = "reference",
    *,
    dtype: torch.dtype = torch.float32,
    packed: bool = False,
    max_model_len: int = 128,
) -> OurModel:
    """Our model from a folder or .gguf file."""
    opened = open_model(path)
    weights = ModelWeights(opened.tensors, dtype=dtype, device=CPU, packed=packed)
    model = OurModel(
        opened.config,
        weights,
        select_backend(backend, CPU),
        max_model_len=max_model_len,
        progress=lambda share: None,
    )
    weights.check_all_used()
    return model


def paged_logits(
    model: OurModel,
    token_ids: Sequence[int],
    *,
    chunks: Sequence[int] | None = None,
    block_ids: Sequence[int] | None = None,
    block_size: int = 16,
) -> torch.Tensor:
    """Logits at every position, computed in `chunks` of tokens over a pool whose other blocks hold NaN."""
    num_blocks = -(-len(token_ids) // block_size)
    block_ids = block_ids or range(num_blocks)
    pool = torch.full(
        (
            model.config.num_layers,
            2,
            max(block_ids) + 2,
            model.config.num_kv_heads,
            block_size,
            model.config.head_dim,
        ),
        float("nan"),
        dtype=model.dtype,
    )
    model.bind_kv_cache(KVPool.over(pool).layers)
    parts, start = [], 0
    for length in chunks or [len(token_ids)]:
        run = ScheduledSequence(0, token_ids[start : start + length], start, block_ids, ())
        parts.append(run_batch(model, [run], block_size))
        start += length
    return torch.cat(parts)


@torch.inference_mode()
def run_batch(
    model: OurModel, scheduled: Sequence[ScheduledSequence], block_size: int = 16
) -> torch.Tensor:
    """Logits of all tokens of a batch, in order."""
    inputs = build_step_inputs(scheduled, block_size, CPU)
    with forward_context(inputs.metadata):
        return model.compute_logits(model(inputs.input_ids, inputs.positions))
