"""Tensors of a model folder in the safetensors format, in one file or in shards with an index."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from engine.errors import ModelLoadError
from engine.loader.quantized import Int4Weight, Int8Table

INDEX = "model.safetensors.index.json"
UNNEEDED = ("rotary_emb.inv_freq",)  # older files carry what is computed from the configuration


class SafetensorsTensors:
    """Tensors by transformers' names. `tied` folders may carry a copy of the embedding as head, which is left out."""

    def __init__(self, folder: Path, *, tied: bool) -> None:
        self._folder = folder
        self._open: dict[str, Any] = {}
        try:
            self._file_of = self._find_tensors()
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            raise ModelLoadError(f"{folder} has no readable safetensors: {error}") from error
        left_out = (*UNNEEDED, "lm_head.weight") if tied else UNNEEDED
        self.unused = {name for name in self._file_of if not name.endswith(left_out)}

    def dense(self, name: str) -> torch.Tensor:
        """The tensor as stored. Raises ModelLoadError when it is missing or holds no floating-point numbers."""
        if name not in self._file_of:
            raise ModelLoadError(f"{self._folder} lacks the tensor {name}")
        self.unused.discard(name)
        try:
            tensor = self._file(self._file_of[name]).get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ModelLoadError(f"tensor {name} cannot be read: {error}") from error
        if not tensor.is_floating_point():
            raise ModelLoadError(
                f"tensor {name} is stored as {tensor.dtype}, which is not supported"
            )
        return tensor

    def int4(self, name: str) -> Int4Weight | None:
        """None: nothing is stored in four bits."""

    def int8(self, name: str) -> Int8Table | None:
        """None: nothing is stored in eight bits."""

    def is_quantized(self, name: str) -> bool:
        """Nothing is."""
        return False

    def rope_factors(self) -> torch.Tensor | None:
        """None: the configuration says it all."""

    def _find_tensors(self) -> dict[str, str]:
        index = self._folder / INDEX
        if index.is_file():
            return json.loads(index.read_text())["weight_map"]
        files = sorted(path.name for path in self._folder.glob("*.safetensors"))
        return {name: file for file in files for name in self._file(file).keys()}  # noqa: SIM118

    def _file(self, name: str) -> Any:
        if name not in self._open:
            self._open[name] = safe_open(self._folder / name, framework="pt")
        return self._open[name]
