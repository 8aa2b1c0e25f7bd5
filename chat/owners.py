"""Whose an engine's request is: the conversation and the generation that it was started for. Calls of programs have none."""

from collections import OrderedDict
from dataclasses import dataclass, replace

MAX_OWNERS = 4096


@dataclass(frozen=True, slots=True)
class Owner:
    """`title` is the conversation's; a question about an answer is of no generation."""

    conversation_id: str
    generation_id: str | None
    title: str


class RequestOwners:
    """The owners of the last MAX_OWNERS requests of conversations, by the engine's request id."""

    def __init__(self) -> None:
        self._owners: OrderedDict[int, Owner] = OrderedDict()

    def note(self, request_id: int, owner: Owner) -> None:
        """Remember a request that has just been submitted."""
        self._owners[request_id] = owner
        if len(self._owners) > MAX_OWNERS:
            self._owners.popitem(last=False)

    def rename(self, conversation_id: str, title: str) -> None:
        """A conversation's requests, also those that have ended, are called what it is called."""
        for request_id, owner in self._owners.items():
            if owner.conversation_id == conversation_id:
                self._owners[request_id] = replace(owner, title=title)

    def find(self, request_id: int) -> Owner | None:
        """Whose it is, as far as known."""
        return self._owners.get(request_id)
