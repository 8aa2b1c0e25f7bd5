"""Which kernels are compiled for which shapes: every kernel as a launch on the chip would ask for it."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from benchmarks.triton_binaries import TARGETS, Case
from kernels.eight_bits import LARGEST
from kernels.triton.attention_tile import AttentionShape
from kernels.triton.chip import Chip
from kernels.triton.copy_blocks import copy_blocks_keywords
from kernels.triton.decode_attention import decode_keywords, merge_keywords
from kernels.triton.prefill_attention import prefill_keywords
from kernels.triton.quantized_linear import (
    LinearShape,
    merge_inputs_keywords,
    quantized_linear_keywords,
)
from kernels.triton.rms_norm import rms_norm_keywords
from kernels.triton.rotate_and_store import rotate_and_store_keywords
from kernels.triton.silu_and_mul import silu_and_mul_keywords

BLOCK_SIZE = 16
NUM_KV_HEADS = 8
SMALL, LARGE = (64, 9, 3, 576, 1536), (128, 32, 8, 4096, 14_336)
"""Head dim, heads, KV heads, hidden and MLP size of SmolLM2-135M and Llama 3 8B."""
LARGEST_NUMBERS = {"": None, "int8": LARGEST[torch.int8], "fp8": LARGEST[torch.float8_e4m3fn]}
"""By the kind of KV cache, "" being that of the type of the products."""
CACHE_POINTERS: dict[str, dict[str, str | None]] = {
    "": {"key_scales_ptr": None, "value_scales_ptr": None},
    "int8": {"key_cache_ptr": "*i8", "value_cache_ptr": "*i8"},
    "fp8": {"key_cache_ptr": "*u8", "value_cache_ptr": "*u8"},
}
"""What kernels are given: fp8 as bytes."""
LIMITS = {"window": "window", "soft cap": "cap_factor"}
"""What a model may have, and the argument that says so."""
WEIGHT_POINTERS = {"int8": "*i8", "fp8": "*u8"}


@dataclass(frozen=True)
class Attention:
    """What attention is compiled for: KV numbers of eight bits or "", and which of LIMITS the model has."""

    head_dim: int
    group: int
    dtype: str
    kv: str = ""
    limits: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        stored = (f"{self.kv} KV",) if self.kv else ()
        return ", ".join(
            (f"head_dim {self.head_dim}, group {self.group}", self.dtype, *stored, *self.limits)
        )

    def arguments(self, names: Mapping[str, str]) -> dict[str, None]:
        """Those of `names` that are not there."""
        return {name: None for limit, name in names.items() if limit not in self.limits}


def _shapes() -> list[Attention]:
    """Llama 3, models of other sizes, Mistral and Qwen2 with their windows, Gemma 2 with its caps on every second layer."""
    kinds = ("", "int8", "fp8")
    both = tuple(LIMITS)
    return [
        *(Attention(128, 4, "bf16", kv) for kv in kinds),
        *(Attention(80, 1, "bf16"), Attention(96, 5, "bf16")),
        *(Attention(128, 8, "fp16", kv) for kv in kinds),
        *(Attention(256, 4, "bf16", kv) for kv in kinds),
        *(Attention(64, 3, "fp32"), Attention(128, 4, "fp32"), Attention(128, 4, "fp32", "int8")),
        *(Attention(128, 4, "bf16", kv, ("window",)) for kv in kinds),
        *(
            Attention(64, 7, "bf16", limits=("window",)),
            Attention(128, 7, "fp16", limits=("window",)),
        ),
        *(Attention(128, 2, "bf16", kv, both) for kv in kinds),
        *(Attention(256, 2, "bf16", kv, both) for kv in kinds),
        Attention(256, 2, "bf16", limits=("soft cap",)),
    ]


def all_cases(*, quick: bool) -> dict[str, list[Case]]:
    """The cases of every target by its name."""
    shapes = [Attention(64, 3, "bf16", kv) for kv in ("", "int8", "fp8")]
    shapes += [Attention(64, 3, "fp32", limits=tuple(LIMITS))]
    shapes += [] if quick else _shapes()
    models = [SMALL] if quick else [SMALL, LARGE]
    products = [(576, 1920, 1, "bf16", "int8"), (576, 1920, 1, "bf16", "fp8")]
    if not quick:
        products += [
            (4096, 4096, rows, "bf16", kind) for rows in (1, 64) for kind in ("int8", "fp8")
        ]
        products += [(14_336, 4096, 64, "fp16", kind) for kind in ("int8", "fp8")]
        products += [(4096, 4096, 32, "fp32", "int8")]
    return {
        name: [case for shape in shapes for case in _attention(shape, target.chip)]
        + [case for model in models for case in _memory_and_rows(*model, target.chip)]
        + [case for product in products for case in _product(*product, target.chip)]
        for name, target in TARGETS.items()
    }


def _attention(case: Attention, chip: Chip) -> list[Case]:
    itemsize = 4 if case.dtype == "fp32" else 2
    largest, has_limits = LARGEST_NUMBERS[case.kv], bool(case.limits)
    shape = AttentionShape(case.head_dim, case.group, BLOCK_SIZE, itemsize, largest, has_limits)
    decode = decode_keywords(shape, NUM_KV_HEADS, 2, chip)
    prefill = prefill_keywords(shape, NUM_KV_HEADS, chip)
    arguments = {**CACHE_POINTERS[case.kv], **case.arguments(LIMITS)}
    attention = [
        Case(
            f"{name}_attention",
            f"{name}_attention_kernel",
            case.label,
            case.dtype,
            keywords,
            arguments,
            has_products=True,
        )
        for name, keywords in (("decode", decode), ("prefill", prefill))
    ]
    if case.kv:
        return attention
    keywords = merge_keywords(shape, NUM_KV_HEADS * case.group, chip)
    window = case.arguments({"window": LIMITS["window"]})
    merge = Case(
        "decode_attention", "merge_splits_kernel", case.label, case.dtype, keywords, window
    )
    return [attention[0], merge, attention[1]]


def _memory_and_rows(
    head_dim: int, num_heads: int, num_kv_heads: int, size: int, mlp: int, chip: Chip
) -> list[Case]:
    """The other kernels for one model."""
    rotate = rotate_and_store_keywords(head_dim, num_heads, num_kv_heads, BLOCK_SIZE, chip)
    heads = f"{num_heads} and {num_kv_heads} heads of {head_dim}"
    copy = copy_blocks_keywords(num_kv_heads * BLOCK_SIZE * head_dim, 2, chip)
    norm = rms_norm_keywords(size, add=True, chip=chip)
    silu = silu_and_mul_keywords(mlp, chip)
    return [
        # A head's half is too short for 16 bytes a thread.
        *(
            Case(
                "rotate_and_store",
                "rotate_and_store_kernel",
                heads + (f", {kv} KV" if kv else ""),
                "bf16",
                rotate,
                CACHE_POINTERS[kv],
                has_wide_loads=False,
            )
            for kv in ("", "int8", "fp8")
        ),
        Case("copy_blocks", "copy_blocks_kernel", heads, "bf16", copy),
        Case("rms_norm", "rms_norm_kernel", f"rows of {size}", "bf16", norm),
        Case("silu_and_mul", "silu_and_mul_kernel", f"rows of {mlp}", "bf16", silu),
    ]


def _product(
    size_in: int, size_out: int, num_rows: int, dtype: str, kind: str, chip: Chip
) -> list[Case]:
    """Weights of eight bits, and with int8 the kernel that adds splits."""
    itemsize, largest = 4 if dtype == "fp32" else 2, LARGEST_NUMBERS[kind]
    assert largest is not None, "weights of eight bits have scales"
    shape = LinearShape(size_in, size_out, num_rows, itemsize, largest)
    keywords = quantized_linear_keywords(shape, chip)
    label = f"{size_in} to {size_out}, {num_rows} rows, {dtype}, {kind} weights"
    pointers = {"weight_ptr": WEIGHT_POINTERS[kind], "bias_ptr": None}
    product = Case(
        "quantized_linear",
        "quantized_linear_kernel",
        label,
        dtype,
        keywords,
        pointers,
        has_products=True,
    )
    num_splits = -(-size_in // keywords["SPLIT_IN"])
    if num_splits == 1 or kind != "int8":
        return [product]
    merge = merge_inputs_keywords(shape, num_splits, chip)
    return [
        product,
        Case("quantized_linear", "merge_inputs_kernel", label, dtype, merge, {"bias_ptr": None}),
    ]
