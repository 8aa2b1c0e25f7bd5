"""What the built-in model thought at a token: the same probabilities as the completions route tells of it."""

import math

import pytest
import pytest_asyncio

from tests.e2e.app_process import AppProcess
from tests.e2e.test_continue import Turn, run

pytestmark = pytest.mark.model
QUESTION = "Name a colour and say why you like it."
SAMPLING = {"temperature": 1.0, "seed": 5, "max_tokens": 24}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def turn(exact_app: AppProcess) -> Turn:
    """Three answers; nothing here changes them."""
    return await run(exact_app, type="send", content=QUESTION, n=3, sampling=SAMPLING)


def token_ids(app: AppProcess, turn: Turn, index: int) -> tuple[list[int], list[int]]:
    """The prompt's tokens, and the answer's by encoding its text."""
    asked = {"messages": [{"role": "user", "content": QUESTION}]}
    prompt = app.post("/tokenize", asked)["tokens"]
    answer = app.post("/tokenize", {"prompt": turn.texts[index], "add_special_tokens": False})
    return prompt, answer["tokens"]


async def test_answers_part_where_their_texts_do(exact_app: AppProcess, turn: Turn) -> None:
    answers = exact_app.get(f"/api/messages/{turn.message_ids[0]}/partings")["answers"]
    assert [answer["message_id"] for answer in answers] == turn.message_ids
    for index, answer in enumerate(answers):
        common = turn.texts[index][: answer["start"]]
        others = [turn.texts[other] for other in range(3) if other != index]
        assert any(text.startswith(common) for text in others)
        assert not any(text.startswith(turn.texts[index][: answer["end"]]) for text in others)


async def test_choices_are_the_models_own_probabilities(exact_app: AppProcess, turn: Turn) -> None:
    (parting, *_) = exact_app.get(f"/api/messages/{turn.message_ids[0]}/partings")["answers"]
    at_token = parting["at_token"]
    path = f"/api/messages/{turn.message_ids[0]}/choices?at_token={at_token}"
    choices = exact_app.get(path)["choices"]
    prompt, answer = token_ids(exact_app, turn, 0)
    body = {"prompt": prompt + answer[:at_token], "max_tokens": 1, "temperature": 0, "logprobs": 5}
    told = exact_app.post("/v1/completions", body)["choices"][0]["logprobs"]["top_logprobs"][0]
    best = sorted((math.exp(value) for value in told.values()), reverse=True)
    assert [choice["probability"] for choice in choices[:5]] == pytest.approx(best[:5], rel=1e-4)
    (drawn,) = [choice for choice in choices if choice["drawn"]]
    assert drawn["text"] == turn.texts[0][parting["start"] : parting["end"]]
    assert sum(choice["probability"] for choice in choices) <= 1
    assert exact_app.live_blocks() == 0
