"""Whole steps, draws and ranks in memory that ends at pages that cannot be touched, every array in its own."""

from dataclasses import replace

import numpy as np
import pytest

from kernels.cpu.fused.ranking import RANK
from kernels.cpu.fused.sampling import DRAW
from tests.kernels.fused_reference import RandomModel, Run, needs_fused_cpu, step_input
from tests.kernels.guarded_pages import GuardedPages
from tests.kernels.test_fused_step import SHAPES, VOCAB, random_tokens

pytestmark = needs_fused_cpu
NUM_BLOCKS, MAX_ROWS, MAX_OUTPUTS = 24, 97, 7


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> GuardedPages:
    pages = GuardedPages()
    for module in ("model", "weights"):
        monkeypatch.setattr(f"kernels.cpu.fused.{module}.aligned_zeros", pages.aligned_zeros)
    monkeypatch.setattr("kernels.cpu.fused.weights._SLAB_BYTES", 0)
    return pages


@pytest.mark.parametrize("int8_kv", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_steps_stay_in_their_memory(pages: GuardedPages, name: str, int8_kv: bool) -> None:
    """As many rows and outputs as there can be, the pool's first and last blocks, decodes beside chunks."""
    shape, options = SHAPES[name]
    model = RandomModel(replace(shape, int8_kv=int8_kv), seed=0, **options)
    fused = model.fused(
        num_blocks=NUM_BLOCKS, max_rows=MAX_ROWS, max_outputs=MAX_OUTPUTS, num_threads=3
    )
    tokens, blocks = random_tokens(300), list(range(NUM_BLOCKS))[::-1]
    for start in (0, 97, 194):
        fused.run(step_input([Run(tokens[start : start + 97], start, blocks[:19])]))
    others = [Run(tokens[: n + 1], 0, blocks[19 + n : 20 + n]) for n in range(5)]
    (first, *_) = fused.run(step_input([Run(tokens[291:], 291, blocks[:19]), *others]))
    draws = pages.copy(np.zeros(6, DRAW))
    draws["row"], draws["uniform"], draws["top_p"], draws["floor"] = range(6), 0.5, 1, -np.inf
    draws["inverse_temperature"], draws["top_k"] = [0, 1, 1, 1, 0, 0], [0, 0, 5, 0, 0, 0]
    again = step_input([Run(tokens[291:], 291, blocks[:19]), *others])
    drawn = fused.draw(fused.run(again, draws), draws.copy())
    assert draws["token"].tolist() == drawn.tolist()
    expected = model.dense.logits(tokens)[-1]
    assert (first * expected).sum() / np.linalg.norm(first) / np.linalg.norm(expected) > 0.9998
    fused.close()


@pytest.mark.parametrize("num_columns", [1, 16, 33, VOCAB])
def test_draws_and_ranks_stay_in_their_memory(pages: GuardedPages, num_columns: int) -> None:
    shape, options = SHAPES["group of 3"]
    fused = RandomModel(shape, seed=0, **options).fused(num_threads=3)
    rows = np.random.default_rng(0).standard_normal((9, num_columns)).astype(np.float32)
    logits, draws = pages.copy(rows), pages.copy(np.zeros(9, DRAW))
    draws["row"], draws["uniform"], draws["floor"] = range(9), np.arange(9) / 9, -np.inf
    draws["inverse_temperature"] = np.arange(9) % 3
    draws["top_p"], draws["top_k"] = 1 - np.arange(9) % 2 * 0.2, [0, 0, 0, 2, 50, 0, 1, 0, 300]
    masks = pages.copy(np.full((9, -(-num_columns // 16) * 2), 0xFF, np.uint8))
    draws["mask"][4:] = masks.ctypes.data + masks.shape[1] * np.arange(4, 9)
    drawn = fused.draw(logits, draws)
    assert ((drawn >= 0) & (drawn < num_columns)).all()
    ranks, top = pages.copy(np.zeros(9, RANK)), pages.copy(np.zeros((9, num_columns), np.int32))
    ranks["row"], ranks["token"], ranks["num_top"] = range(9), drawn, num_columns
    ranks["top"] = top.ctypes.data + 4 * num_columns * np.arange(9)
    fused.rank(logits, ranks)
    np.testing.assert_array_equal(top, np.argsort(-rows, axis=1, kind="stable"))
    fused.close()
