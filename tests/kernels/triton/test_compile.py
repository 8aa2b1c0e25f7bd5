"""The kernels compile for real GPUs, without one: in a process of its own, because here Triton interprets."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from kernels.triton.copy_blocks import _copy_blocks_kernel
from kernels.triton.paged_attention import _paged_attention_kernel
from kernels.triton.store_kv_cache import _store_kv_cache_kernel

INT64 = ("slot_mapping_ptr", "src_ptr", "dst_ptr")
INT32 = ("block_tables_ptr", "seq_lens_ptr", "query_start_loc_ptr")
SHAPE = dict(HEAD_DIM=64, HEAD_DIM_PADDED=64, GROUP=3, GROUP_PADDED=4, BLOCK_SIZE=16, BLOCK_N=64)
STORE = dict(NUM_KV_HEADS=3, NUM_KV_HEADS_PADDED=4, HEAD_DIM=64, HEAD_DIM_PADDED=64, BLOCK_SIZE=16)


def type_of(name):
    if name.endswith("_ptr"):
        return "*i64" if name in INT64 else "*i32" if name in INT32 else "*bf16"
    return "fp32" if name == "scale_log2" else "i32"


def check(kernel, target, binary, **constants):
    names = [parameter.name for parameter in kernel.params]
    signature = {name: "constexpr" if name in constants else type_of(name) for name in names}
    source = ASTSource(kernel, signature, constexprs=constants)
    compiled = triton.compile(source, target=target, options={"enable_fp_fusion": True})
    print(kernel.__name__, len(compiled.asm[binary]) > 0)


target, binary = {
    "nvidia": (GPUTarget("cuda", 90, 32), "cubin"),
    "amd": (GPUTarget("hip", "gfx942", 64), "hsaco"),
}[sys.argv[1]]
check(_paged_attention_kernel, target, binary, **SHAPE, BLOCK_Q=4)
check(_paged_attention_kernel, target, binary, **SHAPE, BLOCK_Q=16)
check(_store_kv_cache_kernel, target, binary, **STORE)
check(_copy_blocks_kernel, target, binary, BLOCK_NUMEL=3072, PIECE=1024)
"""


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_kernels_compile_for_a_gpu(vendor: str, tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, vendor],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        *("_paged_attention_kernel", "True") * 2,
        *("_store_kv_cache_kernel", "True"),
        *("_copy_blocks_kernel", "True"),
    ]
