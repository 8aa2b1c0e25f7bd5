"""What the process, its machine and its GPU have to do at the moment, for people: memory and load."""

import time
from typing import Any

import psutil

from api.flat import flat
from engine.gpu_load import gpu_load

FRESH_S = 1.0


class Machine:
    """Measures at most once in FRESH_S seconds, as loads are means since the last measurement."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._process.cpu_percent()
        psutil.cpu_percent()
        self._measured_at = float("-inf")
        self._document: dict[str, Any] = {}

    def document(self, device: str) -> dict[str, Any]:
        """Bytes, seconds, and shares of one core (process) or of all (machine), 0 to 1; of the engine's device if it is a GPU."""
        now = time.monotonic()
        if now - self._measured_at >= FRESH_S:
            self._measured_at, self._document = now, self._measure(device)
        return self._document

    def _measure(self, device: str) -> dict[str, Any]:
        memory, gpu = psutil.virtual_memory(), gpu_load(device)
        with self._process.oneshot():
            process = {
                "memory_bytes": self._process.memory_info().rss,
                "cpu_cores_in_use": self._process.cpu_percent() / 100,
                "num_threads": self._process.num_threads(),
                "uptime_s": time.time() - self._process.create_time(),
            }
        return {
            "process": process,
            "num_cpus": psutil.cpu_count() or 1,
            "cpu_load": psutil.cpu_percent() / 100,
            "memory_total_bytes": memory.total,
            "memory_available_bytes": memory.available,
            "gpu": None if gpu is None else flat(gpu),
        }
