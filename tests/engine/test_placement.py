"""Which numbers `auto` means on which CPU, and when few-bit weights stay packed."""

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.placement import Placement, choose_placement, use_physical_cores

CPU = torch.device("cpu")


def choose(monkeypatch: pytest.MonkeyPatch, capability: str, **options: Any) -> Placement:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    return choose_placement(EngineConfig(model_path=Path("m"), model_name="m", **options))


def test_auto_is_the_fastest_good_path(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = Placement(CPU, torch.bfloat16, torch.bfloat16, packed=True)
    assert choose(monkeypatch, "AVX512") == choose(monkeypatch, "AVX2") == packed
    exact = Placement(CPU, torch.float32, torch.float32, packed=False)
    assert choose(monkeypatch, "DEFAULT") == exact


def test_options_have_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = Placement(CPU, torch.float32, torch.float32, packed=False)
    assert choose(monkeypatch, "AVX512", dtype="float32") == exact
    dense = Placement(CPU, torch.bfloat16, torch.bfloat16, packed=False)
    assert choose(monkeypatch, "AVX512", quantization="none") == dense
    mixed = choose(monkeypatch, "AVX512", dtype="float32", kv_cache_dtype="bfloat16")
    assert (mixed.dtype, mixed.kv_dtype) == (torch.float32, torch.bfloat16)
    assert choose(monkeypatch, "AVX512", kv_cache_dtype="int8").kv_dtype is torch.int8
    slow = choose(monkeypatch, "AVX512", kv_cache_dtype="fp8", attention_backend="reference")
    assert slow.kv_dtype is torch.float8_e4m3fn


def test_threads_are_left_alone_when_the_environment_sets_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    use_physical_cores()
    assert asked == []
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr("engine.placement.num_physical_cores", lambda: 3)
    use_physical_cores()
    assert asked == [3]
