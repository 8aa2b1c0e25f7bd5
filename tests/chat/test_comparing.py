"""Where answers part, and what the model could have said there."""

import asyncio
import math

import pytest

from chat.comparing import Choice, Parting, find_partings
from chat.errors import ConversationBusyError
from chat.owners import Owner
from chat.service import ChatService
from chat.tokens import AnswerTokens
from engine.errors import RequestError
from storage.storage import Storage
from tests.chat.fakes import FakeClock, ManualEngine
from tests.chat.test_service import answer
from tests.fake_engine import FakeEngine


def tokens(text: str) -> AnswerTokens:
    """One token for each byte."""
    ends = [len(text[: i + 1]) for i, letter in enumerate(text) for _ in letter.encode()]
    return AnswerTokens(text, tuple(text.encode()), tuple(ends))


@pytest.mark.parametrize(
    ("texts", "places"),
    [
        (("abcd", "abxd", "ay"), [(2, 2, 3), (2, 2, 3), (1, 1, 2)]),
        (("abc", "ab"), [(2, 2, 3), (2, 2, 2)]),
        (("same", "same"), [(4, 4, 4), (4, 4, 4)]),
        (("", "x"), [(0, 0, 0), (0, 0, 1)]),
        (("alone",), [(0, 0, 1)]),
    ],
)
def test_each_answer_leaves_the_longest_text_it_shares(
    texts: tuple[str, ...], places: list[tuple[int, int, int]]
) -> None:
    found = find_partings([(str(i), tokens(text)) for i, text in enumerate(texts)])
    assert found == tuple(Parting(str(i), *place) for i, place in enumerate(places))


def test_a_token_that_begins_inside_a_character_is_shown_from_its_beginning() -> None:
    first = AnswerTokens("é", (1, 2), (None, 1))
    second = AnswerTokens("è", (1, 3), (None, 1))
    assert find_partings([("a", first), ("b", second)]) == (
        Parting("a", 1, 0, 1),
        Parting("b", 1, 0, 1),
    )


async def test_partings_and_choices_of_stored_answers(storage: Storage, clock: FakeClock) -> None:
    engine = FakeEngine(lambda prompt, index: ["b", "c" if index else "z"])
    chat = ChatService(engine, storage, clock=clock)
    started = await chat.send("hello", n=2)
    with chat.attach(started.generation_id) as events:
        async for _ in events:
            pass
    first, second = (candidate.message_id for candidate in started.candidates)
    assert await chat.answers.partings(second) == (
        Parting(first, 1, 1, 2),
        Parting(second, 1, 1, 2),
    )
    choices = await chat.answers.choices(second, 1)
    assert choices == tuple(
        Choice(letter, math.exp(-(i + 1) * math.log(2)), letter == "c")
        for i, letter in enumerate("abcde")
    )
    asked = chat.owners.find(next(engine.ids) - 1)
    assert asked == Owner(started.conversation_id, None, "hello")
    rare = await chat.answers.choices(first, 1)
    assert rare[:5] == tuple(Choice(c.text, c.probability, False) for c in choices)
    assert rare[5] == Choice("z", math.exp(-10 * math.log(2)), True)
    ended = await chat.answers.choices(first, 2)
    assert [choice.drawn for choice in ended] == [False] * 5
    with pytest.raises(RequestError, match="at_token is 3; this answer can be cut at 0 to 2"):
        await chat.answers.choices(first, 3)


async def test_what_is_being_written_is_not_compared(
    chat: ChatService, engine: ManualEngine
) -> None:
    started = await chat.send("hello", n=2)
    with pytest.raises(ConversationBusyError):
        await chat.answers.partings(started.candidates[0].message_id)
    await answer(chat, engine, started, "x", "y")
    await asyncio.sleep(0)
    assert len(await chat.answers.partings(started.candidates[0].message_id)) == 2
