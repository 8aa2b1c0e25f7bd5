"""How to draw tokens and when to stop: one frozen, validated value used everywhere under the same names.

`SamplingParams` is what the engine works with, `SamplingParams.from_mapping` reads the wire form (WebSocket `sampling`,
HTTP body, stored JSON), `validate_for_model` checks what only a loaded model can tell.

Rules of the wire form: null is the same as absent. Numbers are finite and never booleans; counts, ids and seeds are
whole numbers. Names in UNSUPPORTED_FIELDS are refused unless they have the value that changes nothing. What costs time in
every step is limited: 16 stop strings of 4,096 characters, 1,024 entries of logit_bias and of stop_token_ids, a cache_salt of
256 characters.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from engine.beam_params import BEAM_FIELDS, BeamParams, check_width, read_beams
from engine.errors import RequestError
from engine.grammar_spec import GRAMMAR_FIELDS, GrammarSpec, read_grammar
from engine.wire_fields import WireFields, is_one_of

MAX_LOGPROBS = 20
DEFAULT_MAX_TOKENS = 1024
MAX_STOP_STRINGS, MAX_STOP_LENGTH = 16, 4096
MAX_LISTED_TOKENS = 1024
MAX_SALT_LENGTH = 256
GREEDY_TEMPERATURE = 1e-3
MIN_PRIORITY, MAX_PRIORITY = -100, 100
MIN_SEED, MAX_SEED = -(2**63), 2**64 - 1

UNSUPPORTED_FIELDS: Mapping[str, tuple[object, ...]] = {
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "detokenize": (True,),
    "guided_decoding_backend": (),
    "guided_whitespace_pattern": (),
    "include_stop_str_in_output": (False,),
    "logits_processors": ([],),
    "prompt_logprobs": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": (),
}


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Sampling keys with their neutral defaults.

    `max_tokens` None means what is left of the context, DEFAULT_MAX_TOKENS at most. `top_k` 0 and -1 are off. A
    temperature below GREEDY_TEMPERATURE is greedy; `top_p` 0 keeps the most likely token only. `logprobs` None is off;
    k returns the sampled token and the k best (0 to 20). `prompt_logprobs` says the same of the prompt's tokens; it has no
    wire form here. A seed counts modulo 2^64. A request of lower `priority` is
    served first; other than 0 only where the engine's scheduling policy is "priority". With `beams` nothing is drawn: the n
    best of a search are returned. With a `grammar` the answer is a text of it, unless a limit or a stop string cuts it;
    while nothing but an end may follow, `min_tokens` has no say. `temperatures`, one for each of n, take the place of
    `temperature`.
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
    prompt_logprobs: int | None = None
    cache_salt: str | None = None
    priority: int = 0
    beams: BeamParams | None = None
    grammar: GrammarSpec | None = None
    temperatures: tuple[float, ...] = ()

    @property
    def is_greedy(self) -> bool:
        """Whether nothing is left to chance."""
        return self.beams is not None or self.temperature < GREEDY_TEMPERATURE

    @property
    def num_sequences(self) -> int:
        """How many sequences it takes: one per candidate, or one per beam."""
        return self.n if self.beams is None else self.beams.width

    def for_candidate(self, index: int) -> "SamplingParams":
        """How one candidate is drawn."""
        if not self.temperatures:
            return self
        return replace(self, temperature=self.temperatures[index], temperatures=())

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object], *, path: str = "") -> "SamplingParams":
        """Read and check the wire form; `path` is the field that holds it ("sampling", or "" for a body).

        Raises RequestError with the exact path of the field: code `unknown_field` for a name that is not in
        SAMPLING_FIELDS, else `invalid_value`.
        """
        return _Reader(mapping, path).read()


def validate_for_model(params: SamplingParams, vocab_size: int, max_num_seqs: int) -> None:
    """Check token ids against the vocabulary and `n` against the sequence slots; raises RequestError.

    A grammar says where an answer ends, so `ignore_eos` is refused beside it; a beam search follows none.
    """
    if params.grammar is not None and params.beams is not None:
        message = f"use_beam_search is not allowed beside {params.grammar.param}; leave one of the two out"
        raise RequestError(message, param="use_beam_search")
    if params.grammar is not None and params.ignore_eos:
        message = f"ignore_eos is not allowed beside {params.grammar.param}, which says where the answer ends; leave one of the two out"
        raise RequestError(message, param="ignore_eos")
    _check_temperatures(params)
    for i, token_id in enumerate(params.stop_token_ids):
        _check_token_id(token_id, vocab_size, f"stop_token_ids[{i}]")
    for token_id in params.logit_bias:
        _check_token_id(token_id, vocab_size, f"logit_bias.{token_id}")
    if params.n > max_num_seqs:
        message = f"n is {params.n}; at most {max_num_seqs} candidates (--max-num-seqs) can run"
        raise RequestError(message, param="n")
    if params.beams is not None:
        check_width(params.beams.width, vocab_size, max_num_seqs)


def _check_temperatures(params: SamplingParams) -> None:
    if params.temperatures and params.beams is not None:
        message = "temperatures is not allowed beside use_beam_search: a search draws nothing"
        raise RequestError(message, param="temperatures")
    if params.temperatures and len(params.temperatures) != params.n:
        message = f"temperatures has {len(params.temperatures)} entries; n is {params.n}, so that many are needed"
        raise RequestError(message, param="temperatures")


def _check_token_id(token_id: int, vocab_size: int, param: str) -> None:
    if not 0 <= token_id < vocab_size:
        message = f"{param}: {token_id} is not a token id; the vocabulary is 0 to {vocab_size - 1}"
        raise RequestError(message, param=param)


class _Reader(WireFields):
    """Takes the fields of one mapping, each checked against its range."""

    def __init__(self, mapping: Mapping[str, object], path: str) -> None:
        super().__init__(mapping, path)
        for name in mapping:
            if name not in SAMPLING_FIELDS:
                message = f"{self.prefix}{name} is not a sampling field"
                raise RequestError(message, param=f"{self.prefix}{name}", code="unknown_field")

    def read(self) -> SamplingParams:
        self._refuse_unsupported()
        max_tokens = self._max_tokens()
        n = self.integer("n", 1, 1)
        return SamplingParams(
            n=n,
            temperature=self.number("temperature", 1.0, 0.0, 2.0),
            top_p=self.number("top_p", 1.0, 0.0, 1.0),
            top_k=self.integer("top_k", 0, -1),
            min_p=self.number("min_p", 0.0, 0.0, 1.0),
            repetition_penalty=self.number("repetition_penalty", 1.0, 0.01, 10.0),
            presence_penalty=self.number("presence_penalty", 0.0, -2.0, 2.0),
            frequency_penalty=self.number("frequency_penalty", 0.0, -2.0, 2.0),
            max_tokens=max_tokens,
            min_tokens=self._min_tokens(max_tokens),
            seed=self.optional_integer("seed", MIN_SEED, MAX_SEED),
            stop=self._stop(),
            stop_token_ids=self._stop_token_ids(),
            ignore_eos=self.boolean("ignore_eos", False),
            logit_bias=self._logit_bias(),
            logprobs=self._logprobs(),
            cache_salt=self._cache_salt(),
            priority=self.optional_integer("priority", MIN_PRIORITY, MAX_PRIORITY) or 0,
            beams=read_beams(self, n),
            grammar=read_grammar(self.given, self.prefix),
            temperatures=self._temperatures(),
        )

    def _refuse_unsupported(self) -> None:
        for name, neutral in UNSUPPORTED_FIELDS.items():
            if name in self.given and not is_one_of(self.given[name], neutral):
                raise self.error(name, f"{name} is not supported", self.given[name])

    def _max_tokens(self) -> int | None:
        old = self.optional_integer("max_tokens", 0, None)
        new = self.optional_integer("max_completion_tokens", 0, None)
        if old is not None and new is not None and old != new:
            raise self.error("max_completion_tokens", f"max_tokens says {old} already", new)
        return new if old is None else old

    def _min_tokens(self, max_tokens: int | None) -> int:
        value = self.integer("min_tokens", 0, 0)
        if max_tokens is not None and value > max_tokens:
            raise self.error("min_tokens", f"at most max_tokens ({max_tokens})", value)
        return value

    def _stop(self) -> tuple[str, ...]:
        value = self.given.get("stop", [])
        if isinstance(value, str):
            return (self.short_text("stop", value, MAX_STOP_LENGTH),)
        items = self.list("stop", value, "a string or a list of strings")
        if len(items) > MAX_STOP_STRINGS:
            raise self.error("stop", f"at most {MAX_STOP_STRINGS} stop strings", len(items))
        return tuple(
            self.short_text(f"stop[{i}]", item, MAX_STOP_LENGTH) for i, item in enumerate(items)
        )

    def _temperatures(self) -> tuple[float, ...]:
        items = self.list("temperatures", self.given.get("temperatures", []), "a list of numbers")
        self._check_count("temperatures", len(items))
        paths = (f"temperatures[{i}]" for i in range(len(items)))
        return tuple(self.real(path, v, 0.0, 2.0) for path, v in zip(paths, items, strict=True))

    def _stop_token_ids(self) -> tuple[int, ...]:
        items = self.list("stop_token_ids", self.given.get("stop_token_ids", []), "a list of ids")
        self._check_count("stop_token_ids", len(items))
        paths = (f"stop_token_ids[{i}]" for i in range(len(items)))
        return tuple(self.whole(path, v, 0, None) for path, v in zip(paths, items, strict=True))

    def _logit_bias(self) -> dict[int, float]:
        value = self.given.get("logit_bias", {})
        if not isinstance(value, Mapping):
            raise self.error("logit_bias", "an object of token ids and numbers", value)
        self._check_count("logit_bias", len(value))
        return {
            self._token_id_key(key): self.real(f"logit_bias.{key}", bias, -100.0, 100.0)
            for key, bias in value.items()
        }

    def _check_count(self, name: str, count: int) -> None:
        if count > MAX_LISTED_TOKENS:
            raise self.error(name, f"at most {MAX_LISTED_TOKENS} entries", count)

    def _token_id_key(self, key: object) -> int:
        text = str(key)
        if not (text.isascii() and text.isdigit() and str(int(text[:20])) == text):
            raise self.error(f"logit_bias.{text[:40]}", "keys are token ids", key)
        return int(text)

    def _logprobs(self) -> int | None:
        """A number alone (completions), or a switch with `top_logprobs` (chat)."""
        value = self.given.get("logprobs", False)
        top = self.optional_integer("top_logprobs", 0, MAX_LOGPROBS)
        if not isinstance(value, bool):
            count = self.whole("logprobs", value, 0, MAX_LOGPROBS)
            if top is not None and top != count:
                raise self.error("top_logprobs", f"logprobs says {count} already", top)
            return count
        if top and not value:
            raise self.error("top_logprobs", "logprobs must be true for it", top)
        return (top or 0) if value else None

    def _cache_salt(self) -> str | None:
        value = self.given.get("cache_salt")
        return None if value is None else self.short_text("cache_salt", value, MAX_SALT_LENGTH)


SAMPLING_FIELDS: frozenset[str] = (
    frozenset(SamplingParams.__dataclass_fields__) - {"beams", "grammar"}
    | BEAM_FIELDS
    | {"max_completion_tokens", "top_logprobs"}
    | GRAMMAR_FIELDS
    | frozenset(UNSUPPORTED_FIELDS)
)
