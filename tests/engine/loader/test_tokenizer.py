"""Tokenizers from GGUF metadata: the built-in model's, a sentencepiece one, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from engine.errors import ModelLoadError
from engine.loader.tokenizer import load_tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6


@pytest.fixture(scope="module")
def builtin(builtin_model_path: Path) -> PreTrainedTokenizerFast:
    return load_tokenizer(builtin_model_path)


def write(path: Path, tokens: list[tuple[str, int]], kind: str, **keys: Any) -> Path:
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model(kind)
    writer.add_token_list([text for text, _ in tokens])
    writer.add_token_types([token_type for _, token_type in tokens])
    for name, value in keys.items():
        getattr(writer, f"add_{name}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_special_tokens_of_the_built_in_model(builtin: PreTrainedTokenizerFast) -> None:
    assert len(builtin) == 49_152
    assert (builtin.bos_token_id, builtin.eos_token_id, builtin.pad_token_id) == (1, 2, 2)
    assert builtin("").input_ids == []
    assert builtin("<|im_start|>user\nhi<|im_end|>").input_ids == [1, 4093, 198, 6004, 2]


def test_digits_are_cut_before_spaces_are_merged(builtin: PreTrainedTokenizerFast) -> None:
    assert builtin.tokenize("a  12 x") == ["a", "ĠĠ", "1", "2", "Ġx"]


@pytest.mark.parametrize(
    "text", ["  leading", "a , b !", "日本語 😀\n\n\tx", "don't   stop", "é\u00a0\ufffd", "\r\n"]
)
def test_text_comes_back_unchanged(builtin: PreTrainedTokenizerFast, text: str) -> None:
    assert builtin.decode(builtin(text).input_ids) == text


def test_the_chat_template_adds_the_default_system_turn(builtin: PreTrainedTokenizerFast) -> None:
    text = builtin.apply_chat_template(
        [{"role": "user", "content": "Hi"}], add_generation_prompt=True, tokenize=False
    )
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_sentencepiece_vocabulary_merges_by_score(tmp_path: Path) -> None:
    pieces = ["▁", "h", "i", "hi", "▁hi", "t", "th"]
    tokens = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)]
    tokens += [(f"<0x{byte:02X}>", BYTE) for byte in range(256)]
    tokens += [(piece, NORMAL) for piece in pieces]
    # "th" is likelier than "hi", so "thi" is th + i.
    scores = [0.0] * 259 + [-9.0, -9.0, -9.0, -2.0, -1.5, -9.0, -1.0]
    special = {"bos_token_id": 1, "eos_token_id": 2, "unk_token_id": 0}
    path = write(tmp_path / "s.gguf", tokens, "llama", token_scores=scores, **special)
    tokenizer = load_tokenizer(path)
    assert tokenizer.tokenize("hi thi") == ["▁hi", "▁", "th", "i"]
    assert tokenizer("hi").input_ids == [1, 259 + pieces.index("▁hi")]
    ids = tokenizer("é hi", add_special_tokens=False).input_ids
    assert ids == [259, 3 + 0xC3, 3 + 0xA9, 259 + pieces.index("▁hi")]
    assert tokenizer.decode(ids) == "é hi"
    bare = write(
        tmp_path / "bare.gguf", tokens, "llama", token_scores=scores, add_bos_token=False, **special
    )
    assert load_tokenizer(bare)("hi").input_ids == [259 + pieces.index("▁hi")]


def test_user_defined_tokens_stay_whole_and_visible(tmp_path: Path) -> None:
    tokens = [("a", NORMAL), ("<think>", USER_DEFINED), ("<end>", CONTROL)]
    path = write(tmp_path / "u.gguf", tokens, "gpt2", token_merges=[], eos_token_id=2)
    tokenizer = load_tokenizer(path)
    ids = tokenizer("a<think>a<end>").input_ids
    assert ids == [0, 1, 0, 2]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a<think>a"


@pytest.mark.parametrize(
    ("kind", "keys", "message"),
    [
        ("bert", {}, r"tokenizer\.ggml\.model 'bert' is not supported; supported: gpt2, llama"),
        (
            "gpt2",
            {"token_merges": [], "tokenizer_pre": "martian"},
            r"tokenizer\.ggml\.pre 'martian' is not supported; supported: .*smollm",
        ),
    ],
)
def test_what_is_unknown_is_refused_by_name(
    kind: str, keys: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "x.gguf", [("a", NORMAL)], kind, **keys)
    with pytest.raises(ModelLoadError, match=message):
        load_tokenizer(path)


def test_a_folder_gives_its_own_tokenizer(tmp_path: Path) -> None:
    backend = Tokenizer(BPE({"a": 0, "Ġ": 1, ",": 2}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer("a , a").input_ids == [0, 1, 2, 1, 0]
    assert tokenizer.decode([0, 1, 2, 1, 0]) == "a , a"


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="no usable tokenizer in"):
        load_tokenizer(tmp_path)
