"""How long does paged attention take, in all layers of a small model? `python -m benchmarks.bench_attention`

Warm-up, then the median of repeated runs over random block tables; the last line of the output is JSON. By default the
shape of the built-in model (30 layers, 9 heads, 3 KV heads, head_dim 64), in bfloat16, on the CPU or the GPU found.
"""

import argparse
import json
import statistics
import time

import torch

from benchmarks.machine import describe
from kernels.attention_rules import AttentionRules
from kernels.kv_pool import KVPool
from kernels.ops import KernelBackend, select_backend

CASES = [(1, 1, 300), (1, 1, 2000), (8, 1, 300), (32, 1, 300), (1, 512, 512), (1, 512, 1512)]
"""(num_seqs, query_len, seq_len)"""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Paged attention in all layers of a model.")
    parser.add_argument("--backend", default="auto", choices=["auto", "triton", "cpu", "reference"])
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--heads", type=int, default=9)
    parser.add_argument("--kv-heads", type=int, default=3)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each case")
    return parser.parse_args()


def make_step(options: argparse.Namespace, case: tuple[int, int, int], device: torch.device):
    """A function (backend) that runs one step of a case: attention in every layer."""
    num_seqs, query_len, seq_len = case
    dtype = getattr(torch, options.dtype)
    blocks_per_seq = -(-seq_len // options.block_size)
    inner = (options.kv_heads, options.block_size, options.head_dim)
    shape = (options.layers, 2, num_seqs * blocks_per_seq, *inner)
    pool = KVPool.over(torch.randn(shape, device=device, dtype=dtype))
    order = torch.randperm(num_seqs * blocks_per_seq, device=device, dtype=torch.int32)
    query = torch.randn(
        (num_seqs * query_len, options.heads, options.head_dim), device=device, dtype=dtype
    )
    seq_lens = torch.full((num_seqs,), seq_len, dtype=torch.int32, device=device)
    starts = torch.arange(num_seqs + 1, device=device, dtype=torch.int32) * query_len
    where = (order.view(num_seqs, blocks_per_seq), seq_lens, starts, query_len)
    rules = AttentionRules(options.head_dim**-0.5)

    def step(backend: KernelBackend) -> None:
        for cache in pool.layers:
            backend.paged_attention(query, cache, *where, rules)
        if device.type == "cuda":
            torch.cuda.synchronize()

    return step


def median_ms(step, backend: KernelBackend, seconds: float) -> float:
    """Median of the steps that fit into `seconds`, five at least."""
    step(backend)
    times: list[float] = []
    while len(times) < 5 or sum(times) < seconds:
        start = time.perf_counter()
        step(backend)
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)


def main() -> None:
    options = parse_arguments()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    backend = select_backend(options.backend, device)
    print(f"{describe()}, {backend.name} ({backend.reason}), {options.dtype}")
    results = {}
    for case in CASES:
        ms = median_ms(make_step(options, case, device), backend, options.seconds)
        name = "x".join(map(str, case[:2])) + f"@{case[2]}"
        results[name] = round(ms, 3)
        print(f"{case[0]:3} sequences, {case[1]:4} queries, {case[2]:5} keys: {ms:9.3f} ms")
    print(json.dumps({"backend": backend.name, "layers": options.layers, "ms": results}))


if __name__ == "__main__":
    main()
