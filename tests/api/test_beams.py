"""Beam search over HTTP, with the whole engine behind it and a fake model."""

from typing import Any

import pytest

from engine.sampling_params import SamplingParams
from tests.api.conftest import Running, Start
from tests.api.letters import PROMPT, letters_engine
from tests.beams import expected_answers
from tests.fakes import EOS_TOKEN_ID, make_config

CONFIG = make_config(num_blocks=100)
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture
async def beams(start: Start) -> Running:
    """A server around a real engine."""
    engine = letters_engine(CONFIG)
    running = await start(engine)
    await engine.wait_ready()
    return running


def expected(prompt: list[int], body: dict[str, Any]) -> list[tuple[str, float, str, int]]:
    """Of each choice: text, logprob, finish reason, number of tokens."""
    answers = expected_answers(prompt, SamplingParams.from_mapping(body), CONFIG)
    return [
        (
            "".join(chr(0x100 + i) for i in tokens if i != EOS_TOKEN_ID),
            logprob,
            "stop" if tokens[-1] == EOS_TOKEN_ID else "length",
            len(tokens),
        )
        for tokens, logprob in answers
    ]


async def test_chat_gives_the_best_answers_in_order(beams: Running) -> None:
    sampling = {"use_beam_search": True, "n": 2, "best_of": 4, "max_tokens": 12}
    async with beams.http() as http:
        response = await http.post(CHAT, json={"messages": HELLO, "logprobs": True, **sampling})
    document = response.json()
    assert response.status_code == 200, document
    answers = expected(PROMPT, sampling)
    assert [c["index"] for c in document["choices"]] == [0, 1]
    for choice, (text, logprob, reason, num_tokens) in zip(
        document["choices"], answers, strict=True
    ):
        assert (choice["message"]["content"], choice["finish_reason"]) == (text, reason)
        shown = sum(token["logprob"] for token in choice["logprobs"]["content"])
        assert len(choice["logprobs"]["content"]) == num_tokens - (reason == "stop")
        assert shown == pytest.approx(logprob) if reason == "length" else shown > logprob
    usage = document["usage"]
    assert usage["completion_tokens"] == sum(answer[3] for answer in answers)
    assert usage["prompt_tokens"] == len(PROMPT)


async def test_completions_search_every_prompt(beams: Running) -> None:
    sampling = {"use_beam_search": True, "n": 2, "max_tokens": 6, "early_stopping": "never"}
    prompts = [PROMPT, [20, 21, 22]]
    async with beams.http() as http:
        response = await http.post(COMPLETIONS, json={"prompt": prompts, **sampling})
    choices = response.json()["choices"]
    texts = [answer[0] for prompt in prompts for answer in expected(prompt, sampling)]
    assert [choice["text"] for choice in choices] == texts


async def test_what_the_engine_cannot_run_names_the_width(beams: Running) -> None:
    async with beams.http() as http:
        for best_of, message in ((9, "at most 8 beams"), (8, "need 106 KV blocks")):
            body = {"prompt": [5] * 393, "use_beam_search": True, "best_of": best_of}
            response = await http.post(COMPLETIONS, json=body)
            error = response.json()["error"]
            assert (response.status_code, error["param"]) == (400, "best_of")
            assert message in error["message"]
