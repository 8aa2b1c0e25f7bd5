"""GGUF models of the Llama family: configuration as transformers would write it, tensors under transformers' names.

Sources: llama.cpp's gguf-py/gguf/constants.py (keys, tensor names) and conversion/llama.py (the permutation of q and k).
"""

import math
from typing import Any

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType as QuantizationType
from gguf.quants import dequantize

from engine.errors import ModelLoadError
from engine.loader.gguf_file import GGUFFile, GGUFTensor
from engine.loader.quantized import Int4Weight, Int8Table, int4_from_gguf, int8_from_gguf
from engine.models.config import FULL, SLIDING

ARCHITECTURES = {  # what the file says -> what transformers says; llama.cpp keeps Mistral as llama
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
PERMUTED_ARCHITECTURES = ("llama",)
FLOAT_TYPES = (QuantizationType.F32, QuantizationType.F16, QuantizationType.BF16)
INTEGER_TYPES = (
    QuantizationType.Q8_0,
    QuantizationType.Q4_0,
    QuantizationType.Q4_1,
    QuantizationType.Q5_0,
    QuantizationType.Q5_1,
    QuantizationType.Q4_K,
    QuantizationType.Q5_K,
    QuantizationType.Q6_K,
)
SUPPORTED_TYPES = FLOAT_TYPES + INTEGER_TYPES
ROPE_FACTORS = "rope_freqs.weight"
GLOBAL_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def config_from_gguf(file: GGUFFile) -> dict[str, Any]:
    """The fields of a transformers configuration. Raises ModelLoadError for an architecture we have no code for."""
    architecture = file.architecture
    if architecture not in ARCHITECTURES:
        raise ModelLoadError(
            f"{file.path.name} has architecture {architecture!r}, which is not supported; "
            f"supported: {', '.join(ARCHITECTURES)}"
        )
    num_heads = _key(file, "attention.head_count")
    head_dim = _key(file, "embedding_length") // num_heads
    return {
        "model_type": architecture,
        "architectures": [ARCHITECTURES[architecture]],
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "hidden_size": _key(file, "embedding_length"),
        "intermediate_size": _key(file, "feed_forward_length"),
        "num_hidden_layers": _key(file, "block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": _key(file, "attention.head_count_kv", num_heads),
        "head_dim": _key(file, "attention.key_length", head_dim),
        "rms_norm_eps": _key(file, "attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": _key(file, "context_length"),
        "rope_parameters": _rope_parameters(file),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "eos_token_id": file.metadata.get("tokenizer.ggml.eos_token_id"),
    } | _sliding_windows(file)


def _sliding_windows(file: GGUFFile) -> dict[str, Any]:
    """The window, and which layers have it: those that a list marks, with a number n all but every n-th, else all.

    Raises ModelLoadError for a list of another length.
    """
    window = _key(file, "attention.sliding_window", 0)
    if not window:
        return {}
    name, num_layers = "attention.sliding_window_pattern", _key(file, "block_count")
    pattern = _key(file, name, 0)
    if isinstance(pattern, int):
        pattern = [pattern == 0 or (i + 1) % pattern > 0 for i in range(num_layers)]
    if len(pattern) != num_layers:
        raise ModelLoadError(
            f"{file.path.name} has {num_layers} layers, and {name} has {len(pattern)}"
        )
    kinds = [SLIDING if slides else FULL for slides in pattern]
    return {"sliding_window": window, "use_sliding_window": True, "layer_types": kinds}


def _rope_parameters(file: GGUFFile) -> dict[str, Any]:
    """As llama.cpp reads the keys: without a type a factor is linear, and with type none it counts for nothing."""
    parameters: dict[str, Any] = {
        "rope_theta": _key(file, "rope.freq_base", 10_000.0),
        "rope_type": "default",
    }
    kind = _key(file, "rope.scaling.type", "linear")
    factor = _key(file, "rope.scaling.factor", _key(file, "rope.scale_linear", 0.0)) or 1.0
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return parameters
    parameters |= {"rope_type": kind, "factor": factor}
    original = _key(file, "rope.scaling.original_context_length", 0)
    if original:
        parameters["original_max_position_embeddings"] = original
    return parameters | _magnitude(file, kind, factor) | _yarn_parameters(file, kind)


def _magnitude(file: GGUFFile, kind: str, factor: float) -> dict[str, Any]:
    """llama.cpp multiplies YaRN's own magnitude by this key, transformers replaces it."""
    multiplier = _key(file, "rope.scaling.attn_factor", 1.0)
    if multiplier == 1.0:
        return {}
    if kind != "yarn":
        raise ModelLoadError(
            f"{file.path.name} has rope.scaling.attn_factor {multiplier} with type {kind}, which is not supported; "
            "supported: yarn"
        )
    return {"attention_factor": multiplier * (1.0 + 0.1 * math.log(factor))}


def _yarn_parameters(file: GGUFFile, kind: str) -> dict[str, Any]:
    keys = {"beta_fast": "yarn_beta_fast", "beta_slow": "yarn_beta_slow"}
    given = {name: _key(file, f"rope.scaling.{key}", 0.0) for name, key in keys.items()}
    return {name: value for name, value in given.items() if value and kind == "yarn"}


def _key(file: GGUFFile, name: str, default: Any = None) -> Any:
    value = file.metadata.get(f"{file.architecture}.{name}", default)
    if value is None:
        raise ModelLoadError(f"{file.path.name} lacks the key {file.architecture}.{name}")
    return value


class GGUFTensors:
    """Tensors of an open file by transformers' names, in transformers' row order."""

    def __init__(self, file: GGUFFile) -> None:
        self._file = file
        self._num_heads = _key(file, "attention.head_count")
        self._num_kv_heads = _key(file, "attention.head_count_kv", self._num_heads)
        self._permuted = file.architecture in PERMUTED_ARCHITECTURES
        self.unused = set(file.tensors)

    def __contains__(self, name: str) -> bool:
        return _gguf_name(name) in self._file.tensors

    def dense(self, name: str) -> torch.Tensor:
        """The tensor in float32. Raises ModelLoadError for a missing tensor or an unsupported type."""
        tensor = self._tensor(name)
        if tensor.quantization not in SUPPORTED_TYPES:
            raise ModelLoadError(
                f"tensor {tensor.name} is stored as {tensor.quantization.name}, which is not supported; "
                f"supported: {', '.join(kind.name for kind in SUPPORTED_TYPES)}"
            )
        values = dequantize(_typed(tensor), tensor.quantization).astype(np.float32, copy=False)
        dense = torch.from_numpy(np.array(values).reshape(tensor.shape))
        rows = self._row_order(name, tensor.shape[0])
        return dense if rows is None else dense[rows]

    def int4(self, name: str) -> Int4Weight | None:
        """The tensor as four-bit groups, None when it is stored in another way."""
        tensor = self._tensor(name)
        weight, rows = int4_from_gguf(tensor), self._row_order(name, tensor.shape[0])
        return weight if weight is None or rows is None else weight.take_rows(rows)

    def int8(self, name: str) -> Int8Table | None:
        """The tensor as rows of eight-bit groups, None when it is stored in another way."""
        return int8_from_gguf(self._tensor(name))

    def stored(self, name: str) -> tuple[GGUFTensor, torch.Tensor | None]:
        """The tensor as the file has it, and which stored row each row is (None: they are in order)."""
        tensor = self._tensor(name)
        return tensor, self._row_order(name, tensor.shape[0])

    def is_quantized(self, name: str) -> bool:
        """Whether the tensor is stored in blocks of integers."""
        return self._tensor(name).quantization in INTEGER_TYPES

    def rope_factors(self) -> torch.Tensor | None:
        """Divisors of the rotary frequencies [head_dim / 2], which Llama 3.1 files carry."""
        tensor = self._file.tensors.get(ROPE_FACTORS)
        self.unused.discard(ROPE_FACTORS)
        return None if tensor is None else torch.from_numpy(tensor.data.view(np.float32).copy())

    def _tensor(self, name: str) -> GGUFTensor:
        gguf_name = _gguf_name(name)
        if gguf_name not in self._file.tensors:
            raise ModelLoadError(f"{self._file.path.name} lacks the tensor {gguf_name}")
        self.unused.discard(gguf_name)
        return self._file.tensors[gguf_name]

    def _row_order(self, name: str, num_rows: int) -> torch.Tensor | None:
        """Which stored row each row is: q and k of `llama` files interleave the two halves of every head."""
        num_heads = {"q_proj": self._num_heads, "k_proj": self._num_kv_heads}.get(
            name.split(".")[-2]
        )
        if num_heads is None or not self._permuted:
            return None
        return torch.arange(num_rows).view(num_heads, -1, 2).transpose(1, 2).reshape(-1)


def _typed(tensor: GGUFTensor) -> np.ndarray:
    """Raw bytes, or numbers for the two types that `dequantize` wants as numbers."""
    types = {QuantizationType.F32: np.float32, QuantizationType.F16: np.float16}
    rows = tensor.rows()
    return rows.view(types[tensor.quantization]) if tensor.quantization in types else rows


def _gguf_name(name: str) -> str:
    """`model.layers.3.mlp.up_proj.weight` is `blk.3.ffn_up.weight`."""
    stem, kind = name.rsplit(".", 1)
    if stem in GLOBAL_NAMES:
        return f"{GLOBAL_NAMES[stem]}.{kind}"
    _, _, layer, module = stem.split(".", 3)
    return f"blk.{layer}.{LAYER_NAMES[module]}.{kind}"
