"""Agents with the redis-events plugin: how they write what they have.

An agent writes its registration, an empty list of keys, when it starts; reads that list from then
on; and writes the time whenever it gets a message. It says nothing else about itself.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable

import msgspec

from waystation.errors import InvalidInputError
from waystation.pools.recipient import check_mirrored_key
from waystation.runtime.ids import is_name

_read = msgspec.json.Decoder(list[str]).decode


def write_keys(keys: Iterable[str]) -> bytes:
    """The list of an agent's keys, as the plugin reads it; always the same for the same keys."""
    return base64.urlsafe_b64encode(msgspec.json.encode(sorted(keys)))


def read_keys(written: bytes) -> frozenset[str] | None:
    """The keys in an agent's list; None: it cannot be read, so it is to be written anew."""
    try:
        found = _read(base64.urlsafe_b64decode(written))
    except (msgspec.DecodeError, binascii.Error, ValueError, RecursionError):
        return None
    return frozenset(key for key in found if is_key(key))


def is_key(key: str) -> bool:
    """Whether a pool could have such a recipient key."""
    try:
        check_mirrored_key(key)
    except InvalidInputError:
        return False
    return True


def is_uid(uid: str) -> bool:
    """Whether a pool could have such a worker; the plugin's are UUIDs."""
    return is_name(uid)
