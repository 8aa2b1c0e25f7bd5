"""Compiled grammars over a small vocabulary: what may come next, where an answer may end, and how bad grammars are told."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from engine.errors import GrammarError, RequestError
from engine.grammar import MAX_COMPILED, GrammarCompiler, GrammarMatcher
from engine.grammar_spec import MAX_GRAMMAR_LENGTH, GrammarSpec, json_grammar, read_grammar
from tests.engine.byte_codec import CONTROL, END, VOCAB_SIZE, ByteCodec, byte_compiler

CODEC = ByteCodec()


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return byte_compiler()


def spec_of(**fields: Any) -> GrammarSpec:
    spec = read_grammar(fields, "")
    assert spec is not None
    return spec


def allowed(matcher: GrammarMatcher, output: Sequence[int]) -> set[int]:
    mask = int.from_bytes(matcher.allowed(output), "little")
    return {
        token_id for token_id in range(8 * len(matcher.allowed(output))) if mask >> token_id & 1
    }


def accepts(compiler: GrammarCompiler, spec: GrammarSpec, text: str) -> bool:
    """Whether an answer may be `text`, spelled as the tokenizer does, and end there."""
    matcher, output = compiler.compile(spec).matcher(), []
    for token_id in CODEC.encode_answer(text):
        if token_id not in allowed(matcher, output):
            return False
        output.append(token_id)
    return END in allowed(matcher, output)


def refused(compiler: GrammarCompiler, spec: GrammarSpec) -> RequestError:
    with pytest.raises(RequestError) as caught:
        compiler.compile(spec)
    return caught.value


def test_only_what_can_lead_to_a_choice_is_allowed_and_the_end_only_behind_one(
    compiler: GrammarCompiler,
) -> None:
    matcher = compiler.compile(spec_of(guided_choice=["yes", "yet", "nö"])).matcher()
    yes, y, n, e, t = 256, ord("y"), ord("n"), ord("e"), ord("t")
    assert allowed(matcher, []) == {yes, y, n}
    assert allowed(matcher, [y]) == {e}
    assert allowed(matcher, [y, e]) == {ord("s"), t}
    assert allowed(matcher, [y, e, t]) == {END}


def test_a_prefix_that_is_a_choice_itself_may_end_or_go_on(compiler: GrammarCompiler) -> None:
    matcher = compiler.compile(spec_of(guided_choice=["a", "ac"])).matcher()
    assert allowed(matcher, [ord("a")]) == {END, ord("c")}


def test_a_text_without_alternative_is_spelled_as_the_tokenizer_does(
    compiler: GrammarCompiler,
) -> None:
    matcher = compiler.compile(spec_of(guided_choice=["yes ab"])).matcher()
    output = []
    for token_id in CODEC.encode_answer("yes ab"):
        assert allowed(matcher, output) == {token_id}
        output.append(token_id)
    assert allowed(matcher, output) == {END}


def test_matchers_of_one_grammar_go_their_own_ways_and_can_catch_up(
    compiler: GrammarCompiler,
) -> None:
    grammar = compiler.compile(spec_of(guided_choice=["ab", "cd"]))
    first, second = grammar.matcher(), grammar.matcher()
    assert allowed(first, [ord("a")]) == {ord("b")}
    assert allowed(second, [ord("c")]) == {ord("d")}
    assert allowed(grammar.matcher(), [ord("c"), ord("d")]) == {END}
    assert compiler.compile(spec_of(guided_choice=["ab", "cd"])) is grammar


@pytest.mark.parametrize(
    ("fields", "good", "bad"),
    [
        ({"guided_regex": r"\d{2}-[ab]+"}, ["12-a", "00-abba"], ["12-", "1-a", "12-ac"]),
        ({"guided_regex": "^yes$"}, ["yes"], ["ye", "yes!"]),
        ({"guided_regex": "^yes|no$"}, ["yes", "no"], ["yesno"]),
        ({"guided_regex": r"a\$"}, ["a$"], ["a"]),
        ({"guided_choice": ['q"', "back\\slash", "a\nb", "日本", "😀", "\x00"]},
         ['q"', "back\\slash", "a\nb", "日本", "😀", "\x00"], ["日", "q"]),
        ({"guided_grammar": 'start: item ("," item)*\nitem: /[0-9]+/ | "(" start ")"'},
         ["1", "(1,2),3"], ["", "1,", "(1"]),
        ({"guided_grammar": 'start: "<" %json {"type": "boolean"} ">"'}, ["<true>"], ["<1>"]),
        ({"structured_outputs": {"json_object": True}},
         ["{}", '{"a": [1, null, "x"]}', '{\n  "a": {}\n}'], ["[]", "1", '{"a": 1', '{ "a":   1}', "{} "]),
        ({"guided_json": {"properties": {"ключ": {"type": "string"}}, "required": ["ключ"],
                          "additionalProperties": False, "type": "object"}},
         ['{"ключ": "é\\n\\u0001"}', '{"ключ":""}'], ['{"key": "a"}', "{}", '{"ключ": 1}']),
        ({"guided_json": {"type": "integer", "minimum": -3, "maximum": 120}},
         ["-3", "0", "120"], ["-4", "121", "1.5"]),
    ],
)  # fmt: skip
def test_texts_that_match_and_texts_that_do_not(
    compiler: GrammarCompiler, fields: dict[str, Any], good: list[str], bad: list[str]
) -> None:
    spec = spec_of(**fields)
    assert {text: accepts(compiler, spec, text) for text in good} == dict.fromkeys(good, True)
    assert {text: accepts(compiler, spec, text) for text in bad} == dict.fromkeys(bad, False)


def test_no_control_token_and_no_byte_that_is_not_utf8_stands_in_a_string(
    compiler: GrammarCompiler,
) -> None:
    matcher = compiler.compile(json_grammar({"type": "string"}, "")).matcher()
    inside = allowed(matcher, [ord('"')])
    assert {ord("a"), ord(" "), 0xC3, 0xE2, 256} <= inside
    assert not inside & {CONTROL, END, ord("\n"), 0x00, 0x80, 0xC0, 0xF8, 0xFF}
    assert allowed(matcher, [ord('"'), 0xC3]) == set(range(0x80, 0xC0))


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "objekt"}, ""),
        ({"properties": {"a": {"items": {"type": "strin"}}}}, ".properties.a.items"),
        ({"properties": {"a": {"type": "string", "pattern": "(["}}}, ".properties.a"),
        ({"anyOf": [{"type": "null"}, {"type": "array", "uniqueItems": True}]}, ".anyOf[1]"),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"not": {"type": "null"}}}}, ".$defs.x"),
        ({"properties": {"a": {"$ref": "#/$defs/none"}}}, ".properties.a"),
        ({"type": "array", "items": {"type": "integer", "minimum": 3, "maximum": 1}, "minItems": 1}, ""),
        ({"type": "string", "format": "zebra"}, ""),
    ],
)  # fmt: skip
def test_a_schema_that_cannot_be_compiled_is_refused_with_the_place(
    compiler: GrammarCompiler, schema: dict[str, Any], place: str
) -> None:
    error = refused(compiler, json_grammar(schema, "response_format.json_schema.schema"))
    assert error.param == f"response_format.json_schema.schema{place}"
    assert error.message.startswith(f"{error.param}: this json cannot be compiled: ")


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"guided_regex": "a("}, "unclosed group"),
        ({"guided_regex": "a(?=b)"}, "look-around"),
        ({"guided_regex": r"[^\s\S]"}, "no text matches it"),
        ({"guided_grammar": "start = a"}, "1(7)"),
        ({"guided_grammar": "start: b"}, 'unknown name: "b"'),
        ({"guided_grammar": "start: (" + "(" * 50_000}, "too deeply nested"),
    ],
)
def test_other_grammars_are_refused_with_the_compilers_words(
    compiler: GrammarCompiler, fields: dict[str, Any], told: str
) -> None:
    error = refused(compiler, spec_of(**fields))
    assert error.param == next(iter(fields))
    assert told in error.message
    assert len(error.message) < 700


def test_the_longest_chains_that_are_let_in_do_not_exhaust_the_stack(
    compiler: GrammarCompiler,
) -> None:
    count = MAX_GRAMMAR_LENGTH // 45
    links = {f"{i}": {"items": {"$ref": f"#/$defs/{i + 1}"}} for i in range(count)}
    schema = {"$defs": links | {f"{count}": {}}, "$ref": "#/$defs/0"}
    assert accepts(compiler, json_grammar(schema, ""), "[[]]")
    count = MAX_GRAMMAR_LENGTH // 20
    rules = "".join(f'r{i}:"a"r{i + 1}|"b"\n' for i in range(count)) + f'r{count}:"c"'
    assert accepts(compiler, spec_of(guided_grammar="start:r0\n" + rules), "aab")


def test_a_matcher_that_cannot_go_on_says_so(compiler: GrammarCompiler) -> None:
    matcher = compiler.compile(spec_of(guided_choice=["ab", "b"])).matcher()
    with pytest.raises(GrammarError, match="the grammar cannot go on"):
        matcher.allowed([ord("x")])


def test_a_model_without_an_end_cannot_follow_a_grammar() -> None:
    compiler = GrammarCompiler(ByteCodec(), VOCAB_SIZE, [])
    assert "no token that ends" in refused(compiler, spec_of(guided_regex="a")).message


def test_the_latest_grammars_are_kept_and_the_oldest_dropped() -> None:
    compiler = byte_compiler()
    first = compiler.compile(spec_of(guided_regex="first"))
    for i in range(MAX_COMPILED - 1):
        compiler.compile(spec_of(guided_regex=f"{i}"))
    assert compiler.compile(spec_of(guided_regex="first")) is first
    compiler.compile(spec_of(guided_regex="one more"))
    compiler.compile(spec_of(guided_regex="and another"))
    assert compiler.compile(spec_of(guided_regex="first")) is first
    assert len(compiler._compiled) == MAX_COMPILED
    assert spec_of(guided_regex="1") not in compiler._compiled


def test_threads_may_compile_at_once(compiler: GrammarCompiler) -> None:
    specs = [json_grammar({"const": i}, "") for i in range(24)]
    with ThreadPoolExecutor(6) as pool:
        grammars = list(pool.map(compiler.compile, specs))
    for i, grammar in enumerate(grammars):
        assert allowed(grammar.matcher(), list(json.dumps(i).encode())) == {END}


def test_a_tokenizer_that_adds_a_space_does_not_spoil_forced_texts() -> None:
    class Spaced(ByteCodec):
        def encode_answer(self, text: str, /) -> list[int]:
            return super().encode_answer(f" {text}")

    compiler = GrammarCompiler(Spaced(), VOCAB_SIZE, [END])
    matcher = compiler.compile(spec_of(guided_choice=["yes"])).matcher()
    assert allowed(matcher, []) == {256}
