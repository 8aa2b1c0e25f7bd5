"""The CPU backend: checks tensors, writes their addresses into argument structures and calls the compiled routines.

Importing this module compiles the routines, or loads them from the cache (see `kernels.cpu.jit`); it raises ImportError or
OSError where numba does not work. Nothing compiles later. Contracts: `kernels.ops`. Tensors are float32, bfloat16 or
float16, on the CPU, contiguous in the last dimension; caches and activations may differ in dtype.
"""

import torch

from kernels.attention_rules import AttentionRules
from kernels.cpu import attention, elementwise, threads
from kernels.cpu.llvm import BFLOAT16, FLOAT16, FLOAT32
from kernels.kv_pool import LayerCache

_CODES = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16, torch.float16: FLOAT16}
max_head_dim = 2**16
cache_dtypes = frozenset(_CODES)
quantized_linear = None
_scratch = threads.Scratch()
_ITEMS_PER_THREAD = 4
"""With fewer items of attention than this for each thread, long sequences are split."""


def rotate_and_store(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    cache: LayerCache,
    slot_mapping: torch.Tensor,
) -> None:
    _rotate(query, key, positions, cos_sin)
    _store(key, value, cache, slot_mapping)


def _store(
    key: torch.Tensor, value: torch.Tensor, cache: LayerCache, slot_mapping: torch.Tensor
) -> None:
    num_tokens, num_kv_heads, head_dim = key.shape
    slot_size = 4 * head_dim
    arguments = elementwise.StoreArguments(
        0,
        0,
        num_tokens,
        num_kv_heads,
        head_dim,
        cache.keys.shape[2],
        _scratch.address(threads.num_threads() * slot_size),
        slot_size,
        _code(key),
        _code(cache.keys),
        _integers(slot_mapping, torch.int64),
        *_heads(key),
        *_heads(value),
        cache.keys.data_ptr(),
        cache.keys.stride(0),
        cache.values.data_ptr(),
        cache.values.stride(0),
    )
    threads.run(elementwise.store_kv_cache, arguments, key.numel())


def paged_attention(
    query: torch.Tensor,
    cache: LayerCache,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    max_query_len: int,
    rules: AttentionRules,
) -> torch.Tensor:
    num_tokens, num_heads, head_dim = query.shape
    _, num_kv_heads, block_size, _ = cache.keys.shape
    num_seqs = seq_lens.shape[0]
    out = query.new_empty((num_tokens, num_heads, head_dim))
    group_size = num_heads // num_kv_heads
    tokens_per_tile = max(1, min(max_query_len, attention.TILE_ROWS // group_size))
    max_tiles = num_seqs + num_tokens // tokens_per_tile
    slot_size = attention.slot_size(tokens_per_tile * group_size, head_dim)
    num_threads = threads.num_threads()
    scratch = _scratch.address(num_threads * slot_size + 16 * max_tiles)
    arguments = attention.AttentionArguments(
        0,
        0,
        0,
        0,
        max_tiles,
        0,
        num_seqs,
        num_heads,
        num_kv_heads,
        head_dim,
        block_size,
        *_heads(query),
        _code(query),
        out.data_ptr(),
        cache.keys.data_ptr(),
        cache.keys.stride(0),
        cache.values.data_ptr(),
        cache.values.stride(0),
        _code(cache.keys),
        _integers(block_tables, torch.int32),
        block_tables.stride(0),
        _integers(seq_lens, torch.int32),
        _integers(query_start_loc, torch.int32),
        attention.NO_WINDOW if rules.window is None else rules.window,
        tokens_per_tile,
        _ITEMS_PER_THREAD * num_threads,
        scratch,
        slot_size,
        scratch + num_threads * slot_size,
        0,
        attention.partial_size(tokens_per_tile * group_size, head_dim),
        rules.scale,
        rules.soft_cap or 0.0,
    )
    _attend(arguments, head_dim * tokens_per_tile)
    return out


def _attend(arguments: attention.AttentionArguments, work_per_key: int) -> None:
    """Plan, then attend; a split needs memory for its partial results and a step that merges them."""
    work = threads.call(attention.plan, arguments) * work_per_key
    if not arguments.num_chunks:
        threads.run(attention.attend, arguments, work)
        return
    partials = torch.empty(arguments.num_items * arguments.partial_size, dtype=torch.uint8)
    arguments.partials = partials.data_ptr()
    threads.run(attention.attend, arguments, work)
    threads.call(attention.finish, arguments)


def copy_blocks(memory: torch.Tensor, src: torch.Tensor, dst: torch.Tensor) -> None:
    item_size, block = memory.element_size(), memory[0, 0, 0]
    num_rows = memory.shape[0] * 2 * src.shape[0]
    arguments = elementwise.CopyArguments(
        0,
        0,
        num_rows,
        src.shape[0],
        block.numel() * item_size,
        memory.data_ptr(),
        *(memory.stride(dim) * item_size for dim in range(3)),
        _integers(src, torch.int64),
        _integers(dst, torch.int64),
    )
    threads.run(elementwise.copy_blocks, arguments, num_rows * block.numel())


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    _norm(x, (0, 0, 0), weight, eps, (out.data_ptr(), 0))
    return out


def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    out, total = (
        torch.empty_like(x, memory_format=torch.contiguous_format),
        torch.empty_like(residual, memory_format=torch.contiguous_format),
    )
    _norm(x, _rows(residual), weight, eps, (out.data_ptr(), total.data_ptr()))
    return out, total


def _norm(
    x: torch.Tensor,
    residual: tuple[int, int, int],
    weight: torch.Tensor,
    eps: float,
    outputs: tuple[int, int],
) -> None:
    num_rows, size = x.shape
    slot_size = 3 * 4 * size
    arguments = elementwise.NormArguments(
        0,
        0,
        num_rows,
        size,
        eps,
        _scratch.address(threads.num_threads() * slot_size),
        slot_size,
        *_rows(x),
        *residual,
        weight.data_ptr(),
        _code(weight),
        *outputs,
    )
    threads.run(elementwise.rms_norm, arguments, x.numel())


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    num_rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty((num_rows, size))
    slot_size = 8 * size
    arguments = elementwise.SiluArguments(
        0,
        0,
        num_rows,
        size,
        _scratch.address(threads.num_threads() * slot_size),
        slot_size,
        *_rows(gate_up),
        out.data_ptr(),
    )
    threads.run(elementwise.silu_and_mul, arguments, 2 * gate_up.numel())
    return out


def _rotate(
    query: torch.Tensor, key: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor
) -> None:
    num_tokens, num_heads, head_dim = query.shape
    slot_size = 8 * head_dim
    arguments = elementwise.RotaryArguments(
        0,
        0,
        num_tokens,
        head_dim,
        _scratch.address(threads.num_threads() * slot_size),
        slot_size,
        _integers(positions, torch.int64),
        cos_sin.data_ptr(),
        _code(cos_sin),
        _code(query),
        *_heads(query),
        num_heads,
        *_heads(key),
        key.shape[1],
    )
    threads.run(elementwise.rotary, arguments, query.numel() + key.numel())


def _code(x: torch.Tensor) -> int:
    code = _CODES.get(x.dtype)
    if code is None:
        raise ValueError(f"the cpu backend works on float32, bfloat16 and float16, not {x.dtype}")
    return code


def _integers(x: torch.Tensor, dtype: torch.dtype) -> int:
    """The address of indices that are what the routines expect, contiguous in the last dimension."""
    assert x.dtype is dtype, f"indices are {x.dtype}, must be {dtype}"
    assert x.stride(-1) == 1 or x.shape[-1] <= 1, "indices are not contiguous"
    return x.data_ptr()


def _rows(x: torch.Tensor) -> tuple[int, int, int]:
    """Address, stride and dtype of rows [num_rows, size]."""
    assert x.stride(1) == 1, "rows are not contiguous"
    return x.data_ptr(), x.stride(0), _code(x)


def _heads(x: torch.Tensor) -> tuple[int, int, int]:
    """Address, token stride and head stride of [num_tokens, heads, head_dim]."""
    token_stride, head_stride, stride = x.stride()
    assert stride == 1, "heads are not contiguous"
    return x.data_ptr(), token_stride, head_stride
