"""What watching costs is read off rounds of intervals, each compared with its own neighbours."""

from benchmarks.watched_load import Interval, cost, medians


def test_a_round_is_compared_with_itself_and_the_middle_one_counts() -> None:
    quiet = {0: Interval(500.0, 2000.0, 50.0, 0.0), 5: Interval(490.0, 2020.0, 58.0, 5.0)}
    busy = {0: Interval(100.0, 4000.0, 20.0, 0.0), 5: Interval(300.0, 3000.0, 60.0, 5.0)}
    other = {0: Interval(400.0, 2500.0, 40.0, 0.0), 5: Interval(384.0, 2600.0, 45.0, 7.0)}
    rounds = [quiet, busy, other]
    assert cost(rounds, 5) == {"tokens/s": 0.02, "processor time": 0.01, "event loop": 0.008}
    assert cost(rounds, 0) == {"tokens/s": 0.0, "processor time": 0.0, "event loop": 0.0}
    assert medians(rounds, 5) == Interval(384.0, 2600.0, 58.0, 5.0)
