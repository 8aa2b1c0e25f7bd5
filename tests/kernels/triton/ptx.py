"""Runs the few PTX instructions that the kernels write themselves, on the CPU: what they do to bits is proven without a GPU.

Semantics: PTX ISA, "prmt", "lop3", "Floating Point Instructions". Halves of a register are computed in float32 and rounded once, which
is exact for the factors and offsets that are used.
"""

import re
import struct
from collections.abc import Callable

import torch

Registers = dict[str, int]
MASK = 0xFFFFFFFF
LOP3_AND_OR = 0xEA


def run(program: str, word: int) -> tuple[int, int]:
    """What a program of two outputs and one input makes of a register."""
    registers: Registers = {"$2": word}
    body = program.strip().removeprefix("{").removesuffix("}")
    for line in filter(None, (part.strip() for part in body.split(";"))):
        if not line.startswith(".reg"):
            name, operands = line.split(maxsplit=1)
            _step(registers, name, [x.strip() for x in re.split(r",(?![^{]*\})", operands)])
    return registers["$0"], registers["$1"]


def _step(registers: Registers, name: str, operands: list[str]) -> None:
    target, *rest = operands
    values = [_value(registers, operand) for operand in rest]
    if target.startswith("{"):
        low, high = target.strip("{}").split(",")
        registers[low.strip()], registers[high.strip()] = values[0] & 0xFFFF, values[0] >> 16
    else:
        registers[target] = INSTRUCTIONS[name](*values) & MASK


def _value(registers: Registers, operand: str) -> int:
    if operand.startswith("0f"):
        return int(operand[2:], 16)
    return registers[operand] if operand in registers else int(operand, 0)


def _permute(a: int, b: int, selector: int) -> int:
    data = a.to_bytes(4, "little") + b.to_bytes(4, "little")
    return int.from_bytes(bytes(data[selector >> 4 * i & 7] for i in range(4)), "little")


def _and_or(a: int, b: int, c: int, table: int) -> int:
    assert table == LOP3_AND_OR, "the table of (a & b) | c"
    return a & b | c


def _on_halves(dtype: torch.dtype, compute: Callable[..., torch.Tensor]) -> Callable[..., int]:
    def instruction(*words: int) -> int:
        halves = [torch.tensor([w & 0xFFFF, w >> 16]).to(torch.int32) for w in words]
        floats = [half.to(torch.uint16).view(dtype).float() for half in halves]
        low, high = compute(*floats).to(dtype).view(torch.uint16).to(torch.int32).tolist()
        return low | high << 16

    return instruction


def _float(word: int) -> float:
    return struct.unpack("<f", word.to_bytes(4, "little"))[0]


def _subtract_floats(a: int, b: int) -> int:
    return int.from_bytes(struct.pack("<f", _float(a) - _float(b)), "little")


def _convert_e4m3(pair: int) -> int:
    numbers = torch.tensor([pair & 0xFF, pair >> 8], dtype=torch.uint8).view(torch.float8_e4m3fn)
    low, high = numbers.half().view(torch.uint16).to(torch.int32).tolist()
    return low | high << 16


INSTRUCTIONS: dict[str, Callable[..., int]] = {
    "mov.b32": lambda a: a,
    "xor.b32": lambda a, b: a ^ b,
    "and.b32": lambda a, b: a & b,
    "shr.b32": lambda a, b: a >> b,
    "prmt.b32": _permute,
    "lop3.b32": _and_or,
    "sub.rn.f32": _subtract_floats,
    "sub.rn.f16x2": _on_halves(torch.float16, lambda a, b: a - b),
    "mul.rn.f16x2": _on_halves(torch.float16, lambda a, b: a * b),
    "fma.rn.bf16x2": _on_halves(torch.bfloat16, lambda a, b, c: a * b + c),
    "cvt.rn.f16x2.e4m3x2": _convert_e4m3,
}
