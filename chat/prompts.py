"""The prompt of a turn: system prompt, path, new message and kept beginning, as token ids.

When they do not fit, a conversation whose `when_full` is "drop_oldest" leaves out its oldest turns, as few as leave room
for an answer; only the prompt gets shorter. With "stop" the engine refuses the turn.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from chat.ports import Engine
from chat.turns import Turn, as_frame_error, as_full_context, prompt_messages
from engine.errors import RequestError
from engine.sampling_params import DEFAULT_MAX_TOKENS, SamplingParams
from storage.conversations import ConversationStore
from storage.records import DROP_OLDEST, PathMessage

LARGEST_ROOM = 4
"""An answer's room is its `max_tokens`, at most the context divided by this."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids, and how many of the path's messages are not in them."""

    token_ids: list[int]
    dropped_messages: int


class Prompts:
    """Makes the prompts of turns."""

    def __init__(self, engine: Engine, store: ConversationStore) -> None:
        self._engine = engine
        self._store = store

    async def checked(self, turn: Turn, params: SamplingParams) -> Prompt:
        """The prompt, when the engine can run it with `params`. Raises RequestError in terms of a frame."""
        try:
            prompt = await self._make(turn, params)
            await self._engine.prepare(params)
            self._engine.check_request(prompt.token_ids, params)
        except RequestError as error:
            told = as_full_context(error) if turn.beginning.token_ids else error
            param = "message_id" if turn.content is None else "content"
            raise as_frame_error(told, param) from error
        return prompt

    async def _make(self, turn: Turn, params: SamplingParams) -> Prompt:
        path: tuple[PathMessage, ...] = ()
        if turn.conversation is not None and turn.parent_id is not None:
            path = await self._store.path(turn.conversation.id, turn.parent_id)
        if turn.conversation is None or turn.conversation.when_full != DROP_OLDEST:
            self._check_length(turn, path)
            return Prompt(await self._render(turn, path), 0)
        limit = self._limit(params)
        whole = await self._fitting(turn, path, limit)
        return Prompt(whole, 0) if whole is not None else await self._shorten(turn, path, limit)

    async def _shorten(self, turn: Turn, path: tuple[PathMessage, ...], limit: int) -> Prompt:
        """Without the fewest oldest turns; the last one stays, whether it fits or not."""
        cuts = [i for i, message in enumerate(path) if message.role == "user"]
        if turn.content is not None:
            cuts.append(len(path))
        low, high = 0, len(cuts) - 1
        while low < high:
            middle = (low + high) // 2
            if await self._fitting(turn, path[cuts[middle] :], limit) is not None:
                high = middle
            else:
                low = middle + 1
        rest = path[cuts[low] :]
        self._check_length(turn, rest)
        return Prompt(await self._render(turn, rest), cuts[low])

    async def _fitting(
        self, turn: Turn, path: tuple[PathMessage, ...], limit: int
    ) -> list[int] | None:
        """The token ids, or None when there are more than `limit`."""
        if _num_characters(turn, path) > self._engine.most_characters:
            return None
        token_ids = await self._render(turn, path)
        return token_ids if len(token_ids) <= limit else None

    def _check_length(self, turn: Turn, path: tuple[PathMessage, ...]) -> None:
        check_num_characters(self._engine, _num_characters(turn, path), "prompt")

    async def _render(self, turn: Turn, path: tuple[PathMessage, ...]) -> list[int]:
        messages = prompt_messages(turn.effective_system_prompt, path, turn.content)
        return await self._engine.render_chat(messages) + [*turn.beginning.token_ids]

    def _limit(self, params: SamplingParams) -> int:
        length = self._engine.info.max_model_len
        wanted = DEFAULT_MAX_TOKENS if params.max_tokens is None else params.max_tokens
        return length - min(wanted, length // LARGEST_ROOM)


def check_num_characters(engine: Engine, num_characters: int, param: str) -> None:
    """Refuse at once what is too long in whatever tokens: to make those would take seconds. Raises RequestError."""
    most = engine.most_characters
    if num_characters > most:
        message = (
            f"the prompt has {num_characters:,} characters; in the {engine.info.max_model_len:,} tokens of the context "
            f"there is room for {most:,} at the very most"
        )
        raise RequestError(message, param=param, code="context_length_exceeded")


def count_characters(messages: Iterable[Mapping[str, str]]) -> int:
    """Of all contents."""
    return sum(len(message["content"]) for message in messages)


def _num_characters(turn: Turn, path: tuple[PathMessage, ...]) -> int:
    return count_characters(prompt_messages(turn.effective_system_prompt, path, turn.content))
