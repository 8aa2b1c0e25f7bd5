"""How long things take, counted in buckets: totals since the start, so that two pictures differ by what came between them.

Edges are upper bounds in seconds, inclusive as Prometheus has them: three to an octave, and every edge of vLLM's latency
histograms (vllm/v1/metrics/loggers.py), so those can be read off exactly. A quantile is interpolated inside its
bucket, which is at most 26 % wide.
"""

from bisect import bisect_left
from dataclasses import dataclass

TTFT_EDGES = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
ITL_EDGES = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0),
)
RELEASE_EDGES = (0.00001, 0.0001, 0.001, 0.01, 0.1, 1.0)
_OCTAVES = range(-51, 36)
EDGES = tuple(
    sorted({*TTFT_EDGES, *ITL_EDGES, *RELEASE_EDGES, *(round(2 ** (i / 3), 8) for i in _OCTAVES)})
)


@dataclass(frozen=True, slots=True)
class Distribution:
    """`counts[i]` values lay above `edges[i - 1]` and at or below `edges[i]`; the last ones above every edge."""

    edges: tuple[float, ...] = EDGES
    counts: tuple[int, ...] = (0,) * (len(EDGES) + 1)
    sum: float = 0.0

    @property
    def count(self) -> int:
        """How many values."""
        return sum(self.counts)

    def since(self, earlier: "Distribution") -> "Distribution":
        """What came after an earlier picture of the same totals."""
        counts = tuple(b - a for a, b in zip(earlier.counts, self.counts, strict=True))
        return Distribution(self.edges, counts, self.sum - earlier.sum)

    def at_most(self, edge: float) -> int:
        """How many values lay at or below one of the edges."""
        return sum(self.counts[: self.edges.index(edge) + 1])

    def quantile(self, share: float) -> float | None:
        """The value below which `share` (0 to 1) of them lie; None when there is none."""
        rank = share * self.count
        if not self.count:
            return None
        below = 0
        for i, count in enumerate(self.counts):
            if count and below + count >= rank:
                low = self.edges[i - 1] if i else 0.0
                high = self.edges[min(i, len(self.edges) - 1)]
                return low + (high - low) * (rank - below) / count
            below += count
        return self.edges[-1]


class Recorder:
    """Counts values while they come; `picture` is immutable."""

    def __init__(self, edges: tuple[float, ...] = EDGES) -> None:
        self._edges = edges
        self._counts = [0] * (len(edges) + 1)
        self._sum = 0.0
        self._picture: Distribution | None = None

    def add(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._edges, value)] += 1
        self._sum += value
        self._picture = None

    def picture(self) -> Distribution:
        """As it stands; the same object until a value comes."""
        if self._picture is None:
            self._picture = Distribution(self._edges, tuple(self._counts), self._sum)
        return self._picture
