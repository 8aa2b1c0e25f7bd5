"""One line of what the GPU check prints."""

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Row:
    """A figure with its unit; `goal` is the least (or, for errors, the most) that was hoped for; `wrong` fails the check."""

    name: str
    value: float
    unit: str
    goal: float | None = None
    wrong: bool = False

    def line(self) -> str:
        """For the table."""
        goal = "" if self.goal is None else f"   goal {self.goal:.4g}"
        mark = "   WRONG" if self.wrong else ""
        return f"{self.name:<72} {self.value:>12.4g} {self.unit}{goal}{mark}"

    def as_json(self) -> dict[str, object]:
        """For the last line."""
        return {**asdict(self), "value": float(f"{self.value:.5g}")}
