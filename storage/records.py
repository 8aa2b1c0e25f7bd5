"""What the storage room takes and gives: frozen rows, never live ORM objects."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

Json = Mapping[str, Any]
DROP_OLDEST = "drop_oldest"
WHEN_FULL = ("stop", DROP_OLDEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationRecord:
    """A row of `conversations`. `when_full`, one of WHEN_FULL: what happens when a prompt does not fit."""

    id: str
    title: str
    system_prompt: str | None
    when_full: str
    sampling: Json
    head_id: str | None
    open_generation_id: str | None
    pinned: bool
    owner: str | None
    created_at: datetime
    updated_at: datetime
    deleted_at: datetime | None


@dataclass(frozen=True, slots=True)
class ConversationPage:
    """A part of the list. `next` is where the one after it begins (an opaque text), None at the end."""

    records: tuple[ConversationRecord, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class Hit:
    """A conversation that was found, and a text of it that has all the words: a message's, or the title (`message_id` None).

    `other_branch`: the message is not on the path to the head.
    """

    record: ConversationRecord
    message_id: str | None
    text: str
    other_branch: bool


@dataclass(frozen=True, slots=True)
class HitPage:
    """A part of what was found; `next` as in `ConversationPage`."""

    hits: tuple[Hit, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class PathMessage:
    """What a prompt needs of a message."""

    id: str
    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRecord:
    """A row of `messages`, but for its token ids, which only those need who cut it."""

    id: str
    conversation_id: str
    parent_id: str | None
    last_viewed_child_id: str | None
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
    sampling: Json | None
    usage: Json | None
    timings: Json | None
    kv: Json | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class OutlineRow:
    """A message and how it begins."""

    id: str
    parent_id: str | None
    role: str
    status: str
    beginning: str


@dataclass(frozen=True, slots=True)
class AnswerText:
    """What an answer says, and the tokens that the model drew for it, EOS excepted.

    The tokens' text may reach beyond `content`: what could be the beginning of a stop string is not shown at once, and
    the stop string itself never.
    """

    content: str
    token_ids: tuple[int, ...]


NOTHING = AnswerText("", ())


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A message without its contents: enough to find paths, siblings and candidates."""

    id: str
    parent_id: str | None
    last_viewed_child_id: str | None
    role: str
    generation_id: str | None


@dataclass(frozen=True, slots=True)
class NewAnswer:
    """What is known of an answer before it is drawn; `sampling` is kept with it."""

    seed: int | None
    sampling: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTurn:
    """A turn to store. `conversation_id` None makes a conversation called `title` with `system_prompt`.

    With `content` a user message is made below `parent_id` and the answers below it; without, the answers go below
    `parent_id`. Each of `answers` starts as `beginning`, is drawn by `model`, and was not shown the oldest
    `dropped_messages` of its path.
    """

    conversation_id: str | None
    title: str
    parent_id: str | None
    content: str | None
    generation_id: str
    answers: tuple[NewAnswer, ...]
    model: str
    dropped_messages: int = 0
    system_prompt: str | None = None
    beginning: AnswerText = NOTHING


@dataclass(frozen=True, slots=True)
class StoredTurn:
    """The ids a turn was given."""

    conversation_id: str
    user_message_id: str
    answer_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChangedBranch:
    """A branch that was deleted or restored: how many messages it has, and what its conversation shows now."""

    conversation_id: str
    num_messages: int
    head_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerEnd:
    """The final state of an answer. `status`: done | stopped | interrupted | error."""

    content: str
    token_ids: tuple[int, ...]
    status: str
    finish_reason: str
    usage: Json | None
    timings: Json | None
    kv: Json | None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedMessage:
    """A message of an imported conversation; `parent` is the position of its parent among the messages, which is smaller.

    `own_id` is its id where a database of ours has written the file.
    """

    parent: int | None
    role: str
    content: str
    status: str
    error: str | None = None
    finish_reason: str | None = None
    generation_id: str | None = None
    candidate_index: int | None = None
    model: str | None = None
    dropped_messages: int | None = None
    seed: int | None = None
    sampling: Json | None = None
    usage: Json | None = None
    timings: Json | None = None
    kv: Json | None = None
    own_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedConversation:
    """A conversation to store under new ids; `head` is a position among `messages`. Without times it is from now.

    `origin` tells it, as it is in its file, from all others; 32 digits.
    """

    title: str
    system_prompt: str | None
    sampling: Json
    pinned: bool
    head: int | None
    messages: tuple[ImportedMessage, ...] = field(default=())
    created_at: datetime | None = None
    updated_at: datetime | None = None
    when_full: str = WHEN_FULL[0]
    origin: str | None = None


@dataclass(frozen=True, slots=True)
class StoredImport:
    """Where a conversation of a file is now; not `is_new`: it was here before."""

    conversation_id: str
    is_new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSample:
    """A row of `engine_samples`; `time` is whole seconds since the epoch, counters are totals since the engine's start.

    `engine_started` (seconds since the epoch) tells whose totals these are. `ttft`, `itl` and `queue` are totals too: how many
    values lay in which bucket, as who wrote them packs that.
    """

    time: int
    num_steps: int
    blocks_total: int
    blocks_private: int
    blocks_shared: int
    blocks_cached: int
    blocks_free: int
    block_size: int
    tokens_capacity: int
    tokens_stored: int
    num_running: int
    num_waiting: int
    waiting_capacity: int
    waiting_budget: int
    preemptions: int
    forks: int
    cow_copies: int
    prefix_queries: int
    prefix_hits: int
    generated_tokens: int
    prompt_tokens: int
    requests: int
    bytes_paged: int
    bytes_max_len: int
    bytes_pow2: int
    bytes_exact: int
    engine_started: int = 0
    blocks_saved: int = 0
    bytes_fragmented: int = 0
    waiting_deferred: int = 0
    ttft: bytes | None = None
    itl: bytes | None = None
    queue: bytes | None = None


@dataclass(frozen=True)
class SampleBucket:
    """Samples of one engine in a stretch of time: the last of them, and means of gauges over all."""

    last: EngineSample
    blocks_in_use: float
    tokens_stored: float
    num_running: float
    num_waiting: float
