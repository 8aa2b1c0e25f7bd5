"""Which kernels are compiled for which shapes: every kernel as a launch on the chip would ask for it."""

from benchmarks.triton_binaries import TARGETS, Case
from kernels.triton.attention_tile import AttentionShape
from kernels.triton.chip import Chip
from kernels.triton.copy_blocks import copy_blocks_keywords
from kernels.triton.decode_attention import decode_keywords, merge_keywords
from kernels.triton.prefill_attention import prefill_keywords
from kernels.triton.rms_norm import rms_norm_keywords
from kernels.triton.rotate_and_store import rotate_and_store_keywords
from kernels.triton.silu_and_mul import silu_and_mul_keywords

BLOCK_SIZE = 16
NUM_KV_HEADS = 8


def all_cases(*, quick: bool) -> dict[str, list[Case]]:
    """The cases of every target by its name."""
    shapes = [(64, 3, "bf16")]
    if not quick:
        shapes += [(128, 4, "bf16")]
        shapes += [(80, 1, "bf16"), (96, 5, "bf16"), (128, 8, "fp16"), (256, 4, "bf16")]
        shapes += [(64, 3, "fp32"), (128, 4, "fp32")]
    return {
        name: [case for shape in shapes for case in _attention(*shape, target.chip)]
        + _memory_and_rows(target.chip, quick)
        for name, target in TARGETS.items()
    }


def _attention(head_dim: int, group: int, dtype: str, chip: Chip) -> list[Case]:
    shape = AttentionShape(head_dim, group, BLOCK_SIZE, 4 if dtype == "fp32" else 2)
    label = f"head_dim {head_dim}, group {group}, {dtype}"
    decode = decode_keywords(shape, NUM_KV_HEADS, 2, chip)
    prefill = prefill_keywords(shape, NUM_KV_HEADS, chip)
    merge = merge_keywords(shape, NUM_KV_HEADS * group, chip)
    return [
        Case(
            "decode_attention",
            "decode_attention_kernel",
            label,
            dtype,
            decode,
            has_products=True,
        ),
        Case("decode_attention", "merge_splits_kernel", label, dtype, merge),
        Case(
            "prefill_attention",
            "prefill_attention_kernel",
            label,
            dtype,
            prefill,
            has_products=True,
        ),
    ]


def _memory_and_rows(chip: Chip, quick: bool) -> list[Case]:
    """The other kernels with the sizes of SmolLM2-135M and Llama 3 8B."""
    cases = []
    models = (
        [(64, 9, 3, 576, 1536)] if quick else [(64, 9, 3, 576, 1536), (128, 32, 8, 4096, 14_336)]
    )
    for head_dim, num_heads, num_kv_heads, size, mlp in models:
        rotate = rotate_and_store_keywords(head_dim, num_heads, num_kv_heads, BLOCK_SIZE, chip)
        copy = copy_blocks_keywords(num_kv_heads * BLOCK_SIZE * head_dim, chip)
        heads = f"{num_heads} and {num_kv_heads} heads of {head_dim}"
        norm = rms_norm_keywords(size, add=True, chip=chip)
        silu = silu_and_mul_keywords(mlp, chip)
        cases += [
            # A head's half is too short for 16 bytes a thread.
            Case(
                "rotate_and_store",
                "rotate_and_store_kernel",
                heads,
                "bf16",
                rotate,
                has_wide_loads=False,
            ),
            Case("copy_blocks", "copy_blocks_kernel", heads, "bf16", copy),
            Case("rms_norm", "rms_norm_kernel", f"rows of {size}", "bf16", norm),
            Case("silu_and_mul", "silu_and_mul_kernel", f"rows of {mlp}", "bf16", silu),
        ]
    return cases
