"""Pure functions over a conversation's tree, given as its nodes oldest first."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from storage.records import TreeNode


class MessageTree:
    """Nodes by id and children by parent (None for first messages), each in order of creation."""

    def __init__(self, nodes: Iterable[TreeNode]) -> None:
        self.nodes: Mapping[str, TreeNode] = {node.id: node for node in nodes}
        self._children: dict[str | None, list[str]] = {}
        for node in self.nodes.values():
            self._children.setdefault(node.parent_id, []).append(node.id)

    def path(self, message_id: str | None) -> list[str]:
        """Ids from the first message to `message_id`; empty for None."""
        path = []
        while message_id is not None:
            path.append(message_id)
            message_id = self.nodes[message_id].parent_id
        return path[::-1]

    def siblings(self, message_id: str) -> tuple[str, ...]:
        """All children of the message's parent, itself included."""
        return tuple(self._children[self.nodes[message_id].parent_id])

    def viewed_leaf(self, message_id: str) -> str:
        """The leaf most recently viewed at or below a message; below one never viewed, the newest."""
        while children := self._children.get(message_id):
            message_id = self.nodes[message_id].last_viewed_child_id or children[-1]
        return message_id

    def answers(self, generation_id: str) -> list[str]:
        """Ids of a generation's answers, in order of candidate."""
        return [node.id for node in self.nodes.values() if node.generation_id == generation_id]

    def changed_views(self, path: Sequence[str]) -> list[tuple[str, str]]:
        """(parent, child) pairs of a path whose parent was last viewed with another child."""
        pairs = pairwise(path)
        return [
            (parent, child)
            for parent, child in pairs
            if self.nodes[parent].last_viewed_child_id != child
        ]
