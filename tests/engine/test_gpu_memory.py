"""A GPU's memory: what is left for KV blocks, and what is said when something does not fit."""

import pytest
import torch
from transformers import LlamaConfig

from engine.errors import ModelLoadError
from engine.gpu_memory import activation_bytes, kv_budget, needs_memory
from engine.models.config import parse_config
from tests.engine.models.tiny import SIZES

GIB = 1 << 30


@pytest.fixture(autouse=True)
def _a_gpu_of_80_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (60 * GIB, 80 * GIB))


def test_the_budget_is_a_share_of_all_less_what_is_used_and_reserved() -> None:
    assert kv_budget(0.5, GIB, torch.device("cuda")) == (
        19 * GIB,
        "50% of 81,920 MiB, less 20,480 MiB in use and 1,024 MiB for computing",
    )
    assert kv_budget(0.2, GIB, torch.device("cuda"))[0] == 0


def test_activations_grow_with_tokens_and_rows() -> None:
    model = parse_config(LlamaConfig(architectures=["LlamaForCausalLM"], **SIZES))
    one_token = 4 * (6 * 192 + 3 * 256 + 8 * 64)
    assert activation_bytes(model, 10, 0) == 10 * one_token
    assert activation_bytes(model, 10, 3) == 10 * one_token + 3 * 3 * 4 * 320


def test_out_of_memory_says_what_the_sizes_and_what_to_change() -> None:
    with (
        pytest.raises(ModelLoadError) as caught,
        needs_memory("the weights", "use a smaller model"),
    ):
        raise torch.OutOfMemoryError("CUDA out of memory")
    assert str(caught.value) == (
        "the weights did not fit into the GPU's memory: 61,440 MiB of 81,920 MiB are free; "
        "use a smaller model"
    )


def test_other_errors_pass() -> None:
    with pytest.raises(RuntimeError, match="another"), needs_memory("the weights", "nothing"):
        raise RuntimeError("another")
