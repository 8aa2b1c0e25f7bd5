"""Reads Open WebUI's export: a list of {title, chat, created_at, updated_at}.

`chat.history` holds `messages`, by id {id, parentId, childrenIds, role, content, timestamp}, and `currentId`, the one on
show. `chat.params.system` is the system prompt.
"""

from chat.fields import Fields
from chat.import_origin import origin_of
from chat.import_tree import ImportedTree, Links, Said, head_of, imported_title, read_tree
from chat.turns import check_system_prompt
from storage.records import ImportedConversation

_LINKS = Links("parentId", "childrenIds")
_ROLES = ("system", "user", "assistant", "tool")


def read_open_webui(conversation: Fields) -> ImportedConversation:
    """Check one conversation. Raises RequestError with the field's path."""
    chat = conversation.child("chat")
    history = chat.child("history")
    tree = read_tree(history.children("messages"), _LINKS, _read_message)
    title = imported_title(conversation if conversation.get("title") else chat, tree)
    names = ("open webui", conversation.get("id") or (title, conversation.get("created_at")))
    return ImportedConversation(
        title=title,
        system_prompt=_system_prompt(chat, tree),
        sampling={},
        pinned=conversation.get("pinned") is True,
        head=head_of(tree, history, "currentId"),
        messages=tree.messages,
        created_at=conversation.seconds("created_at"),
        updated_at=conversation.seconds("updated_at"),
        origin=origin_of(names, tree.messages),
    )


def _read_message(message: Fields) -> Said | None:
    role = message.choice("role", _ROLES)
    return None if role == "tool" else Said(role, message.text("content"))


def _system_prompt(chat: Fields, tree: ImportedTree) -> str | None:
    if chat.get("params") is None:
        return tree.system_prompt
    params = chat.child("params")
    own = check_system_prompt(params.optional_text("system"), params.path_of("system"))
    return own or tree.system_prompt
