"""Plans and prompts in short, for tests of the planner."""

from engine.outputs import SchedulerOutput


def shape(plan: SchedulerOutput) -> list[tuple[int, int, int, int]]:
    """(seq_id, start, number of tokens, number of draws) of each scheduled sequence."""
    return [(e.seq_id, e.start_position, len(e.token_ids), len(e.samples)) for e in plan.scheduled]


def prompt(length: int, start: int = 0) -> list[int]:
    return [3 + (start + i) % 250 for i in range(length)]
