"""Dataclasses as dicts, without copies."""

from dataclasses import asdict, dataclass

from api.flat import flat
from engine.stats import BlockCounts


@dataclass(frozen=True, slots=True)
class Pair:
    first: object
    second: object


def test_numbers_are_what_asdict_says() -> None:
    counts = BlockCounts(total=8, private=1, shared=2, cached=3, free=2, block_size=16)
    assert flat(counts) == asdict(counts)
    assert list(flat(counts)) == list(asdict(counts))


def test_values_are_the_very_ones_it_holds() -> None:
    held = [1]
    told = flat(Pair(held, None))
    assert told == {"first": held, "second": None}
    assert told["first"] is held
