"""Continuing an answer from one of its tokens: what the model reads, what is stored and shown, what is refused.

A token of the scripted engine is one byte.
"""

import pytest

from chat.errors import ConversationBusyError, NotFoundError
from chat.events import ConversationView, Delta, Finished, Message, Snapshot, Started
from chat.generation import BUFFER_EVENTS
from chat.service import ChatService
from engine.errors import EngineNotReadyError, RequestError
from engine.outputs import FinishReason
from engine.stats import EngineStatus
from storage.records import AnswerText
from storage.storage import Storage
from tests.chat.fakes import FakeClock, ManualEngine
from tests.chat.reading import exported, read, read_to_end


async def submitted(engine: ManualEngine) -> None:
    """Wait for the engine to be asked."""
    await engine.submitted.wait()
    engine.submitted.clear()


async def say(
    chat: ChatService,
    engine: ManualEngine,
    started: Started,
    *texts: str,
    reason: FinishReason = FinishReason.STOP,
) -> None:
    """Let the engine answer the newest request, one text per candidate."""
    await submitted(engine)
    for index, text in enumerate(texts):
        engine.streams[-1].text(text, index)
        engine.streams[-1].end(index, reason)
    await read_to_end(chat, started.generation_id)


async def answered(
    chat: ChatService,
    engine: ManualEngine,
    text: str,
    reason: FinishReason = FinishReason.LENGTH,
) -> tuple[Started, str]:
    """A conversation with one finished answer, and that answer's id."""
    started = await chat.send("hi")
    await say(chat, engine, started, text, reason=reason)
    return started, started.candidates[0].message_id


async def answers(chat: ChatService, started: Started) -> list[Message]:
    tree = await chat.conversations.tree(started.conversation_id)
    return [message for message in tree.messages if message.role == "assistant"]


async def test_the_model_reads_the_chat_and_the_kept_tokens_and_the_answer_goes_on(
    chat: ChatService, engine: ManualEngine, storage: Storage
) -> None:
    first, answer = await answered(chat, engine, "one two")
    again = await chat.continue_answer(answer, 4)
    assert again.user_message_id == first.user_message_id
    before = (await answers(chat, first))[1]
    assert (before.content, before.status) == ("one ", "generating")
    await say(chat, engine, again, "three")
    assert engine.prompts[-1] == "<user>hi\none "
    original, continued = await answers(chat, first)
    assert (original.content, continued.content) == ("one two", "one three")
    assert await storage.conversations.token_ids(continued.id) == tuple(b"one three")
    shown = await chat.conversations.view(first.conversation_id)
    assert [m.content for m in shown.messages] == ["hi", "one three"]
    assert shown.messages[-1].sibling_ids == (original.id, continued.id)


async def test_without_a_place_the_whole_answer_is_kept_and_can_be_continued_again(
    chat: ChatService, engine: ManualEngine
) -> None:
    first, answer = await answered(chat, engine, "a", FinishReason.ABORT)
    for text in ("b", "c"):
        started = await chat.continue_answer(answer)
        answer = started.candidates[0].message_id
        await say(chat, engine, started, text, reason=FinishReason.LENGTH)
    stored = await answers(chat, first)
    assert [m.content for m in stored] == ["a", "ab", "abc"]
    assert [m.usage["kept_tokens"] for m in stored if m.usage] == [0, 1, 2]
    assert engine.prompts == ["<user>hi\n", "<user>hi\na", "<user>hi\nab"]


async def test_three_ways_from_one_place_are_candidates(
    chat: ChatService, engine: ManualEngine
) -> None:
    first, answer = await answered(chat, engine, "one two")
    started = await chat.continue_answer(answer, 3, n=3, sampling={"seed": 7, "max_tokens": 5})
    await say(chat, engine, started, "!", "?", "")
    assert (engine.params[-1].n, engine.params[-1].max_tokens) == (3, 5)
    shown = await chat.conversations.view(first.conversation_id)
    assert shown.conversation.open_generation_id == started.generation_id
    assert [(m.content, m.seed) for m in shown.candidates] == [("one!", 7), ("one?", 8), ("one", 9)]


async def test_place_zero_is_the_same_as_regenerating(
    chat: ChatService, engine: ManualEngine
) -> None:
    first, answer = await answered(chat, engine, "one")
    started = await chat.continue_answer(answer, 0)
    await say(chat, engine, started, "other")
    assert engine.prompts == ["<user>hi\n"] * 2
    assert (await answers(chat, first))[1].content == "other"


async def test_sampling_is_merged_as_for_regenerate(
    chat: ChatService, engine: ManualEngine
) -> None:
    first, answer = await answered(chat, engine, "one")
    await chat.conversations.update(first.conversation_id, {"sampling": {"top_p": 0.5}})
    started = await chat.continue_answer(answer, sampling={"temperature": 0.2})
    await say(chat, engine, started, "x")
    assert (engine.params[-1].temperature, engine.params[-1].top_p) == (0.2, 0.5)


async def test_every_reader_gets_the_kept_text_by_a_snapshot_and_then_only_new_text(
    chat: ChatService, engine: ManualEngine
) -> None:
    _, answer = await answered(chat, engine, "one two")
    started = await chat.continue_answer(answer, 4, n=2)
    with chat.attach(started.generation_id) as early:
        assert await anext(early) == Snapshot(started.generation_id, -1, ("one ", "one "), ())
        await submitted(engine)
        engine.streams[-1].text("three", 1)
        assert await anext(early) == Delta(started.generation_id, 0, 1, "three")
        with chat.attach(started.generation_id) as late:
            assert await read(late, 2) == [
                Snapshot(started.generation_id, -1, ("one ", "one "), ()),
                Delta(started.generation_id, 0, 1, "three"),
            ]
        with chat.attach(started.generation_id, 1) as returning:
            engine.streams[-1].text("!", 1)
            assert await anext(returning) == Delta(started.generation_id, 1, 1, "!")
        for index in range(2):
            engine.streams[-1].end(index)
        await read(early, 3)
    events = await read_to_end(chat, started.generation_id)
    assert [event.seq for event in events] == [-1, 0, 1, 2, 3, 4]


async def test_a_reader_too_late_for_the_first_event_gets_the_whole_text_in_one_piece(
    chat: ChatService, engine: ManualEngine
) -> None:
    _, answer = await answered(chat, engine, "one two")
    started = await chat.continue_answer(answer, 4)
    await submitted(engine)
    for _ in range(BUFFER_EVENTS):
        engine.streams[-1].text("x")
    engine.streams[-1].end()
    await read_to_end(chat, started.generation_id)
    with chat.attach(started.generation_id) as subscription:
        snapshot, end = [event async for event in subscription]
    assert isinstance(snapshot, Snapshot)
    assert snapshot.texts == ("one " + "x" * BUFFER_EVENTS,)
    assert isinstance(end, Finished)


async def test_a_window_on_the_conversation_shows_the_kept_text_at_once(
    chat: ChatService, engine: ManualEngine
) -> None:
    first, answer = await answered(chat, engine, "one two")
    watching = chat.watch_conversation(first.conversation_id)
    await anext(watching)
    started = await chat.continue_answer(answer, 4)
    view = await anext(watching)
    assert isinstance(view, ConversationView)
    assert view.messages[-1].content == "one "
    assert await anext(watching) == Snapshot(started.generation_id, -1, ("one ",), ())
    await submitted(engine)
    engine.streams[-1].text("three")
    assert await anext(watching) == Delta(started.generation_id, 0, 0, "three")
    await watching.aclose()


async def test_a_crash_right_after_the_start_leaves_the_kept_text(
    chat: ChatService, engine: ManualEngine, storage: Storage
) -> None:
    first, answer = await answered(chat, engine, "one two")
    await chat.continue_answer(answer, 4)
    await submitted(engine)
    after = ChatService(engine, storage)
    await after.start()
    left = (await answers(after, first))[1]
    assert (left.content, left.status) == ("one ", "interrupted")
    assert (await after.answers.tokens(left.id)).ids == tuple(b"one ")
    await after.shutdown(0.0)


async def test_what_was_drawn_is_checkpointed_with_its_text(
    chat: ChatService, engine: ManualEngine, storage: Storage, clock: FakeClock
) -> None:
    _, answer = await answered(chat, engine, "one two")
    started = await chat.continue_answer(answer, 4)
    await submitted(engine)
    with chat.attach(started.generation_id, 0) as subscription:
        engine.streams[-1].text("th", drawn="thr")
        engine.streams[-1].text("", drawn="e")
        engine.streams[-1].text("ree")
        await read(subscription, 3)
        clock.advance(1)
        stored = await storage.conversations.message(started.candidates[0].message_id)
        while stored.content == "one ":  # until the checkpoint is written
            stored = await storage.conversations.message(stored.id)
        drawn = await storage.conversations.token_ids(stored.id)
    assert (stored.content, drawn) == ("one three", tuple(b"one threree"))


async def test_a_stop_string_is_no_part_of_what_is_kept(
    chat: ChatService, engine: ManualEngine
) -> None:
    started = await chat.send("hi", sampling={"stop": ["END"]})
    await submitted(engine)
    engine.streams[-1].text("so be it", drawn="so be itEND")
    engine.streams[-1].end()
    await read_to_end(chat, started.generation_id)
    answer = started.candidates[0].message_id
    assert (await chat.answers.tokens(answer)).ids == tuple(b"so be it")
    again = await chat.continue_answer(answer)
    await say(chat, engine, again, ", then")
    assert engine.prompts[-1] == "<user>hi\nso be it"
    assert (await answers(chat, started))[1].content == "so be it, then"


async def test_a_cut_inside_a_character_moves_to_its_beginning(
    chat: ChatService, engine: ManualEngine
) -> None:
    first, answer = await answered(chat, engine, "a👩b")
    for at_token, kept in ((2, "a"), (4, "a"), (5, "a👩")):
        started = await chat.continue_answer(answer, at_token)
        await say(chat, engine, started, "!")
        assert engine.prompts[-1] == f"<user>hi\n{kept}"
        assert (await answers(chat, first))[-1].content == f"{kept}!"


async def test_an_answer_without_ids_is_cut_as_its_text_is_encoded(
    chat: ChatService, engine: ManualEngine
) -> None:
    first, _ = await answered(chat, engine, "one two")
    document = await exported(chat, first.conversation_id)
    (imported_id,) = (await chat.conversations.import_again(document)).conversation_ids
    view = await chat.conversations.view(imported_id)
    assert (await chat.answers.tokens(view.messages[1].id)).ids == tuple(b"one two")
    started = await chat.continue_answer(view.messages[1].id, 4)
    await say(chat, engine, started, "x")
    assert engine.prompts[-1] == "<user>hi\none "


async def test_ids_that_do_not_spell_the_text_do_not_count(
    chat: ChatService, engine: ManualEngine, storage: Storage
) -> None:
    """As after a change of the model: the same row, another vocabulary."""
    started = await chat.send("hi")
    await submitted(engine)
    engine.streams[-1].text("one", drawn="xyz!")
    engine.streams[-1].end()
    await read_to_end(chat, started.generation_id)
    answer = started.candidates[0].message_id
    assert await storage.conversations.token_ids(answer) == tuple(b"xyz!")
    assert (await chat.answers.tokens(answer)).ids == tuple(b"one")


async def test_what_cannot_be_continued_is_refused_by_name_and_stores_nothing(
    chat: ChatService, engine: ManualEngine
) -> None:
    first, answer = await answered(chat, engine, "one")
    before = await chat.conversations.tree(first.conversation_id)
    refusals = {
        "at_token": chat.continue_answer(answer, 4),
        "message_id": chat.continue_answer(first.user_message_id),
        "n": chat.continue_answer(answer, n=0),
        "sampling.temperature": chat.continue_answer(answer, sampling={"temperature": 9}),
    }
    for param, call in refusals.items():
        with pytest.raises(RequestError) as refused:
            await call
        assert refused.value.param == param
    with pytest.raises(NotFoundError) as missing:
        await chat.continue_answer("0" * 32)
    assert missing.value.param == "message_id"
    assert await chat.conversations.tree(first.conversation_id) == before
    assert len(engine.streams) == 1
    await chat.continue_answer(answer, 3)


async def test_a_full_context_is_refused_in_these_words(
    chat: ChatService, engine: ManualEngine
) -> None:
    room = engine.info.max_model_len - len("<user>hi\n")
    first, answer = await answered(chat, engine, "x" * room)
    with pytest.raises(RequestError, match="nothing is left of the context") as refused:
        await chat.continue_answer(answer)
    assert (refused.value.param, refused.value.code) == ("message_id", "context_length_exceeded")
    assert len(await answers(chat, first)) == 1
    await chat.continue_answer(answer, room - 1)


async def test_while_an_answer_is_written_nothing_is_continued_and_it_has_no_tokens(
    chat: ChatService, engine: ManualEngine
) -> None:
    first, answer = await answered(chat, engine, "one")
    started = await chat.continue_answer(answer)
    await submitted(engine)
    for message_id in (answer, started.candidates[0].message_id):
        with pytest.raises(ConversationBusyError):
            await chat.continue_answer(message_id)
    with pytest.raises(ConversationBusyError):
        await chat.answers.tokens(started.candidates[0].message_id)
    assert (await chat.answers.tokens(answer)).ids == tuple(b"one")
    assert len(await answers(chat, first)) == 2


async def test_while_the_model_loads_nothing_is_continued(
    chat: ChatService, engine: ManualEngine
) -> None:
    first, answer = await answered(chat, engine, "one")
    engine.status = EngineStatus("loading", "reading weights", 0.5)
    with pytest.raises(EngineNotReadyError):
        await chat.continue_answer(answer)
    assert len(await answers(chat, first)) == 1


async def test_a_stopped_continuation_keeps_its_beginning(
    chat: ChatService, engine: ManualEngine, storage: Storage
) -> None:
    first, answer = await answered(chat, engine, "one")
    started = await chat.continue_answer(answer, 2)
    await submitted(engine)
    chat.stop(started.generation_id)
    await read_to_end(chat, started.generation_id)
    left = (await answers(chat, first))[1]
    assert (left.content, left.status) == ("on", "stopped")
    assert AnswerText(left.content, (await storage.conversations.token_ids(left.id)) or ()) == (
        AnswerText("on", tuple(b"on"))
    )
