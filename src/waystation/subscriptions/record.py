"""The record of a message in retry or among dead letters, as it is stored.

Scripts look at its length alone. What is counted per attempt is not in it: it is written when a
message comes into retry, when it fails for the first time, and again when it dies.
"""

from __future__ import annotations

import msgspec

from waystation.subscriptions.positions import Position
from waystation.subscriptions.states import Poison

#: The layout of `_Packed`; a reader that meets a larger number is too old.
_FORMAT = 1
#: What is kept of a reply's body.
EXCERPT_BYTES_MAX = 1024


class RetryRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was not delivered yet, and why."""

    #: The group that it keeps its order in; empty: none, whatever the message says.
    group: str
    position: Position
    #: The message as it was stored (`envelope.pack`).
    envelope: bytes
    #: Attempts up to when it was written; 0 for one that went behind others.
    attempts: int = 0
    first_failure_ms: int = 0
    last_failure_ms: int = 0
    #: A status code, or the name of a `delivery.Failure`; empty without an attempt.
    failure: str = ""
    #: A sentence for people.
    cause: str = ""
    excerpt: bytes = b""
    policy: Poison = "park"
    #: When it is to be delivered; 0: at once.
    due_ms: int = 0


class _Packed(msgspec.Struct, frozen=True, array_like=True):
    format: int
    group: str
    position: tuple[int, int, int, int]
    envelope: bytes
    attempts: int
    first_failure_ms: int
    last_failure_ms: int
    failure: str
    cause: str
    excerpt: bytes
    policy: Poison
    due_ms: int


class _Beginning(msgspec.Struct, frozen=True, array_like=True):
    format: int
    group: str


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Packed).decode
_decode_beginning = msgspec.msgpack.Decoder(_Beginning).decode


def pack(record: RetryRecord) -> bytes:
    """The stored form."""
    at = record.position
    return _encode(
        (
            _FORMAT,
            record.group,
            (at.incarnation, at.storage, at.partition, at.offset),
            record.envelope,
            record.attempts,
            record.first_failure_ms,
            record.last_failure_ms,
            record.failure,
            record.cause,
            record.excerpt[:EXCERPT_BYTES_MAX],
            record.policy,
            record.due_ms,
        )
    )


def unpack(packed: bytes) -> RetryRecord:
    """The record in a stored form; ValueError for what is none, or of a newer release."""
    group_of(packed)
    try:
        fields = _decode(packed)
    except msgspec.DecodeError as error:
        raise ValueError(f"not a record: {error}") from error
    return RetryRecord(
        group=fields.group,
        position=Position(*fields.position),
        envelope=fields.envelope,
        attempts=fields.attempts,
        first_failure_ms=fields.first_failure_ms,
        last_failure_ms=fields.last_failure_ms,
        failure=fields.failure,
        cause=fields.cause,
        excerpt=fields.excerpt,
        policy=fields.policy,
        due_ms=fields.due_ms,
    )


def shown(packed: bytes, group: str = "") -> RetryRecord:
    """The record, for people; of one that cannot be read, only why: it hides no other of a list.

    That one has incarnation 0, which no position has.
    """
    try:
        return unpack(packed)
    except ValueError as error:
        return RetryRecord(
            group=group, position=Position(0, 0, 0, 0), envelope=b"", cause=f"unreadable: {error}"
        )


def group_of(packed: bytes) -> str:
    """The group alone; ValueError as with `unpack`."""
    try:
        beginning = _decode_beginning(packed)
    except msgspec.DecodeError as error:
        raise ValueError(f"not a record: {error}") from error
    if beginning.format != _FORMAT:
        raise ValueError(f"a record of format {beginning.format}, which this release cannot read")
    return beginning.group
