"""The tokens of an answer and their places in its text: where it can be cut and continued.

An answer's tokens are those that the model drew and whose text lies wholly in its content. So the text of the first k of
them is always the beginning of the content, whatever a stop string has cut off behind it. EOS is none of them.

The drawn ids are stored with the content. They count only if the model that runs now reads this content out of them;
else (another vocabulary, an answer from a file, one older than the ids) the content is encoded. Where even these ids do
not spell it, as some vocabularies cannot, the tokens end at the first difference.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from chat.ports import Engine
from chat.prompts import check_num_characters
from chat.texts import without_nul
from engine.detokenizer import TokenText
from engine.errors import RequestError
from storage.records import AnswerText


@dataclass(frozen=True, slots=True)
class AnswerTokens:
    """`ends[i]`: how many characters (Unicode code points) of `content` are complete with token i; None inside a character."""

    content: str
    ids: tuple[int, ...]
    ends: tuple[int | None, ...]

    def first(self, count: int | None) -> AnswerText:
        """The answer's beginning of `count` tokens, all when None. A cut inside a character moves to its beginning.

        Raises RequestError naming `at_token`.
        """
        count = len(self.ids) if count is None else count
        if not 0 <= count <= len(self.ids):
            message = f"at_token is {count}; this answer can be cut at 0 to {len(self.ids)}"
            raise RequestError(message, param="at_token")
        while count and self.ends[count - 1] is None:
            count -= 1
        end = self.ends[count - 1] if count else 0
        return AnswerText(self.content[:end], self.ids[:count])

    def whole_ends(self) -> list[int]:
        """`ends` for those who look for places: a token that ends inside a character ends where the character does."""
        ends: list[int] = []
        for end in reversed(self.ends):
            ends.append(ends[-1] if end is None else end)
        return ends[::-1]


async def find_tokens(engine: Engine, content: str, drawn: Sequence[int] | None) -> AnswerTokens:
    """The tokens of an answer that has ended; `drawn` are the stored ids.

    Raises EngineNotReadyError, EngineDeadError, and RequestError for a text that is far too long for the context.
    """
    content = without_nul(content)
    if drawn is not None:
        texts = await _texts(engine, drawn)
        if _spell(content, texts):
            return _match(content, drawn, texts)
    check_num_characters(engine, len(content), "message_id")
    ids = await engine.encode_answer(content)
    texts = await _texts(engine, ids)
    if texts and not content.startswith(" "):
        texts[0] = replace(texts[0], text=texts[0].text.removeprefix(" "))
    return _match(content, ids, texts)


async def _texts(engine: Engine, token_ids: Sequence[int]) -> list[TokenText]:
    """As answers show them."""
    texts = await engine.token_texts(token_ids)
    return [replace(each, text=without_nul(each.text)) for each in texts]


def _spell(content: str, texts: Sequence[TokenText]) -> bool:
    """Whether the tokens' text begins with `content`; of a character that was never completed, U+FFFD is shown."""
    text = "".join(each.text for each in texts)
    end = "" if not texts or texts[-1].is_whole else "\ufffd"
    return (text + end).startswith(content)


def _match(content: str, ids: Sequence[int], texts: Sequence[TokenText]) -> AnswerTokens:
    """Leading tokens as long as their texts are the content's; the last one ends a character."""
    ends: list[int | None] = []
    position = 0
    for each in texts:
        if not content.startswith(each.text, position):
            break
        position += len(each.text)
        ends.append(position if each.is_whole else None)
    while ends and ends[-1] is None:
        ends.pop()
    return AnswerTokens(content, tuple(ids[: len(ends)]), tuple(ends))
