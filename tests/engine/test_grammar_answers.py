"""Answers of the built-in model under grammars: they parse, they validate, and they depend on their request alone."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pydantic_core
import pytest
from jsonschema import Draft202012Validator

from engine.config import EngineConfig
from engine.grammar import GrammarCompiler
from engine.grammar_spec import GrammarSpec, json_grammar, read_grammar
from engine.loader.tokenizer import load_tokenizer
from engine.model_runner import ModelRunner
from engine.outputs import SampledToken
from engine.runners import load_runner
from engine.sampling_params import SamplingParams
from engine.tokenizer import Tokenizer
from tests.engine.real_runners import (
    Answer,
    Bench,
    Call,
    Runner,
    one_torch_thread,
    token_ids,
    with_pool,
)
from tests.engine.schemas import closed, schemas

pytestmark = pytest.mark.model

AMPLE = {"num_blocks": 400, "block_size": 16, "max_num_batched_tokens": 512, "max_num_seqs": 32}
PERSON = closed(
    {"имя": {"type": "string", "maxLength": 10}, "age": {"type": "integer", "maximum": 150}}
)


@pytest.fixture(scope="module")
def tokenizer(builtin_model_path: Path) -> Tokenizer:
    return Tokenizer(load_tokenizer(builtin_model_path))


@pytest.fixture(scope="module")
def config(builtin_model_path: Path) -> EngineConfig:
    return EngineConfig(
        model_path=builtin_model_path, model_name="built-in", num_blocks=4, max_model_len=512
    )


@pytest.fixture(scope="module")
def runner(config: EngineConfig) -> Iterator[Runner]:
    """The runner that this machine would use."""
    with one_torch_thread():
        yield load_runner(config, lambda stage, share: None)


@pytest.fixture(scope="module")
def torch_runner(config: EngineConfig) -> Iterator[ModelRunner]:
    with one_torch_thread():
        yield ModelRunner.load(replace(config, dtype="float32"), lambda stage, share: None)


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer, config: EngineConfig) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, 49152, [2])


@pytest.fixture(scope="module")
def prompt(tokenizer: Tokenizer) -> list[int]:
    return tokenizer.render_chat([{"role": "user", "content": "Make one up. Answer in JSON."}])


class Asker:
    """Makes calls under grammars and reads their answers."""

    def __init__(self, compiler: GrammarCompiler, tokenizer: Tokenizer, prompt: list[int]) -> None:
        self._compiler, self._tokenizer, self._prompt = compiler, tokenizer, prompt

    def call(self, spec: GrammarSpec | None, **params: Any) -> Call:
        grammar = None if spec is None else self._compiler.compile(spec)
        options: dict[str, Any] = {"temperature": 1.0, "max_tokens": 64, "grammar": spec}
        return Call(self._prompt, SamplingParams(**(options | params)), grammar)

    def text(self, answer: Answer) -> tuple[str, bool]:
        """What was written, and whether it has an end."""
        ids = [token.token_id for token in answer]
        is_whole = ids[-1] == 2
        return self._tokenizer.decode(ids[:-1] if is_whole else ids), is_whole


@pytest.fixture(scope="module")
def asker(compiler: GrammarCompiler, tokenizer: Tokenizer, prompt: list[int]) -> Asker:
    return Asker(compiler, tokenizer, prompt)


def test_every_answer_validates_against_its_schema_or_is_the_beginning_of_one(
    runner: Runner, asker: Asker
) -> None:
    """At temperature 1, some two hundred schemas through one batch."""
    asked = schemas()
    assert len(asked) >= 200
    calls = [asker.call(json_grammar(schema, ""), seed=i) for i, schema in enumerate(asked)]
    answers = Bench(with_pool(runner, **AMPLE)).answer(calls)
    num_whole = 0
    for schema, answer in zip(asked, answers, strict=True):
        text, is_whole = asker.text(answer)
        if is_whole:
            num_whole += 1
            Draft202012Validator(schema).validate(json.loads(text))
        else:
            assert len(answer) == 64
            pydantic_core.from_json(whole_characters(text), allow_partial="trailing-strings")
    assert num_whole > 0.8 * len(asked)


def whole_characters(text: str) -> str:
    """Without the beginning of a character that a limit has cut."""
    return text.rstrip("�")


def test_other_kinds_of_grammar(runner: Runner, asker: Asker) -> None:
    fields: Sequence[tuple[dict[str, Any], Any]] = (
        ({"guided_choice": ["maybe", "向日葵", "never 😀"]}, r"maybe|向日葵|never 😀"),
        ({"guided_regex": r"^[A-F]{3}-\d{2}$"}, r"[A-F]{3}-[0-9]{2}"),
        ({"guided_grammar": 'start: "<" N ("+" N)? ">"\nN: /[1-9][0-9]?/'}, r"<\d{1,2}(\+\d{1,2})?>"),
    )  # fmt: skip
    calls = [asker.call(read_grammar(given, ""), n=4, seed=1) for given, _ in fields]
    answers = Bench(with_pool(runner, **AMPLE)).answer(calls)
    for i, answer in enumerate(answers):
        text, is_whole = asker.text(answer)
        assert is_whole
        assert re.fullmatch(fields[i // 4][1], text), text


def alone(runner: Runner, call: Call) -> list[Answer]:
    """What the candidates of a call yield, each as a call of one in a pool of its own."""
    first = call.params.seed or 0
    seeds = range(first, first + call.params.n)
    calls = [replace(call, params=replace(call.params, n=1, seed=seed)) for seed in seeds]
    return [Bench(with_pool(runner, **AMPLE)).answer([single])[0] for single in calls]


def test_an_answer_depends_on_its_request_alone(runner: Runner, asker: Asker) -> None:
    """Three candidates each, beside free answers: as alone, and through preemptions in a small pool."""
    calls = [
        asker.call(json_grammar(PERSON, ""), n=3, seed=5, max_tokens=24),
        asker.call(read_grammar({"guided_regex": "[a-z ,]{60}"}, ""), n=3, seed=6, max_tokens=24),
        asker.call(None, n=2, seed=7, max_tokens=24, ignore_eos=True),
    ]
    expected = token_ids(answer for call in calls for answer in alone(runner, call))
    together = Bench(with_pool(runner, **AMPLE))
    assert token_ids(together.answer(calls)) == expected
    assert len({tuple(text) for text in expected}) == len(expected)
    small = Bench(with_pool(runner, **(AMPLE | {"num_blocks": 12})))
    assert token_ids(small.answer(calls)) == expected
    assert small.counters.preemptions > 0


def test_the_torch_runner_follows_grammars_too(torch_runner: ModelRunner, asker: Asker) -> None:
    spec = read_grammar({"guided_regex": "[a-z]{4}-[0-9]{3}"}, "")
    call = asker.call(spec, n=2, seed=3, max_tokens=16)
    free = asker.call(None, seed=1, max_tokens=4, ignore_eos=True)
    first, second, _ = Bench(with_pool(torch_runner, **AMPLE)).answer([call, free])
    for answer in (first, second):
        text, is_whole = asker.text(answer)
        assert is_whole
        assert re.fullmatch("[a-z]{4}-[0-9]{3}", text), text
    assert token_ids([first, second]) == token_ids(alone(torch_runner, call))


def test_preemption_under_a_grammar_changes_nothing_on_the_torch_runner(
    torch_runner: ModelRunner, asker: Asker
) -> None:
    """Two candidates beside another grammar and a free answer, in a pool that has not room for all."""
    calls = [
        asker.call(json_grammar(PERSON, ""), n=2, seed=5, max_tokens=12),
        asker.call(read_grammar({"guided_regex": "[a-z ,]{60}"}, ""), seed=6, max_tokens=12),
        asker.call(None, seed=7, max_tokens=12, ignore_eos=True),
    ]
    ample = Bench(with_pool(torch_runner, **AMPLE))
    expected = token_ids(ample.answer(calls))
    assert ample.counters.preemptions == 0
    small = Bench(with_pool(torch_runner, **(AMPLE | {"num_blocks": 7})))
    assert token_ids(small.answer(calls)) == expected
    assert small.counters.preemptions > 0
    beginnings = (
        r'\{\s{0,33}"имя":\s{0,33}"',
        r'\{\s{0,33}"имя":\s{0,33}"',
        "[a-z ,]+",
    )
    for answer, beginning in zip(expected, beginnings, strict=False):
        assert answer
        text, _ = asker.text([SampledToken(token_id) for token_id in answer])
        assert re.match(beginning, text), text


def test_greedy_logit_bias_min_tokens_and_limits(runner: Runner, asker: Asker) -> None:
    digits = read_grammar({"guided_regex": "[0-9]{1,8}"}, "")
    calls = [
        asker.call(digits, temperature=0.0),
        asker.call(digits, temperature=0.0, min_tokens=6),
        asker.call(digits, temperature=0.0, min_tokens=30),
        asker.call(digits, temperature=0.0, max_tokens=3, min_tokens=3),
        asker.call(digits, temperature=0.0, min_tokens=8, logit_bias={39: 90.0}),
    ]
    texts = [asker.text(answer) for answer in Bench(with_pool(runner, **AMPLE)).answer(calls)]
    assert all(text.isdigit() and len(text) <= 8 for text, _ in texts)
    assert [is_whole for _, is_whole in texts] == [True, True, True, False, True]
    assert [len(text) for text, _ in texts[1:]] >= [6, 8, 3, 8]
    assert texts[4][0] == "7" * 8
