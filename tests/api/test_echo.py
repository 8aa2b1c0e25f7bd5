"""`echo` with `logprobs` on /v1/completions: what the model thinks of a prompt, whole and as a stream."""

import json
from typing import Any

import pytest

from tests.api.conftest import Running, Start
from tests.api.letters import PROMPT, letters_engine
from tests.fakes import expected_scores, make_config

COMPLETIONS = "/v1/completions"
OTHER = [20, 21, 22]


@pytest.fixture
async def letters(start: Start) -> Running:
    """A server around a real engine that computes four tokens a step."""
    engine = letters_engine(make_config(num_blocks=100, max_num_batched_tokens=8))
    running = await start(engine)
    await engine.wait_ready()
    return running


async def complete(server: Running, **body: Any) -> dict[str, Any]:
    async with server.http() as http:
        response = await http.post(COMPLETIONS, json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def stream(server: Running, **body: Any) -> dict[int, list[dict[str, Any]]]:
    """The chunks of each choice."""
    async with server.http() as http:
        response = await http.post(COMPLETIONS, json=body | {"stream": True})
    chunks: dict[int, list[dict[str, Any]]] = {}
    for event in response.text.strip().split("\n\n")[:-1]:
        (choice,) = json.loads(event.removeprefix("data: "))["choices"]
        chunks.setdefault(choice["index"], []).append(choice)
    return chunks


def letter(token_id: int) -> str:
    return chr(0x100 + token_id)


def judged(prompt: list[int], num_top: int) -> dict[str, list[Any]]:
    """The `logprobs` of a prompt as the document has them."""
    scores = expected_scores(prompt, num_top)
    tops = [
        {letter(t.token_id): t.logprob for t in (score.logprob, *score.top_logprobs)}
        for score in scores
    ]
    return {
        "tokens": [letter(token_id) for token_id in prompt],
        "token_logprobs": [None, *(score.logprob.logprob for score in scores)],
        "top_logprobs": [None, *tops],
        "text_offset": list(range(len(prompt))),
    }


async def test_a_prompt_is_scored_without_an_answer(letters: Running) -> None:
    document = await complete(letters, prompt=PROMPT, echo=True, logprobs=2, max_tokens=0)
    (choice,) = document["choices"]
    assert choice["text"] == "".join(map(letter, PROMPT))
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"] == judged(PROMPT, 2)
    assert document["usage"]["completion_tokens"] == 0
    assert document["usage"]["prompt_tokens"] == 5


async def test_the_answer_follows_the_prompt(letters: Running) -> None:
    body: dict[str, Any] = {"prompt": PROMPT, "logprobs": 1, "max_tokens": 3, "ignore_eos": True}
    alone = (await complete(letters, **body, seed=1))["choices"][0]
    (choice,) = (await complete(letters, **body, seed=1, echo=True))["choices"]
    assert choice["text"] == "".join(map(letter, PROMPT)) + alone["text"]
    expected = judged(PROMPT, 1)
    for name in ("tokens", "token_logprobs", "top_logprobs"):
        assert choice["logprobs"][name] == expected[name] + alone["logprobs"][name]
    assert choice["logprobs"]["text_offset"] == [0, 1, 2, 3, 4, 5, 6, 7]


async def test_every_choice_of_every_prompt_has_its_own(letters: Running) -> None:
    document = await complete(
        letters, prompt=[PROMPT, OTHER], n=2, echo=True, logprobs=0, max_tokens=1, ignore_eos=True
    )
    tokens = [choice["logprobs"]["tokens"][:-1] for choice in document["choices"]]
    assert tokens == [list(map(letter, p)) for p in (PROMPT, PROMPT, OTHER, OTHER)]
    values = [choice["logprobs"]["token_logprobs"][:-1] for choice in document["choices"]]
    assert values == [judged(p, 0)["token_logprobs"] for p in (PROMPT, PROMPT, OTHER, OTHER)]


async def test_a_cached_prompt_is_scored_the_same(letters: Running) -> None:
    long = [10 + i for i in range(20)]
    await complete(letters, prompt=long, max_tokens=1)
    document = await complete(letters, prompt=long, echo=True, logprobs=1, max_tokens=0)
    assert document["choices"][0]["logprobs"] == judged(long, 1)
    assert document["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_a_stream_begins_with_the_judged_prompt(letters: Running) -> None:
    chunks = await stream(
        letters, prompt=[PROMPT, OTHER], n=2, echo=True, logprobs=1, max_tokens=2, ignore_eos=True
    )
    for index, prompt in enumerate((PROMPT, PROMPT, OTHER, OTHER)):
        first, *others = chunks[index]
        assert first["text"] == "".join(map(letter, prompt))
        assert first["logprobs"] == judged(prompt, 1)
        offsets = [o for chunk in others for o in (chunk["logprobs"] or {}).get("text_offset", [])]
        assert offsets == [len(prompt), len(prompt) + 1]


async def test_echo_alone_is_sent_at_once(letters: Running) -> None:
    chunks = await stream(letters, prompt=PROMPT, echo=True, max_tokens=1)
    first = chunks[0][0]
    assert (first["text"], first["logprobs"]) == ("".join(map(letter, PROMPT)), None)


async def test_a_search_scores_its_prompt_once(letters: Running) -> None:
    body: dict[str, Any] = {"prompt": PROMPT, "use_beam_search": True, "n": 2, "best_of": 3}
    document = await complete(letters, **body, echo=True, logprobs=0, max_tokens=2)
    for choice in document["choices"]:
        assert choice["logprobs"]["token_logprobs"][:5] == judged(PROMPT, 0)["token_logprobs"]


async def test_more_than_can_be_sent_is_refused_with_the_number(letters: Running) -> None:
    body = {"prompt": [PROMPT * 2] * 256, "echo": True, "logprobs": 20, "n": 8, "max_tokens": 0}
    async with letters.http() as http:
        error = (await http.post(COMPLETIONS, json=body)).json()["error"]
    assert error["param"] == "logprobs"
    assert error["message"] == (
        "logprobs: 2560 tokens of prompts, 8 choices each and 20 + 1 values a token are 430080 values; with echo, "
        "262144 are the most. Send fewer prompts at once"
    )
