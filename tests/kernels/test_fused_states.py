"""The fused step's final states: against plain numpy, and bit for bit the same however the tokens came to be computed."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.cpu.fused.model import FusedModel
from tests.kernels.fused_reference import RandomModel, Run, needs_fused_cpu, step_input
from tests.kernels.test_fused_step import SMALL, random_tokens, shuffled_blocks

pytestmark = needs_fused_cpu


@pytest.fixture(scope="module")
def model() -> RandomModel:
    return RandomModel(SMALL, seed=3)


@pytest.fixture(scope="module")
def fused(model: RandomModel):
    fused = model.fused()
    yield fused
    fused.close()


def alone(fused: FusedModel, tokens: list[int]) -> list[bytes]:
    """The state of every token, computed token by token with nothing beside it."""
    blocks, rows = shuffled_blocks(19, seed=9), []
    for position, token in enumerate(tokens):
        fused.run(
            step_input([Run([token], position, blocks, wants_logits=False, wants_states=True)])
        )
        rows.append(fused.final_states(0, 1).tobytes())
    return rows


def test_states_agree_with_numpy(model: RandomModel, fused: FusedModel) -> None:
    tokens = random_tokens(100)
    fused.run(
        step_input([Run(tokens, 0, shuffled_blocks(7), wants_logits=False, wants_states=True)])
    )
    states, expected = fused.final_states(0, 100), model.dense.states(tokens)
    assert states.shape == expected.shape
    cosines = (states * expected).sum(1)
    cosines /= np.linalg.norm(states, axis=1) * np.linalg.norm(expected, axis=1)
    assert cosines.min() > 0.9998
    np.testing.assert_allclose(
        np.linalg.norm(states, axis=1), np.linalg.norm(expected, axis=1), rtol=0.01
    )


def test_states_are_read_and_not_changed(fused: FusedModel) -> None:
    fused.run(
        step_input([Run(random_tokens(20), 0, [1, 2], wants_logits=False, wants_states=True)])
    )
    first = fused.final_states(3, 9)
    np.testing.assert_array_equal(fused.final_states(0, 20)[3:9], first)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_states_do_not_depend_on_chunks_or_neighbours(fused: FusedModel, data) -> None:
    tokens, others = random_tokens(75, seed=1), random_tokens(60, seed=2)
    expected = alone(fused, tokens)
    fused.kv[:] = 0x7FC0
    pool = data.draw(st.permutations(range(64)))
    mine, theirs = list(pool[:5]), list(pool[5:10])
    got: list[bytes] = []
    done = 0
    while len(got) < len(tokens):
        size = data.draw(st.integers(1, len(tokens) - len(got)))
        runs = [
            Run(
                tokens[len(got) : len(got) + size],
                len(got),
                mine,
                wants_logits=False,
                wants_states=True,
            )
        ]
        beside = data.draw(st.integers(0, min(8, len(others) - done)))
        if beside:
            neighbour = Run(others[done : done + beside], done, theirs)
            runs.insert(data.draw(st.integers(0, 1)), neighbour)
            done += beside
        fused.run(step_input(runs))
        got += [row.tobytes() for row in fused.final_states(0, size)]
    assert got == expected
