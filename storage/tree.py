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
            viewed = self.nodes[message_id].last_viewed_child_id
            message_id = viewed if viewed and viewed in self.nodes else children[-1]
        return message_id

    def first_leaf(self) -> str | None:
        """The leaf below the newest of the first messages; None when there is no message."""
        roots = self._children.get(None)
        return self.viewed_leaf(roots[-1]) if roots else None

    def below(self, message_id: str) -> list[str]:
        """The message and everything that follows from it, in order of creation."""
        found = {message_id}
        for node in self.nodes.values():
            if node.parent_id in found:
                found.add(node.id)
        return [id_ for id_ in self.nodes if id_ in found]

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
