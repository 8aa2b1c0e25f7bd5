"""A conversation's tree in a few lines of plain Python: what its history must be, whatever was done.

Messages are numbered in the order of their making. Nothing here knows ids, rows or engines.
"""

from dataclasses import dataclass, field
from itertools import pairwise


@dataclass
class Node:
    """A message; `viewed` is the child last on show."""

    parent: int | None
    role: str
    content: str
    viewed: int | None = None
    hidden_by: int | None = None


@dataclass
class TreeModel:
    """All messages ever made, the one on show, and whether candidates are open."""

    nodes: list[Node] = field(default_factory=list)
    head: int | None = None
    open: list[int] = field(default_factory=list)

    # --- reading -----------------------------------------------------------------------------

    def visible(self) -> list[int]:
        return [i for i, node in enumerate(self.nodes) if node.hidden_by is None]

    def children(self, parent: int | None) -> list[int]:
        return [i for i in self.visible() if self.nodes[i].parent == parent]

    def path(self) -> list[int]:
        path, at = [], self.head
        while at is not None:
            path.append(at)
            at = self.nodes[at].parent
        return path[::-1]

    def of_role(self, role: str) -> list[int]:
        return [i for i in self.visible() if self.nodes[i].role == role]

    def leaf(self, at: int) -> int:
        while children := self.children(at):
            viewed = self.nodes[at].viewed
            at = viewed if viewed in children else children[-1]
        return at

    def below(self, at: int) -> list[int]:
        found = [at]
        for child in self.children(at):
            found += self.below(child)
        return found

    # --- doing -------------------------------------------------------------------------------

    def show(self, at: int | None) -> None:
        self.head = at
        path = self.path()
        for parent, child in pairwise(path):
            self.nodes[parent].viewed = child

    def turn(self, parent: int | None, content: str | None, answers: list[str]) -> list[int]:
        """A user's message, if there is one, and the answers below it; returns the answers."""
        if content is not None:
            self.nodes.append(Node(parent, "user", content))
            parent = len(self.nodes) - 1
        first = len(self.nodes)
        self.nodes += [Node(parent, "assistant", text) for text in answers]
        made = list(range(first, len(self.nodes)))
        self.open = made if len(made) > 1 else []
        self.show(first)
        return made

    def select(self, at: int) -> None:
        self.open = []
        self.show(self.leaf(at))

    def delete(self, at: int) -> int:
        """Returns how many messages went."""
        gone = self.below(at)
        for each in gone:
            self.nodes[each].hidden_by = at
        self.open = []
        if self.head in gone:
            parent = self.nodes[at].parent
            roots = self.children(None)
            above = self.leaf(roots[-1]) if roots else None
            self.show(above if parent is None else self.leaf(parent))
        return len(gone)

    def can_restore(self) -> list[int]:
        return [
            i
            for i, node in enumerate(self.nodes)
            if node.hidden_by == i
            and (node.parent is None or self.nodes[node.parent].hidden_by is None)
        ]

    def restore(self, at: int) -> None:
        for node in self.nodes:
            if node.hidden_by == at:
                node.hidden_by = None
        if self.head is None:
            self.show(self.leaf(at))
