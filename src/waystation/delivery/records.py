"""What is kept of attempts, and of items that were given up."""

from __future__ import annotations

import msgspec


class AttemptRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of an attempt."""

    id: str
    attempt: int
    verdict: str
    status: int
    failure: str
    seconds: float
    at_ms: int
    excerpt: bytes


class FailedItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item that was given up."""

    id: str
    cause: str
    attempts: int
    failed_ms: int


decode_record = msgspec.msgpack.Decoder(AttemptRecord).decode
encode_record = msgspec.msgpack.Encoder().encode
