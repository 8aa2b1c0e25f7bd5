"""The tree of a path and its siblings says what the whole tree says of them."""

import random

from storage.records import ImportedConversation, ImportedMessage
from storage.storage import Storage
from storage.tree import MessageTree
from tests.storage.turns import new_turn


async def both(storage: Storage, conversation_id: str) -> tuple[MessageTree, MessageTree]:
    """What a view loads, and everything."""
    return (
        (await storage.conversations.view(conversation_id))[1],
        (await storage.conversations.messages(conversation_id))[1],
    )


async def test_a_path_has_all_siblings_of_its_messages_and_nothing_else(storage: Storage) -> None:
    chance = random.Random(3)
    messages = tuple(
        ImportedMessage(
            parent=chance.randrange(i) if i and chance.random() < 0.95 else None,
            role="user",
            content=str(i),
            status="done",
        )
        for i in range(200)
    )
    for head in (0, 17, 60, 199):
        imported = ImportedConversation(
            title="t", system_prompt=None, sampling={}, pinned=False, head=head, messages=messages
        )
        (conversation_id,) = await storage.conversations.add_imports([imported])
        head_id = (await storage.conversations.get(conversation_id)).head_id
        part, whole = await both(storage, conversation_id)
        path = part.path(head_id)
        assert path == whole.path(head_id)
        siblings = [part.siblings(each) for each in path]
        assert siblings == [whole.siblings(each) for each in path]
        shown = {each for those in siblings for each in those}
        assert part.nodes.keys() == shown | set(whole.siblings(path[0]))
        assert len(part.nodes) < len(whole.nodes)


async def test_open_candidates_are_beside_the_head(storage: Storage) -> None:
    turn = await storage.conversations.add_turn(new_turn(seeds=(None, None, None)))
    part, whole = await both(storage, turn.conversation_id)
    assert part.answers("g1") == whole.answers("g1") == list(turn.answer_ids)


async def test_a_deleted_branch_is_no_sibling(storage: Storage) -> None:
    turn = await storage.conversations.add_turn(new_turn(seeds=(None, None, None)))
    await storage.conversations.hide_branch(turn.answer_ids[1])
    part, _ = await both(storage, turn.conversation_id)
    assert part.siblings(turn.answer_ids[0]) == (turn.answer_ids[0], turn.answer_ids[2])
