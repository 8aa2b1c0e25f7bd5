"""What is read from a configuration, and what is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import (
    AutoConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from engine.errors import ModelLoadError
from engine.loader.model import open_model
from engine.models.config import parse_config, stretch
from engine.rope_scaling import RopeScaling


def llama(**changes: Any) -> LlamaConfig:
    return LlamaConfig(architectures=["LlamaForCausalLM"], **changes)


def test_an_unsupported_architecture_is_refused_by_name() -> None:
    with pytest.raises(ModelLoadError) as caught:
        parse_config(GPT2Config(architectures=["GPT2LMHeadModel"]))
    assert str(caught.value) == (
        "architecture 'GPT2LMHeadModel' is not supported; supported: LlamaForCausalLM, MistralForCausalLM, "
        "Qwen2ForCausalLM, Qwen3ForCausalLM"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "llama with hidden_act 'gelu' is not supported; supported: silu"),
        (
            {
                "rope_parameters": {
                    "rope_type": "longrope",
                    "rope_theta": 1e4,
                    "short_factor": [1.0] * 64,
                    "long_factor": [1.0] * 64,
                    "original_max_position_embeddings": 32,
                }
            },
            "rope_parameters.rope_type 'longrope' is not supported; supported: default, linear",
        ),
        (
            {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
            "rope_parameters.partial_rotary_factor 0.5 is not supported",
        ),
    ],
)
def test_what_we_cannot_compute_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        parse_config(llama(**changes))


def test_head_dim_may_differ_from_hidden_size_over_heads() -> None:
    assert parse_config(llama(hidden_size=96, num_attention_heads=4, head_dim=64)).head_dim == 64
    assert parse_config(llama(hidden_size=96, num_attention_heads=4)).head_dim == 24


def test_the_older_spelling_of_rope_means_the_same(tmp_path: Path) -> None:
    old = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "rope_theta": 12345.0,
        "rope_scaling": {"type": "linear", "factor": 2.0},
    }
    (tmp_path / "config.json").write_text(json.dumps(old))
    parameters = parse_config(AutoConfig.from_pretrained(tmp_path)).rope.rope_parameters
    assert parameters["rope_theta"] == 12345.0
    assert (parameters["rope_type"], parameters["factor"]) == ("linear", 2.0)


YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 4.0,
    "original_max_position_embeddings": 32_768,
}


@pytest.mark.parametrize("named", [32_768, 131_072])
def test_yarn_in_a_file_reaches_as_far_as_it_stretches(named: int) -> None:
    """Some files name the context before stretching, others the one after."""
    source = llama(max_position_embeddings=named, rope_parameters=YARN)
    assert parse_config(source).max_position_embeddings == 131_072


def test_other_kinds_in_a_file_end_where_the_file_says() -> None:
    for kind in ("linear", "dynamic"):
        rope = {"rope_type": kind, "rope_theta": 1e4, "factor": 4.0}
        source = llama(max_position_embeddings=16_384, rope_parameters=rope)
        assert parse_config(source).max_position_embeddings == 16_384


def test_stretching_takes_the_place_of_what_the_file_says() -> None:
    source = llama(max_position_embeddings=131_072, rope_parameters=YARN)
    model = parse_config(source)
    stretched = stretch(model, RopeScaling(rope_type="dynamic", factor=2.5))
    assert stretched.max_position_embeddings == 81_920
    assert stretched.rope.max_position_embeddings == 32_768
    assert stretched.rope.rope_parameters == {
        "rope_type": "dynamic",
        "rope_theta": 1e6,
        "factor": 2.5,
        "original_max_position_embeddings": 32_768,
    }
    assert model.rope.rope_parameters == YARN, "the model that was opened stays as it is"


def test_the_original_context_may_be_named() -> None:
    model = parse_config(llama(max_position_embeddings=8192))
    scaling = RopeScaling(rope_type="yarn", factor=4, original_max_position_embeddings=2048)
    stretched = stretch(model, scaling)
    assert stretched.max_position_embeddings == 8192
    assert stretched.rope.rope_parameters["original_max_position_embeddings"] == 2048


SLIDING: dict[str, Any] = {"num_hidden_layers": 4, "sliding_window": 4096}


@pytest.mark.parametrize(
    ("source", "windows"),
    [
        (llama(**SLIDING), (None,) * 4),
        (MistralConfig(architectures=["MistralForCausalLM"], **SLIDING), (4096,) * 4),
        (
            MistralConfig(architectures=["MistralForCausalLM"], num_hidden_layers=2, sliding_window=None),
            (None, None),
        ),
        (Qwen2Config(architectures=["Qwen2ForCausalLM"], **SLIDING), (None,) * 4),
        (
            Qwen2Config(
                architectures=["Qwen2ForCausalLM"], **SLIDING, use_sliding_window=True, max_window_layers=3
            ),
            (None, None, None, 4096),
        ),
        (
            Qwen3Config(
                architectures=["Qwen3ForCausalLM"],
                num_hidden_layers=3,
                sliding_window=7,
                use_sliding_window=True,
                layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            ),
            (7, None, 7),
        ),
    ],
)  # fmt: skip
def test_each_layer_has_its_window(
    source: PretrainedConfig, windows: tuple[int | None, ...]
) -> None:
    assert parse_config(source).sliding_windows == windows


def test_a_window_as_long_as_the_context_is_none() -> None:
    mistral = MistralConfig(architectures=["MistralForCausalLM"], **SLIDING)
    model = parse_config(mistral)
    assert model.windows(4097) == (4096,) * 4
    assert model.windows(4096) == (None,) * 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["full_attention", "chunked_attention"]}, "layer_types 'chunked_attention' is not supported; supported: full_attention, sliding_attention"),
        ({"sliding_window": -1}, "llama with sliding_window -1 is not supported"),
    ],
)  # fmt: skip
def test_layers_that_look_elsewhere_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        parse_config(llama(num_hidden_layers=2, **changes))


def test_biases_follow_the_architecture() -> None:
    qwen2 = parse_config(Qwen2Config(architectures=["Qwen2ForCausalLM"]))
    assert (qwen2.qkv_bias, qwen2.output_bias, qwen2.mlp_bias) == (True, False, False)
    biased = parse_config(llama(attention_bias=True, mlp_bias=True))
    assert (biased.qkv_bias, biased.output_bias, biased.mlp_bias) == (True, True, True)


def test_already_quantised_folders_are_refused(tmp_path: Path) -> None:
    config = llama().to_dict() | {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match="has a quantization_config, which is not supported"):
        open_model(tmp_path)
