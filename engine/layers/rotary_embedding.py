"""Rotary position embedding (Su et al. 2021) with the ways of stretching it to longer contexts.

The frequencies are transformers' own (linear, dynamic NTK, YaRN, Llama 3), and so are angles: products in float32. Dynamic
NTK there follows the length of the text as it grows; here one table serves all texts, computed for the longest one the
engine admits. Keys lie in the pool as they were rotated, and blocks are shared by texts of different lengths: with frequencies
that follow the text, a block would no longer be what its tokens say. A text within the original context pays for that; a
smaller `--max-model-len` asks for less stretching, and for none up to the original context.
"""

from typing import Any

import torch
from transformers import PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "llama3")


def build_cos_sin(
    config: PretrainedConfig,
    head_dim: int,
    max_position: int,
    factors: torch.Tensor | None = None,
) -> torch.Tensor:
    """Cosines and sines by position [max_position, head_dim] float32: row = (cos of head_dim / 2, sin of the same).

    `factors` [head_dim / 2] divide the frequencies, as files that carry them ask for.
    """
    parameters: dict[str, Any] = config.rope_parameters
    kind = parameters.get("rope_type", "default")
    if kind == "default":
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        frequencies, magnitude = 1.0 / parameters["rope_theta"] ** exponents, 1.0
    else:
        frequencies, magnitude = ROPE_INIT_FUNCTIONS[kind](
            config, torch.device("cpu"), seq_len=max_position
        )
    if factors is not None:
        frequencies = frequencies / factors
    angles = torch.outer(torch.arange(max_position, dtype=torch.float32), frequencies)
    return torch.cat([angles.cos(), angles.sin()], dim=-1) * magnitude
