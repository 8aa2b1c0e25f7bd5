"""The operations that instruction sets do differently, each emitted for the set that a module is built for.

AVX-512 has an instruction for each of them. For AVX2 they are composed of others: integers stay exact, bfloat16 products
are added in two roundings instead of one. All other operations are plain IR on vectors of 16, which LLVM splits as needed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from llvmlite import ir

from kernels.cpu.ir_tools import (
    BF16,
    BF16X32,
    F32X16,
    I8,
    I16,
    I16X32,
    I32,
    I32X16,
    call,
    filled_int,
    fma,
    shuffle,
    splat,
    vector,
)

_I8X64, _I8X32 = vector(I8, 64), vector(I8, 32)
_I16X16, _I32X8 = vector(I16), vector(I32, 8)
_target = ["avx512"]


@contextmanager
def emitting_for(instruction_set: str) -> Iterator[None]:
    """Operations emitted inside are those of `instruction_set` (features.py)."""
    _target.append(instruction_set)
    try:
        yield
    finally:
        _target.pop()


def _is_avx2() -> bool:
    return _target[-1] == "avx2"


def to_bf16(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """float32 lanes rounded to the nearest bfloat16, ties to even, as int16 bits."""
    lanes = x.type.count
    if _is_avx2():
        bits = b.bitcast(x, vector(I32, lanes))
        odd = b.and_(b.lshr(bits, filled_int(16, lanes)), filled_int(1, lanes))
        rounded = b.add(b.add(bits, filled_int(0x7FFF, lanes)), odd)
        return b.trunc(b.lshr(rounded, filled_int(16, lanes)), vector(I16, lanes))
    name = f"llvm.x86.avx512bf16.cvtneps2bf16.{lanes * 32}"
    return b.bitcast(call(b, name, vector(BF16, lanes), [x.type], [x]), vector(I16, lanes))


def dot_bf16(b: ir.IRBuilder, acc: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    """acc[i] += x[2i] * y[2i] + x[2i+1] * y[2i+1] over bfloat16 pairs; x, y are given as 16 words."""
    if _is_avx2():
        low_x, low_y = (b.bitcast(b.shl(v, filled_int(16)), F32X16) for v in (x, y))
        high_x, high_y = (b.bitcast(b.and_(v, filled_int(-65536)), F32X16) for v in (x, y))
        return fma(b, high_x, high_y, fma(b, low_x, low_y, acc))
    name = "llvm.x86.avx512bf16.dpbf16ps.512"
    pairs = [b.bitcast(x, BF16X32), b.bitcast(y, BF16X32)]
    return call(b, name, F32X16, [F32X16, BF16X32, BF16X32], [acc, *pairs])


def column_parts() -> tuple[tuple[int, ...], ...]:
    """Which halves of a block's 32 columns a kernel sums at a time: registers of AVX2 hold one."""
    return ((0,), (1,)) if _is_avx2() else ((0, 1),)


def begin_dot_u4() -> ir.Constant:
    """The empty sum for `add_dot_u4`."""
    return ir.Constant(I16X32, [0] * 32) if _is_avx2() else filled_int(0)


def add_dot_u4(b: ir.IRBuilder, sums: ir.Value, unsigned: ir.Value, signed: ir.Value) -> ir.Value:
    """Adds the products of four bytes of each word, unsigned up to 15, to sums of up to four such words."""
    if _is_avx2():
        return b.add(sums, _by_halves(b, _multiply_bytes, unsigned, signed))
    return _vpdpbusd(b, sums, unsigned, signed)


def scaled_dots_u4(
    b: ir.IRBuilder, first: ir.Value, second: ir.Value, factors: ir.Value
) -> ir.Value:
    """16 int32: sums of `add_dot_u4` times int16 factors, added in pairs (words 2i and 2i + 1, times the two factors in `factors`).

    Every quarter of the result has two pairs of `first`, then two of `second`. A sum is of up to four words.
    """
    if _is_avx2():
        twice = b.bitcast(splat(b, factors), I16X32)
        twice = shuffle(b, twice, twice, [i // 2 % 2 for i in range(32)])
        products = [_by_halves(b, _add_pairs, sums, twice) for sums in (first, second)]
        return _by_halves(b, _add_neighbours, *products)
    kinds = [I32X16, I32X16]
    pairs = call(b, "llvm.x86.avx512.packssdw.512", I16X32, kinds, [first, second])
    return dot_i16(b, filled_int(0), b.bitcast(pairs, I32X16), splat(b, factors))


def end_dot_u4(b: ir.IRBuilder, sums: ir.Value) -> ir.Value:
    """The sums as 16 int32. Those of AVX2 are pairs until then: 4 words of 4 products up to 15 * 128 fit in 16 bits."""
    return _by_halves(b, lambda b, half: _times(b, half, 1), sums) if _is_avx2() else sums


def dot_u8_s8(b: ir.IRBuilder, acc: ir.Value, unsigned: ir.Value, signed: ir.Value) -> ir.Value:
    """acc[i] += sum over j of unsigned[4i+j] * signed[4i+j], exact in int32; both as 16 words.

    AVX2 adds pairs of products in 16 bits, so it takes the highest bits apart.
    """
    if _is_avx2():
        return b.add(acc, _by_halves(b, _dot_large, unsigned, signed))
    return _vpdpbusd(b, acc, unsigned, signed)


def dot_i16(b: ir.IRBuilder, acc: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    """acc[i] += x[2i] * y[2i] + x[2i+1] * y[2i+1] over int16 pairs, exact in int32; x, y are given as 16 words."""
    if _is_avx2():
        return b.add(acc, _by_halves(b, _add_pairs, x, y))
    name = "llvm.x86.avx512.vpdpwssd.512"
    pairs = [b.bitcast(x, I16X32), b.bitcast(y, I16X32)]
    return call(b, name, I32X16, [I32X16, I16X32, I16X32], [acc, *pairs])


def masked_store(b: ir.IRBuilder, value: ir.Value, address: ir.Value, mask: ir.Value) -> None:
    """Stores the lanes of `value` (32 of int8 or int16) whose bit is set in the int32 `mask`; leaves other bytes alone."""
    kind = value.type
    pointer = ir.PointerType(kind.element)
    bits = b.bitcast(mask, vector(ir.IntType(1), 32))
    target = b.inttoptr(address, pointer)
    kinds = [kind, pointer, I32, bits.type]
    name = f"llvm.masked.store.v32i{kind.element.width}.p0"
    call(b, name, ir.VoidType(), kinds, [value, target, I32(1), bits])


def _vpdpbusd(b, acc, unsigned, signed):
    name = "llvm.x86.avx512.vpdpbusd.512"
    operands = [b.bitcast(unsigned, _I8X64), b.bitcast(signed, _I8X64)]
    return call(b, name, I32X16, [I32X16, _I8X64, _I8X64], [acc, *operands])


# --- AVX2, on vectors of 8 words -----------------------------------------------------------------


def _by_halves(
    b: ir.IRBuilder, operation: Callable[..., ir.Value], *operands: ir.Value
) -> ir.Value:
    """`operation` on both halves of vectors."""
    low, high = (operation(b, *(_half(b, operand, i) for operand in operands)) for i in range(2))
    count = 2 * low.type.count
    return shuffle(b, low, high, range(count))


def _half(b, value, index):
    count = value.type.count // 2
    undefined = ir.Constant(value.type, ir.Undefined)
    return shuffle(b, value, undefined, range(index * count, (index + 1) * count))


def _multiply_bytes(b, unsigned, signed):
    """16 sums of two products of bytes, as int16."""
    operands = [b.bitcast(unsigned, _I8X32), b.bitcast(signed, _I8X32)]
    return call(b, "llvm.x86.avx2.pmadd.ub.sw", _I16X16, [_I8X32] * 2, operands)


def _add_pairs(b, x, y):
    """8 sums of two products of int16, as int32."""
    operands = [b.bitcast(x, _I16X16), b.bitcast(y, _I16X16)]
    return call(b, "llvm.x86.avx2.pmadd.wd", _I32X8, [_I16X16] * 2, operands)


def _add_neighbours(b, x, y):
    """8 int32: in both halves two sums of neighbours in x, then two of neighbours in y."""
    return call(b, "llvm.x86.avx2.phadd.d", _I32X8, [_I32X8] * 2, [x, y])


def _times(b, sums, factor):
    return _add_pairs(b, sums, ir.Constant(_I16X16, [factor] * 16))


def _dot_large(b, unsigned, signed):
    low = b.and_(unsigned, filled_int(0x7F7F7F7F, 8))
    high = b.and_(b.lshr(unsigned, filled_int(7, 8)), filled_int(0x01010101, 8))
    products = _times(b, _multiply_bytes(b, high, signed), 128)
    return b.add(_times(b, _multiply_bytes(b, low, signed), 1), products)
