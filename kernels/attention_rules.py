"""How strongly queries look at keys, and which keys they see: what a layer of a model decides, the same in every step.

A query at position `p` sees the keys `p - window + 1` to `p`, so a window of 1 is the token itself; without a window it sees all up to
itself. A score is `scale * (query . key)`; with a soft cap it then becomes `soft_cap * tanh(score / soft_cap)` (Gemma 2 Team, 2024),
before softmax.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class AttentionRules:
    """`window` and `soft_cap` are None where there is none."""

    scale: float
    window: int | None = None
    soft_cap: float | None = None

    def __post_init__(self) -> None:
        assert self.window is None or self.window >= 1, "a token sees itself"
        assert self.soft_cap is None or self.soft_cap > 0, "a soft cap is positive"

    @property
    def has_limits(self) -> bool:
        """Whether there is a window or a soft cap."""
        return self.window is not None or self.soft_cap is not None

    def first_visible(self, position: int) -> int:
        """The first key that a query at `position` sees."""
        return 0 if self.window is None else max(0, position - self.window + 1)
