"""Matrix product of 8-bit activations with packed 4-bit or 8-bit weights, 1 to 4 rows by 32 columns at a time.

    packed block = 32 output columns; for each group of 32 inputs, in the order in which they are read:
    4 bits, 640 bytes:   4 rows of 2 x 64 bytes (columns 0-15, columns 16-31), then for each half [16 f16 scale][16 f16 minimum]
                         bytes 8n+i and 8n+4+i of row j: inputs 4j+i and 16+4j+i, of column 4(n/2)+n%2 in the low nibble and
                         of the one two further in the high nibble
    8 bits, 1,088 bytes: 8 rows of 2 x 64 bytes, then for each half [16 f16 scale]
                         byte 4n+i of row j: column n, input 4j+i, stored as number + 128

    weight = scale * nibble + minimum        dot = unit * sum over groups of  scale * sum of f * (q . nibbles) + minimum * sum of f * sum q
    weight = scale * (byte - 128)            dot = sum over groups of  scale * sum of s * (q . bytes - 128 * sum q)
    where f (an integer), s and q are a row's factor, scale and numbers of the first and of the last 16 inputs of the group (quantize.py)

A dot of 16 nibbles and numbers fits in 16 bits, so both of a group are multiplied by their factors and added in one instruction.

A linear layer is a table of int64, one per block: the block's address, plus 1 when it holds 8-bit weights (blocks are
aligned to 64 bytes). Every row sums its groups in ascending order, whatever rows share the call.
"""

import numba

from kernels.cpu.fused.fetching import head_tile, num_head_tiles, take_head_tiles
from kernels.cpu.fused.instructions import (
    add_dot_u4,
    begin_dot_u4,
    column_parts,
    dot_u8_s8,
    scaled_dots_u4,
)
from kernels.cpu.fused.layout import HEAD_TILE_BYTES
from kernels.cpu.fused.quantize import (
    FACTOR_PLACE,
    GROUP,
    RECORD_BYTES,
    SHIFT_PLACE,
    SUM_PLACE,
    UNIT_PLACE,
)
from kernels.cpu.ir_tools import (
    F16X16,
    F32,
    F32X16,
    FAR,
    I32,
    I32X16,
    I64,
    Variable,
    counted_loop,
    element,
    filled,
    filled_int,
    fma,
    i64,
    kernel,
    load,
    prefetch,
    routine,
    splat,
    store,
)
from kernels.cpu.memory import load_f16, load_i64, load_u8, store_f32

BLOCK_COLUMNS = 32
GROUP_BYTES_4 = 640
GROUP_BYTES_8 = 1088
STREAM_LINES = {4: 5, 8: 9}
"""Cache lines of each of a tile's two streams for a group: half of the group's."""
MAX_TILE_ROWS = 4
"""More rows would unpack weights less often, and spill: measured on Zen 5, five and six are no faster than four."""
_LOW_NIBBLES = 0x0F0F0F0F


def _dots_8(b, group, part, halves, inputs, records):
    """The integer dots of the first or last 16 inputs, [rows][halves] vectors, which begin with the record's shift."""
    place = SHIFT_PLACE + 4 * part
    sums = [[splat(b, load(b, I32, record, place))] * len(halves) for record in records]
    for row in range(4 * part, 4 * part + 4):
        words = [load(b, I32X16, group, 128 * row + 64 * half) for half in halves]
        for totals, address in zip(sums, inputs, strict=True):
            numbers = splat(b, load(b, I32, address, 8 * (row % 4) + 4 * part))
            totals[:] = [dot_u8_s8(b, t, w, numbers) for t, w in zip(totals, words, strict=True)]
    return sums


def _add_groups_4(b, group, halves, inputs, records, acc):
    """acc [rows][halves] += a group of 4-bit weights times their inputs, in units of each row."""
    sums = [[[begin_dot_u4() for _ in range(2)] for _ in halves] for _ in inputs]
    for row in range(4):
        pairs = []
        for half in halves:
            packed = load(b, I32X16, group, 128 * row + 64 * half)
            shifted = b.lshr(packed, filled_int(4))
            pairs.append([b.and_(word, filled_int(_LOW_NIBBLES)) for word in (packed, shifted)])
        for of_row, address in zip(sums, inputs, strict=True):
            numbers = b.bitcast(splat(b, load(b, I64, address, 8 * row), 8), I32X16)
            for totals, words in zip(of_row, pairs, strict=True):
                totals[:] = [
                    add_dot_u4(b, t, w, numbers) for t, w in zip(totals, words, strict=True)
                ]
    for i, half in enumerate(halves):
        scale, minimum = (
            b.fpext(load(b, F16X16, group, 512 + 64 * half + 32 * k), F32X16) for k in range(2)
        )
        for r, record in enumerate(records):
            dots = scaled_dots_u4(b, *sums[r][i], load(b, I32, record, FACTOR_PLACE))
            total = fma(b, scale, b.sitofp(dots, F32X16), acc[r][i].get())
            row_sum = splat(b, load(b, F32, record, SUM_PLACE))
            acc[r][i].set(fma(b, minimum, row_sum, total))


def _add_groups_8(b, group, halves, inputs, records, acc):
    """acc [rows][halves] += a group of 8-bit weights times their inputs."""
    products = [[filled(0.0) for _ in halves] for _ in records]
    for part in range(2):
        dots = _dots_8(b, group, part, halves, inputs, records)
        for row, totals, record in zip(products, dots, records, strict=True):
            scale = splat(b, load(b, F32, record, 4 * part))
            row[:] = [
                fma(b, b.sitofp(t, F32X16), scale, p) for t, p in zip(totals, row, strict=True)
            ]
    for i, half in enumerate(halves):
        scale = b.fpext(load(b, F16X16, group, 1024 + 32 * half), F32X16)
        for sums, row in zip(acc, products, strict=True):
            sums[i].set(fma(b, scale, row[i], sums[i].get()))


def make_tile(rows: int, bits: int):
    """The kernel for `rows` rows and one packed block of `bits`-bit weights."""

    def tile(
        b,
        inputs,
        input_stride,
        records,
        record_stride,
        block,
        num_groups,
        out,
        out_stride,
        first,
        first_stride,
        second,
        second_stride,
    ):
        """out [rows][32] f32 = rows of (inputs, records) times one block.

        Two streams of cache lines are fetched meanwhile: from `first` and `second` on, that many bytes for a group.
        """
        streams = (first, first_stride), (second, second_stride)
        row_inputs = [b.add(inputs, b.mul(input_stride, i64(r))) for r in range(rows)]
        row_records = [b.add(records, b.mul(record_stride, i64(r))) for r in range(rows)]
        row_outs = [b.add(out, b.mul(out_stride, i64(r))) for r in range(rows)]
        for halves in column_parts():
            _emit_halves(
                b, bits, halves, row_inputs, row_records, block, num_groups, row_outs, streams
            )
            streams = ()

    return kernel(tile, f"tile_{bits}_{rows}")


def _emit_halves(b, bits, halves, inputs, records, block, num_groups, outs, streams):
    """16 or 32 columns of a tile."""
    group_bytes = GROUP_BYTES_4 if bits == 4 else GROUP_BYTES_8
    add_groups = _add_groups_4 if bits == 4 else _add_groups_8
    acc = [[Variable(b, filled(0.0)) for _ in halves] for _ in outs]
    with counted_loop(b, num_groups) as index:
        group = element(b, block, index, group_bytes)
        for start, stride in streams:
            lines = b.add(start, b.mul(index, stride))
            for line in range(0, STREAM_LINES[bits] * 64, 64):
                prefetch(b, lines, line, FAR)
        group_inputs = [element(b, address, index, GROUP) for address in inputs]
        group_records = [element(b, address, index, RECORD_BYTES) for address in records]
        add_groups(b, group, halves, group_inputs, group_records, acc)
    for sums, record, row_out in zip(acc, records, outs, strict=True):
        for variable, half in zip(sums, halves, strict=True):
            value = variable.get()
            if bits == 4:
                value = b.fmul(value, splat(b, load(b, F32, record, UNIT_PLACE)))
            store(b, value, row_out, 64 * half)


_tile_4_1, _tile_4_2, _tile_4_3, _tile_4_4 = (
    make_tile(rows, 4) for rows in range(1, MAX_TILE_ROWS + 1)
)
_tile_8_1, _tile_8_2, _tile_8_3, _tile_8_4 = (
    make_tile(rows, 8) for rows in range(1, MAX_TILE_ROWS + 1)
)


@routine
def _tile_4(n, a, lda, s, lds, w, groups, o, ldo, f, ldf, g, ldg):
    if n == 1:
        _tile_4_1(a, lda, s, lds, w, groups, o, ldo, f, ldf, g, ldg)
    elif n == 2:
        _tile_4_2(a, lda, s, lds, w, groups, o, ldo, f, ldf, g, ldg)
    elif n == 3:
        _tile_4_3(a, lda, s, lds, w, groups, o, ldo, f, ldf, g, ldg)
    else:
        _tile_4_4(a, lda, s, lds, w, groups, o, ldo, f, ldf, g, ldg)


@routine
def _tile_8(n, a, lda, s, lds, w, groups, o, ldo, f, ldf, g, ldg):
    if n == 1:
        _tile_8_1(a, lda, s, lds, w, groups, o, ldo, f, ldf, g, ldg)
    elif n == 2:
        _tile_8_2(a, lda, s, lds, w, groups, o, ldo, f, ldf, g, ldg)
    elif n == 3:
        _tile_8_3(a, lda, s, lds, w, groups, o, ldo, f, ldf, g, ldg)
    else:
        _tile_8_4(a, lda, s, lds, w, groups, o, ldo, f, ldf, g, ldg)


@routine
def multiply(
    h, layer, table, begin, end, following, num_inputs, inputs, records, num_rows, out, out_stride
):
    """out [num_rows][(end - begin) * 32] f32 = quantised rows times blocks begin to end of a layer's table.

    Rows are split evenly into tiles of at most 4. `following` is the block that the thread multiplies after the last one, in
    the same table or behind it; `layer` the one whose attention comes next: what tiles fetch, see fetching.py.
    """
    groups, lds = num_inputs // GROUP, num_inputs // GROUP * RECORD_BYTES
    num_tiles = (num_rows + MAX_TILE_ROWS - 1) // MAX_TILE_ROWS
    taken, num_taken = num_head_tiles(h), num_head_tiles(h)
    if num_tiles > 1:
        taken = take_head_tiles(h, layer, (end - begin) * num_tiles)
    for index in range(begin, end):
        entry = load_i64(table + 8 * index)
        block, is_8 = entry & ~1, entry & 1
        block_out = out + (index - begin) * BLOCK_COLUMNS * 4
        group_bytes = GROUP_BYTES_8 if is_8 else GROUP_BYTES_4
        next_index = index + 1 if index + 1 < end else following
        first = load_i64(table + 8 * next_index) & ~1
        first_stride = (group_bytes + num_tiles - 1) // num_tiles
        row = 0
        for tile in range(num_tiles):
            size = (num_rows - row) // (num_tiles - tile)
            a, s, o = inputs + row * num_inputs, records + row * lds, block_out + row * out_stride
            second, second_stride = block, 0
            if num_tiles == 1:
                second, second_stride = first + group_bytes // 2, first_stride
            elif taken < num_taken:
                second, second_stride = head_tile(h, layer, taken), h[HEAD_TILE_BYTES] // groups
                taken += 1
            f, ldf, g, ldg = first, first_stride, second, second_stride
            if is_8:
                _tile_8(size, a, num_inputs, s, lds, block, groups, o, out_stride, f, ldf, g, ldg)
            else:
                _tile_4(size, a, num_inputs, s, lds, block, groups, o, out_stride, f, ldf, g, ldg)
            first += first_stride * groups
            row += size


@routine
def unpack_row(table, column, num_inputs, out):
    """out [num_inputs] f32 = the weights of one output column: the embedding of a token, out of the packed head."""
    entry = load_i64(table + 8 * (column // BLOCK_COLUMNS))
    half, lane = column % BLOCK_COLUMNS // 16, column % 16
    for group in range(num_inputs // GROUP):
        target = out + group * GROUP * 4
        if entry & 1:
            base = entry - 1 + group * GROUP_BYTES_8
            scale = load_f16(base + 1024 + 32 * half + 2 * lane)
            words = base + 64 * half + 4 * lane
            for i in range(GROUP):
                number = load_u8(words + i // 4 * 128 + i % 4) - 128
                store_f32(target + 4 * i, numba.float32(number) * scale)
        else:
            base = entry + group * GROUP_BYTES_4
            factors = base + 512 + 64 * half + 2 * lane
            scale, minimum = load_f16(factors), load_f16(factors + 32)
            words = base + 64 * half + 8 * (lane // 4 * 2 + lane % 2)
            for i in range(GROUP):
                byte = load_u8(words + i % 16 // 4 * 128 + i // 16 * 4 + i % 4)
                nibble = byte >> 4 if lane & 2 else byte & 15
                store_f32(target + 4 * i, numba.float32(nibble) * scale + minimum)
