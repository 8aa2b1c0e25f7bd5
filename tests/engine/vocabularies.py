"""Small tokenizers of both kinds, and chats for them."""

from collections.abc import Sequence

from tokenizers import AddedToken, decoders, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('system comes first') }}{% endif %}"
    "<|turn|>{{ m.role }}\n{{ (m.content.split('</think>') | last) | trim }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n<think>{% endif %}"
)


def byte_level(template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    """Every byte is a token, and some pairs; the added tokens come behind."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = ["he", "ll", "en", "th"]
    vocabulary = {piece: i for i, piece in enumerate([*alphabet, *pairs])}
    backend = Backend(BPE(vocabulary, [(first, second) for first, second in pairs]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = ["<|turn|>", "<|end|>", "<｜ünï｜>"]
    backend.add_special_tokens([AddedToken(s, normalized=False) for s in special])
    backend.add_tokens([AddedToken(s, normalized=False) for s in ["<think>", "</think>", "    "]])
    return PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=template)


def sentencepiece(add_bos: bool = True) -> PreTrainedTokenizerFast:
    """Byte fallback, a space in front, and merges that build "</s>" out of plain text."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    pieces += ["▁", *"abcdehlostuy:</>\n|A", "</", "s>", "▁a"]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    merges = [("<", "/"), ("s", ">"), ("</", "s>"), ("▁", "a")]
    backend = Backend(BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement="▁", prepend_scheme="first", split=False
    )
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    backend.add_special_tokens([AddedToken(s, normalized=False) for s in ["<unk>", "<s>", "</s>"]])
    if add_bos:
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
        )
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def user(content: object) -> list[dict[str, object]]:
    return [{"role": "user", "content": content}]


def token_id(hub: PreTrainedTokenizerFast, text: str) -> int:
    found = hub.backend_tokenizer.token_to_id(text)
    assert found is not None
    return found


def template_ids(hub: PreTrainedTokenizerFast, messages: Sequence[dict[str, str]]) -> list[int]:
    text = hub.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
    return hub.encode(str(text), add_special_tokens=False)
