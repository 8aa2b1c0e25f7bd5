"""How many blocks the pool gets, and what happens when memory is short."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from engine import kv_cache
from engine.config import EngineConfig
from engine.errors import ConfigError, ModelLoadError
from engine.kv_cache import KVCacheSize, allocate, choose_size, make_layout
from engine.models.config import ModelConfig, parse_config
from tests.engine.models.tiny import SIZES

CPU = torch.device("cpu")
MIB = 1 << 20


def options(**changes: Any) -> EngineConfig:
    return EngineConfig(model_path=Path("model"), model_name="model", **changes)


@pytest.fixture(scope="module")
def model() -> ModelConfig:
    return parse_config(LlamaConfig(architectures=["LlamaForCausalLM"], **SIZES))


@pytest.fixture(autouse=True)
def _free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_cache, "free_memory", lambda: 800 * MIB)


def size(token_bytes: int = 1024, max_model_len: int = 1024, **changes: Any) -> KVCacheSize:
    return choose_size(options(**changes), token_bytes, max_model_len, gpu_budget=None)


def test_bytes_of_a_token(model: ModelConfig) -> None:
    assert make_layout(model, 8, torch.float32).token_bytes == 2 * 3 * 1 * 64 * 4
    assert make_layout(model, 8, torch.bfloat16).token_bytes == 2 * 3 * 1 * 64 * 2
    assert make_layout(model, 8, torch.int8).token_bytes == 2 * 3 * 1 * (64 + 4)


def test_the_number_asked_for_comes_first() -> None:
    chosen = size(num_blocks=7, block_size=8)
    assert chosen == KVCacheSize(7, 8 * 1024, "--num-blocks 7")


def test_memory_asked_for_is_filled_with_whole_blocks() -> None:
    chosen = size(kv_cache_memory=MIB + 100, block_size=16, max_model_len=16)
    assert chosen == KVCacheSize(64, 16 * 1024, f"--kv-cache-memory {MIB + 100}")


def test_a_quarter_of_the_free_memory_is_taken() -> None:
    chosen = size(token_bytes=100_000)
    assert chosen.num_blocks == 200 * MIB // (16 * 100_000)
    assert chosen.reason == "chosen from 800 MiB of free memory"


def test_no_more_is_taken_than_can_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert size(max_model_len=100, max_num_seqs=2).num_blocks == 2 * (100 + 16) // 16
    monkeypatch.setattr(kv_cache, "free_memory", lambda: 800 * 1024 * MIB)
    assert size(max_model_len=10_000, max_num_seqs=500).num_blocks == (1 << 30) // (16 * 1024)
    one_long = size(max_model_len=2 << 20, max_num_seqs=500)
    assert one_long.num_blocks == (2 << 20) // 16


def test_not_even_one_block_is_an_error_with_sizes() -> None:
    with pytest.raises(ConfigError) as asked:
        size(kv_cache_memory=16_000)
    assert str(asked.value) == (
        "--kv-cache-memory: 16000 is not allowed; at least 16KiB: a KV block of 16 tokens takes so many"
    )
    with pytest.raises(ModelLoadError) as caught:
        size(token_bytes=MIB * 100)
    assert str(caught.value) == (
        "a KV block of 16 tokens takes 1677721600 bytes, which does not fit: chosen from 800 MiB of free memory"
    )


def test_a_pool_smaller_than_one_context_warns(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        size(num_blocks=4, max_model_len=65)
    assert caplog.messages == ["the KV pool holds 64 tokens, less than --max-model-len 65"]
    caplog.clear()
    size(num_blocks=4, max_model_len=64)
    assert caplog.messages == []


def test_the_pool_is_one_tensor_of_zeros(model: ModelConfig) -> None:
    pool = allocate(make_layout(model, 8, torch.bfloat16), KVCacheSize(5, 0, ""), CPU)
    assert pool.memory.shape == (3, 2, 5, 1, 8, 64)
    assert pool.memory.dtype == torch.bfloat16
    assert not pool.memory.any()


def test_a_pool_that_cannot_be_had_is_an_error_with_sizes(model: ModelConfig) -> None:
    with pytest.raises(
        ModelLoadError, match=r"1125899906842624 KV blocks need .* bytes, which cannot"
    ):
        allocate(make_layout(model, 8, torch.bfloat16), KVCacheSize(2**50, 6144, "asked"), CPU)


def test_free_memory_heeds_the_control_group(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.undo()
    assert kv_cache.free_memory() > MIB
    monkeypatch.setattr(kv_cache, "CONTROL_GROUP", tmp_path)
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("3000\n")
    assert kv_cache.free_memory() == 2000
    (tmp_path / "memory.max").write_text("max\n")
    assert kv_cache.free_memory() > MIB


def test_on_a_gpu_the_budget_is_filled() -> None:
    budget = (400 * MIB, "50% of 1,000 MiB")
    chosen = choose_size(options(max_num_seqs=500), 1024, 1024, budget)
    assert chosen == KVCacheSize(400 * 64, 16 * 1024, "there are 50% of 1,000 MiB")
    few = choose_size(options(max_num_seqs=1), 1024, 1024, budget)
    assert few.num_blocks == 65, "never more than all sequences need"
