"""What a launch needs to know of the chip: its kind, how many cores share the work, how much memory a program may share.

Capability numbers: CUDA C++ Programming Guide, "Compute Capabilities"; AMD Instinct MI300 ISA guide for the LDS.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import torch

INTERPRETER_CORES = 2
LARGE_SHARED_BYTES = 200_000


@dataclass(frozen=True)
class Chip:
    """`num_cores`: streaming multiprocessors or compute units; `shared_bytes`: the most one program may have.

    `widening` says how `kernels.triton.eight_bits` widens: "plain" where the compiler does it, "ptx" on NVIDIA, "ptx with e4m3" on NVIDIA
    from Ada on. (The MI300 has an instruction too, for an e4m3 of its own.)
    """

    is_amd: bool
    num_cores: int
    shared_bytes: int
    widening: str

    @property
    def multiplies_from_memory(self) -> bool:
        """Whether large products take numbers from shared memory, of which there is much then: Hopper and its successors."""
        return self.shared_bytes >= LARGE_SHARED_BYTES

    def warps_for(self, num_elements: int) -> int:
        """Warps of a program over so many numbers, eight for each thread: 16 bytes of bfloat16 in one load."""
        return max(1, min(16, num_elements // (512 if self.is_amd else 256)))


A100 = Chip(is_amd=False, num_cores=108, shared_bytes=166_912, widening="ptx")
H200 = Chip(is_amd=False, num_cores=132, shared_bytes=232_448, widening="ptx with e4m3")
B200 = Chip(is_amd=False, num_cores=148, shared_bytes=232_448, widening="ptx with e4m3")
MI300X = Chip(is_amd=True, num_cores=304, shared_bytes=65_536, widening="plain")


@lru_cache
def chip_of(device: torch.device) -> Chip:
    """The chip behind `device`; for the CPU, where Triton interprets, a small one so that work is split there too."""
    if device.type == "cpu":
        return replace(A100, num_cores=INTERPRETER_CORES, widening="plain")
    properties = torch.cuda.get_device_properties(device)
    is_amd = torch.version.hip is not None
    return Chip(
        is_amd=is_amd,
        num_cores=properties.multi_processor_count,
        shared_bytes=getattr(properties, "shared_memory_per_block_optin", MI300X.shared_bytes),
        widening="plain" if is_amd else _ptx(properties.major, properties.minor),
    )


def _ptx(major: int, minor: int) -> str:
    return "ptx with e4m3" if (major, minor) >= (8, 9) else "ptx"
