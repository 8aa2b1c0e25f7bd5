"""What a thread fetches into its second cache while it multiplies, so that memory is never idle beside the products.

Every tile of products (linear.py) takes two streams of cache lines along:

    rows fit in one tile      both: the block of weights that this thread multiplies next
    more rows                 first: a share of that block       second: a head tile of the attention that comes next

A head tile, the keys and values of 16 tokens for one KV head, goes to whoever asks first: a counter for each layer says how
many are taken. Few rows need all of the memory's speed for weights alone, and fetch none.
"""

from kernels.cpu.fused.layout import (
    HEAD_TILE_BYTES,
    KV,
    NUM_KV_HEADS,
    NUM_LAYERS,
    NUM_SEQUENCE_TILES,
    NUM_TILES,
    TAKEN,
    TILES,
)
from kernels.cpu.ir_tools import formula, routine
from kernels.cpu.memory import atomic_add, load_i32, store_i64


@routine
def forget_taken(h):
    """No head tile of a layer is taken. Behind the last layer there is none to take."""
    for layer in range(h[NUM_LAYERS]):
        store_i64(h[TAKEN] + 8 * layer, 0)
    store_i64(h[TAKEN] + 8 * h[NUM_LAYERS], num_head_tiles(h))


@formula
def num_head_tiles(h):
    """Head tiles that a layer's attention reads in this step."""
    return h[NUM_SEQUENCE_TILES] * h[NUM_KV_HEADS]


@formula
def take_head_tiles(h, layer, count):
    """The first of up to `count` head tiles of a layer that the caller fetches; see `num_head_tiles` for the last there is."""
    return atomic_add(h[TAKEN] + 8 * layer, count)


@formula
def head_tile(h, layer, index):
    """The address of one of them."""
    heads = h[NUM_KV_HEADS]
    tile = layer * h[NUM_TILES] + load_i32(h[TILES] + 4 * (index // heads))
    return h[KV] + (tile * heads + index % heads) * h[HEAD_TILE_BYTES]
