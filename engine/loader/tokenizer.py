"""The model's tokenizer as transformers' fast tokenizer: from its folder, or built from GGUF metadata.

transformers' own GGUF reading takes seconds and splits text of some vocabularies with the wrong rule, so the
`tokenizers` object is built here, from the metadata, with the rule that `tokenizer.ggml.pre` names.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    normalizers,
    pre_tokenizers,
    processors,
)
from tokenizers.models import BPE
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from engine.errors import ModelLoadError
from engine.loader.gguf_file import GGUFFile

CONTROL_TOKEN, USER_DEFINED_TOKEN = 3, 4
SPECIAL_TOKENS = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}


@dataclass(frozen=True)
class Splitting:
    """How text is cut before the merges: `split` None is GPT-2's rule; `digits` cuts single digits first."""

    split: str | None = None
    digits: bool = False
    ignore_merges: bool = False
    nfc: bool = False


_LLAMA3 = Splitting(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    ignore_merges=True,
)
_QWEN2 = Splitting(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    nfc=True,
)
_TEKKEN = Splitting(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ignore_merges=True,
)
SPLITTINGS = {
    "default": Splitting(),
    "gpt-2": Splitting(),
    "smollm": Splitting(digits=True),
    "starcoder": Splitting(digits=True),
    "refact": Splitting(digits=True),
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "smaug-bpe": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": _TEKKEN,
}


def load_tokenizer(path: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a model folder or .gguf file. Raises ModelLoadError.

    Spaces are never cleaned up. A token is added in front of a plain text only when the model says so.
    """
    if path.is_file():
        return _tokenizer_from_gguf(GGUFFile(path))
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            path, local_files_only=True, clean_up_tokenization_spaces=False
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ModelLoadError(f"no usable tokenizer in {path}: {_one_line(error)}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ModelLoadError(f"the tokenizer in {path} has no tokenizer.json, which is needed")
    return tokenizer


def _tokenizer_from_gguf(file: GGUFFile) -> PreTrainedTokenizerFast:
    metadata = file.metadata
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not tokens:
        raise ModelLoadError(f"{file.path} contains no tokenizer")
    builders = {"gpt2": _byte_level_bpe, "llama": _sentencepiece_bpe}
    kind = metadata.get("tokenizer.ggml.model")
    if kind not in builders:
        raise ModelLoadError(
            f"{file.path}: tokenizer.ggml.model {kind!r} is not supported; supported: {', '.join(builders)}"
        )
    backend = builders[kind](tokens, metadata)
    _add_marked_tokens(backend, tokens, metadata.get("tokenizer.ggml.token_type", []))
    special = {
        name: tokens[metadata[key]]
        for name, key in SPECIAL_TOKENS.items()
        if metadata.get(key, len(tokens)) < len(tokens)
    }
    _set_added_bos(backend, metadata.get("tokenizer.ggml.add_bos_token", kind == "llama"), special)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=metadata.get("tokenizer.chat_template"),
        model_max_length=metadata.get(f"{file.architecture}.context_length", int(1e30)),
        clean_up_tokenization_spaces=False,
        **special,
    )


def _byte_level_bpe(tokens: list[str], metadata: dict[str, Any]) -> Tokenizer:
    name = metadata.get("tokenizer.ggml.pre", "default")
    if name not in SPLITTINGS:
        raise ModelLoadError(
            f"tokenizer.ggml.pre {name!r} is not supported; supported: {', '.join(sorted(SPLITTINGS))}"
        )
    splitting = SPLITTINGS[name]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata.get("tokenizer.ggml.merges", [])]
    backend = Tokenizer(
        BPE(_vocabulary(tokens), merges, ignore_merges=splitting.ignore_merges, fuse_unk=False)
    )
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if splitting.digits else []
    if splitting.split is not None:
        steps.append(pre_tokenizers.Split(Regex(splitting.split), behavior="isolated"))
    steps.append(
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=splitting.split is None)
    )
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.ByteLevel()
    if splitting.nfc:
        backend.normalizer = normalizers.NFC()
    return backend


def _sentencepiece_bpe(tokens: list[str], metadata: dict[str, Any]) -> Tokenizer:
    vocabulary = _vocabulary(tokens)
    scores = metadata.get("tokenizer.ggml.scores") or [0.0] * len(tokens)
    unknown = tokens[metadata.get("tokenizer.ggml.unknown_token_id", 0)]
    backend = Tokenizer(
        BPE(
            vocabulary,
            _merges_by_score(tokens, scores, vocabulary),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)
    backend.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement="▁", prepend_scheme="first" if prefix else "never", split=False
    )
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence(steps + [decoders.Strip(" ", 1, 0)] * bool(prefix))
    return backend


def _merges_by_score(
    tokens: list[str], scores: list[float], vocabulary: dict[str, int]
) -> list[tuple[str, str]]:
    """Sentencepiece keeps no merges: a token's parts merge earlier, the higher the token's score."""
    merges: list[tuple[float, int, int, tuple[str, str]]] = []
    for token, score in zip(tokens, scores, strict=True):
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocabulary and right in vocabulary:
                merges.append((-score, vocabulary[left], vocabulary[right], (left, right)))
    return [pair for *_, pair in sorted(merges)]


def _vocabulary(tokens: list[str]) -> dict[str, int]:
    return {token: token_id for token_id, token in enumerate(tokens)}


def _add_marked_tokens(backend: Tokenizer, tokens: list[str], token_types: Iterable[int]) -> None:
    marked = [
        (AddedToken(token, normalized=False, special=kind == CONTROL_TOKEN), kind)
        for token, kind in zip(tokens, token_types, strict=False)
        if kind in (CONTROL_TOKEN, USER_DEFINED_TOKEN)
    ]
    backend.add_special_tokens([token for token, kind in marked if kind == CONTROL_TOKEN])
    backend.add_tokens([token for token, kind in marked if kind == USER_DEFINED_TOKEN])


def _set_added_bos(backend: Tokenizer, add_bos: bool, special: dict[str, str]) -> None:
    bos = special.get("bos_token")
    if add_bos and bos is not None:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A",
            pair=f"{bos} $A {bos} $B",
            special_tokens=[(bos, backend.token_to_id(bos))],
        )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
