"""131,109 tokens through scheduler and torch runner, and a shorter text through the fused one, against float64."""

from pathlib import Path

import numpy as np
import pytest

from tests.engine.long_text import FACTOR, ORIGINAL_CONTEXT, Comparison, compare, prompt_lengths
from tests.kernels.fused_reference import needs_fused_cpu

FUSED_TOLERANCE = 0.1
"""What 8-bit activations and bfloat16 keys and values cost this model."""


def assert_it_went_as_it_should(result: Comparison, context: int) -> None:
    _, first, second, _ = prompt_lengths(context)
    assert result.info.max_model_len == FACTOR * ORIGINAL_CONTEXT
    assert result.counters.prefix_hits == first // 16 * 16 + second // 16 * 16
    assert result.counters.preemptions == 0
    assert result.unscaled[1:].mean() > 4 * FUSED_TOLERANCE, "scaling makes no difference here"


@pytest.mark.timeout(600)
def test_the_longest_context_and_beyond(tmp_path: Path) -> None:
    result = compare(tmp_path, "float32", 131_072, block_size=16)
    assert result.errors.max() < 2e-5
    assert_it_went_as_it_should(result, 131_072)


@needs_fused_cpu
def test_the_fused_runner_beyond_the_original_context(tmp_path: Path) -> None:
    """Its numbers are coarse, so that of one wrong block the reference may know nothing; other blocks tell it exactly."""
    result = compare(tmp_path, "auto", 32_768, block_size=16)
    other = compare(tmp_path, "auto", 32_768, block_size=64)
    assert result.info.dtype == "int8 activations"
    assert result.errors.max() < FUSED_TOLERANCE
    np.testing.assert_array_equal(other.logits, result.logits)
    assert_it_went_as_it_should(result, 32_768)
