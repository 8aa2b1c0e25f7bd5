"""Errors of the storage room."""


class StorageError(Exception):
    """The database cannot be opened, read or written. The message is one line for people."""


class UnusableDatabaseError(StorageError):
    """The database that was chosen cannot be this app's: its URL is none, or another app has it."""


class MissingRowError(StorageError):
    """A conversation or message that the caller named is not there (any more)."""
