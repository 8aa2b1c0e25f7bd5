"""Reads ChatGPT's data export: `conversations.json`, a list of conversations with a `mapping` of nodes.

A node is {id, parent, children, message}; `message` is null or {author: {role}, content: {content_type, parts}, recipient,
metadata}. `current_node` is the leaf on show. Words to and from tools are left out, pictures and files leave `[attachment]`.
"""

from chat.fields import Fields
from chat.import_origin import origin_of
from chat.import_tree import Links, Said, head_of, imported_title, read_tree
from chat.texts import check_pairs, without_nul
from storage.records import ImportedConversation

_LINKS = Links("parent", "children")
_ROLES = ("system", "user", "assistant", "tool")


def read_chatgpt(conversation: Fields) -> ImportedConversation:
    """Check one conversation. Raises RequestError with the field's path."""
    tree = read_tree(conversation.children("mapping"), _LINKS, _read_node)
    title = imported_title(conversation, tree)
    own_id = conversation.get("conversation_id") or conversation.get("id")
    names = ("chatgpt", own_id or (title, conversation.get("create_time")))
    return ImportedConversation(
        title=title,
        system_prompt=tree.system_prompt,
        sampling={},
        pinned=False,
        head=head_of(tree, conversation, "current_node"),
        messages=tree.messages,
        created_at=conversation.seconds("create_time"),
        updated_at=conversation.seconds("update_time"),
        origin=origin_of(names, tree.messages),
    )


def _read_node(node: Fields) -> Said | None:
    if node.get("message") is None:
        return None
    message = node.child("message")
    role = message.child("author").choice("role", _ROLES)
    is_hidden = (message.mapping("metadata") or {}).get("is_visually_hidden_from_conversation")
    if role == "tool" or is_hidden or message.get("recipient") not in (None, "all"):
        return None
    return Said(role, _text(message.child("content")))


def _text(content: Fields) -> str:
    kind = content.text("content_type")
    if kind == "code":
        return f"```\n{content.text('text')}\n```"
    if kind not in ("text", "multimodal_text"):
        return ""
    path = content.path_of("parts")
    return "\n\n".join(_part(part, path) for part in content.items("parts"))


def _part(part: object, path: str) -> str:
    if not isinstance(part, str):
        return "[attachment]"
    check_pairs(part, path)
    return without_nul(part)
