"""A copy of a conversation."""

from collections.abc import Iterator
from itertools import count

from storage.records import AnswerText
from storage.storage import Storage
from tests.storage.turns import new_turn


def numbered(title: str) -> Iterator[str]:
    return (f"{title} {number}" for number in count(1))


async def test_a_copy_has_the_same_tree_under_new_ids(storage: Storage) -> None:
    store = storage.conversations
    first = await store.add_turn(new_turn("q", title="T", seeds=(1, 2)))
    await store.update(first.conversation_id, {"system_prompt": "be brief", "pinned": True})
    await store.save_texts({first.answer_ids[1]: AnswerText("b", (7, 8))})
    await store.select(first.answer_ids[1])
    copy_id = await store.duplicate(first.conversation_id, numbered)
    record, tree, messages = await store.messages(copy_id)
    assert (record.title, record.system_prompt, record.pinned) == ("T 1", "be brief", False)
    assert [(m.content, m.seed, m.status) for m in messages] == [
        ("q", None, "done"),
        ("", 1, "interrupted"),
        ("b", 2, "interrupted"),
    ]
    assert not {m.id for m in messages} & {first.user_message_id, *first.answer_ids}
    assert tree.path(record.head_id) == [messages[0].id, messages[2].id]
    assert tree.viewed_leaf(messages[0].id) == messages[2].id
    assert messages[1].generation_id == messages[2].generation_id != "g1"
    assert await store.token_ids(messages[2].id) == (7, 8)
    await store.purge(first.conversation_id)
    assert len((await store.messages(copy_id))[2]) == 3


async def test_open_candidates_stay_open_and_deleted_branches_stay_behind(storage: Storage) -> None:
    store = storage.conversations
    first = await store.add_turn(new_turn("q", seeds=(None, None, None)))
    await store.hide_branch(first.answer_ids[0])
    again = {"conversation_id": first.conversation_id, "parent_id": first.user_message_id}
    await store.add_turn(new_turn(None, generation_id="g2", seeds=(None, None), **again))
    record, tree, messages = await store.messages(
        await store.duplicate(first.conversation_id, numbered)
    )
    assert len(messages) == 5
    assert record.open_generation_id is not None
    assert len(tree.answers(record.open_generation_id)) == 2
    assert record.head_id == tree.answers(record.open_generation_id)[0]


async def test_a_copy_has_the_first_title_that_nobody_has(storage: Storage) -> None:
    store = storage.conversations
    first = await store.add_turn(new_turn("q", title="T", seeds=(1,)))
    copies = [await store.duplicate(first.conversation_id, numbered) for _ in range(3)]
    assert [(await store.get(each)).title for each in copies] == ["T 1", "T 2", "T 3"]
    await store.hide(copies[1])
    again = await store.duplicate(first.conversation_id, numbered)
    assert (await store.get(again)).title == "T 2"
