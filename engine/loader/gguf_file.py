"""Reads the container format GGUF: metadata and tensor table at once, tensor data as views of a memory map.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian. Written for speed of
the metadata: a vocabulary of 100,000 strings is read in a fraction of a second, since every start does it.
"""

import struct
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from engine.errors import ModelLoadError

GGUF_MAGIC = b"GGUF"
GGUF_VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
STRING_TYPE, ARRAY_TYPE = 8, 9
SCALARS = {
    value_type: struct.Struct("<" + code)
    for value_type, code in enumerate(
        ["B", "b", "H", "h", "I", "i", "f", "?", "", "", "Q", "q", "d"]
    )
    if code
}
UINT32, UINT64 = struct.Struct("<I"), struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One tensor: `shape` in row-major order (outermost first), `data` its raw bytes [num_bytes] uint8."""

    name: str
    quantization: GGMLQuantizationType
    shape: tuple[int, ...]
    data: np.ndarray

    def rows(self) -> np.ndarray:
        """The raw bytes as [rows, bytes per row]; quantised blocks never cross a row."""
        return self.data.reshape(prod(self.shape[:-1]), -1)


class GGUFFile:
    """An open GGUF file: `metadata` by key, `tensors` by name. Raises ModelLoadError for a broken file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._bytes: np.ndarray = np.memmap(path, dtype=np.uint8, mode="r")
            cursor = _Cursor(self._bytes)
            num_tensors, num_values = cursor.header(path)
            self.metadata = {cursor.string(): cursor.typed_value() for _ in range(num_values)}
            infos = [cursor.tensor_info() for _ in range(num_tensors)]
            alignment = int(self.metadata.get("general.alignment", DEFAULT_ALIGNMENT))
            start = -(-cursor.position // alignment) * alignment
            self.tensors = {info[0]: self._tensor(*info, start) for info in infos}
        except (struct.error, ValueError, OSError, UnicodeDecodeError) as error:
            raise ModelLoadError(f"{path} is not a readable GGUF file: {error}") from error

    @cached_property
    def architecture(self) -> str:
        """`general.architecture`, the prefix of the model's own keys."""
        return str(self.metadata.get("general.architecture", "unknown"))

    def _tensor(
        self, name: str, shape: tuple[int, ...], type_id: int, offset: int, start: int
    ) -> GGUFTensor:
        quantization = GGMLQuantizationType(type_id)
        block_length, block_bytes = GGML_QUANT_SIZES[quantization]
        num_bytes = prod(shape) // block_length * block_bytes
        data = self._bytes[start + offset : start + offset + num_bytes]
        if data.size != num_bytes or shape[-1] % block_length:
            raise ValueError(f"the data of tensor {name} is incomplete")
        return GGUFTensor(name, quantization, shape, data)


class _Cursor:
    """Walks the head of the file; every method reads one thing and moves on."""

    def __init__(self, data: np.ndarray) -> None:
        self.data = data.data  # slices of it cost no copy
        self.position = 0

    def header(self, path: Path) -> tuple[int, int]:
        """Number of tensors and of metadata values."""
        magic, version = bytes(self.data[:4]), UINT32.unpack_from(self.data, 4)[0]
        if magic != GGUF_MAGIC or version not in GGUF_VERSIONS:
            raise ModelLoadError(
                f"{path} starts with {magic!r}, version {version}; "
                f"a GGUF file of version {GGUF_VERSIONS} is needed"
            )
        self.position = 8
        return self.scalar(UINT64), self.scalar(UINT64)

    def scalar(self, kind: struct.Struct) -> Any:
        (value,) = kind.unpack_from(self.data, self.position)
        self.position += kind.size
        return value

    def string(self) -> str:
        (length,) = UINT64.unpack_from(self.data, self.position)
        start = self.position + 8
        self.position = start + length
        if self.position > len(self.data):
            raise ValueError("a text runs past the end of the file")
        return str(self.data[start : self.position], "utf-8")

    def typed_value(self) -> Any:
        return self.value(self.scalar(UINT32))

    def value(self, value_type: int) -> Any:
        """A scalar, a string, or a list of them."""
        if value_type == STRING_TYPE:
            return self.string()
        if value_type == ARRAY_TYPE:
            return self.array()
        if value_type not in SCALARS:
            raise ValueError(f"unknown metadata type {value_type}")
        return self.scalar(SCALARS[value_type])

    def array(self) -> list[Any]:
        item_type, length = self.scalar(UINT32), self.scalar(UINT64)
        if item_type not in SCALARS:
            return [self.value(item_type) for _ in range(length)]
        item = SCALARS[item_type]
        start, self.position = self.position, self.position + item.size * length
        if self.position > len(self.data):
            raise ValueError("a list runs past the end of the file")
        return [value for (value,) in item.iter_unpack(self.data[start : self.position])]

    def tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        """Name, row-major shape, type id and offset inside the data section."""
        name = self.string()
        lengths = [self.scalar(UINT64) for _ in range(self.scalar(UINT32))]
        return name, tuple(reversed(lengths)), self.scalar(UINT32), self.scalar(UINT64)
