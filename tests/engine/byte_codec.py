"""A vocabulary small enough to read: every byte, a few words, and two control tokens."""

from engine.grammar import GrammarCompiler

WORDS = ("yes", "no", '":', '{"', "ab", " ", "true")
END, CONTROL = 256 + len(WORDS), 257 + len(WORDS)
VOCAB_SIZE = CONTROL + 1


class ByteCodec:
    """Byte b is token b; WORDS follow, then the end token and a control token. Texts are encoded with the longest words."""

    def visible_bytes(self, token_id: int, /) -> bytes:
        if token_id < 256:
            return bytes([token_id])
        return WORDS[token_id - 256].encode() if token_id < END else b""

    def encode_answer(self, text: str, /) -> list[int]:
        rest, token_ids = text.encode(), []
        while rest:
            token_id = max(range(END), key=lambda i: self._length_of_match(i, rest))
            token_ids.append(token_id)
            rest = rest[len(self.visible_bytes(token_id)) :]
        return token_ids

    def _length_of_match(self, token_id: int, text: bytes) -> int:
        token = self.visible_bytes(token_id)
        return len(token) if text.startswith(token) else 0


def byte_compiler() -> GrammarCompiler:
    """A compiler for this vocabulary."""
    return GrammarCompiler(ByteCodec(), VOCAB_SIZE, [END])
