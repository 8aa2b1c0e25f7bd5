"""Conversations as other programs export them, small and made up; tests break them one field at a time.

Each has an id of its own, as if it were exported for the first time.
"""

import uuid
from typing import Any


def chatgpt() -> dict[str, Any]:
    """A question with two answers, of which the second is on show; a tool call and a hidden message in between."""
    return {
        "conversation_id": str(uuid.uuid4()),
        "title": "Bread",
        "create_time": 1_700_000_000.5,
        "update_time": 1_700_000_100,
        "current_node": "a2",
        "mapping": {
            "root": {"id": "root", "message": None, "parent": None, "children": ["sys"]},
            "sys": _node("sys", "root", ["q"], "system", "Be brief."),
            "q": _node("q", "sys", ["call", "a1"], "user", "How is bread made?"),
            "call": _node("call", "q", ["tool"], "assistant", "search()", recipient="browser"),
            "tool": _node("tool", "call", ["a2"], "tool", "results"),
            "a1": _node("a1", "q", [], "assistant", "With flour."),
            "a2": _node("a2", "tool", [], "assistant", "With yeast.", "and time."),
        },
    }


def _node(
    own: str, parent: str, children: list[str], role: str, *parts: Any, recipient: str = "all"
) -> dict[str, Any]:
    message = {
        "id": own,
        "author": {"role": role, "name": None, "metadata": {}},
        "content": {"content_type": "text", "parts": list(parts)},
        "recipient": recipient,
        "metadata": {},
    }
    return {"id": own, "message": message, "parent": parent, "children": children}


def open_webui() -> dict[str, Any]:
    """Two questions; the first has two answers, of which the first goes on."""
    messages = {
        "q": _message("q", None, ["a", "b"], "user", "Name a river."),
        "a": _message("a", "q", ["q2"], "assistant", "The Rhine."),
        "b": _message("b", "q", [], "assistant", "The Danube."),
        "q2": _message("q2", "a", ["c"], "user", "Another."),
        "c": _message("c", "q2", [], "assistant", "The Elbe."),
    }
    return {
        "id": str(uuid.uuid4()),
        "title": "Rivers",
        "created_at": 1_700_000_000,
        "updated_at": 1_700_000_200,
        "chat": {
            "title": "Rivers",
            "params": {"system": "Be kind."},
            "history": {"messages": messages, "currentId": "c"},
            "messages": [],
        },
    }


def _message(
    own: str, parent: str | None, children: list[str], role: str, content: str
) -> dict[str, Any]:
    return {
        "id": own,
        "parentId": parent,
        "childrenIds": children,
        "role": role,
        "content": content,
        "timestamp": 1_700_000_000,
    }
