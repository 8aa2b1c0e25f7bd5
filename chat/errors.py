"""Errors of the chat room. Each has `code` (as in docs/protocol.md), `message` and `param`.

Values that cannot run raise `engine.errors.RequestError`, which carries the same three.
"""


class ChatError(Exception):
    """Base of what this room raises on purpose. `param` names the field that is at fault, if one is."""

    code = "internal_error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class NotFoundError(ChatError):
    """No conversation or message has this id, or its conversation is deleted."""

    code = "not_found"


class ConversationBusyError(ChatError):
    """The conversation has a generation running; nothing was changed."""

    code = "conversation_busy"


class UnknownGenerationError(ChatError):
    """No generation has this id, or it ended too long ago."""

    code = "unknown_generation"


class ShuttingDownError(ChatError):
    """The server is going down and takes no more turns."""

    code = "shutting_down"
