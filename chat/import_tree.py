"""A tree given as nodes that name their parent and their children, as other programs export it.

What is shown of it are a person's words and the answers. Other nodes (roots without a message, tools, empty ones) are left
out, and what is below them belongs to what is above them; the first system message becomes the system prompt.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from chat.fields import Fields
from chat.texts import one_line
from chat.turns import MAX_TITLE_LENGTH, check_system_prompt, title_of
from storage.records import ImportedMessage

UNTITLED = "Imported chat"


@dataclass(frozen=True, slots=True)
class Said:
    """What a node says. `role`: system, user or assistant."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Links:
    """How a format calls a node's parent and children."""

    parent: str
    children: str


@dataclass(frozen=True, slots=True)
class ImportedTree:
    """Messages, parents first and siblings in their order. `places`: by node, the message it is or that is above it."""

    system_prompt: str | None
    messages: tuple[ImportedMessage, ...]
    places: Mapping[str, int | None]


def read_tree(
    nodes: Mapping[str, Fields], links: Links, read: Callable[[Fields], Said | None]
) -> ImportedTree:
    """Walk from the roots down. Raises RequestError with the place where links miss, contradict each other or run in a circle."""
    places: dict[str, int | None] = {}
    messages: list[ImportedMessage] = []
    system_prompt: str | None = None
    roots = [key for key, node in nodes.items() if node.get(links.parent) is None]
    pending: list[tuple[str, str | None]] = [(key, None) for key in reversed(roots)]
    while pending:
        key, parent = pending.pop()
        above = None if parent is None else places[parent]
        said = read(nodes[key])
        if said is None or said.role == "system" or not said.content.strip():
            places[key] = above
            if said is not None and said.role == "system" and system_prompt is None:
                system_prompt = check_system_prompt(said.content, nodes[key].path)
        else:
            places[key] = len(messages)
            messages.append(_message(said, above))
        pending += [(child, key) for child in reversed(_children(key, nodes, links, places))]
    for key, node in nodes.items():
        if key not in places:
            raise node.error(
                links.parent, f"must lead to a root, by nodes that list it in {links.children}"
            )
    return ImportedTree(system_prompt, tuple(messages), places)


def head_of(tree: ImportedTree, conversation: Fields, name: str) -> int | None:
    """The message that a field calls the current one; None where it calls none."""
    value = conversation.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or value not in tree.places:
        raise conversation.error(name, "must name a node of this conversation")
    return tree.places[value]


def imported_title(conversation: Fields, tree: ImportedTree) -> str:
    """The title in one line, cut where it is too long; without one, the first words."""
    title = one_line(conversation.optional_text("title") or "")[:MAX_TITLE_LENGTH].strip()
    return title or (title_of(tree.messages[0].content) if tree.messages else UNTITLED)


def _message(said: Said, parent: int | None) -> ImportedMessage:
    return ImportedMessage(parent=parent, role=said.role, content=said.content, status="done")


def _children(
    key: str, nodes: Mapping[str, Fields], links: Links, places: Mapping[str, object]
) -> list[str]:
    children = nodes[key].texts(links.children)
    seen: set[str] = set()
    for position, child in enumerate(children):
        field = f"{links.children}[{position}]"
        if child not in nodes:
            raise nodes[key].error(field, "must name a node of this conversation")
        if child in places or child in seen:
            raise nodes[key].error(field, "must not come twice")
        seen.add(child)
        if nodes[child].get(links.parent) != key:
            raise nodes[child].error(links.parent, "must name the node that lists it")
    return children
