"""Writes small GGUF files as llama.cpp's converter does, and reads any into transformers' model.

The reading side shares nothing with the loader under test: the reader of the gguf package, transformers' dequantiser,
and the permutation undone step by step.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, GGUFWriter, ReaderTensor
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import quantize
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.integrations.gguf.dequant import dequantize

NAMES = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
}
WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4}
"""Of a model whose matrices divide into K-quants' blocks of 256."""
K_QUANTS = (GGMLQuantizationType.Q4_K, GGMLQuantizationType.Q5_K, GGMLQuantizationType.Q6_K)


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    quantization: GGMLQuantizationType = GGMLQuantizationType.F32,
    *,
    extra_keys: dict[str, Any] | None = None,
    extra_tensors: dict[str, np.ndarray] | None = None,
) -> Path:
    """Store a transformers model; matrices in `quantization`, the rest in float32."""
    config = model.config
    architecture = "llama" if config.model_type == "mistral" else config.model_type
    writer = GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    for key, value in (extra_keys or {}).items():
        writer.add_key_value(key, *value)
    for name, parameter in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = parameter.float().numpy()
        if architecture == "llama":
            values = _permute(name, values, config)
        _add(writer, _stored_name(name), values, quantization)
    for name, values in (extra_tensors or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(
    writer: GGUFWriter, name: str, values: np.ndarray, quantization: GGMLQuantizationType
) -> None:
    if values.ndim == 1 or quantization == GGMLQuantizationType.F32:
        writer.add_tensor(name, values)
    elif quantization == GGMLQuantizationType.F16:
        writer.add_tensor(name, values.astype(np.float16))
    else:
        make = _random_blocks if quantization in K_QUANTS else quantize
        writer.add_tensor(name, make(values, quantization), raw_dtype=quantization)


def _random_blocks(values: np.ndarray, quantization: GGMLQuantizationType) -> np.ndarray:
    """Random integers with scales of sensible size: what stands there does not matter, only that both sides agree."""
    block_length, block_bytes = GGML_QUANT_SIZES[quantization]
    rng = np.random.default_rng(values.size)
    shape = (values.shape[0], values.shape[1] // block_length, block_bytes)
    blocks = rng.integers(0, 256, shape, dtype=np.uint8)
    # Q4_K and Q5_K begin with two float16 scales, Q6_K ends with one.
    scales = rng.uniform(1e-3, 2e-3, (*shape[:2], 2)).astype(np.float16).view(np.uint8)
    if quantization == GGMLQuantizationType.Q6_K:
        blocks[..., -2:] = (scales[..., :2].view(np.float16) / 32).view(np.uint8)
    else:
        blocks[..., :4] = scales
    return blocks.reshape(values.shape[0], -1)


def _stored_name(name: str) -> str:
    parts = name.split(".")
    stem = NAMES[parts[-2]]
    return f"blk.{parts[2]}.{stem}.{parts[-1]}" if "layers" in parts else f"{stem}.{parts[-1]}"


def _permute(name: str, values: np.ndarray, config: Any) -> np.ndarray:
    """llama.cpp's order of q and k: within a head, the two halves take turns."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    num_heads = heads.get(name.split(".")[-2])
    if num_heads is None:
        return values
    halves = values.reshape(num_heads, 2, values.shape[0] // num_heads // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def read_with_transformers(path: Path, config_fields: dict[str, Any]) -> PreTrainedModel:
    """transformers' model in float32 with the weights of a GGUF file, dequantised by transformers."""
    config = AutoConfig.for_model(**config_fields)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    reader = GGUFReader(path)
    architecture = reader.fields["general.architecture"].contents()
    stored = _read_all(reader)
    state = {}
    for name, parameter in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = stored[_stored_name(name)].reshape(parameter.shape)
        state[name] = _unpermute(name, values, config) if architecture == "llama" else values
    model.load_state_dict(state, strict=not config.tie_word_embeddings)
    model.tie_weights()
    return model


def _read_all(reader: GGUFReader) -> dict[str, torch.Tensor]:
    return {tensor.name: _read(tensor) for tensor in reader.tensors}


def _read(tensor: ReaderTensor) -> torch.Tensor:
    raw = np.array(tensor.data)
    kind = tensor.tensor_type
    if kind == GGMLQuantizationType.BF16:
        return torch.from_numpy(raw).view(torch.bfloat16).float()
    if kind in (GGMLQuantizationType.F32, GGMLQuantizationType.F16):
        return torch.from_numpy(raw).float()
    if kind in (GGMLQuantizationType.Q5_0, GGMLQuantizationType.Q5_1):
        return torch.from_numpy(_five_bits(raw, kind))
    return dequantize(torch.from_numpy(raw), kind).float()


def _five_bits(raw: np.ndarray, kind: GGMLQuantizationType) -> np.ndarray:
    """Blocks of 32: float16 scale (and minimum), 4 bytes of fifth bits, 16 bytes of low and high nibbles."""
    with_minimum = kind == GGMLQuantizationType.Q5_1
    head = 4 if with_minimum else 2
    values = []
    for block in raw.reshape(-1, head + 20):
        halves = block[:head].view(np.float16).astype(np.float32)
        offset = halves[1] if with_minimum else -16 * halves[0]
        fifth = int.from_bytes(block[head : head + 4].tobytes(), "little")
        for i in range(32):
            nibble = int(block[head + 4 + i % 16]) >> (4 * (i // 16)) & 15
            values.append((nibble | (fifth >> i & 1) << 4) * halves[0] + offset)
    return np.array(values, dtype=np.float32)


def _unpermute(name: str, values: torch.Tensor, config: Any) -> torch.Tensor:
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    num_heads = heads.get(name.split(".")[-2])
    if num_heads is None:
        return values
    turns = values.reshape(num_heads, values.shape[0] // num_heads // 2, 2, *values.shape[1:])
    return turns.swapaxes(1, 2).reshape(values.shape)
