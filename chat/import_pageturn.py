"""Reads our own export: what chat/portable.py writes, from this version and older ones."""

from chat.fields import Fields
from chat.import_origin import origin_of
from chat.turns import check_kept_sampling, check_system_prompt, check_title
from storage.records import WHEN_FULL, ImportedConversation, ImportedMessage

FORMAT, VERSION = "pageturn.conversation", 1
_STATUSES = ("done", "stopped", "interrupted", "error", "generating")
_ROLES = ("user", "assistant")


def read_pageturn(document: Fields) -> ImportedConversation:
    """Check an exported conversation. Raises RequestError with the field's path."""
    document.choice("format", (FORMAT,))
    document.choice("version", (VERSION,))
    conversation = document.child("conversation")
    positions: dict[str, int] = {}
    messages = tuple(
        _read_message(fields, position, positions)
        for position, fields in enumerate(document.objects("messages"))
    )
    sampling = conversation.mapping("sampling") or {}
    check_kept_sampling(sampling, conversation.path_of("sampling"))
    system_prompt = conversation.optional_text("system_prompt")
    title = check_title(conversation.get("title"), conversation.path_of("title"))
    names = tuple(positions) or (title, conversation.get("created_at"))
    return ImportedConversation(
        title=title,
        system_prompt=check_system_prompt(system_prompt, conversation.path_of("system_prompt")),
        when_full=conversation.choice("when_full", (None, *WHEN_FULL)) or WHEN_FULL[0],
        sampling=sampling,
        pinned=bool(conversation.choice("pinned", (False, True))),
        head=conversation.reference("head_id", positions),
        messages=messages,
        created_at=conversation.time("created_at"),
        updated_at=conversation.time("updated_at"),
        origin=origin_of(names, messages),
    )


def _read_message(fields: Fields, position: int, positions: dict[str, int]) -> ImportedMessage:
    """A message whose parent, if it has one, came before it. An answer that was streaming is `interrupted`."""
    parent = fields.reference("parent_id", positions)
    own_id = fields.text("id")
    if own_id in positions:
        raise fields.error("id", "must not come twice")
    positions[own_id] = position
    status = fields.choice("status", _STATUSES)
    return ImportedMessage(
        parent=parent,
        role=fields.choice("role", _ROLES),
        content=fields.text("content"),
        error=fields.optional_text("error"),
        status="interrupted" if status == "generating" else status,
        finish_reason=fields.choice("finish_reason", (None, "stop", "length", "abort", "error")),
        generation_id=fields.optional_text("generation_id"),
        candidate_index=fields.integer("candidate_index", 2**31),
        model=fields.optional_text("model"),
        dropped_messages=fields.integer("dropped_messages", 2**31),
        seed=fields.integer("seed", 2**64),
        sampling=fields.mapping("sampling"),
        usage=fields.mapping("usage"),
        timings=fields.mapping("timings"),
        kv=fields.mapping("kv"),
        own_id=own_id,
    )
