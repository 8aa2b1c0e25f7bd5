"""The fields of beam search: `use_beam_search`, `best_of`, `length_penalty`, `early_stopping`.

Meaning and defaults are those of transformers' `generate(num_beams=best_of, do_sample=False)`. A search follows the
model's own distribution, so fields that change it, or that draw from it, are refused by name beside it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from engine.errors import RequestError
from engine.wire_fields import WireFields, is_one_of

EarlyStopping = bool | Literal["never"]

BEAM_FIELDS = frozenset({"use_beam_search", "best_of", "length_penalty", "early_stopping"})
MAX_LENGTH_PENALTY = 10.0
MAX_STOP_TOKENS = 16
"""Every beam is asked in every step for as many more tokens as may end it."""

NEUTRAL_BESIDE_BEAMS: Mapping[str, tuple[object, ...]] = {
    "temperature": (0, 1),
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "repetition_penalty": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "min_tokens": (0,),
    "seed": (),
    "stop": ([],),
    "logit_bias": ({},),
}


@dataclass(frozen=True, kw_only=True)
class BeamParams:
    """`width` beams; a finished one scores its cumulative logprob / (generated tokens ^ `length_penalty`).

    `early_stopping` true: the search ends with the first `width` finished; false: when none that runs would beat them as
    long as it is; "never": when none can beat them at any length.
    """

    width: int
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False


def read_beams(fields: WireFields, n: int) -> BeamParams | None:
    """The search that is asked for, None without one. Raises RequestError."""
    if not fields.boolean("use_beam_search", False):
        _refuse_without_search(fields, n)
        return None
    for name, neutral in NEUTRAL_BESIDE_BEAMS.items():
        if name in fields.given and not is_one_of(fields.given[name], neutral):
            allowed = "leave it out with use_beam_search"
            raise fields.error(name, allowed, fields.given[name])
    stops = fields.given.get("stop_token_ids", [])
    if isinstance(stops, list) and len(stops) > MAX_STOP_TOKENS:
        allowed = f"at most {MAX_STOP_TOKENS} with use_beam_search"
        raise fields.error("stop_token_ids", allowed, len(stops))
    width = fields.integer("best_of", n, 1)
    if width < n:
        raise fields.error("best_of", f"at least n ({n}), as n of the beams are returned", width)
    return BeamParams(
        width=width,
        length_penalty=fields.number(
            "length_penalty", 1.0, -MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY
        ),
        early_stopping=_early_stopping(fields),
    )


def check_width(width: int, vocab_size: int, max_num_seqs: int) -> None:
    """Check the number of beams against the vocabulary and the sequence slots; raises RequestError."""
    most = min(max_num_seqs, vocab_size)
    if width > most:
        message = f"best_of is {width}; at most {most} beams (--max-num-seqs) can run"
        raise RequestError(message, param="best_of")


def _early_stopping(fields: WireFields) -> EarlyStopping:
    value = fields.given.get("early_stopping", False)
    if isinstance(value, bool):
        return value
    if value == "never":
        return "never"
    raise fields.error("early_stopping", 'true, false or "never"', value)


def _refuse_without_search(fields: WireFields, n: int) -> None:
    neutral = {"best_of": (1, n), "length_penalty": (1,), "early_stopping": (False,)}
    for name, values in neutral.items():
        if name in fields.given and not is_one_of(fields.given[name], values):
            raise fields.error(name, "it needs use_beam_search: true", fields.given[name])
