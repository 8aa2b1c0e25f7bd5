"""How busy the GPU is that the engine computes on, as its driver tells (NVIDIA's by NVML, AMD's by amdsmi where that is installed)."""

from dataclasses import dataclass

from pynvml import NVMLError


@dataclass(frozen=True, slots=True)
class GpuLoad:
    """`utilisation`: share of the last moments in which a kernel ran, 0 to 1; None where the driver does not tell."""

    name: str
    utilisation: float | None
    memory_used_bytes: int
    memory_total_bytes: int


def gpu_load(device: str) -> GpuLoad | None:
    """Of a device as `ModelInfo.device` names it; None for a CPU. Waits for nothing that the GPU computes."""
    if not device.startswith("cuda"):
        return None
    # Loaded with the model, in the engine's thread; whoever imports this before then must not wait for it.
    import torch

    free, total = torch.cuda.mem_get_info(device)
    try:
        utilisation = torch.cuda.utilization(device) / 100
    except (ImportError, RuntimeError, NVMLError):
        utilisation = None
    return GpuLoad(torch.cuda.get_device_name(device), utilisation, total - free, total)
