"""What only the CPU kernel promises: results that depend on nothing but the sequence, on every path through it."""

import threading
from typing import Any

import pytest
import torch

from kernels import reference
from kernels.cpu import attention, backend
from kernels.cpu.jit import Compiled
from tests.kernels.paged import PagedBatch, make_batch


def attend(batch: PagedBatch) -> torch.Tensor:
    return backend.paged_attention(*batch.arguments())


def only(batch: PagedBatch, sequence: int, last: int) -> PagedBatch:
    """The last `last` rows of one sequence of a batch, as a batch of its own over the same pool."""
    end = int(batch.query_start_loc[sequence + 1])
    return PagedBatch(
        query=batch.query[end - last : end],
        cache=batch.cache,
        block_tables=batch.block_tables[sequence : sequence + 1],
        seq_lens=batch.seq_lens[sequence : sequence + 1],
        query_start_loc=torch.tensor([0, last], dtype=torch.int32),
        max_query_len=last,
        rules=batch.rules,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_long_sequences_cross_chunks(dtype: torch.dtype) -> None:
    chunk = attention.CHUNK
    lengths = [(1, chunk), (1, chunk + 1), (3, chunk + 2), (1, 3 * chunk - 1), (70, chunk + 30)]
    batch = make_batch(lengths, dtype=dtype)
    tolerance = 2e-5 if dtype is torch.float32 else 1e-2
    expected = reference.paged_attention(*batch.arguments())
    torch.testing.assert_close(attend(batch), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sequence_gives_the_same_bits_alone_and_in_company(dtype: torch.dtype) -> None:
    lengths = [(1, 600), (40, 300), (1, 5), (1, 257), (1, 64), (1, 700), (9, 9)]
    batch = make_batch(lengths, dtype=dtype)
    together = attend(batch)
    for s, (query_len, _) in enumerate(lengths):
        start = int(batch.query_start_loc[s])
        alone = attend(only(batch, s, query_len))
        assert torch.equal(alone, together[start : start + query_len])


def test_a_token_gives_the_same_bits_in_every_chunk_of_a_prefill() -> None:
    batch = make_batch([(300, 300)], group_size=3)
    whole = attend(batch)
    for last in (1, 2, 5, 17, 100):
        assert torch.equal(attend(only(batch, 0, last)), whole[-last:])


LIMITS: list[dict[str, Any]] = [
    *({"window": window} for window in (1, 7, 33, 256, 300)),
    {"soft_cap": 2.0},
    {"window": 300, "soft_cap": 2.0},
]


@pytest.mark.parametrize("limits", LIMITS)
def test_windows_and_caps_cross_chunks_and_splits(limits: dict[str, Any]) -> None:
    chunk = attention.CHUNK
    few, many = [(1, 3 * chunk + 5)], [(1, 900), (70, 600), (3, chunk + 2), (1, 5), (0, 7), (4, 2)]
    for lengths in (few, [(3, 700)], many):
        batch = make_batch(lengths, **limits)
        expected = reference.paged_attention(*batch.arguments())
        torch.testing.assert_close(attend(batch), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("limits", LIMITS)
def test_windows_and_caps_leave_a_tokens_bits_alone(limits: dict[str, Any]) -> None:
    batch = make_batch([(300, 700), (1, 900)], **limits)
    together = attend(batch)
    for last in (1, 2, 17, 100, 300):
        assert torch.equal(attend(only(batch, 0, last)), together[300 - last : 300])
    assert torch.equal(attend(only(batch, 1, 1)), together[300:])


def test_a_split_leaves_out_chunks_before_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one query of 2,560 keys and a window of 300, at most three chunks have one that is seen; 0: no split."""
    numbers: list[int] = []
    call = backend.threads.call

    def watched(compiled: Compiled, arguments: attention.AttentionArguments) -> int:
        done = call(compiled, arguments)
        numbers.append(arguments.num_chunks)
        return done

    monkeypatch.setattr(backend.threads, "call", watched)
    for window, num_chunks in ((None, 10), (300, 3), (1, 0)):
        attend(make_batch([(1, 2560)], window=window))
        assert numbers[0] == num_chunks
        numbers.clear()


def test_threads_do_not_change_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = make_batch([(200, 400), (1, 900), (1, 3)])
    monkeypatch.setattr(backend.threads, "PARALLEL_WORK", 2**62)
    alone = attend(batch)
    monkeypatch.setattr(backend.threads, "PARALLEL_WORK", 0)
    assert torch.equal(attend(batch), alone)


def test_python_threads_may_call_at_once() -> None:
    batches = [make_batch([(60, 60 + 30 * i), (1, 300)], seed=i) for i in range(4)]
    expected = [attend(batch) for batch in batches]
    wrong: list[int] = []

    def repeat(i: int) -> None:
        for _ in range(10):
            if not torch.equal(attend(batches[i]), expected[i]):
                wrong.append(i)

    workers = [threading.Thread(target=repeat, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


def test_large_scores_do_not_overflow() -> None:
    batch = make_batch([(1, 40)])
    batch.query.mul_(1e4)
    expected = reference.paged_attention(*batch.arguments())
    torch.testing.assert_close(attend(batch), expected, rtol=1e-3, atol=1e-4)


def test_an_unsupported_dtype_is_refused() -> None:
    batch = make_batch([(1, 4)], dtype=torch.float64)
    with pytest.raises(ValueError, match=r"float32, bfloat16 and float16, not torch\.float64"):
        attend(batch)
