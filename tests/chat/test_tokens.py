"""Where an answer can be cut: tokens and their places, whatever was cut off, drawn by whom."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chat.tokens import find_tokens
from engine.detokenizer import (
    Detokenizer,
    StopMatcher,
    TokenText,
    compile_stops,
    token_texts,
)
from engine.errors import RequestError
from storage.records import AnswerText
from tests.fake_engine import FakeEngine


class Words(FakeEngine):
    """A vocabulary of given pieces of bytes; an answer is encoded by taking the longest piece first."""

    def __init__(self, *pieces: str | bytes) -> None:
        super().__init__()
        self.pieces = [p.encode() if isinstance(p, str) else p for p in pieces]
        self.num_encoded = 0

    def bytes_of(self, token_id: int) -> bytes:
        return self.pieces[token_id] if token_id < len(self.pieces) else b""

    async def token_texts(self, token_ids: Sequence[int]) -> list[TokenText]:
        return token_texts(token_ids, self.bytes_of)

    async def encode_answer(self, text: str) -> list[int]:
        self.num_encoded += 1
        rest, ids = text.encode(), []
        while rest:
            best = max((p for p in self.pieces if p and rest.startswith(p)), key=len, default=None)
            if best is None:
                break
            ids.append(self.pieces.index(best))
            rest = rest[len(best) :]
        return ids


async def test_the_drawn_ids_count_not_those_of_the_text() -> None:
    engine = Words("ab", "a", "b", "c")
    tokens = await find_tokens(engine, "abc", (1, 2, 3))
    assert (tokens.ids, tokens.ends, engine.num_encoded) == ((1, 2, 3), (1, 2, 3), 0)
    assert tokens.first(2) == AnswerText("ab", (1, 2))
    assert tokens.first(0) == AnswerText("", ())
    assert tokens.first(None) == AnswerText("abc", (1, 2, 3))


async def test_unknown_ids_are_those_of_the_text() -> None:
    tokens = await find_tokens(Words("ab", "a", "b", "c"), "abc", None)
    assert (tokens.ids, tokens.ends) == ((0, 3), (2, 3))


async def test_ids_of_another_vocabulary_do_not_count() -> None:
    engine = Words("x", "y", "ab", "c")
    for foreign in ((1, 0), (0,), (7, 7), (2,)):
        assert (await find_tokens(engine, "abc", foreign)).ids == (2, 3), foreign


async def test_what_was_cut_off_behind_the_text_is_no_token_of_it() -> None:
    """A stop string began in the middle of token 1 and ended in token 2."""
    engine = Words("so ", "be it.E", "ND", "x")
    tokens = await find_tokens(engine, "so be it.", (0, 1, 2))
    assert (tokens.ids, tokens.ends, engine.num_encoded) == ((0,), (3,), 0)
    assert tokens.first(None) == AnswerText("so ", (0,))


async def test_a_cut_inside_a_character_moves_to_its_beginning() -> None:
    engine = Words("a", b"\xf0\x9f", b"\x91", b"\xa9", "!")
    tokens = await find_tokens(engine, "a👩!", (0, 1, 2, 3, 4))
    assert tokens.ends == (1, None, None, 2, 3)
    assert tokens.whole_ends() == [1, 2, 2, 2, 3]
    cuts = [tokens.first(count) for count in range(6)]
    assert [(cut.content, len(cut.token_ids)) for cut in cuts] == [
        *(("", 0), ("a", 1), ("a", 1), ("a", 1)),
        *(("a👩", 4), ("a👩!", 5)),
    ]


async def test_a_character_that_was_never_completed_is_left_out() -> None:
    engine = Words("a", b"\xf0\x9f", b"b\xf0")
    assert (await find_tokens(engine, "ab", (0, 2))).ids == (0,)
    assert (await find_tokens(engine, "a\ufffd", (0, 1))).ids == (0,)
    assert (await find_tokens(engine, "ab\ufffd", (0, 2))).ids == (0,)
    assert engine.num_encoded == 0


@pytest.mark.parametrize("content", ["a\ufffdb", "a\0b"])
async def test_a_drawn_nul_stands_in_the_text_as_a_replacement(content: str) -> None:
    """As it does in what older versions stored."""
    engine = Words("a", "\0", "b")
    tokens = await find_tokens(engine, content, (0, 1, 2))
    assert (tokens.ids, tokens.ends, engine.num_encoded) == ((0, 1, 2), (1, 2, 3), 0)
    assert tokens.first(2).content == "a\ufffd"


async def test_a_hidden_token_in_the_middle_is_kept() -> None:
    tokens = await find_tokens(Words("a", "", "b"), "ab", (0, 1, 2))
    assert (tokens.ids, tokens.ends) == ((0, 1, 2), (1, 1, 2))


async def test_a_space_that_the_vocabulary_puts_in_front_is_not_the_texts() -> None:
    class Spaced(Words):
        async def encode_answer(self, text: str) -> list[int]:
            return await super().encode_answer(" " + text.removeprefix(" "))

    engine = Spaced(" a", "b")
    assert (await find_tokens(engine, "ab", None)).ends == (1, 2)
    assert (await find_tokens(engine, " ab", None)).ends == (2, 3)


async def test_a_text_that_the_vocabulary_cannot_spell_ends_where_it_cannot() -> None:
    tokens = await find_tokens(Words("a", "b"), "abXab", None)
    assert (tokens.ids, tokens.first(None)) == ((0, 1), AnswerText("ab", (0, 1)))


async def test_a_text_beyond_every_context_is_refused_before_it_is_encoded() -> None:
    engine = Words("a")
    with pytest.raises(RequestError, match="characters") as refused:
        await find_tokens(engine, "a" * (engine.most_characters + 1), None)
    assert refused.value.param == "message_id"
    assert engine.num_encoded == 0


async def test_an_empty_answer_has_the_one_cut() -> None:
    for drawn in (None, ()):
        tokens = await find_tokens(Words("a"), "", drawn)
        assert (tokens.ids, tokens.first(None)) == ((), AnswerText("", ()))


@pytest.mark.parametrize("count", [-1, 3])
async def test_a_cut_that_is_not_there_is_refused_with_the_range(count: int) -> None:
    tokens = await find_tokens(Words("a"), "aa", None)
    with pytest.raises(RequestError, match=f"at_token is {count}; .* 0 to 2") as refused:
        tokens.first(count)
    assert refused.value.param == "at_token"


PIECES = [b"a", b"b", b"ab", b" a", b"\xf0\x9f", b"\x91", b"\xa9", b"\xe2\x98\x83", b"", b"b\xf0"]


@given(
    ids=st.lists(st.integers(0, len(PIECES) - 1), max_size=16),
    stop=st.sampled_from([(), ("b",), ("aba",), ("ba", "☃"), ("👩",)]),
    shown_early=st.booleans(),
)
@settings(deadline=None)
async def test_every_cut_of_a_streamed_answer_is_a_beginning_of_its_text(
    ids: list[int], stop: tuple[str, ...], shown_early: bool
) -> None:
    """`shown_early`: the answer as it is while characters and possible stop strings are held back."""
    engine = Words(*PIECES)
    detokenizer, matcher = Detokenizer(engine.bytes_of), StopMatcher(compile_stops(stop))
    content, drawn = "", []
    for token_id in ids:
        drawn.append(token_id)
        content += matcher.push(detokenizer.push(token_id))
        if matcher.matched:
            break
    if not shown_early:
        content += matcher.push(detokenizer.flush()) + matcher.flush()
    tokens = await find_tokens(engine, content, tuple(drawn))
    assert engine.num_encoded == 0, "the ids that were drawn spell the text"
    assert list(tokens.ids) == drawn[: len(tokens.ids)]
    for count in range(len(tokens.ids) + 1):
        cut = tokens.first(count)
        assert content.startswith(cut.content)
        spelled = b"".join(map(engine.bytes_of, cut.token_ids)).decode(errors="replace")
        assert spelled == cut.content
        assert len(cut.token_ids) <= count
    if tokens.ids:
        assert tokens.first(None) == AnswerText(content[: tokens.ends[-1]], tokens.ids)
