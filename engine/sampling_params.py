"""How to draw tokens and when to stop: one frozen, validated value used everywhere under the same names."""

from collections.abc import Mapping
from dataclasses import dataclass, field

MAX_LOGPROBS = 20
DEFAULT_MAX_TOKENS = 1024


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Sampling keys with their neutral defaults.

    `max_tokens` None means what is left of the context, DEFAULT_MAX_TOKENS at most. `top_k` 0 and -1 are off. A
    temperature below 1e-3 is greedy. `logprobs` None is off; k returns the sampled token and the k best (0 to 20).
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    max_tokens: int | None = None
    min_tokens: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    cache_salt: str | None = None
