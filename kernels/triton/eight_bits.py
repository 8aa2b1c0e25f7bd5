"""Numbers of eight bits: rounded on their way into memory, widened on their way out. The format is that of `kernels.eight_bits`.

Kernels see int8 as it is and e4m3 (sign, 4 bits of exponent with a bias of 7, 3 of mantissa; Micikevicius et al., FP8 Formats, 2022) as
bytes. Its bits, moved into the exponent and mantissa of a wider float, are the number times a power of two, those of numbers
without an exponent included.

Widening is what limits a kernel that reads eight bits at the speed of memory. On NVIDIA four numbers are widened at a time, by
instructions that the compiler does not find: a byte becomes the mantissa of a float whose unit is 1, and what was added on the way
is subtracted again. Where tensor cores take numbers from registers, these instructions count as having effects (WIDEN_FIRST), or
the compiler would do them after the numbers were dealt out, once for each warp, and would deal out bytes one by one. Where they
take them from shared memory they must not: the compiler does them in another turn of the loop than the product.
"""

import torch
import triton
import triton.language as tl

from kernels.eight_bits import LARGEST, SMALLEST_SCALE

INT8_LARGEST = tl.constexpr(LARGEST[torch.int8])
E4M3_LARGEST = tl.constexpr(LARGEST[torch.float8_e4m3fn])
SMALLEST = tl.constexpr(SMALLEST_SCALE)
TO_NEAREST = tl.constexpr(12_582_912.0)
"""1.5 * 2^23: a float32 that was added to it, and was small, has been rounded to a whole number, halves to even."""


@triton.jit
def round_to_int8(x):
    return ((x + TO_NEAREST) - TO_NEAREST).to(tl.int8)


@triton.jit
def round_to_e4m3(x):
    """The bits of float32 x, 448 at most, as uint8."""
    bits = x.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    # Round to 3 bits of mantissa, halves to even; then the exponent's bias of 127 becomes 7.
    normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20) - (120 << 3)
    # Below 2^-6 numbers are multiples of 2^-9, and 8 of them are the smallest normal number's bits.
    small = ((tl.abs(x) * 512.0 + TO_NEAREST) - TO_NEAREST).to(tl.int32)
    code = tl.where(tl.abs(x) < 0.015625, small, normal)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def scale_of(x):
    """Of a token's head, float32."""
    return tl.maximum(tl.max(tl.abs(x), 0), SMALLEST)


@triton.jit
def quantize(x, scale, out_type: tl.constexpr):
    """float32 x in steps of scale / LARGEST, as int8 or as the bits of e4m3 (uint8)."""
    if out_type == tl.int8:
        out = round_to_int8(x * (INT8_LARGEST / scale))
    else:
        out = round_to_e4m3(x * (E4M3_LARGEST / scale))
    return out


INT8_TO_FLOAT16 = tl.constexpr("""{
    .reg .b32 biased, offset;
    xor.b32 biased, $2, 0x80808080;
    mov.b32 offset, 0x64806480;
    prmt.b32 $0, biased, 0x64646464, 0x4140;
    prmt.b32 $1, biased, 0x64646464, 0x4342;
    sub.rn.f16x2 $0, $0, offset;
    sub.rn.f16x2 $1, $1, offset;
}""")
"""1024 + 128 + x, less 1152."""
INT8_TO_BFLOAT16 = tl.constexpr("""{
    .reg .b32 biased, a, b, c, d;
    xor.b32 biased, $2, 0x80808080;
    prmt.b32 a, biased, 0x4B000000, 0x7440;
    prmt.b32 b, biased, 0x4B000000, 0x7441;
    prmt.b32 c, biased, 0x4B000000, 0x7442;
    prmt.b32 d, biased, 0x4B000000, 0x7443;
    sub.rn.f32 a, a, 0f4B000080;
    sub.rn.f32 b, b, 0f4B000080;
    sub.rn.f32 c, c, 0f4B000080;
    sub.rn.f32 d, d, 0f4B000080;
    prmt.b32 $0, a, b, 0x7632;
    prmt.b32 $1, c, d, 0x7632;
}""")
"""2^23 + 128 + x in float32, less that; the upper halves are bfloat16."""
E4M3_TO_FLOAT16 = tl.constexpr("""{
    .reg .b32 a, b, s, t, factor;
    mov.b32 factor, 0x5C005C00;
    prmt.b32 a, $2, 0, 0x1404;
    prmt.b32 b, $2, 0, 0x3424;
    shr.b32 s, a, 1;
    shr.b32 t, b, 1;
    and.b32 s, s, 0x3F803F80;
    and.b32 t, t, 0x3F803F80;
    lop3.b32 a, a, 0x80008000, s, 0xEA;
    lop3.b32 b, b, 0x80008000, t, 0xEA;
    mul.rn.f16x2 $0, a, factor;
    mul.rn.f16x2 $1, b, factor;
}""")
"""The bits, moved; times 2^8."""
E4M3_TO_BFLOAT16 = tl.constexpr("""{
    .reg .b32 a, b, s, t, factor, zero;
    mov.b32 factor, 0x7B807B80;
    mov.b32 zero, 0x80008000;
    prmt.b32 a, $2, 0, 0x1404;
    prmt.b32 b, $2, 0, 0x3424;
    shr.b32 s, a, 4;
    shr.b32 t, b, 4;
    and.b32 s, s, 0x07F007F0;
    and.b32 t, t, 0x07F007F0;
    lop3.b32 a, a, 0x80008000, s, 0xEA;
    lop3.b32 b, b, 0x80008000, t, 0xEA;
    fma.rn.bf16x2 $0, a, factor, zero;
    fma.rn.bf16x2 $1, b, factor, zero;
}""")
"""The bits, moved; times 2^120, which Ampere multiplies as part of an addition only."""
CONVERT_E4M3_TO_FLOAT16 = tl.constexpr("""{
    .reg .b16 low, high;
    mov.b32 {low, high}, $2;
    cvt.rn.f16x2.e4m3x2 $0, low;
    cvt.rn.f16x2.e4m3x2 $1, high;
}""")
"""For chips that have the instruction: NVIDIA's from Ada on."""


FOUR_NUMBERS = tl.constexpr("=&r,=&r,r")
"""Two registers of two numbers each, written before all is read, from one of four."""


@triton.jit
def widen(stored, out_type: tl.constexpr, WIDENING: tl.constexpr, WIDEN_FIRST: tl.constexpr):
    """What was stored as numbers of `out_type`; exact for eight bits. WIDENING is what `Chip.widening` says."""
    is_pure: tl.constexpr = not WIDEN_FIRST
    by_four: tl.constexpr = WIDENING != "plain" and out_type != tl.float32
    if by_four and stored.dtype == tl.int8:
        if out_type == tl.float16:
            wide = tl.inline_asm_elementwise(
                INT8_TO_FLOAT16, FOUR_NUMBERS, [stored], tl.float16, is_pure, 4
            )
        else:
            wide = tl.inline_asm_elementwise(
                INT8_TO_BFLOAT16, FOUR_NUMBERS, [stored], tl.bfloat16, is_pure, 4
            )
    elif by_four and stored.dtype == tl.uint8:
        if out_type == tl.bfloat16:
            wide = tl.inline_asm_elementwise(
                E4M3_TO_BFLOAT16, FOUR_NUMBERS, [stored], tl.bfloat16, is_pure, 4
            )
        elif WIDENING == "ptx with e4m3":
            wide = tl.inline_asm_elementwise(
                CONVERT_E4M3_TO_FLOAT16, FOUR_NUMBERS, [stored], tl.float16, is_pure, 4
            )
        else:
            wide = tl.inline_asm_elementwise(
                E4M3_TO_FLOAT16, FOUR_NUMBERS, [stored], tl.float16, is_pure, 4
            )
    elif stored.dtype == tl.uint8:
        bits = stored.to(tl.int32)
        moved = ((bits & 0x80) << 24) | ((bits & 0x7F) << 20)
        wide = (moved.to(tl.float32, bitcast=True) * 1.329227995784916e36).to(out_type)
    else:
        wide = stored.to(out_type)
    return wide


def bits_of(numbers: torch.Tensor) -> torch.Tensor:
    """The tensor that a kernel is given: e4m3 as bytes."""
    return numbers.view(torch.uint8) if numbers.dtype is torch.float8_e4m3fn else numbers


def stride_of(scales: torch.Tensor | None) -> int:
    """From block to block, for a kernel; without scales it is not used."""
    return 0 if scales is None else scales.stride(0)
