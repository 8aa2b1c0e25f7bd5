"""Scratch memory and the decision to use more than one thread."""

import threading

import pytest
import torch

from kernels.cpu import backend, threads


def test_scratch_is_reused_grows_and_is_aligned() -> None:
    scratch = threads.Scratch()
    first = scratch.address(1000)
    assert first % 64 == 0
    assert scratch.address(2000) == first
    assert scratch.address(10_000) % 64 == 0


def test_scratch_belongs_to_the_thread() -> None:
    scratch = threads.Scratch()
    addresses = [scratch.address(1000)]
    worker = threading.Thread(target=lambda: addresses.append(scratch.address(1000)))
    worker.start()
    worker.join()
    assert addresses[0] != addresses[1]


def test_only_long_work_goes_to_the_team(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def parallel(address: int, arguments: int, num_threads: int, flags: int) -> None:
        sizes.append(num_threads)
        backend.elementwise.silu_and_mul.call(arguments)

    monkeypatch.setattr(threads, "_parallel", parallel)
    previous = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        backend.silu_and_mul(torch.ones(1, 1000))
        assert sizes == []
        backend.silu_and_mul(torch.ones(600, 1000))
        assert sizes == [2]
    finally:
        torch.set_num_threads(previous)


def test_without_openmp_one_thread_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_parallel", None)
    out = backend.silu_and_mul(torch.ones(600, 1000))
    assert out.shape == (600, 500)
    assert out.min() == out.max()
    assert threads.num_threads() == 1
