"""Text as it streams: whole characters, stop strings, and independence from how bytes and text are cut."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.detokenizer import Detokenizer, StopMatcher, compile_stops, token_texts


def streamed(pieces: list[bytes]) -> list[str]:
    detokenizer = Detokenizer(pieces.__getitem__)
    return [*(detokenizer.push(i) for i in range(len(pieces))), detokenizer.flush()]


def matched(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(compile_stops(stops))
    shown = "".join(matcher.push(piece) for piece in pieces)
    return shown + matcher.flush(), matcher.matched


def test_half_a_character_is_held_until_it_is_whole() -> None:
    assert streamed([b"a\xf0\x9f", b"\x91", b"\xa9b"]) == ["a", "", "👩b", ""]


def test_a_real_replacement_character_survives() -> None:
    assert streamed(["\ufffd".encode(), b"\xef\xbf", b"\xbd!"]) == ["\ufffd", "", "\ufffd!", ""]


def test_leading_spaces_and_hidden_tokens() -> None:
    assert streamed([b" a", b"", b"  b"]) == [" a", "", "  b", ""]


def test_what_is_never_completed_is_shown_as_such() -> None:
    assert streamed([b"a\xe2\x98"]) == ["a", "\ufffd"]
    assert streamed([b"\xe2", b"x"]) == ["", "\ufffdx", ""]


@pytest.mark.parametrize(
    "pieces", [["👩", "\u200d", "👩"], ["e", "\u0301"], ["🇩", "🇪"], ["\r", "\n"]]
)
def test_a_character_is_shown_although_the_next_one_may_join_it(pieces: list[str]) -> None:
    assert streamed([piece.encode() for piece in pieces]) == [*pieces, ""]


@given(st.lists(st.binary(max_size=5), max_size=12))
@settings(deadline=None)
def test_the_stream_is_the_decoding_of_all_bytes(pieces: list[bytes]) -> None:
    assert "".join(streamed(pieces)) == b"".join(pieces).decode(errors="replace")


def texts_of(pieces: list[bytes]) -> list[tuple[str, bool]]:
    texts = token_texts(range(len(pieces)), pieces.__getitem__)
    return [(each.text, each.is_whole) for each in texts]


def test_tokens_know_whether_they_end_a_character() -> None:
    assert texts_of([b"a", b"b\xf0\x9f", b"", b"\x91", b"\xa9c", b""]) == [
        *(("a", True), ("b", False), ("", False)),
        *(("", False), ("👩c", True), ("", True)),
    ]
    assert texts_of([b"\xe2", b"x"]) == [("", False), ("\ufffdx", True)]
    assert texts_of([]) == []


@given(st.lists(st.binary(max_size=5), max_size=12))
@settings(deadline=None)
def test_texts_up_to_a_whole_character_are_the_decoding_of_their_bytes(
    pieces: list[bytes],
) -> None:
    joined = ""
    for count, (text, is_whole) in enumerate(texts_of(pieces), 1):
        joined += text
        decoded = b"".join(pieces[:count]).decode(errors="replace")
        assert joined == (decoded if is_whole else decoded.removesuffix("\ufffd"))


@pytest.mark.parametrize(
    ("stops", "pieces", "shown", "stop"),
    [
        (["END"], ["abcEN", "Dxyz"], "abc", "END"),
        (["END"], ["aE", "N", "x"], "aENx", None),
        (["END"], ["aEN"], "aEN", None),
        (["b"], ["abcb"], "a", "b"),
        (["aab"], ["aaa", "ab"], "aa", "aab"),
        (["。"], ["你好", "。再见"], "你好", "。"),
        (["👩‍👩"], ["x👩", "\u200d", "👩"], "x", "👩‍👩"),
        (["bcd", "cd"], ["ab", "cd"], "a", "bcd"),
        (["abcdef", "cd"], ["abcdef"], "ab", "cd"),
        (["x", "xy"], ["axy"], "a", "x"),
        (["\n\n"], ["a\n", "\n", "b"], "a", "\n\n"),
        ([], ["a", "b"], "ab", None),
        (["stop", "stop"], ["stop"], "", "stop"),
    ],
)
def test_stop_strings(stops: list[str], pieces: list[str], shown: str, stop: str | None) -> None:
    assert matched(stops, pieces) == (shown, stop)
    assert matched(stops, list("".join(pieces))) == (shown, stop)


def test_only_a_true_proper_prefix_is_held() -> None:
    matcher = StopMatcher(compile_stops(["abcabd" + "z" * 1000]))
    assert [matcher.push(p) for p in ["xab", "cab", "c", "q"]] == ["x", "", "abc", "abcq"]
    assert matcher.flush() == ""


def test_after_a_match_nothing_is_shown() -> None:
    matcher = StopMatcher(compile_stops(["b"]))
    assert [matcher.push("abc"), matcher.push("def"), matcher.flush()] == ["a", "", ""]


def test_patterns_are_shared_and_matchers_are_apart() -> None:
    patterns = compile_stops(["ab"])
    first, second = StopMatcher(patterns), StopMatcher(patterns)
    assert [first.push("a"), second.push("b"), first.push("b")] == ["", "b", ""]
    assert (first.matched, second.matched) == ("ab", None)


def reference(stops: list[str], text: str) -> tuple[str, str | None]:
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end - len(stop)], stop
    return text, None


def cut(text: str, sizes: list[int]) -> list[str]:
    pieces = []
    for size in sizes:
        pieces.append(text[:size])
        text = text[size:]
    return [*pieces, text]


@given(
    st.lists(st.text("ab", min_size=1, max_size=5), max_size=4),
    st.text("abc", max_size=30),
    st.lists(st.integers(0, 4), max_size=12),
)
@settings(deadline=None)
def test_matching_equals_a_search_whatever_the_pieces(
    stops: list[str], text: str, sizes: list[int]
) -> None:
    assert matched(stops, cut(text, sizes)) == reference(stops, text)


@given(
    st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3),
    st.text("abc", max_size=30),
)
@settings(deadline=None)
def test_what_is_shown_never_vanishes_and_is_never_late(stops: list[str], text: str) -> None:
    matcher, shown = StopMatcher(compile_stops(stops)), ""
    for end, char in enumerate(text, start=1):
        shown += matcher.push(char)
        if matcher.matched:
            break
        held = text[:end].removeprefix(shown)
        assert shown + held == text[:end]
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)
