"""Paths, siblings and viewed leaves of a small tree."""

import pytest

from storage.records import TreeNode
from storage.tree import MessageTree

# q1 -> a1 -> q2 -> a3      a1 was viewed last with q2; q1 never with a particular answer
#    -> a2
NODES = [
    TreeNode("q1", None, None, "user", None),
    TreeNode("a1", "q1", "q2", "assistant", "g"),
    TreeNode("a2", "q1", None, "assistant", "g"),
    TreeNode("q2", "a1", None, "user", None),
    TreeNode("a3", "q2", None, "assistant", "h"),
    TreeNode("q3", "a1", None, "user", None),
]


@pytest.fixture
def tree() -> MessageTree:
    return MessageTree(NODES)


def test_paths_go_from_the_first_message(tree: MessageTree) -> None:
    assert tree.path("a3") == ["q1", "a1", "q2", "a3"]
    assert tree.path(None) == []


def test_siblings_share_a_parent(tree: MessageTree) -> None:
    assert tree.siblings("a2") == ("a1", "a2")
    assert tree.siblings("q1") == ("q1",)


def test_the_viewed_leaf_follows_what_was_seen_and_else_the_newest(tree: MessageTree) -> None:
    assert tree.viewed_leaf("a1") == "a3"
    assert tree.viewed_leaf("q1") == "a2"
    assert tree.viewed_leaf("q3") == "q3"


def test_only_changed_views_are_written(tree: MessageTree) -> None:
    assert tree.changed_views(["q1", "a1", "q2", "a3"]) == [("q1", "a1"), ("q2", "a3")]


def test_answers_of_a_generation(tree: MessageTree) -> None:
    assert tree.answers("g") == ["a1", "a2"]
