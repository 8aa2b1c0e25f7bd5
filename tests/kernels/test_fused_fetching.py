"""What is fetched beside products: it changes no result, so only where it looks and how much it takes can be seen."""

from dataclasses import replace

import numba
import numpy as np
import pytest
from llvmlite import ir

from kernels.cpu.fused import layout as at
from kernels.cpu.fused.fetching import head_tile, num_head_tiles
from kernels.cpu.fused.linear import GROUP_BYTES_4, GROUP_BYTES_8
from kernels.cpu.fused.model import FusedModel
from kernels.cpu.fused.step import MAX_ITEM_BLOCKS
from kernels.cpu.ir_tools import FAR, KERNELS
from tests.kernels.fused_reference import RandomModel, Run, needs_fused_cpu, step_input
from tests.kernels.test_fused_step import SMALL

pytestmark = needs_fused_cpu
NUM_LAYERS, NUM_THREADS, BLOCK_SIZE = 3, 3, 32


@pytest.fixture(scope="module")
def model() -> RandomModel:
    return RandomModel(replace(SMALL, num_layers=NUM_LAYERS), seed=3)


@pytest.fixture
def fused(model: RandomModel):
    fused = model.fused(block_size=BLOCK_SIZE, num_threads=NUM_THREADS)
    yield fused
    fused.close()


def decode(fused: FusedModel, num_sequences: int) -> None:
    """A token each for sequences of 70 tokens, which fill 5 tiles in 3 blocks; nobody computed what they read."""
    fused.kv[:] = 0
    runs = [Run([7], 70, [3 * i, 3 * i + 1, 3 * i + 2]) for i in range(num_sequences)]
    fused.run(step_input(runs))


def taken(fused: FusedModel) -> list[int]:
    counts = fused._kept[at.TAKEN].view(np.int64)
    return counts.tolist()


def test_tables_stand_in_the_order_of_a_step(model: RandomModel, fused: FusedModel) -> None:
    weights = fused._weights
    tables = [t for w in weights.layers for t in (w.qkv, w.output, w.gate_up, w.down)]
    expected = [entry for table in [*tables, weights.head] for entry in table.tolist()]
    entries = fused._kept[at.TABLES].view(np.int64).tolist()
    assert entries[: len(expected)] == expected
    assert len(entries) == len(expected) + NUM_THREADS * MAX_ITEM_BLOCKS
    assert set(entries) == set(expected)
    slots = fused._kept[at.LAYERS].view(np.int64).reshape(NUM_LAYERS, at.LAYER_SLOTS)
    starts = [*slots[:, [at.L_QKV, at.L_OUTPUT, at.L_GATE_UP, at.L_DOWN]].ravel()]
    starts.append(fused._header[at.HEAD])
    assert np.diff(starts).tolist() == [8 * len(table) for table in tables]


def test_few_rows_fetch_nothing_but_weights(fused: FusedModel) -> None:
    decode(fused, 4)
    assert taken(fused)[:NUM_LAYERS] == [0] * NUM_LAYERS


def test_each_tile_of_more_rows_takes_a_head_tile_of_the_attention_to_come(
    model: RandomModel, fused: FusedModel
) -> None:
    """Nine rows are three tiles for every block. Behind the last layer none is left to take."""
    decode(fused, 9)
    weights = model.weights
    qkv = [3 * len(w.qkv) for w in weights.layers]
    others = [3 * sum(map(len, (w.output, w.gate_up, w.down))) for w in weights.layers]
    behind = 9 * 5 * SMALL.num_kv_heads + others[-1] + 3 * len(weights.head)
    expected = [qkv[0], qkv[1] + others[0], qkv[2] + others[1], behind]
    assert taken(fused) == expected
    decode(fused, 9)
    assert taken(fused) == expected, "every step starts anew"


@pytest.mark.parametrize(("bits", "lines"), [(4, 10), (8, 18)])
def test_a_tile_fetches_its_two_streams_into_the_second_cache(bits: int, lines: int) -> None:
    """Both cover a group of weights: with one tile of rows it all comes from them."""
    tile = next(kernel for kernel in KERNELS if kernel.name == f"pageturn_tile_{bits}_4")
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), tile.argument_types), tile.name)
    tile.emit(ir.IRBuilder(function.append_basic_block()), *function.args)
    fetches = [line for line in str(module).splitlines() if 'call void @"llvm.prefetch' in line]
    assert len(fetches) == lines
    assert all(f"i32 {FAR}, i32 1)" in line for line in fetches)
    assert 64 * lines >= (GROUP_BYTES_4 if bits == 4 else GROUP_BYTES_8)


def test_head_tiles_are_those_that_attention_reads(fused: FusedModel) -> None:
    """An engine's block is two tiles here: tile t of a sequence is half t % 2 of its block t // 2."""
    decode(fused, 9)
    header = fused._header
    count = numba.njit(lambda h: num_head_tiles(h))(header)
    assert count == 9 * 5 * SMALL.num_kv_heads
    address = numba.njit(lambda h, layer, index: head_tile(h, layer, index))
    pool = fused.kv.ctypes.data
    layer_bytes, block_bytes = fused.kv.strides[:2]
    size = block_bytes // 2 // SMALL.num_kv_heads
    for layer in range(NUM_LAYERS):
        expected = [
            pool + layer * layer_bytes + (3 * seq + t // 2) * block_bytes
            + (t % 2 * SMALL.num_kv_heads + head) * size
            for seq in range(9)
            for t in range(5)
            for head in range(SMALL.num_kv_heads)
        ]  # fmt: skip
        assert [address(header, layer, index) for index in range(count)] == expected
