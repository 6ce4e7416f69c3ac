"""Entries of a shard's record log: what one script call did, for history.

An entry is `[1, data set, [[facts, detail], …]]`. Facts are words that the script writes; the
detail is msgpack that its caller gave and nobody looked into. Offset and time are the entry's own.

A fact is a hop of a message: `was` is where it was (`m0.3.17`, `r5`, `d2`), `now` where it is from
then on (`r6`, `d3`), or `-` when it is settled. So the way of a message is a chain. A range has its
two ends there: `m0.3.17` and `m0.3.20` are offsets 17 to 19.
"""

from __future__ import annotations

import msgspec

#: The layout of an entry.
FORMAT = 1


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to one message, or to a range of them."""

    kind: str
    was: str
    now: str
    epoch: int
    incarnation: int
    #: Attempts so far, this one included; 0 where there was none.
    attempt: int
    verdict: str
    policy: str
    #: msgpack; None where there is none.
    detail: bytes | None


class LogEntry(msgspec.Struct, frozen=True):
    """All facts of one script call."""

    dataset: str
    facts: list[Fact]


class AttemptDetail(msgspec.Struct, array_like=True, frozen=True, kw_only=True, gc=False):
    """Detail of an attempt, and of what goes behind another."""

    id: str
    group: str
    #: A status code, or the name of a `delivery.Failure`; empty without an attempt.
    failure: str = ""
    cause: str = ""
    #: Beginning of the reply to a failed attempt. Of a delivery to a receiver of our own: its
    #: receipt (`endpoints/protocol.py`); the audit compares receipts.
    excerpt: bytes = b""
    begun_ms: int = 0
    ended_ms: int = 0
    #: The newest end of the record log that its owner had seen when the request began.
    begun_after: int = 0
    node: str = ""
    endpoint: str = ""
    #: Of the message, `orders/0/3/17`: topic, storage topic, partition, offset. Empty without an
    #: attempt. A head's place does not tell it, and who reads the log may not have its beginning.
    position: str = ""


class OperationDetail(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Detail of what an operation did: redriven, skipped, purged."""

    operation: str


class StartDetail(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Detail of a start: whose positions they are."""

    topic: str


_Entry = tuple[int, str, list[tuple[str, msgspec.Raw]]]
_decode = msgspec.msgpack.Decoder(_Entry).decode
_NONE = b"\xc0"

pack_detail = msgspec.msgpack.Encoder().encode
unpack_attempt = msgspec.msgpack.Decoder(AttemptDetail).decode
unpack_operation = msgspec.msgpack.Decoder(OperationDetail).decode
unpack_start = msgspec.msgpack.Decoder(StartDetail).decode


def unpack(payload: bytes) -> LogEntry:
    """Reads an entry; ValueError for one that is none, or of a newer release."""
    try:
        format_, dataset, rows = _decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not an entry of a record log: {error}") from error
    if format_ != FORMAT:
        raise ValueError(f"an entry of format {format_}, which this release cannot read")
    return LogEntry(dataset, [_fact(words, bytes(detail)) for words, detail in rows])


def _fact(words: str, detail: bytes) -> Fact:
    kind, was, now, epoch, incarnation, attempt, verdict, policy = words.split(" ")
    return Fact(
        kind=kind,
        was=was,
        now=now,
        epoch=int(epoch),
        incarnation=int(incarnation),
        attempt=int(attempt),
        verdict=verdict,
        policy=policy,
        detail=None if detail == _NONE else detail,
    )
