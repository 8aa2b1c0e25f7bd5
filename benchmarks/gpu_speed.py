"""How near attention comes to what the chip can do: decode to its bandwidth, prefill to torch's own kernel."""

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from benchmarks.gpu_rows import Row
from kernels.attention_rules import AttentionRules
from kernels.eight_bits import LARGEST
from kernels.kv_pool import KVLayout, KVPool
from kernels.ops import KernelBackend, select_backend

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE = 32, 8, 128, 16
MORE_THAN_A_CACHE = 512 << 20
GOALS = {(64, 8192): 0.85, (1, 32_768): 0.6}
EIGHT_BITS_AT = {(1, 32_768), (64, 8192), (256, 8192)}
"""Batches and contexts that are measured with keys and values of eight bits too."""
PRODUCTS = [(4096, 28_672), (14_336, 4096), (4096, 4096)]
"""Inputs and outputs of Llama 3 8B's largest, longest and smallest matrices."""
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
    for batch, context in itertools.product(batches, contexts):
        few_bits = LARGEST if machine.dry_run or (batch, context) in EIGHT_BITS_AT else ()
        for kv_dtype in (machine.dtype, *few_bits):
            if _fits(batch * context * _layout(kv_dtype).token_bytes, machine.device):
                rate = _decode_rate(machine, batch, context, kv_dtype)
                name = f"decode attention, batch {batch}, {context} keys{_kind(machine, kv_dtype)}, share of bandwidth"
                yield Row(name, rate / machine.bandwidth, "", GOALS.get((batch, context)))


def _layout(kv_dtype: torch.dtype, num_layers: int = 1) -> KVLayout:
    return KVLayout(
        num_layers=num_layers,
        num_kv_heads=NUM_KV_HEADS,
        block_size=BLOCK_SIZE,
        head_dim=HEAD_DIM,
        dtype=kv_dtype,
    )


def _kind(machine: Machine, kv_dtype: torch.dtype) -> str:
    return "" if kv_dtype is machine.dtype else f", {kv_dtype} KV".replace("torch.", "")


def random_pool(layout: KVLayout, num_blocks: int, device: torch.device) -> KVPool:
    """Keys and values whose numbers are about normal."""
    pool = layout.allocate(num_blocks, device)
    if pool.memory.is_floating_point():
        pool.memory.normal_()
        return pool
    pool.memory.random_()
    for cache in pool.layers:
        for numbers, scales in (
            (cache.keys, cache.key_scales),
            (cache.values, cache.value_scales),
        ):
            # The exponent of all ones, with its NaN, becomes another.
            numbers.view(torch.uint8).bitwise_and_(0xBF)
            assert scales is not None, "eight bits have scales"
            scales.fill_(4.0)
    return pool


def _fits(num_bytes: int, device: torch.device) -> bool:
    if device.type == "cpu":
        return True
    torch.cuda.empty_cache()
    return num_bytes < 0.6 * torch.cuda.mem_get_info(device)[0]


def _decode_rate(machine: Machine, batch: int, context: int, kv_dtype: torch.dtype) -> float:
    """Bytes a second, in as many layers as it takes to be larger than any cache."""
    num_bytes, per_seq = batch * context * _layout(kv_dtype).token_bytes, -(-context // BLOCK_SIZE)
    num_layers = 1 if machine.dry_run else max(1, min(32, MORE_THAN_A_CACHE // num_bytes))
    pool = random_pool(_layout(kv_dtype, num_layers), batch * per_seq, machine.device)
    options = {"device": machine.device, "dtype": machine.dtype}
    query = torch.randn((batch, NUM_HEADS, HEAD_DIM), **options)
    order = torch.randperm(batch * per_seq, device=machine.device, dtype=torch.int32)
    seq_lens = torch.full((batch,), context, dtype=torch.int32, device=machine.device)
    starts = torch.arange(batch + 1, dtype=torch.int32, device=machine.device)
    where, ops = (
        (order.view(batch, per_seq), seq_lens, starts, 1, AttentionRules(HEAD_DIM**-0.5)),
        machine.ops,
    )

    def step() -> None:
        for cache in pool.layers:
            ops.paged_attention(query, cache, *where)

    return num_layers * num_bytes / seconds_of(step, machine.device)


def prefill_ratio(machine: Machine) -> Iterator[Row]:
    """Time of torch's attention on contiguous keys over ours on paged ones: above 1 we are faster."""
    for length in [40] if machine.dry_run else [1024, 4096, 16_384]:
        few_bits = LARGEST if machine.dry_run or length == 4096 else ()
        theirs = _torch_seconds(machine, length)
        for kv_dtype in (machine.dtype, *few_bits):
            ours = _prefill_seconds(machine, length, kv_dtype)
            operations = 2 * HEAD_DIM * NUM_HEADS * length**2
            name = f"prefill attention, {length} tokens{_kind(machine, kv_dtype)}"
            yield Row(name, operations / ours / 1e12, "TFLOP/s")
            goal = 0.9 if length == 4096 and kv_dtype is machine.dtype else None
            yield Row(f"{name}, speed over torch's", theirs / ours, "", goal)


def _prefill_seconds(machine: Machine, length: int, kv_dtype: torch.dtype) -> float:
    num_blocks = -(-length // BLOCK_SIZE)
    query = torch.randn((length, NUM_HEADS, HEAD_DIM), device=machine.device, dtype=machine.dtype)
    cache = random_pool(_layout(kv_dtype), num_blocks, machine.device).layers[0]
    table = torch.randperm(num_blocks, device=machine.device, dtype=torch.int32)[None]
    seq_lens = torch.tensor([length], dtype=torch.int32, device=machine.device)
    starts = torch.tensor([0, length], dtype=torch.int32, device=machine.device)
    where, ops = (table, seq_lens, starts, length, AttentionRules(HEAD_DIM**-0.5)), machine.ops
    return seconds_of(lambda: ops.paged_attention(query, cache, *where), machine.device)


def _torch_seconds(machine: Machine, length: int) -> float:
    """The same without pages, every query head with keys of its own as torch likes it best."""
    shape = (3, 1, NUM_HEADS, length, HEAD_DIM)
    query, keys, values = torch.randn(shape, device=machine.device, dtype=machine.dtype)
    attention = torch.nn.functional.scaled_dot_product_attention
    return seconds_of(lambda: attention(query, keys, values, is_causal=True), machine.device)


def product_shares(machine: Machine) -> Iterator[Row]:
    """Bytes of eight-bit weights read per second by small batches, as a share of the copy bandwidth."""
    sizes, batches = ([(96, 80)], [1]) if machine.dry_run else (PRODUCTS, [1, 16, 64])
    for (size_in, size_out), dtype, batch in itertools.product(sizes, LARGEST, batches):
        rate = _product_rate(machine, size_in, size_out, dtype, batch)
        name = (
            f"product of {size_in} to {size_out}, {batch} rows, {dtype} weights, share of bandwidth"
        )
        yield Row(name.replace("torch.", ""), rate / machine.bandwidth, "")


def _product_rate(
    machine: Machine, size_in: int, size_out: int, dtype: torch.dtype, batch: int
) -> float:
    num_bytes, multiply = size_in * size_out, machine.ops.quantized_linear
    assert multiply is not None, "the backend multiplies eight bits"
    count = 1 if machine.dry_run else max(1, MORE_THAN_A_CACHE // num_bytes)
    options = {"device": machine.device, "dtype": torch.uint8}
    # Without the exponent of all ones, which is NaN in e4m3.
    weights = torch.randint(0, 0x78, (count, size_out, size_in), **options).view(dtype)
    scales = torch.ones(size_out, device=machine.device)
    x = torch.randn((batch, size_in), device=machine.device, dtype=machine.dtype)

    def step() -> None:
        for weight in weights:
            multiply(x, weight, scales, None)

    return count * num_bytes / seconds_of(step, machine.device)
