"""Phases of a step: work items claimed by whichever thread is free.

Every phase has a cache line with two numbers, (generation << 32 | items claimed) and (generation << 32 | items done). A
phase is complete when its items are done, not when all threads have arrived, so a thread that the system has put aside
holds up the others only while it holds an item. A thread reports its items when it finds no more to claim. One that comes
late finds the next generation's tag, or CLOSED, and leaves; it has touched nothing.
"""

from collections.abc import Callable

from kernels.cpu.fused.layout import COUNTERS, GENERATION, SPINS
from kernels.cpu.ir_tools import formula, routine
from kernels.cpu.memory import (
    atomic_add,
    atomic_load,
    atomic_store,
    compare_and_swap,
    pause,
    yield_processor,
)

LINE_BYTES = 64
NONE, CLOSED = 0, 0x7FFFFFFF
"""What a thread that asks between two steps gets as generation, and the tag of the phases then: never the same."""
_INDEX_MASK = 0xFFFFFFFF


@formula
def open_phases(h, generation, num_phases):
    """Lets threads claim work of step `generation` (1 to CLOSED - 1)."""
    for phase in range(num_phases):
        line = h[COUNTERS] + phase * LINE_BYTES
        atomic_store(line + 8, generation << 32)
        atomic_store(line, generation << 32)
    atomic_store(h[GENERATION], generation)


@formula
def close_phases(h, num_phases):
    """Ends the step for threads that come late; must come before any input of the next step is written."""
    for phase in range(num_phases):
        line = h[COUNTERS] + phase * LINE_BYTES
        atomic_store(line, CLOSED << 32)
        atomic_store(line + 8, CLOSED << 32)
    atomic_store(h[GENERATION], NONE)


@routine
def _wait_until_done(line, generation, count, spins):
    """Whether the phase is complete (True) or the step is over (False)."""
    turns = 0
    while True:
        value = atomic_load(line + 8)
        if value >> 32 != generation:
            return False
        if value & _INDEX_MASK >= count:
            return True
        turns += 1
        if turns < spins:
            pause()
        else:
            yield_processor()


def phase(work: Callable[..., None]) -> Callable[..., bool]:
    """The routine that does items of `work(h, layer, thread, begin, end)` until all `count` of a phase are done.

    It returns False when the step is over. `size` items are claimed at a time.
    """

    @routine
    def run(h, layer, thread, generation, number, count, size):
        line = h[COUNTERS] + number * LINE_BYTES
        seen, done = generation << 32, 0
        while seen >> 32 == generation:
            begin = seen & _INDEX_MASK
            if begin >= count:
                if done:
                    atomic_add(line + 8, done)
                return _wait_until_done(line, generation, count, h[SPINS])
            # What was seen last is a good guess of what is there: one access to a line that all threads want, not two.
            found = compare_and_swap(line, seen, seen + size)
            if found == seen:
                end = min(begin + size, count)
                work(h, layer, thread, begin, end)
                seen, done = seen + size, done + end - begin
            else:
                seen = found
        return False

    return run
