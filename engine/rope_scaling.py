"""`--rope-scaling`: stretch a model's rotary embedding beyond the context it was trained for. No tensors.

The value is a JSON object with transformers' field names, for example {"rope_type": "yarn", "factor": 4}. It takes the
place of what the model's file says; the longest context becomes `factor` times the original one.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from engine.errors import ConfigError

OPTION = "--rope-scaling"
MAX_FACTOR = 1024
MAX_ORIGINAL = 2**24
PARAMETER_RANGE = (1e-3, 1e6)
YARN_BETAS = (1.0, 32.0)
COMMON = ("rope_type", "factor", "original_max_position_embeddings")
OPTIONAL: Mapping[str, tuple[str, ...]] = {
    "linear": (),
    "dynamic": (),
    "yarn": ("attention_factor", "beta_fast", "beta_slow"),
    "llama3": (),
}
REQUIRED: Mapping[str, tuple[str, ...]] = {"llama3": ("low_freq_factor", "high_freq_factor")}


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """`original_max_position_embeddings` None means the model's own. Raises ConfigError naming the field.

    attention_factor, beta_fast, beta_slow belong to yarn; low_freq_factor and high_freq_factor to llama3, which needs both.
    """

    rope_type: str
    factor: float
    original_max_position_embeddings: int | None = None
    attention_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None

    def __post_init__(self) -> None:
        if self.rope_type not in tuple(OPTIONAL):
            raise _error("rope_type", self.rope_type, "one of " + ", ".join(OPTIONAL))
        self._check_names()
        _check_number("factor", self.factor, 1, MAX_FACTOR)
        original = self.original_max_position_embeddings
        if original is not None and not _is_whole(original, 1, MAX_ORIGINAL):
            name = "original_max_position_embeddings"
            raise _error(name, original, f"a whole number from 1 to {MAX_ORIGINAL}")
        for name in OPTIONAL[self.rope_type] + REQUIRED.get(self.rope_type, ()):
            if (value := getattr(self, name)) is not None:
                _check_number(name, value, *PARAMETER_RANGE)
        self._check_order("beta_slow", "beta_fast", YARN_BETAS)
        self._check_order("low_freq_factor", "high_freq_factor", (0.0, math.inf))

    @property
    def parameters(self) -> dict[str, Any]:
        """What is set, by transformers' names."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def _check_names(self) -> None:
        required = REQUIRED.get(self.rope_type, ())
        allowed = COMMON + OPTIONAL[self.rope_type] + required
        for name, value in self.parameters.items():
            if name not in allowed:
                takes = f"rope_type {self.rope_type} takes " + ", ".join(allowed)
                raise _error(name, value, takes)
        for name in required:
            if getattr(self, name) is None:
                raise _error(name, None, f"rope_type {self.rope_type} needs a number")

    def _check_order(self, low: str, high: str, defaults: tuple[float, float]) -> None:
        smaller, larger = getattr(self, low) or defaults[0], getattr(self, high) or defaults[1]
        if smaller >= larger:
            raise _error(low, smaller, f"less than {high}, which is {larger:g}")


def parse_rope_scaling(value: object) -> object:
    """The value of the option as a RopeScaling; what is no text stays as it is. Raises ConfigError naming the field.

    `type`, the older spelling of `rope_type`, is understood.
    """
    if not isinstance(value, str):
        return value
    try:
        given = json.loads(value)
    except ValueError:
        given = None
    if not isinstance(given, dict):
        example = '{"rope_type": "yarn", "factor": 4}'
        raise ConfigError(OPTION, value, f"a JSON object such as {example}")
    if "type" in given:
        given.setdefault("rope_type", given.pop("type"))
    known = [field.name for field in fields(RopeScaling)]
    for name, content in given.items():
        if name not in known:
            raise _error(name, content, "the fields are " + ", ".join(known))
    missing: dict[str, Any] = {"rope_type": None, "factor": None}
    return RopeScaling(**missing | given)


def _check_number(name: str, value: Any, low: float, high: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and low <= value <= high):
        raise _error(name, value, f"a number from {low:g} to {high:g}")


def _is_whole(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _error(name: str, value: object, allowed: str) -> ConfigError:
    return ConfigError(f"{OPTION} {name}", value, allowed)
