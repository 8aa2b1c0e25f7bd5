"""`ChatService`: what a person does with conversations, joined from engine and storage.

A turn is checked completely before anything is stored; then the user's message and the answers' rows are stored in
one transaction; then the engine starts. A turn that has begun is finished even when the socket that asked is gone.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from chat.answers import Answers
from chat.bulletin import Bulletin
from chat.conversations import Conversations, found
from chat.errors import NotFoundError
from chat.events import (
    Candidate,
    ConversationEvent,
    Finished,
    ListEvent,
    Residency,
    Selected,
    Started,
    StartedCandidate,
)
from chat.generation import Generation, Subscription
from chat.history import Change, HistoryReader
from chat.hub import GenerationHub
from chat.owners import Owner, RequestOwners
from chat.patience import Patience
from chat.ports import Clock, Engine, Stream, SystemClock
from chat.prompts import Prompts
from chat.residency import find_residency
from chat.sampler import EngineSampler
from chat.tasks import Tasks
from chat.template_default import default_system_prompt
from chat.turns import (
    DEFAULT_SAMPLING,
    Turn,
    as_stored_error,
    check_beginning,
    check_content,
    check_system_prompt,
    merge_sampling,
    new_answers,
    read_sampling,
    title_of,
    with_seed,
)
from chat.watching import watch_conversation, watch_conversations
from engine.errors import RequestError
from storage.ids import new_id
from storage.records import ConversationRecord, MessageRecord, NewTurn
from storage.storage import Storage

logger = logging.getLogger(__name__)

Sampling = Mapping[str, Any]
DEFAULT_ORPHAN_TIMEOUT = 60.0


class ChatService:
    """Turns, choices and windows on them; `conversations` keeps them, `answers` tells of their tokens, `owners` knows whose
    the engine's requests are, `history` what the engine did.

    `start` after the storage is open; `shutdown` before engine and storage end. Raises chat.errors and, from the
    engine, RequestError, EngineNotReadyError and EngineDeadError.
    """

    def __init__(
        self,
        engine: Engine,
        storage: Storage,
        *,
        orphan_timeout: float = DEFAULT_ORPHAN_TIMEOUT,
        clock: Clock | None = None,
    ) -> None:
        clock = clock or SystemClock()
        self._engine = engine
        self._store = storage.conversations
        self._tasks = Tasks()
        self._patience = Patience()
        self._bulletin = Bulletin()
        self._hub = GenerationHub(self._store, clock, orphan_timeout, self._bulletin.mark)
        self._prompts = Prompts(engine, self._store)
        self.owners = RequestOwners()
        self.answers = Answers(engine, self._store, self._prompts, self.owners)
        self._sampler = EngineSampler(engine, storage, clock)
        self._sampling_task: asyncio.Task[None] | None = None
        self.history = HistoryReader(storage.samples, clock)
        self.conversations = Conversations(
            engine, self._store, self._hub, self._bulletin, self._tasks, self.owners
        )

    async def start(self) -> None:
        """Mark what a crash left streaming as interrupted, and begin to sample the engine."""
        leftovers = await self._store.interrupt_leftovers()
        if leftovers:
            logger.warning("answers that the server's last end interrupted: %d", leftovers)
        self._sampling_task = asyncio.create_task(self._sampler.run())

    async def shutdown(self, timeout: float) -> None:
        """Take no more turns, give streams `timeout` seconds to end, abort the rest, leave no task behind."""
        deadline = time.monotonic() + timeout
        await self._tasks.close(self._patience, timeout)
        await self._hub.shutdown(self._patience, max(0.0, deadline - time.monotonic()))
        await self._store.interrupt_leftovers()
        if self._sampling_task is not None:
            self._sampling_task.cancel()
            await asyncio.wait([self._sampling_task])

    def hurry(self) -> None:
        """End a `shutdown` that waits, or one to come, without waiting."""
        self._patience.end()

    def last_minute(self) -> Change | None:
        """What the engine did in the last minute; None right after the start."""
        return self._sampler.last_minute()

    # --- turns -------------------------------------------------------------------------------

    async def send(
        self,
        content: str,
        *,
        conversation_id: str | None = None,
        parent_id: str | None = None,
        n: int | None = None,
        sampling: Sampling | None = None,
    ) -> Started:
        """Say something below `parent_id`, or below the head, or in a new conversation."""
        return await self._tasks.finish(
            self._send(content, conversation_id, parent_id, n, sampling)
        )

    async def start_conversation(
        self,
        content: str,
        *,
        system_prompt: str | None = None,
        n: int | None = None,
        sampling: Sampling | None = None,
    ) -> Started:
        """Say the first thing in a new conversation; `system_prompt` None leaves the model's own."""
        check_content(content)
        turn = Turn(
            None,
            None,
            content,
            n,
            sampling,
            system_prompt=check_system_prompt(system_prompt, "system_prompt"),
        )
        return await self._tasks.finish(self._begin(turn))

    async def regenerate(
        self, message_id: str, *, n: int | None = None, sampling: Sampling | None = None
    ) -> Started:
        """Make siblings of an answer, or answers below a user's message."""
        return await self._tasks.finish(self._regenerate(message_id, n, sampling))

    async def edit(
        self,
        message_id: str,
        content: str,
        *,
        n: int | None = None,
        sampling: Sampling | None = None,
    ) -> Started:
        """Make a sibling of a user's message with new content, and answer it."""
        return await self._tasks.finish(self._edit(message_id, content, n, sampling))

    async def continue_answer(
        self,
        message_id: str,
        at_token: int | None = None,
        *,
        n: int | None = None,
        sampling: Sampling | None = None,
    ) -> Started:
        """Make siblings of an answer that begin with its first `at_token` tokens (None: all) and go on from there."""
        return await self._tasks.finish(self._continue(message_id, at_token, n, sampling))

    async def default_system_prompt(self) -> str | None:
        """What the model's template says when a conversation has no system prompt."""
        return await default_system_prompt(self._engine)

    async def residency(self, message_id: str) -> Residency:
        """What going on from a message, or the leaf last viewed below it, finds in the KV pool; asking changes nothing."""
        with found("message_id"):
            return await find_residency(self._engine, self._store, message_id)

    async def select(self, message_id: str) -> Selected:
        """Move the head to the leaf last viewed below a message; open candidates are closed by it."""
        return await self._tasks.finish(self._select(message_id))

    def stop(self, generation_id: str, index: int | None = None) -> Candidate | Finished | None:
        """End one candidate or all; their events follow. What has ended stays as it is: the event that told so is returned."""
        return self._hub.stop(generation_id, index)

    # --- windows -----------------------------------------------------------------------------

    def attach(self, generation_id: str, from_seq: int = 0) -> Subscription:
        """Follow a generation; use `with`, so that it knows when nobody does. Raises UnknownGenerationError."""
        return self._hub.attach(generation_id, from_seq)

    def watch_conversations(self) -> AsyncGenerator[ListEvent]:
        """The list, then its changes. `aclose` it."""
        return watch_conversations(self._bulletin, self.conversations)

    def watch_conversation(self, conversation_id: str) -> AsyncGenerator[ConversationEvent]:
        """One conversation's views and its generations' events; see chat/watching.py. `aclose` it."""
        return watch_conversation(self._bulletin, self.conversations, self._hub, conversation_id)

    # --- inside ------------------------------------------------------------------------------

    async def _send(
        self,
        content: str,
        conversation_id: str | None,
        parent_id: str | None,
        n: int | None,
        sampling: Sampling | None,
    ) -> Started:
        check_content(content)
        if conversation_id is None and parent_id is not None:
            conversation_id = (await self._message(parent_id, "parent_id")).conversation_id
        if conversation_id is None:
            return await self._begin(Turn(None, None, content, n, sampling))
        with self._hub.reserve(conversation_id):
            conversation = await self._conversation(conversation_id)
            if parent_id is None:
                parent_id = conversation.head_id
            elif (await self._message(parent_id, "parent_id")).conversation_id != conversation_id:
                message = f"message {parent_id} belongs to another conversation"
                raise NotFoundError(message, param="parent_id")
            return await self._begin(Turn(conversation, parent_id, content, n, sampling))

    async def _regenerate(
        self, message_id: str, n: int | None, sampling: Sampling | None
    ) -> Started:
        message = await self._message(message_id, "message_id")
        parent_id = message.id if message.role == "user" else message.parent_id
        with self._hub.reserve(message.conversation_id):
            conversation = await self._conversation(message.conversation_id)
            return await self._begin(Turn(conversation, parent_id, None, n, sampling))

    async def _edit(
        self, message_id: str, content: str, n: int | None, sampling: Sampling | None
    ) -> Started:
        check_content(content)
        message = await self._message(message_id, "message_id")
        if message.role != "user":
            raise RequestError("only a user's message can be edited", param="message_id")
        with self._hub.reserve(message.conversation_id):
            conversation = await self._conversation(message.conversation_id)
            turn = Turn(conversation, message.parent_id, content, n, sampling)
            return await self._begin(turn)

    async def _continue(
        self, message_id: str, at_token: int | None, n: int | None, sampling: Sampling | None
    ) -> Started:
        conversation_id = (await self.answers.get(message_id)).conversation_id
        with self._hub.reserve(conversation_id):
            conversation = await self._conversation(conversation_id)
            message = await self.answers.get(message_id)
            beginning = (await self.answers.tokens_of(message)).first(at_token)
            turn = Turn(conversation, message.parent_id, None, n, sampling, beginning)
            return await self._begin(turn)

    async def _select(self, message_id: str) -> Selected:
        with found("message_id"):
            message = await self._store.message(message_id)
            head_id = await self._store.select(message_id)
        self._bulletin.mark(message.conversation_id)
        return Selected(message.conversation_id, message_id, head_id)

    async def _begin(self, turn: Turn) -> Started:
        """Check, store, start, in this order."""
        stored_sampling = turn.conversation.sampling if turn.conversation else None
        sampling = merge_sampling(DEFAULT_SAMPLING, stored_sampling, turn.sampling)
        try:
            params = with_seed(read_sampling(sampling, turn.n))
            check_beginning(turn.beginning, params)
            prompt = await self._prompts.checked(turn, params)
        except RequestError as error:
            raise as_stored_error(error, turn) from error
        new = NewTurn(
            conversation_id=turn.conversation.id if turn.conversation else None,
            title=title_of(turn.content or ""),
            parent_id=turn.parent_id,
            content=turn.content,
            generation_id=new_id(),
            answers=new_answers(params, sampling),
            model=self._engine.info.model_name,
            dropped_messages=prompt.dropped_messages,
            system_prompt=turn.system_prompt,
            beginning=turn.beginning,
        )
        give_back = self._engine.keep_place()
        try:
            stored = await self._store.add_turn(new)
        except BaseException:
            give_back()
            raise

        title = turn.conversation.title if turn.conversation else new.title

        def open_stream() -> Stream:
            give_back()
            stream = self._engine.submit(prompt.token_ids, params)
            owner = Owner(stored.conversation_id, new.generation_id, title)
            self.owners.note(stream.request_id, owner)
            return stream

        generation = Generation(
            new.generation_id, stored.conversation_id, stored.answer_ids, turn.beginning
        )
        self._hub.launch(generation, open_stream)
        return Started(
            stored.conversation_id,
            stored.user_message_id,
            new.generation_id,
            tuple(StartedCandidate(i, answer) for i, answer in enumerate(stored.answer_ids)),
            prompt.dropped_messages,
        )

    async def _conversation(self, conversation_id: str) -> ConversationRecord:
        with found("conversation_id"):
            return await self._store.get(conversation_id)

    async def _message(self, message_id: str, param: str) -> MessageRecord:
        with found(param):
            return await self._store.message(message_id)
