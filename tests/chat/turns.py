"""Answering a turn, and looking at its conversation."""

import asyncio

from chat.events import ConversationView, Started
from chat.service import ChatService
from tests.chat.fakes import ManualEngine
from tests.chat.reading import read_to_end


async def answer(chat: ChatService, engine: ManualEngine, started: Started, *said: str) -> None:
    """Let the engine answer the newest request, one text per candidate."""
    await asyncio.sleep(0)
    for index, text in enumerate(said):
        engine.streams[-1].text(text, index)
        engine.streams[-1].end(index)
    await read_to_end(chat, started.generation_id)


async def view(chat: ChatService, started: Started) -> ConversationView:
    return await chat.conversations.view(started.conversation_id)
