"""Our model against transformers' with the same random weights, over paged memory on every backend of a CPU."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.outputs import ScheduledSequence
from kernels.kv_pool import KVPool
from kernels.ops import BackendName
from tests.engine.models.tiny import (
    VOCAB_SIZE,
    load_ours,
    make_reference,
    paged_logits,
    reference_logits,
    run_batch,
)

TOKENS = random.Random(3).choices(range(VOCAB_SIZE), k=50)
SHUFFLED = [5, 0, 9, 2]
BACKENDS: list[BackendName] = ["reference", "cpu"]
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-no-gqa": ("llama", {"num_key_value_heads": 3}),
    "llama-wide-heads": ("llama", {"num_attention_heads": 4, "head_dim": 128}),
    "mistral": ("mistral", {}),
    "mistral-window": ("mistral", {"sliding_window": 7}),
    "mistral-window-of-a-block": ("mistral", {"sliding_window": 16}),
    "qwen2": ("qwen2", {}),
    "qwen2-mixed": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {}),
    "qwen3-biases": ("qwen3", {"attention_bias": True, "tie_word_embeddings": True}),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_those_of_transformers(
    variant: str, backend: BackendName, tmp_path: Path
) -> None:
    model_type, changes = VARIANTS[variant]
    reference = make_reference(model_type, **changes)
    reference.save_pretrained(tmp_path)
    ours = load_ours(tmp_path, backend)
    expected = reference_logits(reference, TOKENS)
    assert expected.std() > 0.1, "a model that says nothing proves nothing"
    whole = paged_logits(ours, TOKENS)
    assert (whole - expected).abs().max() < 1e-3
    chunked = paged_logits(ours, TOKENS, chunks=[1, 15, 16, 14, 1, 1, 1, 1], block_ids=SHUFFLED)
    assert (chunked - expected).abs().max() < 1e-3


ROPE: dict[str, dict[str, Any]] = {
    "theta": {"rope_type": "default", "rope_theta": 500.0},
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 1e4,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "dynamic": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
}


@pytest.mark.parametrize("kind", ROPE)
def test_rope_variants_equal_those_of_transformers(kind: str, tmp_path: Path) -> None:
    reference = make_reference("llama", rope_parameters=ROPE[kind])
    reference.save_pretrained(tmp_path)
    difference = paged_logits(load_ours(tmp_path), TOKENS) - reference_logits(reference, TOKENS)
    assert difference.abs().max() < 1e-3


def test_a_batch_of_chunks_and_decodes_gives_each_sequence_its_own_logits(tmp_path: Path) -> None:
    make_reference("llama").save_pretrained(tmp_path)
    ours = load_ours(tmp_path, "cpu")
    texts = [TOKENS[:n] for n in (1, 16, 17, 40)]
    alone = [paged_logits(ours, text) for text in texts]
    ours.bind_kv_cache(KVPool.over(torch.zeros(3, 2, 12, 1, 16, 64)).layers)
    tables = [[11], [3], [7, 0], [1, 10, 2]]
    heads = [0, 15, 10, 24]  # how much of each text is already computed
    first = [
        ScheduledSequence(i, text[:head], 0, table, ())
        for i, (text, head, table) in enumerate(zip(texts, heads, tables, strict=True))
        if head
    ]
    run_batch(ours, first)
    second = [
        ScheduledSequence(i, text[head:], head, table, ())
        for i, (text, head, table) in enumerate(zip(texts, heads, tables, strict=True))
    ]
    together = run_batch(ours, second)
    expected = torch.cat([logits[head:] for logits, head in zip(alone, heads, strict=True)])
    assert (together - expected).abs().max() < 1e-4


def test_the_default_numbers_do_not_depend_on_neighbours_or_chunks(
    builtin_model_path: Path,
) -> None:
    ours = load_ours(builtin_model_path, "cpu", dtype=torch.bfloat16, packed=True)
    tokens = [1, 4093, 198, *range(1000, 1030)]
    whole = paged_logits(ours, tokens)
    chunked = paged_logits(ours, tokens, chunks=[2, 16, 9, *[1] * 6], block_ids=[4, 1, 2])
    assert torch.equal(whole, chunked)
