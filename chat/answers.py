"""What can be asked about an answer that has ended: its tokens, where it parts from others, what else could stand there."""

import asyncio

from chat.comparing import Choice, Parting, find_choices, find_partings
from chat.conversations import found
from chat.errors import ConversationBusyError
from chat.owners import RequestOwners
from chat.ports import Engine
from chat.prompts import Prompts
from chat.tokens import AnswerTokens, find_tokens
from chat.turns import Turn
from engine.errors import RequestError
from storage.conversations import ConversationStore
from storage.records import AnswerText, MessageRecord


class Answers:
    """`ChatService.answers`. Raises NotFoundError, ConversationBusyError while one is being written, RequestError."""

    def __init__(
        self, engine: Engine, store: ConversationStore, prompts: Prompts, owners: RequestOwners
    ) -> None:
        self._engine, self._store = engine, store
        self._prompts, self._owners = prompts, owners

    async def get(self, message_id: str) -> MessageRecord:
        """An answer, whether it has ended or not."""
        with found("message_id"):
            message = await self._store.message(message_id)
        if message.role != "assistant":
            text = "only an answer has tokens; this is a user's message"
            raise RequestError(text, param="message_id")
        return message

    async def tokens(self, message_id: str) -> AnswerTokens:
        """Where an answer can be cut."""
        return await self.tokens_of(await self.get(message_id))

    async def tokens_of(self, message: MessageRecord) -> AnswerTokens:
        """The same, of an answer at hand."""
        if message.status == "generating":
            raise ConversationBusyError("this answer is still being written", param="message_id")
        drawn = await self._store.token_ids(message.id)
        return await find_tokens(self._engine, message.content, drawn)

    async def partings(self, message_id: str) -> tuple[Parting, ...]:
        """Where an answer and those of the same generation part."""
        answer = await self.get(message_id)
        _, tree, messages = await self._store.messages(answer.conversation_id)
        by_id = {message.id: message for message in messages}
        ids = tree.answers(answer.generation_id) if answer.generation_id else [answer.id]
        answers = [(each, await self.tokens_of(by_id[each])) for each in ids]
        return await asyncio.to_thread(find_partings, answers)

    async def choices(self, message_id: str, at_token: int) -> tuple[Choice, ...]:
        """What the model could have said in place of an answer's token, and what it did say."""
        message = await self.get(message_id)
        tokens = await self.tokens_of(message)
        tokens.first(at_token)
        with found("conversation_id"):
            conversation = await self._store.get(message.conversation_id)
        beginning = AnswerText(message.content, tokens.ids[:at_token])
        turn = Turn(conversation, message.parent_id, None, beginning=beginning)
        drawn = tokens.ids[at_token] if at_token < len(tokens.ids) else None
        return await find_choices(self._engine, self._owners, self._prompts, turn, drawn)
