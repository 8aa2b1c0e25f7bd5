"""Ids of conversations, messages and generations: 32 hexadecimal digits, random. Order lies in `created_at`."""

import uuid


def new_id() -> str:
    return uuid.uuid4().hex
