"""The arithmetic the engine asks for, and the choice of who does it.

`select_backend` is called once at start; the `KernelBackend` it returns carries every operation. What each operation
means is said by the protocols below and written out in plain PyTorch in `kernels.reference`. Triton and numba are
imported only when they are chosen.

How keys and values lie in memory is said in `kernels.kv_pool`. Token `t` of a block table lies in block
`block_table[t // block_size]` at offset `t % block_size`.
"""

import importlib
import importlib.util
import os
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from kernels.attention_rules import AttentionRules
from kernels.kv_pool import LayerCache

BackendName = Literal["auto", "triton", "cpu", "reference"]


class RotateAndStore(Protocol):
    """Rotate query and key by position, then write key and value to their slots in the pool.

    query [num_tokens, num_heads, head_dim] is rotated in place; key and value [num_tokens, num_kv_heads, head_dim] go to
    the slots of slot_mapping [num_tokens] int64, and what `key` holds afterwards is undefined. A token with a negative
    slot is not stored. Numbers of eight bits are rounded by the scales of their token and head, which are written too.

    Half-split convention: with x1, x2 the halves of a head, (x1 cos - x2 sin, x2 cos + x1 sin). positions [num_tokens] int64
    choose rows of cos_sin [max_position, head_dim], contiguous: the cosines, then the sines of a position.
    """

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        positions: torch.Tensor,
        cos_sin: torch.Tensor,
        cache: LayerCache,
        slot_mapping: torch.Tensor,
    ) -> None: ...


class PagedAttention(Protocol):
    """Causal attention of query [num_tokens, num_heads, head_dim] over paged keys and values, in any mix.

    Sequence `s` owns query rows query_start_loc[s] to query_start_loc[s + 1] and sees seq_lens[s] keys through
    block_tables[s]; its rows are its last tokens, so row `i` of `n` sees the keys 0 to seq_lens[s] - n + i.
    block_tables [num_seqs, max_blocks], seq_lens [num_seqs] and query_start_loc [num_seqs + 1] are int32, and
    query_start_loc[-1] is num_tokens. With a window in the rules a row sees the last keys of these only: blocks that lie before the
    windows of all rows are not read, and may be anything, as may their ids. A row that sees no key gives 0. Returns
    [num_tokens, num_heads, head_dim].
    """

    def __call__(
        self,
        query: torch.Tensor,
        cache: LayerCache,
        block_tables: torch.Tensor,
        seq_lens: torch.Tensor,
        query_start_loc: torch.Tensor,
        max_query_len: int,
        rules: AttentionRules,
    ) -> torch.Tensor: ...


class CopyBlocks(Protocol):
    """Copy block src[i] to block dst[i] ([num_copies] int64) in all layers of a pool's memory; no block is in both lists."""

    def __call__(self, memory: torch.Tensor, src: torch.Tensor, dst: torch.Tensor) -> None: ...


class RMSNorm(Protocol):
    """x / sqrt(mean(x ** 2) + eps) * weight over the last dimension of x [num_tokens, size], in x's dtype."""

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor: ...


class FusedAddRMSNorm(Protocol):
    """(rms_norm(x + residual) in x's dtype, x + residual in residual's dtype), both [num_tokens, size]."""

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]: ...


class SiluAndMul(Protocol):
    """silu(gate) * up of gate_up [num_tokens, 2 * size] = (gate, up). Returns [num_tokens, size]."""

    def __call__(self, gate_up: torch.Tensor) -> torch.Tensor: ...


class QuantizedLinear(Protocol):
    """x W^T + bias of x [num_rows, in], with weights of eight bits as `kernels.eight_bits` has them: a scale for each output.

    weight [out, in] is contiguous, scales [out] are float32, bias [out] is of x's dtype. Returns [num_rows, out] in x's dtype.
    """

    def __call__(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        scales: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> torch.Tensor: ...


@dataclass(frozen=True, kw_only=True)
class KernelBackend:
    """The operations of one backend; `reason` says in one line why it was chosen.

    Heads of any even size up to `max_head_dim` will do, as will blocks of any size; keys and values may be `cache_dtypes`.
    Without `quantized_linear` all weights are floats.
    """

    name: str
    reason: str
    max_head_dim: int
    cache_dtypes: frozenset[torch.dtype]
    rotate_and_store: RotateAndStore
    paged_attention: PagedAttention
    copy_blocks: CopyBlocks
    rms_norm: RMSNorm
    fused_add_rms_norm: FusedAddRMSNorm
    silu_and_mul: SiluAndMul
    quantized_linear: QuantizedLinear | None


def select_backend(name: BackendName, device: torch.device) -> KernelBackend:
    """The backend `name` for tensors on `device`; compiles or loads what it needs, so it may take seconds.

    "auto" is triton on a GPU, else cpu where numba works, else reference. Raises ValueError when a backend asked for
    by name cannot work here.
    """
    if name == "auto":
        return _select_automatically(device)
    obstacle = _OBSTACLES[name](device)
    if obstacle is not None:
        raise ValueError(f"attention backend {name!r} cannot be used: {obstacle}")
    return _load(name, "asked for by name")


def usable_backends(device: torch.device) -> list[str]:
    """The backends that may be asked for by name for tensors on `device`."""
    return [name for name, obstacle in _OBSTACLES.items() if obstacle(device) is None]


def _select_automatically(device: torch.device) -> KernelBackend:
    preferred = "cpu" if device.type == "cpu" else "triton"
    obstacle = _OBSTACLES[preferred](device)
    if obstacle is None:
        return _load(preferred, f"the fastest for a {device.type} device")
    return _load("reference", f"{preferred} cannot be used: {obstacle}")


def _triton_obstacle(device: torch.device) -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    if os.environ.get("TRITON_INTERPRET") == "1":
        return None
    if device.type != "cuda":
        return (
            f"it needs an NVIDIA or AMD GPU, and the device is {device.type}"
            " (for debugging, TRITON_INTERPRET=1 interprets the kernels on the CPU)"
        )
    if torch.version.hip is None and torch.cuda.get_device_capability(device) < (8, 0):
        return f"it needs an NVIDIA GPU of the Ampere generation or newer, and this is {torch.cuda.get_device_name(device)}"
    return None


def _cpu_obstacle(device: torch.device) -> str | None:
    if device.type != "cpu":
        return f"it works on tensors of the CPU, and the device is {device.type}"
    try:
        importlib.import_module("kernels.cpu.backend")
    except (ImportError, OSError) as error:
        return f"numba does not work here ({error})"
    return None


_OBSTACLES = {"triton": _triton_obstacle, "cpu": _cpu_obstacle, "reference": lambda device: None}
_MODULES = {
    "triton": "kernels.triton.backend",
    "cpu": "kernels.cpu.backend",
    "reference": "kernels.reference",
}


def _load(name: str, reason: str) -> KernelBackend:
    module = importlib.import_module(_MODULES[name])
    operations = {
        field: getattr(module, field)
        for field in KernelBackend.__dataclass_fields__
        if field not in ("name", "reason")
    }
    return KernelBackend(name=name, reason=reason, **operations)
