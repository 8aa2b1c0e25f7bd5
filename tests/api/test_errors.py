"""What a refusal says: the field, what was sent, what is wanted."""

from typing import Any

import pytest

from tests.api.conftest import Running

CHAT, EMBEDDINGS = "/v1/chat/completions", "/v1/embeddings"
HELLO = [{"role": "user", "content": "a"}]
TEXTS: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {}, "messages: this field is required"),
    (CHAT, {"messages": 5}, "messages: 5 is not allowed; a list is required"),
    (CHAT, {"messages": ["a"]}, "messages[0]: 'a' is not allowed; an object is required"),
    (CHAT, {"messages": HELLO, "model": 5}, "model: 5 is not allowed; a string is required"),
    (
        CHAT,
        {"messages": HELLO, "stream": "yes"},
        "stream: 'yes' is not allowed; true or false is required",
    ),
    (
        CHAT,
        {"messages": HELLO, "tools": [{}] * 129},
        "tools: 129 entries are too many; 128 are the most",
    ),
    (
        EMBEDDINGS,
        {"input": "a", "encoding_format": "int8"},
        "encoding_format: 'int8' is not allowed; one of 'float' or 'base64' is required",
    ),
    (
        EMBEDDINGS,
        {"input": "a", "dimensions": "4"},
        "dimensions: '4' is not allowed; a whole number is required",
    ),
    (
        CHAT,
        {"messages": HELLO, "guided_regex": "a", "use_beam_search": True},
        "use_beam_search is not allowed beside guided_regex; leave one of the two out",
    ),
    (
        CHAT,
        {"messages": HELLO, "guided_regex": "a", "ignore_eos": True},
        "ignore_eos is not allowed beside guided_regex, which says where the answer ends; leave one of the two out",
    ),
]


@pytest.mark.parametrize(("path", "body", "text"), TEXTS)
async def test_a_refusal_says_what_to_do(
    running: Running, path: str, body: dict[str, Any], text: str
) -> None:
    async with running.http() as http:
        response = await http.post(path, json=body)
    assert (response.status_code, response.json()["error"]["message"]) == (400, text)


QUERIES = [
    (
        "/api/conversations?limit=many",
        "limit: 'many' is not allowed; a whole number is required",
    ),
    (
        f"/api/conversations?after={'a' * 201}",
        "after: 'aaaaaaaaaaaa...aaaaaaaaaaaaa' is not allowed; 200 characters or fewer is required",
    ),
    ("/api/blocks/x", "block_id: 'x' is not allowed; a whole number is required"),
    ("/api/messages/m/choices", "at_token: this field is required"),
    (
        "/api/conversations/c/export?format=pdf",
        "format: 'pdf' is not allowed; one of 'json' or 'markdown' is required",
    ),
    (
        "/api/history?start=-1&end=5",
        "start: '-1' is not allowed; 0 or more is required",
    ),
    (
        f"/api/history?start=1&end={2**40}",
        f"end: '{2**40}' is not allowed; less than {2**40} is required",
    ),
    (
        "/api/conversations/c?purge=maybe",
        "purge: 'maybe' is not allowed; true or false is required",
    ),
]


@pytest.mark.parametrize(("path", "text"), QUERIES)
async def test_so_does_one_of_an_address(running: Running, path: str, text: str) -> None:
    async with running.http() as http:
        method = "DELETE" if "purge" in path else "GET"
        response = await http.request(method, path)
    assert (response.status_code, response.json()["error"]["message"]) == (400, text)
