"""Embeddings: the mean of the final states of a prompt's tokens, at length 1 (L2).

The states of a step are summed by the model runner, the sums of a prompt's steps here. So that it does not matter how the
tokens were spread over steps, every number of a state is first rounded to a multiple of STATE_UNIT: sums of such numbers
are exact in 64 bits up to 2^29, and an exact sum knows no order. The rounding is as fine as float32 at 1.
"""

import math
from collections.abc import Sequence

STATE_UNIT = 2.0**-24


class StateSum:
    """The sum of a prompt's states, position after position. A sum that begins at position 0 replaces what was there."""

    def __init__(self) -> None:
        self._num_tokens = 0
        self._values: Sequence[float] = ()

    def add(self, start_position: int, num_tokens: int, values: Sequence[float]) -> None:
        """Take in the sum [hidden_size] of the states of `num_tokens` tokens from `start_position` on."""
        if start_position:
            assert start_position == self._num_tokens, "states were left out or counted twice"
            values = [a + b for a, b in zip(self._values, values, strict=True)]
        self._num_tokens, self._values = start_position + num_tokens, values

    def embedding(self) -> tuple[float, ...] | None:
        """The mean at length 1; None if a state was not finite. The mean's divisor cancels out; zeros stay zeros."""
        length = math.hypot(*self._values)
        if not math.isfinite(length):
            return None
        return tuple(value / (length or 1.0) for value in self._values)
