"""Tables of cosines and sines against transformers' own rotary embedding."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from engine.layers.rotary_embedding import build_cos_sin

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


every_kind = pytest.mark.parametrize(
    "parameters",
    [
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": 2.5},
        YARN,
        LLAMA3,
        {"rope_type": "dynamic", "factor": 2.0},
    ],
    ids=lambda parameters: parameters["rope_type"],
)


@every_kind
def test_every_kind_equals_transformers(parameters: dict[str, Any]) -> None:
    config = LlamaConfig(
        hidden_size=128,
        num_attention_heads=2,
        max_position_embeddings=256,
        rope_parameters={"rope_theta": 1e4, **parameters},
    )
    positions = torch.arange(256)[None]
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), positions)
    table = build_cos_sin(config, 64, 256)
    assert table.shape == (256, 64)
    assert torch.allclose(table, torch.cat([cos[0, :, :32], sin[0, :, :32]], dim=-1), atol=1e-5)


@every_kind
def test_far_positions_equal_transformers(parameters: dict[str, Any]) -> None:
    """Angles are products in float32 there as here; at 200,000 that is what a model was trained and tested with."""
    config = LlamaConfig(
        hidden_size=128,
        num_attention_heads=2,
        max_position_embeddings=8192,
        rope_parameters={"rope_theta": 1e5, **parameters},
    )
    positions = [0, 1, 8191, 131_071, 200_000]
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.tensor([positions]))
    table = build_cos_sin(config, 64, 200_001)[positions]
    assert torch.allclose(table, torch.cat([cos[0, :, :32], sin[0, :, :32]], dim=-1), atol=1e-6)


def test_dynamic_frequencies_fit_the_longest_context() -> None:
    config = LlamaConfig(
        hidden_size=128,
        num_attention_heads=2,
        max_position_embeddings=64,
        rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
    )
    rotary = LlamaRotaryEmbedding(config)
    cos, _ = rotary(torch.zeros(1), torch.arange(200)[None])
    assert torch.allclose(build_cos_sin(config, 64, 200)[:, :32], cos[0, :, :32], atol=1e-5)


def test_factors_divide_the_frequencies() -> None:
    config = LlamaConfig(hidden_size=128, num_attention_heads=2)
    factors = torch.full((32,), 4.0)
    stretched, plain = build_cos_sin(config, 64, 9, factors), build_cos_sin(config, 64, 9)
    assert torch.allclose(stretched[::4], plain[:3], atol=1e-6)
