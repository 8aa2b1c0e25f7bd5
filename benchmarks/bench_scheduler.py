"""What do scheduler and block manager cost per step? `python -m benchmarks.bench_scheduler`

1, 16, 256 and 1,000 running sequences of 500 to 600 tokens in a pool of 100,000 blocks, each decoding; `schedule`,
`update` and the published statistics are timed (CPU time of the thread), the model costs nothing. Besides, the prefix lookup of a prompt of 8,000
tokens, whole blocks and the part behind them, keys computed anew each time: cold (nothing is cached), hot (all of it is), and
crowded (half of it is, and behind it 20,000 chats went on, each in its own way). Medians; the last line is JSON.

To reach: 25 microseconds per sequence and step at 1,000 running, growing linearly; a lookup under 2 milliseconds.
"""

import random
import statistics
import time
from collections.abc import Callable

from benchmarks.scheduling import draw, make_config, make_request, print_report, step
from engine.config import SchedulerConfig
from engine.kv_cache_manager import KVCacheManager
from engine.scheduler import Scheduler
from engine.sequence import Sequence

NUM_BLOCKS, BLOCK_SIZE = 100_000, 16
NUMS_RUNNING = (1, 16, 256, 1000)
PROMPT_LEN, LOOKUP_LEN, NUM_CHATS = 500, 8000, 20_000
MAX_STEP_US, MAX_LOOKUP_MS = 25.0, 2.0


def big_config() -> SchedulerConfig:
    return make_config(
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK_SIZE,
        max_num_seqs=1024,
        max_num_batched_tokens=8192,
        max_model_len=16_384,
    )


def make_running(num_running: int) -> Scheduler:
    """A scheduler with that many sequences that decode, no prefix in common."""
    scheduler = Scheduler(big_config())
    for i in range(num_running):
        prompt = [(i * 7919 + j) % 49_000 for j in range(PROMPT_LEN)]
        scheduler.add_request(make_request(i, prompt, 10_000))
    while scheduler.view.stats().num_waiting:
        step(scheduler)
    step(scheduler)
    return scheduler


def median_step_us(num_running: int, num_steps: int) -> float:
    scheduler = make_running(num_running)
    times = []
    for _ in range(num_steps):
        started = time.thread_time()
        plan = scheduler.schedule()
        planned = time.thread_time()
        output = draw(plan)
        drawn = time.thread_time()
        scheduler.update(plan, output)
        scheduler.view.stats()
        times.append(time.thread_time() - drawn + planned - started)
        assert len(plan.scheduled) == num_running, "not every sequence decodes"
    return statistics.median(times) * 1e6


def median_lookup_ms(before: str) -> float:
    kv = KVCacheManager(big_config())
    prompt = [(j * 31) % 49_000 for j in range(LOOKUP_LEN)]
    if before == "hot":
        _compute(kv, prompt)
    if before == "crowded":
        half = prompt[: LOOKUP_LEN // 2]
        draw = random.Random(0)
        for _ in range(NUM_CHATS):
            _compute(kv, half + [draw.randrange(49_000) for _ in range(BLOCK_SIZE)])
    return _median_ms(lambda seq: kv.lookup_part(seq, kv.lookup(seq)), lambda: _make(prompt), 60)


def _make(prompt: list[int]) -> Sequence:
    return Sequence(0, make_request(0, prompt, 10), 0, 10, frozenset())


def _compute(kv: KVCacheManager, prompt: list[int]) -> None:
    """All of a prompt, which then goes, leaving its blocks to the cache."""
    seq = _make(prompt)
    kv.attach(seq, kv.lookup(seq))
    num_tokens = seq.num_uncomputed_tokens
    assert kv.allocate_slots(seq, num_tokens) == [], "the pool is too small"
    kv.commit(seq, num_tokens)
    kv.free(seq)


def _median_ms(
    call: Callable[[Sequence], object], make: Callable[[], Sequence], count: int
) -> float:
    times = []
    for _ in range(count):
        seq = make()
        started = time.thread_time()
        call(seq)
        times.append(time.thread_time() - started)
    return statistics.median(times) * 1e3


def main() -> None:
    steps: dict[int, float] = {}
    for num_running in NUMS_RUNNING:
        us = median_step_us(num_running, max(60, 3000 // num_running))
        steps[num_running] = round(us / num_running, 2)
        print(
            f"{num_running:>5} running: {us:9.1f} us per step, {steps[num_running]:6.2f} per sequence"
        )
    lookups = {name: round(median_lookup_ms(name), 2) for name in ("cold", "hot", "crowded")}
    print(f"lookup of {LOOKUP_LEN} tokens: {lookups} ms")
    growth = steps[1000] / steps[256]
    print_report(
        "scheduler",
        {
            "us_per_sequence_and_step": steps,
            "growth_from_256_to_1000": round(growth, 2),
            "lookup_ms": lookups,
        },
        [
            (f"{MAX_STEP_US:g} us per sequence at 1000 running", steps[1000] <= MAX_STEP_US),
            ("linear: the share of one sequence grows by at most half", growth <= 1.5),
            (f"lookup under {MAX_LOOKUP_MS:g} ms", max(lookups.values()) < MAX_LOOKUP_MS),
        ],
    )


if __name__ == "__main__":
    main()
