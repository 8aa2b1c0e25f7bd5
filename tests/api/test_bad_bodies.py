"""What is refused on the OpenAI routes: each body with the `param` of its 400, and that nothing of it stays behind."""

import json
from typing import Any

import pytest

from tests.api.conftest import Running

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
EMBEDDINGS, TOKENIZE, DETOKENIZE = "/v1/embeddings", "/tokenize", "/detokenize"
HELLO: Any = [{"role": "user", "content": "hello"}]
FUNCTION = {"name": "f", "parameters": {"type": "object"}}
TOOL = {"type": "function", "function": FUNCTION}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}

NO_JSON: list[tuple[str | bytes, str | None]] = [
    ("", None),
    ("{", None),
    ("[]", None),
    ("null", None),
    ('"text"', None),
    (b"\xff", None),
    ('{"x": "\\ud800"}', "x"),
    ('{"a": [{"b": 1}, {"b": "\\udc00!"}]}', "a[1].b"),
    ('{"a": {"\\ud800": 1}}', "a"),
    ('"\\ud800"', None),
    ('{"x": "\\ud800"', None),
    ('{"x": NaN}', None),
    ('{"x": [{"y": -1e999}]}', None),
    ('{"x": 1%s.0e9}' % ("0" * 300), None),
    ("[" * 100_000, None),
]
SAMPLING: list[tuple[dict[str, Any], str]] = [
    ({"temperature": 2.5}, "temperature"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_p": -0.1}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": 1.5}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": "10"}, "max_tokens"),
    ({"max_tokens": 4, "max_completion_tokens": 5}, "max_completion_tokens"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
    ({"seed": 2**64}, "seed"),
    ({"seed": 1.0}, "seed"),
    ({"seed": "1"}, "seed"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop[1]"),
    ({"stop": 5}, "stop"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"stop": "a" * 4097}, "stop"),
    ({"stop_token_ids": ["a"]}, "stop_token_ids[0]"),
    ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
    ({"stop_token_ids": 5}, "stop_token_ids"),
    ({"ignore_eos": "yes"}, "ignore_eos"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"logit_bias": {"a": 1}}, "logit_bias.a"),
    ({"logit_bias": {"5": 101}}, "logit_bias.5"),
    ({"n": 0}, "n"),
    ({"n": 65}, "n"),
    ({"n": 10**15}, "n"),
    ({"n": True}, "n"),
    ({"n": "2"}, "n"),
    ({"cache_salt": ""}, "cache_salt"),
    ({"cache_salt": "a" * 257}, "cache_salt"),
    ({"response_format": "json"}, "response_format"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "response_format"),
    ({"guided_regex": "("}, "guided_regex"),
    ({"guided_regex": 5}, "guided_regex"),
    ({"guided_choice": ["a", 1]}, "guided_choice[1]"),
    ({"guided_json": "{"}, "guided_json"),
    ({"guided_grammar": []}, "guided_grammar"),
    ({"guided_json": {}, "guided_regex": "a"}, "guided_regex"),
    ({"structured_outputs": {"regex": 1}}, "structured_outputs.regex"),
    ({"structured_outputs": {"xml": "a"}}, "structured_outputs.xml"),
    ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
    ({"priority": 101}, "priority"),
    ({"priority": "high"}, "priority"),
    ({"stream": "yes"}, "stream"),
    ({"stream": True, "stream_options": 5}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 3}}, "stream_options.include_usage"),
    (
        {"stream": True, "stream_options": {"continuous_usage_stats": "x"}},
        "stream_options.continuous_usage_stats",
    ),
    ({"stream": False, "stream_options": {"include_usage": True}}, "stream_options"),
    ({"model": 5}, "model"),
    ({"use_beam_search": "yes"}, "use_beam_search"),
    ({"use_beam_search": True, "n": 3, "best_of": 2}, "best_of"),
    ({"use_beam_search": True, "temperature": 0.5}, "temperature"),
    ({"use_beam_search": True, "stop": "a"}, "stop"),
    ({"use_beam_search": True, "early_stopping": 1}, "early_stopping"),
    ({"use_beam_search": True, "stream": True}, "stream"),
    ({"length_penalty": 2}, "length_penalty"),
    ({"best_of": 2}, "best_of"),
    ({"prompt_logprobs": 1}, "prompt_logprobs"),
    ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
    ({"skip_special_tokens": False}, "skip_special_tokens"),
    ({"logits_processors": ["x"]}, "logits_processors"),
    ({"bad_words": ["x"]}, "bad_words"),
    ({"allowed_token_ids": [1]}, "allowed_token_ids"),
    ({"include_stop_str_in_output": True}, "include_stop_str_in_output"),
]


def message(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "x"} | fields]}


MESSAGES: list[tuple[dict[str, Any], str]] = [
    ({}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": {"role": "user", "content": "x"}}, "messages"),
    ({"messages": [5]}, "messages[0]"),
    ({"messages": [*HELLO, None]}, "messages[1]"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    (message(role=None), "messages[0].role"),
    (message(role=["user"]), "messages[0].role"),
    (message(content=None), "messages[0].content"),
    (message(content=5), "messages[0].content"),
    (message(content={"type": "text"}), "messages[0].content"),
    (message(content=["x"]), "messages[0].content[0]"),
    (message(content=[{"type": "image_url"}]), "messages[0].content[0].type"),
    (message(content=[{"type": "input_audio"}]), "messages[0].content[0].type"),
    (message(content=[{"type": "text", "text": 1}]), "messages[0].content[0].text"),
    (
        message(content=[{"type": "text", "text": "a"}, {"type": "text"}]),
        "messages[0].content[1].text",
    ),
    (message(function_call={"name": "f"}), "messages[0].function_call"),
    (message(role="assistant", audio={"id": "x"}), "messages[0].audio"),
    (message(tool_calls=[CALL]), "messages[0].tool_calls"),
    (message(content="x" * 3000), "messages"),
]


def calls(*calls: Any) -> dict[str, Any]:
    return {"messages": [*HELLO, {"role": "assistant", "tool_calls": list(calls)}]}


def function(**fields: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": FUNCTION | fields}]}


CALLS: list[tuple[dict[str, Any], str]] = [
    (message(role="assistant", tool_calls={"id": "x"}), "messages[0].tool_calls"),
    (calls(5), "messages[1].tool_calls[0]"),
    (calls({}), "messages[1].tool_calls[0].id"),
    (calls(CALL, CALL | {"type": "custom"}), "messages[1].tool_calls[1].type"),
    (calls(CALL | {"function": None}), "messages[1].tool_calls[0].function"),
    (calls(CALL | {"function": {}}), "messages[1].tool_calls[0].function.name"),
    (
        calls(CALL | {"function": {"name": "f", "arguments": {}}}),
        "messages[1].tool_calls[0].function.arguments",
    ),
    (
        calls(CALL | {"function": {"name": "f", "arguments": "{"}}),
        "messages[1].tool_calls[0].function.arguments",
    ),
    (
        calls(CALL | {"function": {"name": "f", "arguments": "[1]"}}),
        "messages[1].tool_calls[0].function.arguments",
    ),
    (
        calls(CALL | {"function": {"name": "f", "arguments": '{"a": "\\ud800"}'}}),
        "messages[1].tool_calls[0].function.arguments",
    ),
    (
        calls(CALL | {"function": {"name": "f", "arguments": '{"a": NaN}'}}),
        "messages[1].tool_calls[0].function.arguments",
    ),
    (message(role="tool"), "messages[0].tool_call_id"),
    (message(role="tool", tool_call_id="c1"), "messages[0].tool_call_id"),
    (
        {"messages": [*HELLO, CALLED, {"role": "tool", "content": "x", "tool_call_id": "c2"}]},
        "messages[2].tool_call_id",
    ),
    (
        {"messages": [*HELLO, CALLED, {"role": "tool", "tool_call_id": "c1"}]},
        "messages[2].content",
    ),
]
TOOLS: list[tuple[dict[str, Any], str]] = [
    ({"tools": 5}, "tools"),
    ({"tools": [5]}, "tools[0]"),
    ({"tools": [{}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "web_search", "function": FUNCTION}]}, "tools[0].type"),
    (function(name=None), "tools[0].function.name"),
    (function(name=""), "tools[0].function.name"),
    (function(name="a b"), "tools[0].function.name"),
    (function(name="a" * 65), "tools[0].function.name"),
    (function(description=5), "tools[0].function.description"),
    (function(parameters="x"), "tools[0].function.parameters"),
    ({"tools": [TOOL, TOOL]}, "tools[1].function.name"),
    ({"tools": [TOOL] * 129}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": "always"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": 5}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.type"),
    ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice.function.name"),
    (
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        "tool_choice.function.name",
    ),
    ({"tools": [TOOL], "parallel_tool_calls": 1}, "parallel_tool_calls"),
]
CHAT_FIELDS: list[tuple[dict[str, Any], str]] = [
    *TOOLS,
    ({"logprobs": 5}, "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"functions": [FUNCTION]}, "functions"),
    ({"function_call": {"name": "f"}}, "function_call"),
    ({"audio": {"voice": "x"}}, "audio"),
    ({"modalities": ["audio"]}, "modalities"),
    ({"prediction": {"type": "content"}}, "prediction"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
    ({"verbosity": "high"}, "verbosity"),
    ({"web_search_options": {}}, "web_search_options"),
    ({"suffix": "b"}, "suffix"),
    ({"add_generation_prompt": "no"}, "add_generation_prompt"),
    ({"continue_final_message": 1}, "continue_final_message"),
    ({"continue_final_message": True}, "continue_final_message"),
    (
        {
            "messages": [*HELLO, {"role": "assistant", "content": "a"}],
            "continue_final_message": True,
            "add_generation_prompt": True,
        },
        "continue_final_message",
    ),
    ({"messages": [*HELLO, CALLED], "continue_final_message": True}, "continue_final_message"),
    ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs.tokenize"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
    ({"chat_template_kwargs": {"x": "y" * 2**18}}, "chat_template_kwargs"),
]
COMPLETION_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": 5}, "prompt"),
    ({"prompt": {"text": "a"}}, "prompt"),
    ({"prompt": [True]}, "prompt[0]"),
    ({"prompt": [1.5]}, "prompt[0]"),
    ({"prompt": ["a", 5]}, "prompt[1]"),
    ({"prompt": ["a", ""]}, "prompt[1]"),
    ({"prompt": ["a", []]}, "prompt[1]"),
    ({"prompt": [[1], [True]]}, "prompt[1]"),
    ({"prompt": ["a"] * 257}, "prompt"),
    ({"prompt": "x" * 2048}, "prompt"),
    ({"logprobs": True}, "logprobs"),
    ({"logprobs": -1}, "logprobs"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": "2"}, "logprobs"),
    ({"echo": 1}, "echo"),
    ({"suffix": "b"}, "suffix"),
]
EMBEDDING_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"input": None}, "input"),
    ({"input": ""}, "input"),
    ({"input": []}, "input"),
    ({"input": 5}, "input"),
    ({"input": ["a", ""]}, "input[1]"),
    ({"input": ["a", None]}, "input[1]"),
    ({"input": "x" * 2049}, "input"),
    ({"encoding_format": "int8"}, "encoding_format"),
    ({"dimensions": 0}, "dimensions"),
    ({"dimensions": 9}, "dimensions"),
    ({"dimensions": "4"}, "dimensions"),
    ({"normalize": False}, "normalize"),
    ({"cache_salt": "x"}, "cache_salt"),
]
TOKENIZE_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({}, "prompt"),
    ({"prompt": 5}, "prompt"),
    ({"prompt": "a", "messages": HELLO}, "prompt"),
    ({"messages": []}, "messages"),
    ({"messages": HELLO, "add_generation_prompt": 1}, "add_generation_prompt"),
    ({"messages": HELLO, "continue_final_message": True}, "continue_final_message"),
    ({"messages": HELLO, "tools": [{}]}, "tools[0].type"),
    ({"prompt": "x" * (2**18 + 1)}, "prompt"),
]
DETOKENIZE_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({}, "tokens"),
    ({"tokens": "a"}, "tokens"),
    ({"tokens": ["a"]}, "tokens[0]"),
    ({"tokens": [1, 1.5]}, "tokens[1]"),
    ({"tokens": [True]}, "tokens[0]"),
]

Row = tuple[str, str | bytes | dict[str, Any], str | None]
TABLE: list[Row] = [
    *((route, body, param) for route in (CHAT, COMPLETIONS, EMBEDDINGS) for body, param in NO_JSON),
    *((CHAT, {"messages": HELLO} | fields, param) for fields, param in SAMPLING),
    *((COMPLETIONS, {"prompt": "a"} | fields, param) for fields, param in SAMPLING),
    *((CHAT, fields, param) for fields, param in (*MESSAGES, *CALLS)),
    *((CHAT, {"messages": HELLO} | fields, param) for fields, param in CHAT_FIELDS),
    (COMPLETIONS, {}, "prompt"),
    *((COMPLETIONS, {"prompt": "a"} | fields, param) for fields, param in COMPLETION_FIELDS),
    (EMBEDDINGS, {}, "input"),
    *((EMBEDDINGS, {"input": "a"} | fields, param) for fields, param in EMBEDDING_FIELDS),
    *((TOKENIZE, fields, param) for fields, param in TOKENIZE_FIELDS),
    *((DETOKENIZE, fields, param) for fields, param in DETOKENIZE_FIELDS),
]


@pytest.mark.parametrize("streamed", [False, True])
async def test_each_is_a_400_that_names_the_field_and_holds_nothing(
    running: Running, streamed: bool, subtests: pytest.Subtests
) -> None:
    assert len(TABLE) >= 150
    reference = {"messages": HELLO}
    async with running.http() as http:
        before = (await http.post(CHAT, json=reference)).json()["choices"]
        for path, body, param in TABLE:
            with subtests.test(path=path, body=str(body)[:100]):
                if isinstance(body, dict):
                    body = json.dumps({"stream": True, **body} if streamed else body)
                response = await http.post(path, content=body)
                assert response.status_code == 400, response.text
                error = response.json()["error"]
                assert error.keys() == {"message", "type", "param", "code"}
                assert error["type"] == "invalid_request_error"
                assert error["param"] == param, error
                assert (await http.post(CHAT, json=reference)).json()["choices"] == before
    assert running.engine.live == {}
    assert running.context.streams == {}
