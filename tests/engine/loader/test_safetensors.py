"""Model folders: shards, a tied head that is stored all the same, and what is missing or wrong."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from engine.errors import ModelLoadError
from engine.loader.model import open_model
from tests.engine.models.tiny import load_ours, make_reference, paged_logits, reference_logits

TOKENS = list(range(40))


def test_shards_are_one_model(tmp_path: Path) -> None:
    reference = make_reference("llama")
    reference.save_pretrained(tmp_path, max_shard_size="500KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    difference = paged_logits(load_ours(tmp_path), TOKENS) - reference_logits(reference, TOKENS)
    assert difference.abs().max() < 1e-3


def test_bfloat16_files_are_read_exactly_in_float32(tmp_path: Path) -> None:
    make_reference("llama").bfloat16().save_pretrained(tmp_path)
    reference = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    expected = reference_logits(reference, TOKENS)
    assert (paged_logits(load_ours(tmp_path), TOKENS) - expected).abs().max() < 1e-3


def edit(folder: Path, changes: dict[str, torch.Tensor | None]) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file) | changes
    save_file({k: v for k, v in tensors.items() if v is not None}, file, {"format": "pt"})


def test_a_stored_copy_of_a_tied_head_and_old_frequencies_are_left_out(tmp_path: Path) -> None:
    make_reference("llama", tie_word_embeddings=True).save_pretrained(tmp_path)
    edit(
        tmp_path,
        {
            "lm_head.weight": torch.zeros(320, 192),
            "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(32),
        },
    )
    assert paged_logits(load_ours(tmp_path), TOKENS).std() > 0.1


def test_missing_superfluous_and_integer_tensors_are_named(tmp_path: Path) -> None:
    make_reference("llama").save_pretrained(tmp_path)
    name = "model.layers.1.mlp.up_proj.weight"
    edit(tmp_path, {name: None})
    with pytest.raises(ModelLoadError, match=f"lacks the tensor {name}"):
        load_ours(tmp_path)
    edit(tmp_path, {name: torch.zeros(256, 192, dtype=torch.int8)})
    with pytest.raises(ModelLoadError, match=rf"{name} is stored as torch\.int8"):
        load_ours(tmp_path)
    edit(tmp_path, {name: torch.zeros(256, 192), "model.layers.0.extra.weight": torch.zeros(1)})
    with pytest.raises(ModelLoadError, match=r"1 tensors do not belong .*model\.layers\.0\.extra"):
        load_ours(tmp_path)


def test_a_broken_file_is_refused(tmp_path: Path) -> None:
    make_reference("llama").save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{not json")
    with pytest.raises(ModelLoadError, match="has no readable safetensors"):
        open_model(tmp_path)


def test_ends_of_an_answer_come_from_all_that_name_one(tmp_path: Path) -> None:
    make_reference("llama", eos_token_id=5).save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    assert open_model(tmp_path).eos_token_ids == {5}
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    added = [{"id": 3, "content": "<end>"}, {"id": 4, "content": "<other>"}]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    assert open_model(tmp_path).eos_token_ids == {3, 7, 9}
