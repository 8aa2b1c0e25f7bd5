"""What do n candidates of one prompt hold? `python -m benchmarks.bench_fork`

n = 3 and 8 candidates over prompts of about 1,000 tokens run through the real scheduler with a model that costs nothing.
After every step, when g tokens of each answer are stored (P in the prompt, B in a block), the live blocks are compared
with the formula floor(P/B) + n * ceil((P mod B + g) / B), and with n separate requests without a prefix cache, which hold
n * ceil((P + g) / B). The last line is JSON. To reach: the formula holds exactly, always.
"""

from benchmarks.scheduling import make_config, make_request, print_report, step
from engine.scheduler import Scheduler

NUMS_CANDIDATES, BLOCK_SIZES = (3, 8), (1, 8, 16, 32)
PROMPT_LENGTHS = (992, 999, 1000, 1001, 1007)
NUM_OUTPUT = 100


def formula(num_prompt: int, num_stored: int, n: int, block_size: int) -> int:
    """Live blocks of n candidates that each stored `num_stored` >= 1 tokens of their answer."""
    shared, rest = divmod(num_prompt, block_size)
    return shared + n * -(-(rest + num_stored) // block_size)


def live_blocks(num_prompt: int, n: int, block_size: int, *, is_forked: bool) -> list[int]:
    """Live blocks when 1, 2, ... tokens of each answer are stored."""
    config = make_config(
        num_blocks=20_000,
        block_size=block_size,
        max_num_batched_tokens=16_384,
        enable_prefix_caching=is_forked,
    )
    scheduler, prompt = Scheduler(config), [i % 49_000 for i in range(num_prompt)]
    for i in range(1 if is_forked else n):
        scheduler.add_request(make_request(i, prompt, NUM_OUTPUT, n if is_forked else 1))
    counts = []
    for _ in range(NUM_OUTPUT - 1):
        step(scheduler)
        blocks = scheduler.view.stats().blocks
        counts.append(blocks.private + blocks.shared)
    return counts[1:]


def main() -> None:
    num_checked, num_wrong, rows = 0, 0, {}
    for n in NUMS_CANDIDATES:
        for block_size in BLOCK_SIZES:
            for num_prompt in PROMPT_LENGTHS:
                forked = live_blocks(num_prompt, n, block_size, is_forked=True)
                expected = [
                    formula(num_prompt, g, n, block_size) for g in range(1, len(forked) + 1)
                ]
                num_checked += len(forked)
                num_wrong += sum(a != b for a, b in zip(forked, expected, strict=True))
        separate = live_blocks(1000, n, 16, is_forked=False)[-1]
        forked_blocks = live_blocks(1000, n, 16, is_forked=True)[-1]
        rows[n] = {"forked": forked_blocks, "separate": separate}
        print(
            f"n = {n}: {forked_blocks} blocks of 16 against {separate} of separate requests "
            f"({forked_blocks / separate:.0%}), P = 1000, g = {NUM_OUTPUT - 2}"
        )
    print(f"formula: {num_checked - num_wrong} of {num_checked} steps agree")
    print_report(
        "fork",
        {"blocks": rows, "steps_checked": num_checked, "steps_wrong": num_wrong},
        [("the formula holds exactly", num_wrong == 0)],
    )


if __name__ == "__main__":
    main()
