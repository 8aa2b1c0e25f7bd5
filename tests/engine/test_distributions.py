"""Durations in buckets: exact at vLLM's edges, quantiles within a bucket's width, differences of totals."""

import random
from itertools import pairwise

import pytest

from engine.distributions import EDGES, ITL_EDGES, RELEASE_EDGES, TTFT_EDGES, Distribution, Recorder


def test_edges_ascend_include_vllms_and_are_a_third_of_an_octave_apart_at_most() -> None:
    assert list(EDGES) == sorted(set(EDGES))
    assert {*TTFT_EDGES, *ITL_EDGES, *RELEASE_EDGES} <= set(EDGES)
    assert max(b / a for a, b in pairwise(EDGES)) < 1.27
    assert (EDGES[0] <= 1e-5, EDGES[-1] >= 2560) == (True, True)


def test_a_value_on_an_edge_counts_as_at_most_that() -> None:
    recorder = Recorder()
    for value in (0.01, 0.0101, 0.025, 1e9):
        recorder.add(value)
    picture = recorder.picture()
    assert [picture.at_most(edge) for edge in (0.01, 0.025, 80.0)] == [1, 3, 3]
    assert (picture.count, picture.counts[-1]) == (4, 1)
    assert picture.sum == pytest.approx(1e9 + 0.0451)


def test_a_picture_stays_as_it_is() -> None:
    recorder = Recorder((1.0, 2.0))
    recorder.add(1.5)
    first = recorder.picture()
    assert recorder.picture() is first
    recorder.add(0.5)
    assert (first.counts, recorder.picture().counts) == ((0, 1, 0), (1, 1, 0))
    assert recorder.picture().since(first) == Distribution((1.0, 2.0), (1, 0, 0), 0.5)


def test_quantiles_are_near_those_of_the_values() -> None:
    draw = random.Random(1)
    values = sorted(draw.lognormvariate(-3.5, 0.8) for _ in range(5000))
    recorder = Recorder()
    for value in values:
        recorder.add(value)
    for share in (0.5, 0.95, 0.99):
        exact = values[int(share * len(values))]
        assert recorder.picture().quantile(share) == pytest.approx(exact, rel=0.08)


def test_quantiles_at_the_ends() -> None:
    assert Distribution().quantile(0.5) is None
    assert Distribution((1.0, 2.0), (0, 0, 3)).quantile(0.5) == 2.0
    assert Distribution((1.0, 2.0), (4, 0, 0)).quantile(0.5) == 0.5
    assert Distribution((1.0, 2.0), (1, 1, 0)).quantile(1.0) == 2.0
