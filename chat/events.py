"""Everything that leaves the chat room, frozen. Fields are named as in docs/protocol.md; `chat.wire.to_wire`
turns any of these into JSON values.

`usage`, `timings` and `kv` are mappings in wire form; times are UTC with timezone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

# --- answers to a person's actions ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartedCandidate:
    """One answer that has begun."""

    index: int
    message_id: str


@dataclass(frozen=True, slots=True)
class Started:
    """A turn is stored and its generation runs. The oldest `dropped_messages` of its path are not in its prompt."""

    conversation_id: str
    user_message_id: str
    generation_id: str
    candidates: tuple[StartedCandidate, ...]
    dropped_messages: int


@dataclass(frozen=True, slots=True)
class Selected:
    """The head has moved to the most recently viewed leaf below `message_id`."""

    conversation_id: str
    message_id: str
    head_id: str


# --- events of a generation: `seq` counts from 0 without gaps ------------------------------------


@dataclass(frozen=True, slots=True)
class Progress:
    """How much of the prompt has been computed."""

    generation_id: str
    seq: int
    computed_tokens: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Delta:
    """New text of one candidate, never empty."""

    generation_id: str
    seq: int
    index: int
    text: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """One candidate has ended, and its final state is stored. `status` is its message's; `error` is for people."""

    generation_id: str
    seq: int
    index: int
    status: str
    finish_reason: str
    usage: Mapping[str, Any] | None
    timings: Mapping[str, Any] | None
    kv: Mapping[str, Any] | None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a generation; its conversation is free again."""

    generation_id: str
    seq: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State in place of missed events; `seq` is the last event contained (-1: none yet).

    `texts` by index. `candidates` holds the `Candidate` events among those contained.
    """

    generation_id: str
    seq: int
    texts: tuple[str, ...]
    candidates: tuple[Candidate, ...]


GenerationEvent = Progress | Delta | Candidate | Finished | Snapshot


# --- conversations -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConversationItem:
    """A row of the list of conversations."""

    id: str
    title: str
    pinned: bool
    created_at: datetime
    updated_at: datetime
    running: bool


@dataclass(frozen=True, slots=True)
class ConversationDetail:
    """A conversation's own fields. `sampling` holds what it overrides, in wire form."""

    id: str
    title: str
    pinned: bool
    created_at: datetime
    updated_at: datetime
    running: bool
    system_prompt: str | None
    when_full: str
    sampling: Mapping[str, Any]
    head_id: str | None
    open_generation_id: str | None


@dataclass(frozen=True, slots=True)
class Message:
    """A message and its place in the tree."""

    id: str
    parent_id: str | None
    role: str
    content: str
    status: str
    error: str | None
    finish_reason: str | None
    generation_id: str | None
    candidate_index: int | None
    model: str | None
    dropped_messages: int | None
    seed: int | None
    sampling: Mapping[str, Any] | None
    usage: Mapping[str, Any] | None
    timings: Mapping[str, Any] | None
    kv: Mapping[str, Any] | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class ShownMessage(Message):
    """A message in a window. `sibling_ids` are all children of its parent, itself included, oldest first."""

    sibling_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ConversationView:
    """What a window shows: the path from the first message to the head, and the open candidates.

    `generation_id` is the running generation's.
    """

    conversation: ConversationDetail
    messages: tuple[ShownMessage, ...]
    candidates: tuple[ShownMessage, ...]
    generation_id: str | None


@dataclass(frozen=True, slots=True)
class ConversationTree:
    """A conversation with all its messages, oldest first."""

    conversation: ConversationDetail
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class OutlineNode:
    """A message in an outline: how it begins, in one line."""

    id: str
    parent_id: str | None
    role: str
    status: str
    beginning: str


@dataclass(frozen=True, slots=True)
class Outline:
    """A conversation's whole tree, oldest message first, and the leaf on show."""

    conversation_id: str
    head_id: str | None
    nodes: tuple[OutlineNode, ...]


@dataclass(frozen=True, slots=True)
class Residency:
    """What going on from a message, or from the leaf last viewed below it, finds in the KV pool.

    `cached_tokens` of the `prompt_tokens` so far need not be computed again; `instant` when less than two blocks are missing.
    """

    message_id: str
    leaf_id: str
    prompt_tokens: int
    cached_tokens: int
    instant: bool


@dataclass(frozen=True, slots=True)
class ConversationList:
    """Some of the list, pinned ones first, then newest first; `next` is where the rest begins, None when there is none."""

    items: tuple[ConversationItem, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class FoundConversation:
    """A row of the list that a search found, and where: in a message, or in the title (`message_id` None).

    `snippet` is some of that text, cut into texts that alternate: outside, hit, outside, ...; `other_branch`: whether the
    message is on a branch that is not on show.
    """

    id: str
    title: str
    pinned: bool
    created_at: datetime
    updated_at: datetime
    running: bool
    message_id: str | None
    snippet: tuple[str, ...]
    other_branch: bool


@dataclass(frozen=True, slots=True)
class FoundList:
    """Some of what a search found; `next` as in `ConversationList`."""

    items: tuple[FoundConversation, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class AlreadyHere:
    """A conversation of a file, by its place in it from 0, that was not imported, and which one it is here."""

    position: int
    conversation_id: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A setting of a new conversation that the model can never run, and why."""

    conversation_id: str
    param: str | None
    message: str


@dataclass(frozen=True, slots=True)
class Imported:
    """What a file has brought. `num_empty`: its conversations in which nothing is said or set, which are left out."""

    conversation_ids: tuple[str, ...]
    already_here: tuple[AlreadyHere, ...]
    settings_left_out: tuple[LeftOut, ...]
    num_empty: int


@dataclass(frozen=True, slots=True)
class BranchChange:
    """A branch was deleted or restored: how many messages it has, and what its conversation shows now."""

    conversation_id: str
    message_id: str
    num_messages: int
    head_id: str | None


@dataclass(frozen=True, slots=True)
class ConversationChanged:
    """A row of the list was made or changed."""

    item: ConversationItem


@dataclass(frozen=True, slots=True)
class ConversationRemoved:
    """A conversation was deleted."""

    conversation_id: str


ListEvent = ConversationList | ConversationChanged | ConversationRemoved
ConversationEvent = ConversationView | GenerationEvent | ConversationRemoved
