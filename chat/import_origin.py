"""What tells a conversation of a file from all others: a name that its program gave it, and everything that is said in it.

So one that has gone on in the meantime, or was changed by hand, is another; a new title alone makes no other.
"""

import hashlib
from collections.abc import Iterable

from storage.records import ImportedMessage


def origin_of(names: Iterable[object], messages: Iterable[ImportedMessage]) -> str:
    """32 digits. `names`: what the file says of the conversation that no other one has."""
    digest = hashlib.blake2b(digest_size=16)
    for name in names:
        digest.update(f"{name!r}\n".encode())
    for message in messages:
        content = message.content.encode()
        digest.update(f"{message.parent} {message.role} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()
