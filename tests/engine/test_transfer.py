"""Packs of arrays: what comes out is what went in, every array where a 16-byte load may begin."""

import numpy as np
import torch

from engine.transfer import ALIGNMENT, pack, to_device, unpack

ARRAYS = [
    np.arange(3, dtype=np.int64) - 1,
    np.arange(10, dtype=np.int32).reshape(2, 5)[:, :3],
    np.zeros((0, 4), dtype=np.int32),
    np.array([7], dtype=np.int32),
]


def test_arrays_come_out_as_they_went_in() -> None:
    tensors = unpack(torch.from_numpy(pack(ARRAYS)), ARRAYS)
    assert [tensor.dtype for tensor in tensors] == [torch.int64, *[torch.int32] * 3]
    for tensor, array in zip(tensors, ARRAYS, strict=True):
        assert np.array_equal(tensor.numpy(), array)


def test_every_array_begins_where_a_wide_load_may() -> None:
    packed = torch.from_numpy(pack(ARRAYS))
    offsets = [tensor.data_ptr() - packed.data_ptr() for tensor in unpack(packed, ARRAYS)]
    assert [offsets[i] for i in (0, 1, 3)] == [0, 32, 64]
    assert 32 % ALIGNMENT == 0


def test_on_the_cpu_nothing_is_copied() -> None:
    array = np.arange(4)
    assert to_device([array], torch.device("cpu"))[0].data_ptr() == array.ctypes.data
