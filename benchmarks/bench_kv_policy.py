"""What does paging buy over contiguous KV memory? `python -m benchmarks.bench_kv_policy`

A seeded trace of 500 requests with chat-like lengths, all waiting from the start, runs to its end four times under the
same memory (of 4, and of 8 whole contexts): through the real scheduler with a model that costs nothing, and through three simulations of contiguous memory
with the same sequence slots, token budget and sharing of it. `max_len` reserves the model's length for every sequence,
`pow2` the next power of two of its real final length, and `exact` that length: an oracle, as nobody knows it beforehand. None
of them suffers from fragmentation between its regions. All these favours are the PagedAttention paper's. No prompt shares a
prefix with another.

Utilisation is tokens stored over slots held, summed over all steps. The last line is JSON. To reach: utilisation of 96%
or more, a largest batch of 4 times that of `max_len`, its steps in a quarter, judged where memory holds 4 contexts. Where
it holds 8, the last long answers of so short a trace run alone for longer than that allows.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass

from benchmarks.scheduling import make_config, make_request, print_report, step
from engine.admission import share_budget
from engine.config import SchedulerConfig
from engine.scheduler import Scheduler

NUM_REQUESTS, SEED = 500, 1
MAX_MODEL_LEN, BLOCK_SIZE, MAX_NUM_SEQS, BUDGET = 2048, 16, 256, 512
NUMS_CONTEXTS = (4, 8)
MIN_UTILISATION, BATCH_RATIO, STEPS_RATIO = 0.96, 4.0, 0.25


@dataclass(frozen=True)
class Lengths:
    """One request of the trace, in tokens."""

    num_prompt: int
    num_output: int


@dataclass
class Figures:
    """What a policy made of the trace."""

    steps: int = 0
    largest_batch: int = 0
    tokens_stored: int = 0
    slots_held: int = 0
    preemptions: int = 0

    def note(self, batch: int, tokens_stored: int, slots_held: int) -> None:
        """One step more."""
        self.steps += 1
        self.largest_batch = max(self.largest_batch, batch)
        self.tokens_stored += tokens_stored
        self.slots_held += slots_held

    @property
    def utilisation(self) -> float:
        return self.tokens_stored / self.slots_held


def make_trace() -> list[Lengths]:
    """Log-normal lengths: prompts of 160 tokens and answers of 340 in the mean, long tails, cut at the context."""
    draw = random.Random(SEED)
    trace = []
    for _ in range(NUM_REQUESTS):
        num_prompt = min(1024, max(4, round(draw.lognormvariate(4.6, 1.0))))
        num_output = min(MAX_MODEL_LEN - num_prompt, max(1, round(draw.lognormvariate(5.4, 0.9))))
        trace.append(Lengths(num_prompt, num_output))
    return trace


def run_paged(trace: list[Lengths], config: SchedulerConfig) -> Figures:
    """The real thing."""
    scheduler, figures = Scheduler(config), Figures()
    draw = random.Random(SEED)
    for i, lengths in enumerate(trace):
        prompt = [i, *(draw.randrange(49_000) for _ in range(lengths.num_prompt - 1))]
        scheduler.add_request(make_request(i, prompt, lengths.num_output))
    while scheduler.has_work:
        plan, _ = step(scheduler)
        stats = scheduler.view.stats()
        held = (stats.blocks.private + stats.blocks.shared) * config.block_size
        figures.note(len(plan.scheduled), stats.tokens_stored, held)
    figures.preemptions = scheduler.view.stats().counters.preemptions
    return figures


@dataclass
class Region:
    """A sequence in contiguous memory: `size` slots of its own until it ends."""

    lengths: Lengths
    size: int
    num_computed: int = 0
    num_drawn: int = 0

    @property
    def num_wanted(self) -> int:
        return self.lengths.num_prompt + self.num_drawn - self.num_computed

    def advance(self, num_tokens: int) -> None:
        wanted = self.num_wanted
        self.num_computed += num_tokens
        self.num_drawn += num_tokens == wanted


def run_contiguous(
    trace: list[Lengths], config: SchedulerConfig, reserve: Callable[[Lengths], int]
) -> Figures:
    """First come, first served into regions of `reserve` slots; decodes first, then chunks of prompts."""
    waiting, running, figures = deque(trace), list[Region](), Figures()
    free = config.num_blocks * config.block_size
    while waiting or running:
        while waiting and len(running) < config.max_num_seqs and reserve(waiting[0]) <= free:
            lengths = waiting.popleft()
            running.append(Region(lengths, reserve(lengths)))
            free -= running[-1].size
        decodes = [region for region in running if region.num_wanted == 1]
        prefills = [region for region in running if region.num_wanted > 1]
        grants = share_budget(
            [r.num_wanted for r in prefills], config.max_num_batched_tokens - len(decodes)
        )
        for region, grant in zip([*decodes, *prefills], [1] * len(decodes) + grants, strict=True):
            region.advance(grant)
        figures.note(
            len(decodes) + sum(grant > 0 for grant in grants),
            sum(region.num_computed for region in running),
            sum(region.size for region in running),
        )
        free += sum(r.size for r in running if r.num_drawn == r.lengths.num_output)
        running = [r for r in running if r.num_drawn < r.lengths.num_output]
    return figures


def final_length(lengths: Lengths) -> int:
    """Tokens stored in the end: the last one drawn never is."""
    return lengths.num_prompt + lengths.num_output - 1


def next_power_of_two(lengths: Lengths) -> int:
    return 1 << (final_length(lengths) - 1).bit_length()


def run_policies(trace: list[Lengths], num_contexts: int) -> dict[str, Figures]:
    """All four, in memory for `num_contexts` whole contexts."""
    config = make_config(
        block_size=BLOCK_SIZE,
        num_blocks=num_contexts * MAX_MODEL_LEN // BLOCK_SIZE,
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=BUDGET,
        max_model_len=MAX_MODEL_LEN,
    )
    results = {
        "paged": run_paged(trace, config),
        "max_len": run_contiguous(trace, config, lambda lengths: MAX_MODEL_LEN),
        "pow2": run_contiguous(trace, config, next_power_of_two),
        "exact": run_contiguous(trace, config, final_length),
    }
    for name, figures in results.items():
        print(
            f"{num_contexts} contexts, {name:>7}: {figures.utilisation:6.1%} used, largest batch "
            f"{figures.largest_batch:>3}, {figures.steps:>6} steps, {figures.preemptions} preemptions"
        )
    return results


def main() -> None:
    trace = make_trace()
    results = {num_contexts: run_policies(trace, num_contexts) for num_contexts in NUMS_CONTEXTS}
    paged, max_len = results[4]["paged"], results[4]["max_len"]
    print_report(
        "kv_policy",
        {
            f"{num_contexts} contexts": {
                name: asdict(figures) | {"utilisation": round(figures.utilisation, 4)}
                for name, figures in policies.items()
            }
            for num_contexts, policies in results.items()
        },
        [
            (f"utilisation of {MIN_UTILISATION:.0%}", paged.utilisation >= MIN_UTILISATION),
            (
                f"largest batch of {BATCH_RATIO:g} times max_len's",
                paged.largest_batch >= BATCH_RATIO * max_len.largest_batch,
            ),
            (f"{STEPS_RATIO:.0%} of max_len's steps", paged.steps <= STEPS_RATIO * max_len.steps),
        ],
    )


if __name__ == "__main__":
    main()
