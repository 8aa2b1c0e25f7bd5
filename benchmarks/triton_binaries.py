"""Compile one Triton kernel for a named GPU and read its binary. Needs no GPU; the tools come inside the triton wheel."""

import importlib
import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.triton.chip import A100, B200, H200, MI300X, Chip

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
POINTERS = {
    "block_tables_ptr": "*i32",
    "seq_lens_ptr": "*i32",
    "query_start_loc_ptr": "*i32",
    "slot_mapping_ptr": "*i64",
    "positions_ptr": "*i64",
    "src_ptr": "*i64",
    "dst_ptr": "*i64",
    "partial_ptr": "*fp32",
    "partial_max_ptr": "*fp32",
    "partial_sum_ptr": "*fp32",
    "cos_sin_ptr": "*fp32",
    "weight_ptr": "*fp32",
    "residual_ptr": "*fp32",
    "total_ptr": "*fp32",
    "scales_ptr": "*fp32",
    "key_scales_ptr": "*fp32",
    "value_scales_ptr": "*fp32",
}
SCALARS = {"scale_log2": "fp32", "cap_factor": "fp32", "eps": "fp32"}


@dataclass(frozen=True)
class Target:
    """What to compile for, and the chip whose launches are imitated."""

    gpu: GPUTarget
    chip: Chip


TARGETS = {
    "sm_80": Target(GPUTarget("cuda", 80, 32), A100),
    "sm_90": Target(GPUTarget("cuda", 90, 32), H200),
    "sm_100": Target(GPUTarget("cuda", 100, 32), B200),
    "gfx942": Target(GPUTarget("hip", "gfx942", 64), MI300X),
}


@dataclass(frozen=True)
class Case:
    """One kernel (`module` in kernels.triton, `kernel` in it) and the keywords of its launch.

    `arguments` are pointers to other types than `dtype`, and None for what is not there.
    """

    module: str
    kernel: str
    label: str
    dtype: str
    keywords: dict[str, Any]
    arguments: Mapping[str, str | None] = field(default_factory=dict)
    has_products: bool = False
    has_wide_loads: bool = True

    def load(self) -> Any:
        """The kernel itself."""
        return getattr(importlib.import_module(f"kernels.triton.{self.module}"), self.kernel)


@dataclass(frozen=True)
class Finding:
    """What a binary shows: registers of a thread, bytes of its stack or scratch, bytes of shared memory of a program.

    `products` is the kind of tensor-core instruction, `wide_loads` how many loads of 16 bytes there are.
    """

    kernel: str
    label: str
    target: str
    registers: int
    spilled: int
    shared: int
    products: str
    wide_loads: int


def inspect(case: Case, target: str) -> Finding:
    """Compile and read one case."""
    gpu = TARGETS[target].gpu
    compiled = _compile(case, gpu)
    read = _read_amd if gpu.backend == "hip" else _read_nvidia
    registers, spilled, products, wide_loads = read(compiled)
    return Finding(
        case.kernel.removesuffix("_kernel"),
        case.label,
        target,
        registers,
        spilled,
        compiled.metadata.shared,
        products,
        wide_loads,
    )


def _compile(case: Case, gpu: GPUTarget) -> Any:
    """As a launch does: addresses and strides are multiples of 16 unless the kernel says not to look."""
    kernel = case.load()
    kinds = {**POINTERS, **case.arguments}
    constants = {name: value for name, value in case.keywords.items() if name.isupper()}
    constants |= {name: None for name, kind in case.arguments.items() if kind is None}
    options = {name: value for name, value in case.keywords.items() if not name.isupper()}
    signature, attributes = {}, {}
    for index, parameter in enumerate(kernel.params):
        is_constant = parameter.name in constants
        kind = "constexpr" if is_constant else _kind(parameter.name, kinds, case.dtype)
        signature[parameter.name] = kind
        if signature[parameter.name] in ("constexpr", "fp32") or parameter.do_not_specialize:
            continue
        attributes[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=gpu, options=options)


def _kind(name: str, kinds: Mapping[str, str | None], dtype: str) -> str:
    if name.endswith("_ptr"):
        return kinds.get(name) or f"*{dtype}"
    return SCALARS.get(name, "i32")


def _read_nvidia(compiled: Any) -> tuple[int, int, str, int]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = _run("cuobjdump", "--dump-resource-usage", file.name)
        code = _run("nvdisasm", "-c", file.name)
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", usage)
    assert found is not None, f"cuobjdump did not name the resources: {usage}"
    registers, stack, local = map(int, found.groups())
    kinds = [kind for kind in ("UTCHMMA", "HGMMA", "HMMA") if re.search(rf"\b{kind}\b", code)]
    wide = re.findall(r"\b(?:LDG|LDGSTS)\.[.\w]*\b128\b|\bUBLKCP\b", code)
    return registers, stack + local, kinds[0] if kinds else "", len(wide)


def _read_amd(compiled: Any) -> tuple[int, int, str, int]:
    code = compiled.asm["amdgcn"]
    registers, scratch = (
        int(re.findall(rf"\.{name}:\s+(\d+)", code)[0])
        for name in ("vgpr_count", "private_segment_fixed_size")
    )
    wide = re.findall(r"\b(?:global|buffer)_load_dwordx4\b", code)
    return registers, scratch, "MFMA" if "v_mfma" in code else "", len(wide)


def _run(tool: str, *arguments: str) -> str:
    done = subprocess.run(
        [TOOLS / tool, *arguments], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout
