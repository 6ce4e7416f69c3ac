"""Recipient keys and ids of messages: free text within bounds."""

from __future__ import annotations

from waystation.errors import InvalidInputError, KeyInvalidError

#: A composite key names every recipient; a kid has about 60 letters.
KEY_BYTES_MAX = 4096
ID_BYTES_MAX = 512


def check_key(key: str) -> str:
    """The key, if it can be one."""
    if not _fits(key, KEY_BYTES_MAX):
        raise KeyInvalidError(
            f"A recipient key has 1 to {KEY_BYTES_MAX} bytes of printable letters.", field="key"
        )
    return key


def check_mirrored_key(key: str) -> str:
    """The key, if an agent can have it: its list has the key in its name, and its slot by that."""
    if "{" in key or "}" in key:
        raise KeyInvalidError("A recipient key of an agent has no braces.", field="key")
    return check_key(key)


def check_id(message_id: str) -> str:
    """The id of a message, if it can be one."""
    if not _fits(message_id, ID_BYTES_MAX):
        raise InvalidInputError(
            f"An id has 1 to {ID_BYTES_MAX} bytes of printable letters.", field="id"
        )
    return message_id


def _fits(text: str, bytes_max: int) -> bool:
    # In this order: what cannot be printed may have no bytes at all.
    return text.isprintable() and 0 < len(text.encode()) <= bytes_max
