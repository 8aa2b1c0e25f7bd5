"""Verbs on conversations and messages, against a real database file."""

import asyncio
import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import event

from storage.errors import MissingRowError, StorageError
from storage.records import AnswerEnd, AnswerText, ImportedConversation, ImportedMessage
from storage.storage import Storage
from tests.storage.turns import new_turn

DONE = AnswerEnd(
    content="the whole answer",
    token_ids=(1, 2**32 - 1),
    status="done",
    finish_reason="stop",
    usage={"prompt_tokens": 3},
    timings={"ttft_ms": 1.5},
    kv={"blocks_private": 2},
)


async def test_a_turn_makes_conversation_message_and_generating_answers(storage: Storage) -> None:
    turn = await storage.conversations.add_turn(
        new_turn("hi", title="Greeting", seeds=(2**64 - 1, 0), model="m", dropped_messages=2)
    )
    record, tree, messages = await storage.conversations.messages(turn.conversation_id)
    assert (record.title, record.head_id) == ("Greeting", turn.answer_ids[0])
    assert record.open_generation_id == "g1"
    user, *answers = messages
    assert (user.id, user.role, user.content, user.status) == (
        turn.user_message_id,
        "user",
        "hi",
        "done",
    )
    assert [(a.id, a.status, a.candidate_index, a.seed, a.sampling) for a in answers] == [
        (turn.answer_ids[0], "generating", 0, 2**64 - 1, {"temperature": 0.8}),
        (turn.answer_ids[1], "generating", 1, 0, {"temperature": 0.8}),
    ]
    assert [(a.model, a.dropped_messages) for a in messages] == [(None, None), ("m", 2), ("m", 2)]
    assert (record.system_prompt, record.when_full) == (None, "stop")
    assert tree.siblings(turn.answer_ids[1]) == turn.answer_ids
    assert user.created_at.tzinfo is UTC
    assert abs((datetime.now(UTC) - user.created_at).total_seconds()) < 60


async def test_the_first_turn_of_a_conversation_is_two_statements(storage: Storage) -> None:
    """Its first token waits for them, each with several hand-overs to the database's thread."""
    statements: list[str] = []
    engine = storage.database._engine.sync_engine

    def note(connection: object, cursor: object, statement: str, *others: object) -> None:
        statements.append(" ".join(statement.split()[:3]))

    event.listen(engine, "before_cursor_execute", note)
    turn = await storage.conversations.add_turn(new_turn("hi", seeds=(1, 2)))
    assert statements == ["BEGIN IMMEDIATE", "INSERT INTO conversations", "INSERT INTO messages"]
    tree = (await storage.conversations.messages(turn.conversation_id))[1]
    shown = list(tree.path(turn.answer_ids[0]))
    assert shown == [turn.user_message_id, turn.answer_ids[0]]
    assert await storage.conversations.select(turn.user_message_id) == turn.answer_ids[0]


async def test_a_single_answer_opens_no_choice(storage: Storage) -> None:
    turn = await storage.conversations.add_turn(new_turn())
    assert (await storage.conversations.get(turn.conversation_id)).open_generation_id is None


async def test_order_is_that_of_writing_even_when_the_clock_stands_still(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    class StoppedClock(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime(2030, 1, 1, tzinfo=UTC)

    monkeypatch.setattr("storage.turns.datetime", StoppedClock)
    first = await storage.conversations.add_turn(new_turn("one", seeds=(None, None)))
    again = new_turn("two", conversation_id=first.conversation_id, parent_id=first.answer_ids[0])
    second = await storage.conversations.add_turn(again)
    _, _, messages = await storage.conversations.messages(first.conversation_id)
    assert [m.id for m in messages] == [
        first.user_message_id,
        *first.answer_ids,
        second.user_message_id,
        *second.answer_ids,
    ]
    assert len({m.created_at for m in messages}) == 5


async def test_a_turn_in_a_missing_or_hidden_conversation_stores_nothing(storage: Storage) -> None:
    turn = await storage.conversations.add_turn(new_turn())
    await storage.conversations.hide(turn.conversation_id)
    for conversation_id in (turn.conversation_id, "f" * 32):
        with pytest.raises(MissingRowError):
            await storage.conversations.add_turn(new_turn(conversation_id=conversation_id))
    await storage.conversations.restore(turn.conversation_id)
    _, _, messages = await storage.conversations.messages(turn.conversation_id)
    assert len(messages) == 2


async def test_select_returns_to_the_leaf_viewed_last(storage: Storage) -> None:
    """Two branches of two turns; selecting their first answers leads to the ends last on show."""
    store = storage.conversations
    first = await store.add_turn(new_turn("one", seeds=(None, None)))
    left, right = first.answer_ids
    place = {"conversation_id": first.conversation_id}
    deep = await store.add_turn(new_turn("left", parent_id=left, **place))
    deeper = await store.add_turn(new_turn("more", parent_id=deep.answer_ids[0], **place))
    beside = await store.add_turn(new_turn("else", parent_id=deep.answer_ids[0], **place))
    assert await store.select(right) == right
    assert await store.select(left) == beside.answer_ids[0]
    assert await store.select(deeper.user_message_id) == deeper.answer_ids[0]
    assert await store.select(right) == right
    assert await store.select(left) == deeper.answer_ids[0]
    assert await store.select(first.user_message_id) == deeper.answer_ids[0]
    record = await store.get(first.conversation_id)
    assert record.head_id == deeper.answer_ids[0]


async def test_select_closes_open_candidates(storage: Storage) -> None:
    turn = await storage.conversations.add_turn(new_turn(seeds=(None, None)))
    await storage.conversations.select(turn.answer_ids[1])
    record = await storage.conversations.get(turn.conversation_id)
    assert (record.head_id, record.open_generation_id) == (turn.answer_ids[1], None)


async def test_the_view_holds_path_and_open_candidates(storage: Storage) -> None:
    first = await storage.conversations.add_turn(new_turn("one"))
    second = await storage.conversations.add_turn(
        new_turn(
            "two",
            conversation_id=first.conversation_id,
            parent_id=first.answer_ids[0],
            seeds=(None, None),
        )
    )
    record, tree, messages = await storage.conversations.view(first.conversation_id)
    path = [first.user_message_id, first.answer_ids[0], second.user_message_id]
    assert tree.path(record.head_id) == [*path, second.answer_ids[0]]
    assert set(messages) == {*path, *second.answer_ids}
    found = await storage.conversations.path(first.conversation_id, second.user_message_id)
    assert [m.id for m in found] == path
    assert [(m.role, m.content) for m in found[::2]] == [("user", "one"), ("user", "two")]


async def test_a_late_checkpoint_never_overwrites_a_final_answer(storage: Storage) -> None:
    turn = await storage.conversations.add_turn(new_turn())
    answer = turn.answer_ids[0]
    await storage.conversations.save_texts({answer: AnswerText("the wh", (1,))})
    assert (await storage.conversations.message(answer)).content == "the wh"
    assert await storage.conversations.token_ids(answer) == (1,)
    await storage.conversations.end_answer(answer, DONE)
    await storage.conversations.save_texts({answer: AnswerText("the who", (1, 2))})
    assert await storage.conversations.interrupt_leftovers() == 0
    stored = await storage.conversations.message(answer)
    assert (stored.content, stored.status, stored.finish_reason) == (
        "the whole answer",
        "done",
        "stop",
    )
    assert (stored.usage, stored.timings, stored.kv) == (DONE.usage, DONE.timings, DONE.kv)
    assert await storage.conversations.token_ids(answer) == DONE.token_ids


async def test_answers_start_as_their_beginning_and_only_they_have_token_ids(
    storage: Storage,
) -> None:
    store = storage.conversations
    first = await store.add_turn(new_turn())
    turn = await store.add_turn(
        new_turn(
            None,
            conversation_id=first.conversation_id,
            parent_id=first.user_message_id,
            seeds=(None, None),
            beginning=AnswerText("kept", (5, 6)),
        )
    )
    for answer in turn.answer_ids:
        stored = await store.message(answer)
        assert (stored.content, stored.status) == ("kept", "generating")
        assert await store.token_ids(answer) == (5, 6)
    assert await store.token_ids(first.answer_ids[0]) == ()
    assert await store.token_ids(first.user_message_id) is None
    assert await store.token_ids("f" * 32) is None


async def test_leftovers_become_interrupted_and_keep_their_text(storage: Storage) -> None:
    turn = await storage.conversations.add_turn(new_turn(seeds=(None, None)))
    await storage.conversations.save_texts({turn.answer_ids[0]: AnswerText("half an ans", ())})
    await storage.conversations.end_answer(turn.answer_ids[1], DONE)
    assert await storage.conversations.interrupt_leftovers() == 1
    stored = await storage.conversations.message(turn.answer_ids[0])
    assert (stored.status, stored.content) == ("interrupted", "half an ans")


async def test_update_changes_only_what_is_named(storage: Storage) -> None:
    turn = await storage.conversations.add_turn(new_turn())
    before = await storage.conversations.get(turn.conversation_id)
    await storage.conversations.update(
        before.id, {"title": "new", "pinned": True, "sampling": {"top_k": 4}}
    )
    after = await storage.conversations.get(before.id)
    assert (after.title, after.pinned, after.sampling) == ("new", True, {"top_k": 4})
    assert (after.updated_at, after.head_id) == (before.updated_at, before.head_id)


async def test_purge_leaves_no_orphan_rows_however_deep(
    storage: Storage, database_path: Path
) -> None:
    messages = tuple(
        ImportedMessage(
            parent=position - 1 if position else None, role="user", content="x", status="done"
        )
        for position in range(1500)
    )
    imported = ImportedConversation(
        title="deep", system_prompt=None, sampling={}, pinned=False, head=None, messages=messages
    )
    (conversation_id,) = await storage.conversations.add_imports([imported])
    kept = await storage.conversations.add_turn(new_turn())
    _, _, path = await storage.conversations.view(conversation_id)
    assert len(path) == 1500
    await storage.conversations.hide(conversation_id)
    await storage.conversations.purge(conversation_id)
    with pytest.raises(MissingRowError):
        await storage.conversations.restore(conversation_id)
    with closing(sqlite3.connect(database_path)) as connection:
        owners = connection.execute("select distinct conversation_id from messages").fetchall()
        assert connection.execute("pragma foreign_key_check").fetchall() == []
    assert owners == [(kept.conversation_id,)]


async def test_an_imported_tree_gets_new_ids_and_keeps_its_shape(storage: Storage) -> None:
    first = ImportedMessage(parent=None, role="user", content="q", status="done")
    answers = [
        ImportedMessage(
            parent=0,
            role="assistant",
            content=text,
            status="done",
            generation_id="old",
            candidate_index=index,
        )
        for index, text in enumerate(("a", "b"))
    ]
    imported = ImportedConversation(
        title="t",
        system_prompt="be brief",
        sampling={"top_p": 0.9},
        pinned=True,
        head=1,
        messages=(first, *answers),
    )
    one, two = await storage.conversations.add_imports([imported, imported])
    assert one != two
    record, tree, messages = await storage.conversations.messages(one)
    assert (record.title, record.system_prompt, record.pinned) == ("t", "be brief", True)
    assert [m.content for m in messages] == ["q", "a", "b"]
    assert [await storage.conversations.token_ids(m.id) for m in messages] == [None] * 3
    assert tree.path(record.head_id) == [messages[0].id, messages[1].id]
    assert messages[1].generation_id == messages[2].generation_id != "old"


async def test_simultaneous_turns_are_all_kept_in_one_order(storage: Storage) -> None:
    first = await storage.conversations.add_turn(new_turn())
    place = {"conversation_id": first.conversation_id, "parent_id": first.answer_ids[0]}
    await asyncio.gather(
        *(storage.conversations.add_turn(new_turn(f"{i}", **place)) for i in range(10))
    )
    _, tree, messages = await storage.conversations.messages(first.conversation_id)
    times = [m.created_at for m in messages]
    assert len(messages) == 22
    assert times == sorted(set(times))
    record = await storage.conversations.get(first.conversation_id)
    assert tree.viewed_leaf(first.user_message_id) == record.head_id


async def test_many_imports_are_stored_in_pieces_but_all_or_none(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.importing.ROWS_PER_STATEMENT", 3)
    messages = tuple(
        ImportedMessage(parent=i - 1 if i else None, role="user", content=f"{i}", status="done")
        for i in range(8)
    )
    imported = [
        ImportedConversation(
            title=f"{n}",
            system_prompt=None,
            sampling={},
            pinned=False,
            head=None,
            messages=messages[:n],
        )
        for n in (8, 0, 1, 2)
    ]
    ids = await storage.conversations.add_imports(imported)
    stored = [await storage.conversations.messages(each) for each in ids]
    assert [(record.title, len(rows)) for record, _, rows in stored] == [
        ("8", 8),
        ("0", 0),
        ("1", 1),
        ("2", 2),
    ]
    broken = ImportedMessage(parent=None, role=None, content="x", status="done")  # pyright: ignore[reportArgumentType]
    with pytest.raises(StorageError):
        await storage.conversations.add_imports(
            [*imported, replace(imported[0], messages=(broken,))]
        )
    assert len((await storage.conversations.page(None, 9)).records) == 4


@pytest.mark.parametrize("is_again", [False, True])
async def test_an_import_that_is_to_end_stores_nothing(storage: Storage, is_again: bool) -> None:
    store = storage.conversations
    messages = tuple(
        ImportedMessage(parent=None, role="user", content=f"{i}", status="done", own_id=f"{i}")
        for i in range(1200)
    )
    imported = ImportedConversation(
        title="t",
        system_prompt=None,
        sampling={},
        pinned=False,
        head=None,
        messages=messages,
        origin="x",
    )
    add = store.add_imports if is_again else store.add_new_imports
    num_calls = 0

    def count() -> None:
        nonlocal num_calls
        num_calls += 1

    def end_at_last() -> None:
        count()
        if num_calls == num_wanted:
            raise TimeoutError

    await add([imported], count)
    for conversation in (await store.page(None, 9)).records:
        await store.purge(conversation.id)
    num_wanted, num_calls = num_calls, 0
    assert num_wanted >= 3
    with pytest.raises(TimeoutError):
        await add([imported], end_at_last)
    assert (await store.page(None, 9)).records == ()
