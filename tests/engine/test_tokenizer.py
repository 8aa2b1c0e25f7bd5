"""Text to ids and back: plain prompts, true bytes, answers, threads."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from transformers import PreTrainedTokenizerFast

from engine.detokenizer import token_texts
from engine.errors import RequestError
from engine.tokenizer import Tokenizer
from tests.engine.vocabularies import sentencepiece, token_id, user


def test_plain_prompts_are_parsed_for_specials(
    hub: PreTrainedTokenizerFast, tokenizer: Tokenizer
) -> None:
    assert token_id(hub, "<|end|>") in tokenizer.encode("a<|end|>")
    assert tokenizer.encode("") == []
    assert Tokenizer(sentencepiece()).encode("") == [1]
    with pytest.raises(RequestError) as caught:
        tokenizer.encode("a\ud83d")
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("text", ["hello", " lead", "a  b ", "é\u200b👩‍👩‍👧\ufffd\x00", "¡\xadÿĀ"])
def test_decode_gives_the_text_back(text: str, tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.model
def test_decode_equals_the_builtin_tokenizers_own(
    builtin: Tokenizer, builtin_hub: PreTrainedTokenizerFast
) -> None:
    ids = list(range(builtin.vocab_size))
    assert builtin.decode(ids) == builtin_hub.decode(ids, clean_up_tokenization_spaces=False)
    assert builtin.encode("") == []


def test_true_bytes_of_byte_level_tokens(
    hub: PreTrainedTokenizerFast, tokenizer: Tokenizer
) -> None:
    snowman = tokenizer.encode("☃")
    assert [tokenizer.token_bytes(i) for i in snowman] == [b"\xe2", b"\x98", b"\x83"]
    assert {tokenizer.token_bytes(i) for i in range(256)} == {bytes([i]) for i in range(256)}
    special = token_id(hub, "<｜ünï｜>")
    assert tokenizer.token_bytes(special) == "<｜ünï｜>".encode()
    assert tokenizer.visible_bytes(special) == b""


def test_true_bytes_of_sentencepiece_tokens() -> None:
    tokenizer = Tokenizer(sentencepiece())
    assert tokenizer.token_bytes(3 + 0xE2) == b"\xe2"
    ids = tokenizer.encode("a ☃")
    assert tokenizer.decode(ids) == "<s> a ☃"
    assert tokenizer.decode(ids[1:]) == "a ☃"
    assert tokenizer.token_bytes(ids[1]) == b" a"


@pytest.mark.parametrize("token_id", [-1, 10_000_000])
def test_ids_outside_the_vocabulary_are_no_text(token_id: int, tokenizer: Tokenizer) -> None:
    assert tokenizer.token_bytes(token_id) == b""
    assert tokenizer.decode([token_id]) == ""


def test_other_threads_run_while_a_long_text_is_encoded(tokenizer: Tokenizer) -> None:
    thread = threading.Thread(target=tokenizer.encode, args=("hello world " * 40_000,))
    started = last = time.perf_counter()
    longest_pause = 0.0
    thread.start()
    while thread.is_alive():
        now = time.perf_counter()
        longest_pause, last = max(longest_pause, now - last), now
    assert longest_pause < (last - started) / 2


def test_many_threads_at_once(tokenizer: Tokenizer) -> None:
    texts = [f"hello {i} " * (i + 1) for i in range(64)]
    expected = [tokenizer.render_chat(user(text)) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        assert (
            list(pool.map(lambda t: Tokenizer.render_chat(tokenizer, user(t)), texts)) == expected
        )
        typed = list(pool.map(lambda t: tokenizer.render_chat(user(t + "<|end|>")), texts))
    assert all("<|end|><|end|>" in tokenizer.decode(ids) for ids in typed)


def spelled(tokenizer: Tokenizer, text: str) -> str:
    return "".join(
        each.text for each in token_texts(tokenizer.encode_answer(text), tokenizer.visible_bytes)
    )


def test_an_answers_ids_spell_it_and_nothing_else(tokenizer: Tokenizer) -> None:
    for text in ("", "hello", " hello\n\n", "then <|end|> and <think>", "👩 ü", "<|turn|>"):
        assert spelled(tokenizer, text) == text
    assert not tokenizer.special_ids & set(tokenizer.encode_answer("a<|end|>b<｜ünï｜>"))
    assert tokenizer.encode_answer("<think>") == tokenizer.encode("<think>")
    with pytest.raises(RequestError):
        tokenizer.encode_answer("half \ud83d")


def test_the_space_before_a_first_word_is_the_vocabularys_own() -> None:
    tokenizer = Tokenizer(sentencepiece())
    for text in (" hello", " a</s>b"):
        assert spelled(tokenizer, text) == text
    assert spelled(tokenizer, "hello") == " hello"
    assert tokenizer.encode_answer("hello")[0] != 1, "no <s> in front"


@pytest.mark.model
def test_the_built_in_models_answers_are_spelled(builtin: Tokenizer) -> None:
    text = "1. **Bold** words,\n\n\n  and `code`: 👩‍🚀 <|im_end|> 1234567"
    assert spelled(builtin, text) == text
