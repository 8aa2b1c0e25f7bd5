"""What a launch needs to know of the chip: its kind, how many cores share the work, how much memory a program may share.

Capability numbers: CUDA C++ Programming Guide, "Compute Capabilities"; AMD Instinct MI300 ISA guide for the LDS.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch

INTERPRETER_CORES = 2


@dataclass(frozen=True)
class Chip:
    """`num_cores`: streaming multiprocessors or compute units; `shared_bytes`: the most one program may have."""

    is_amd: bool
    num_cores: int
    shared_bytes: int

    def warps_for(self, num_elements: int) -> int:
        """Warps of a program over so many numbers, eight for each thread: 16 bytes of bfloat16 in one load."""
        return max(1, min(16, num_elements // (512 if self.is_amd else 256)))


A100 = Chip(is_amd=False, num_cores=108, shared_bytes=166_912)
H200 = Chip(is_amd=False, num_cores=132, shared_bytes=232_448)
B200 = Chip(is_amd=False, num_cores=148, shared_bytes=232_448)
MI300X = Chip(is_amd=True, num_cores=304, shared_bytes=65_536)


@lru_cache
def chip_of(device: torch.device) -> Chip:
    """The chip behind `device`; for the CPU, where Triton interprets, a small one so that work is split there too."""
    if device.type == "cpu":
        return Chip(is_amd=False, num_cores=INTERPRETER_CORES, shared_bytes=A100.shared_bytes)
    properties = torch.cuda.get_device_properties(device)
    return Chip(
        is_amd=torch.version.hip is not None,
        num_cores=properties.multi_processor_count,
        shared_bytes=getattr(properties, "shared_memory_per_block_optin", MI300X.shared_bytes),
    )
