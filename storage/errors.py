"""Errors of the storage room."""


class StorageError(Exception):
    """The database cannot be opened, read or written. The message is one line for people."""


class MissingRowError(StorageError):
    """A conversation or message that the caller named is not there (any more)."""
