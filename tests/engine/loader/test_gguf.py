"""GGUF models against an independent reading: every storage type, architecture, permutation, head and rope variant."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType as QuantizationType
from gguf.constants import GGUFValueType

from engine.config import EngineConfig
from engine.errors import ConfigError, ModelLoadError
from engine.loader.gguf import config_from_gguf
from engine.loader.gguf_file import GGUFFile
from engine.loader.model import open_configured, open_model
from engine.rope_scaling import RopeScaling
from tests.engine.loader.gguf_files import WIDE, read_with_transformers, write_gguf
from tests.engine.models.tiny import load_ours, make_reference, paged_logits, reference_logits

TOKENS = [int(i * 37) % 320 for i in range(50)]


def both(path: Path, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Our logits and the independent ones."""
    reference = read_with_transformers(path, config_from_gguf(GGUFFile(path)))
    return paged_logits(load_ours(path, **options), TOKENS), reference_logits(reference, TOKENS)


@pytest.mark.parametrize(
    "name", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"]
)
def test_every_storage_type_gives_the_logits_of_an_independent_reading(
    name: str, tmp_path: Path
) -> None:
    model = make_reference("llama", **WIDE)
    path = write_gguf(tmp_path / "tiny.gguf", model, QuantizationType[name])
    ours, expected = both(path)
    assert expected.std() > 0.1
    assert (ours - expected).abs().max() < 1e-3


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_architectures_and_heads_survive_the_format(
    model_type: str, tied: bool, tmp_path: Path
) -> None:
    model = make_reference(model_type, tie_word_embeddings=tied, num_key_value_heads=3)
    path = write_gguf(tmp_path / "tiny.gguf", model)
    assert open_model(path).config.tie_word_embeddings is tied
    ours = paged_logits(load_ours(path), TOKENS)
    assert (ours - reference_logits(model, TOKENS)).abs().max() < 1e-3


WINDOW = (7, GGUFValueType.UINT32)


@pytest.mark.parametrize("model_type", ["mistral", "qwen2"])
def test_a_window_is_that_of_all_layers(model_type: str, tmp_path: Path) -> None:
    model = make_reference(
        model_type, sliding_window=7, use_sliding_window=True, max_window_layers=0
    )
    architecture = "llama" if model_type == "mistral" else model_type
    keys = {f"{architecture}.attention.sliding_window": WINDOW}
    path = write_gguf(tmp_path / "tiny.gguf", model, extra_keys=keys)
    assert open_model(path).config.sliding_windows == (7, 7, 7)
    ours = paged_logits(load_ours(path), TOKENS)
    assert (ours - reference_logits(model, TOKENS)).abs().max() < 1e-3


@pytest.mark.parametrize(
    ("pattern", "windows"),
    [
        (([True, False, True], GGUFValueType.ARRAY, GGUFValueType.BOOL), (7, None, 7)),
        ((3, GGUFValueType.UINT32), (7, 7, None)),
        ((1, GGUFValueType.UINT32), (None, None, None)),
        ((0, GGUFValueType.UINT32), (7, 7, 7)),
    ],
)
def test_a_pattern_says_which_layers_have_the_window(
    pattern: tuple[Any, ...], windows: tuple[int | None, ...], tmp_path: Path
) -> None:
    name = "qwen3.attention.sliding_window"
    keys = {name: WINDOW, f"{name}_pattern": pattern}
    path = write_gguf(tmp_path / "tiny.gguf", make_reference("qwen3"), extra_keys=keys)
    assert open_model(path).config.sliding_windows == windows


def test_a_pattern_of_other_layers_is_refused(tmp_path: Path) -> None:
    name = "qwen3.attention.sliding_window"
    pattern = ([True, False], GGUFValueType.ARRAY, GGUFValueType.BOOL)
    keys = {name: WINDOW, f"{name}_pattern": pattern}
    path = write_gguf(tmp_path / "tiny.gguf", make_reference("qwen3"), extra_keys=keys)
    with pytest.raises(ModelLoadError, match=r"3 layers, and .*sliding_window_pattern has 2"):
        open_model(path)


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1"])
def test_packed_weights_stay_close_to_the_exact_ones(name: str, tmp_path: Path) -> None:
    model = make_reference("llama", **WIDE, num_hidden_layers=2)
    path = write_gguf(tmp_path / "tiny.gguf", model, QuantizationType[name])
    ours, expected = both(path, dtype=torch.bfloat16, packed=True)
    assert torch.cosine_similarity(ours, expected).min() > 0.999


def test_scaling_keys_become_rope_parameters(tmp_path: Path) -> None:
    keys = {
        "llama.rope.scaling.type": ("yarn", GGUFValueType.STRING),
        "llama.rope.scaling.factor": (4.0, GGUFValueType.FLOAT32),
        "llama.rope.scaling.original_context_length": (32, GGUFValueType.UINT32),
    }
    parameters = {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    model = make_reference("llama", rope_parameters=parameters)
    path = write_gguf(tmp_path / "tiny.gguf", model, extra_keys=keys)
    assert config_from_gguf(GGUFFile(path))["rope_parameters"] == parameters
    ours = paged_logits(load_ours(path), TOKENS)
    assert (ours - reference_logits(model, TOKENS)).abs().max() < 1e-3


YARN_KEYS = {
    "llama.rope.scaling.type": ("yarn", GGUFValueType.STRING),
    "llama.rope.scaling.factor": (4.0, GGUFValueType.FLOAT32),
    "llama.rope.scaling.original_context_length": (32, GGUFValueType.UINT32),
    "llama.rope.scaling.attn_factor": (0.5, GGUFValueType.FLOAT32),
    "llama.rope.scaling.yarn_beta_fast": (8.0, GGUFValueType.FLOAT32),
    "llama.rope.scaling.yarn_beta_slow": (2.0, GGUFValueType.FLOAT32),
}
OLD_LINEAR_KEYS = {"llama.rope.scale_linear": (4.0, GGUFValueType.FLOAT32)}
TYPE_NONE_KEYS = {
    "llama.rope.scaling.type": ("none", GGUFValueType.STRING),
    "llama.rope.scaling.factor": (4.0, GGUFValueType.FLOAT32),
}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (
            YARN_KEYS,
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 32,
                "attention_factor": pytest.approx(0.5 * (1 + 0.1 * np.log(4.0))),
                "beta_fast": 8.0,
                "beta_slow": 2.0,
            },
        ),
        (OLD_LINEAR_KEYS, {"rope_type": "linear", "factor": 4.0}),
        (TYPE_NONE_KEYS, {"rope_type": "default"}),
        ({}, {"rope_type": "default"}),
    ],
    ids=["yarn", "older spelling", "type none", "no keys"],
)
def test_every_scaling_key_counts(
    keys: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", make_reference("llama"), extra_keys=keys)
    found = config_from_gguf(GGUFFile(path))["rope_parameters"]
    assert found == {"rope_theta": 1e4, **expected}


def test_a_magnitude_that_is_not_yarns_is_refused(tmp_path: Path) -> None:
    keys = {
        "llama.rope.scaling.factor": (4.0, GGUFValueType.FLOAT32),
        "llama.rope.scaling.attn_factor": (0.5, GGUFValueType.FLOAT32),
    }
    path = write_gguf(tmp_path / "tiny.gguf", make_reference("llama"), extra_keys=keys)
    with pytest.raises(ModelLoadError, match=r"attn_factor 0\.5 with type linear, which is not"):
        open_model(path)


def test_factors_in_a_file_and_rope_scaling_exclude_each_other(tmp_path: Path) -> None:
    factors = {"rope_freqs.weight": np.ones(32, np.float32)}
    path = write_gguf(tmp_path / "tiny.gguf", make_reference("llama"), extra_tensors=factors)
    scaling = RopeScaling(rope_type="linear", factor=2)
    config = EngineConfig(model_path=path, model_name="tiny", rope_scaling=scaling)
    with pytest.raises(ConfigError, match=r"--rope-scaling: .* this file brings rotary factors"):
        open_configured(config)


def test_stored_frequency_factors_are_llama_3_scaling(tmp_path: Path) -> None:
    llama3 = {
        "rope_type": "llama3",
        "rope_theta": 1e4,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    model = make_reference("llama", rope_parameters=llama3)
    plain = 1.0 / 1e4 ** (np.arange(0, 64, 2) / 64)
    stretched = model.model.rotary_emb.inv_freq.numpy()
    factors = (plain / stretched).astype(np.float32)
    path = write_gguf(tmp_path / "tiny.gguf", model, extra_tensors={"rope_freqs.weight": factors})
    ours = paged_logits(load_ours(path), TOKENS)
    assert (ours - reference_logits(model, TOKENS)).abs().max() < 1e-3


def test_an_unsupported_architecture_is_refused_by_name(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", make_reference("llama"))
    path.write_bytes(
        path.read_bytes().replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0bloom")
    )
    with pytest.raises(
        ModelLoadError, match=r"'bloom', which is not supported; supported: llama, qwen2"
    ):
        open_model(path)


def test_an_unsupported_storage_type_is_refused_by_name(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "tiny.gguf", make_reference("llama", **WIDE), QuantizationType.TQ1_0
    )
    with pytest.raises(
        ModelLoadError, match="stored as TQ1_0, which is not supported; supported: F32"
    ):
        load_ours(path)


def test_missing_and_superfluous_tensors_are_named(tmp_path: Path) -> None:
    model = make_reference("llama")
    extra = {"blk.0.attn_sinks.weight": np.zeros(4, np.float32)}
    path = write_gguf(tmp_path / "extra.gguf", model, extra_tensors=extra)
    with pytest.raises(ModelLoadError, match=r"do not belong .* among them blk\.0\.attn_sinks"):
        load_ours(path)
    path = write_gguf(tmp_path / "qwen3.gguf", make_reference("qwen3"))
    path.write_bytes(path.read_bytes().replace(b"attn_q_norm", b"attn_q_nope"))
    with pytest.raises(ModelLoadError, match=r"lacks the tensor blk\.0\.attn_q_norm\.weight"):
        load_ours(path)
