"""How near attention comes to what the chip can do: decode to its bandwidth, prefill to torch's own kernel."""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from benchmarks.gpu_rows import Row
from kernels.ops import KernelBackend, select_backend

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE = 32, 8, 128, 16
KEY_BYTES = 2 * NUM_KV_HEADS * HEAD_DIM * 2
MORE_THAN_A_CACHE = 512 << 20
GOALS = {(64, 8192): 0.85, (1, 32_768): 0.6}
REPEATS = 10


@dataclass(frozen=True)
class Machine:
    """Where to measure, and how fast it copies in bytes read and written per second."""

    device: torch.device
    dtype: torch.dtype
    bandwidth: float
    dry_run: bool

    @classmethod
    def measure(cls, dry_run: bool) -> "Machine":
        """Copy a few GiB and look at the clock."""
        device = torch.device("cpu" if dry_run else "cuda")
        source = torch.zeros((1 << 20) if dry_run else (4 << 30), dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        seconds = seconds_of(lambda: target.copy_(source), device)
        dtype = torch.float32 if dry_run else torch.bfloat16
        return cls(device, dtype, 2 * source.numel() / seconds, dry_run)

    @property
    def ops(self) -> KernelBackend:
        return select_backend("triton", self.device)


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Time of one call: on a GPU the median of recorded runs, so that launches do not count."""
    if device.type == "cpu":
        start = time.perf_counter()
        work()
        return time.perf_counter() - start
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(REPEATS):
            work()
    times = []
    for _ in range(6):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1000 / REPEATS)
    return statistics.median(times[1:])


def decode_shares(machine: Machine) -> Iterator[Row]:
    """Bytes of keys and values read per second, as a share of the copy bandwidth."""
    yield Row("copy bandwidth, read and write", machine.bandwidth / 1e12, "TB/s")
    batches, contexts = ([1], [40]) if machine.dry_run else ([1, 8, 64, 256], [1024, 8192, 32_768])
    for batch in batches:
        for context in contexts:
            if _fits(batch * context * KEY_BYTES, machine.device):
                rate = _decode_rate(machine, batch, context)
                share = rate / machine.bandwidth
                name = f"decode attention, batch {batch}, {context} keys, share of bandwidth"
                yield Row(name, share, "", GOALS.get((batch, context)))


def _fits(num_bytes: int, device: torch.device) -> bool:
    if device.type == "cpu":
        return True
    torch.cuda.empty_cache()
    return num_bytes < 0.6 * torch.cuda.mem_get_info(device)[0]


def _decode_rate(machine: Machine, batch: int, context: int) -> float:
    """Bytes a second, in as many layers as it takes to be larger than any cache."""
    num_bytes, per_seq = batch * context * KEY_BYTES, -(-context // BLOCK_SIZE)
    num_layers = 1 if machine.dry_run else max(1, min(32, MORE_THAN_A_CACHE // num_bytes))
    options = {"device": machine.device, "dtype": machine.dtype}
    shape = (num_layers, 2, batch * per_seq, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM)
    pool = torch.empty(shape, **options).normal_()
    query = torch.randn((batch, NUM_HEADS, HEAD_DIM), **options)
    order = torch.randperm(batch * per_seq, device=machine.device, dtype=torch.int32)
    seq_lens = torch.full((batch,), context, dtype=torch.int32, device=machine.device)
    starts = torch.arange(batch + 1, dtype=torch.int32, device=machine.device)
    where, ops = (order.view(batch, per_seq), seq_lens, starts, 1, HEAD_DIM**-0.5), machine.ops

    def step() -> None:
        for layer in pool:
            ops.paged_attention(query, layer[0], layer[1], *where)

    return num_layers * num_bytes / seconds_of(step, machine.device)


def prefill_ratio(machine: Machine) -> Iterator[Row]:
    """Time of torch's attention on contiguous keys over ours on paged ones: above 1 we are faster."""
    for length in [40] if machine.dry_run else [1024, 4096, 16_384]:
        ours, theirs = _prefill_seconds(machine, length)
        operations = 2 * HEAD_DIM * NUM_HEADS * length**2
        yield Row(f"prefill attention, {length} tokens", operations / ours / 1e12, "TFLOP/s")
        name = f"prefill attention, {length} tokens, speed over torch's"
        yield Row(name, theirs / ours, "", 0.9 if length == 4096 else None)


def _prefill_seconds(machine: Machine, length: int) -> tuple[float, float]:
    options = {"device": machine.device, "dtype": machine.dtype}
    num_blocks = -(-length // BLOCK_SIZE)
    query = torch.randn((length, NUM_HEADS, HEAD_DIM), **options)
    pool = torch.randn((2, num_blocks, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM), **options)
    table = torch.randperm(num_blocks, device=machine.device, dtype=torch.int32)[None]
    seq_lens = torch.tensor([length], dtype=torch.int32, device=machine.device)
    starts = torch.tensor([0, length], dtype=torch.int32, device=machine.device)
    where, ops = (table, seq_lens, starts, length, HEAD_DIM**-0.5), machine.ops
    key_cache, value_cache = pool
    ours = seconds_of(
        lambda: ops.paged_attention(query, key_cache, value_cache, *where), machine.device
    )
    # The same numbers without pages, every query head with keys of its own as torch likes it best.
    keys, values = (
        cache[table[0].long()]
        .transpose(0, 1)
        .flatten(1, 2)[None, :, :length]
        .repeat_interleave(NUM_HEADS // NUM_KV_HEADS, 1)
        for cache in pool
    )
    queries = query.transpose(0, 1)[None].contiguous()
    attention = torch.nn.functional.scaled_dot_product_attention
    theirs = seconds_of(lambda: attention(queries, keys, values, is_causal=True), machine.device)
    return ours, theirs
