"""What a Llama-family model looks like, read from a transformers configuration and checked by name."""

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from transformers import PretrainedConfig

from engine.errors import ModelLoadError
from engine.layers.rotary_embedding import ROPE_TYPES
from engine.rope_scaling import RopeScaling

ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
)
FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes and variants. `sliding_windows` has each layer's: a token sees so many tokens, itself included; None: all up to itself.

    `qkv_bias`, `output_bias`, `mlp_bias` say which projections have a bias, `qk_norm` whether each head of q and k is
    normalised. `rope` is the source of the rotary frequencies.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    sliding_windows: tuple[int | None, ...]
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    rope: PretrainedConfig

    def windows(self, max_model_len: int) -> tuple[int | None, ...]:
        """The layers' windows, None where a layer sees all of a sequence of `max_model_len` tokens."""
        return tuple(
            None if window is None or window >= max_model_len else window
            for window in self.sliding_windows
        )


def parse_config(source: PretrainedConfig) -> ModelConfig:
    """Raises ModelLoadError naming what is not supported."""
    architecture = _architecture(source)
    _require(source, "hidden_act", getattr(source, "hidden_act", "silu"), ("silu",))
    rope = source.rope_parameters or {}
    _require(source, "rope_parameters.rope_type", rope.get("rope_type", "default"), ROPE_TYPES)
    rotated = rope.get("partial_rotary_factor", 1.0) or 1.0
    _require(source, "rope_parameters.partial_rotary_factor", rotated, (1.0,))
    qkv_bias = architecture == "Qwen2ForCausalLM" or getattr(source, "attention_bias", False)
    num_heads = source.num_attention_heads
    return ModelConfig(
        architecture=architecture,
        vocab_size=source.vocab_size,
        hidden_size=source.hidden_size,
        intermediate_size=source.intermediate_size,
        num_layers=source.num_hidden_layers,
        num_heads=num_heads,
        num_kv_heads=getattr(source, "num_key_value_heads", None) or num_heads,
        head_dim=getattr(source, "head_dim", None) or source.hidden_size // num_heads,
        rms_norm_eps=source.rms_norm_eps,
        max_position_embeddings=_max_position(source.max_position_embeddings, rope),
        sliding_windows=_sliding_windows(source, architecture),
        tie_word_embeddings=bool(source.tie_word_embeddings),
        qkv_bias=qkv_bias,
        output_bias=qkv_bias and architecture != "Qwen2ForCausalLM",
        mlp_bias=getattr(source, "mlp_bias", False),
        qk_norm=architecture == "Qwen3ForCausalLM",
        rope=source,
    )


def stretch(model: ModelConfig, scaling: RopeScaling) -> ModelConfig:
    """`model` with `scaling` in place of its own: the context is then the original one times the factor."""
    own: dict[str, Any] = model.rope.rope_parameters
    original = (
        scaling.original_max_position_embeddings
        or own.get("original_max_position_embeddings")
        or model.rope.max_position_embeddings
    )
    rope = deepcopy(model.rope)
    rope.max_position_embeddings = original  # dynamic NTK stretches from here
    rope.rope_parameters = {
        "rope_theta": own["rope_theta"],
        **scaling.parameters,
        "original_max_position_embeddings": original,
    }
    return replace(model, rope=rope, max_position_embeddings=int(scaling.factor * original))


def _max_position(named: int, rope: dict[str, Any]) -> int:
    """What a configuration names; with YaRN at least the original context times the factor, as some name the original."""
    if rope.get("rope_type") != "yarn":
        return named
    return max(named, int(rope["factor"] * rope["original_max_position_embeddings"]))


def _sliding_windows(source: PretrainedConfig, architecture: str) -> tuple[int | None, ...]:
    """Of the layers that are called sliding. Where no layer is called anything, all of Mistral's are and none of Llama's."""
    window = getattr(source, "sliding_window", None)
    if window is not None and window < 1:
        raise ModelLoadError(f"{source.model_type} with sliding_window {window} is not supported")
    usual = SLIDING if architecture == "MistralForCausalLM" else FULL
    kinds = getattr(source, "layer_types", None) or [usual] * source.num_hidden_layers
    for kind in kinds:
        _require(source, "layer_types", kind, (FULL, SLIDING))
    return tuple(window if kind == SLIDING else None for kind in kinds)


def _architecture(source: PretrainedConfig) -> str:
    named = source.architectures or [f"(none named, model_type {source.model_type})"]
    for name in named:
        if name in ARCHITECTURES:
            return name
    raise ModelLoadError(
        f"architecture {named[0]!r} is not supported; supported: {', '.join(ARCHITECTURES)}"
    )


def _require(
    source: PretrainedConfig, field: str, value: object, allowed: tuple[object, ...]
) -> None:
    if value not in allowed:
        raise ModelLoadError(
            f"{source.model_type} with {field} {value!r} is not supported; "
            f"supported: {', '.join(map(str, allowed))}"
        )
