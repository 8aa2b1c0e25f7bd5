"""Deleting branches and bringing them back."""

import pytest

from storage.errors import MissingRowError
from storage.storage import Storage
from tests.storage.turns import new_turn


class Tree:
    """A question with two answers; below the first a second turn."""

    def __init__(self, storage: Storage) -> None:
        self.store = storage.conversations

    async def build(self) -> "Tree":
        first = await self.store.add_turn(new_turn("q1", seeds=(None, None)))
        self.conversation, self.q1 = first.conversation_id, first.user_message_id
        self.a1, self.b1 = first.answer_ids
        place = {"conversation_id": self.conversation, "parent_id": self.a1}
        second = await self.store.add_turn(new_turn("q2", generation_id="g2", **place))
        self.q2, (self.a2,) = second.user_message_id, second.answer_ids
        return self

    async def ids(self) -> set[str]:
        return {m.id for m in (await self.store.messages(self.conversation))[2]}

    async def head(self) -> str | None:
        return (await self.store.get(self.conversation)).head_id


@pytest.fixture
async def tree(storage: Storage) -> Tree:
    return await Tree(storage).build()


async def test_a_branch_goes_with_all_below_it_and_the_head_moves_beside_it(tree: Tree) -> None:
    changed = await tree.store.hide_branch(tree.a1)
    assert (changed.num_messages, changed.head_id) == (3, tree.b1)
    assert await tree.ids() == {tree.q1, tree.b1}
    assert await tree.head() == tree.b1
    _, view, _ = await tree.store.view(tree.conversation)
    assert view.siblings(tree.b1) == (tree.b1,)
    for gone in (tree.a1, tree.q2, tree.a2):
        with pytest.raises(MissingRowError):
            await tree.store.message(gone)
        with pytest.raises(MissingRowError):
            await tree.store.path(tree.conversation, gone)
        with pytest.raises(MissingRowError):
            await tree.store.select(gone)
        with pytest.raises(MissingRowError):
            await tree.store.hide_branch(gone)


async def test_a_head_elsewhere_stays(tree: Tree) -> None:
    assert (await tree.store.hide_branch(tree.b1)).head_id == tree.a2


async def test_without_neighbours_the_head_moves_up(tree: Tree) -> None:
    assert (await tree.store.hide_branch(tree.q2)).head_id == tree.a1


async def test_without_anything_left_there_is_no_head_and_restoring_sets_one(tree: Tree) -> None:
    assert (await tree.store.hide_branch(tree.q1)).head_id is None
    record, _, messages = await tree.store.view(tree.conversation)
    assert (record.head_id, messages) == (None, {})
    restored = await tree.store.restore_branch(tree.q1)
    assert (restored.num_messages, restored.head_id) == (5, tree.a2)
    assert len(await tree.ids()) == 5


async def test_it_comes_back_as_it_went(tree: Tree) -> None:
    await tree.store.hide_branch(tree.q2)
    await tree.store.hide_branch(tree.a1)
    restored = await tree.store.restore_branch(tree.a1)
    assert (restored.num_messages, restored.head_id) == (1, tree.b1)
    assert await tree.ids() == {tree.q1, tree.a1, tree.b1}
    assert (await tree.store.restore_branch(tree.q2)).num_messages == 2
    assert len(await tree.ids()) == 5


async def test_only_what_was_deleted_itself_below_what_is_there_comes_back(tree: Tree) -> None:
    with pytest.raises(MissingRowError, match="is not deleted"):
        await tree.store.restore_branch(tree.a1)
    await tree.store.hide_branch(tree.q2)
    await tree.store.hide_branch(tree.a1)
    with pytest.raises(MissingRowError, match="is not deleted"):
        await tree.store.restore_branch(tree.b1)
    with pytest.raises(MissingRowError, match="restore that first"):
        await tree.store.restore_branch(tree.q2)


async def test_open_candidates_are_closed(tree: Tree) -> None:
    third = {"conversation_id": tree.conversation, "parent_id": tree.q1, "generation_id": "g3"}
    turn = await tree.store.add_turn(new_turn(None, seeds=(None, None), **third))
    await tree.store.hide_branch(turn.answer_ids[0])
    assert (await tree.store.get(tree.conversation)).open_generation_id is None
