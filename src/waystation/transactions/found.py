"""A transaction as a look at it finds it: in the store, or in the archive alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from waystation.archive import ArchivedState, join_hash
from waystation.transactions.head import Head, parse

if TYPE_CHECKING:
    from waystation.store.connection import Reply


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction as it is kept, and where it is."""

    id: str
    head: Head
    #: The packed state.
    state: bytes
    #: All other fields.
    extras: dict[bytes, bytes]
    #: When it was dequeued.
    processing_ms: int | None = None
    #: When the lease of its holder is over.
    lease_ms: int | None = None
    #: When it wakes at the latest.
    sleeping_ms: int | None = None
    #: When it is to be ended.
    deadline_ms: int | None = None
    #: When archiving is due.
    archive_ms: int | None = None
    #: When a reply is to be sent: the first of all its receivers.
    reply_ms: int | None = None
    #: How long the store keeps it yet, as it is in the archive; None: until it is archived.
    cache_ms: int | None = None
    #: Why the archive has set it aside: `<ms> <tries> <cause>`; empty if it has not.
    archive_failed: str = ""
    #: In its queue, from 0; None in none, or too far behind, or not asked for.
    place: int | None = None


def found_of(row: ArchivedState) -> Found:
    """A transaction as the archive has it, where the store has no room for it."""
    return found_in(row.id, join_hash(row.packed, row.fields))


def read_found(transaction_id: str, reply: Reply) -> Found:
    """Reads what the script `get` tells of one."""
    times, place, failed, *words = reply
    processing, lease, sleeping, deadline, archive, lane, cache = map(_time, times)
    return msgspec.structs.replace(
        found_in(transaction_id, dict(zip(words[::2], words[1::2], strict=True))),
        processing_ms=processing,
        lease_ms=lease,
        sleeping_ms=sleeping,
        deadline_ms=deadline,
        archive_ms=archive,
        reply_ms=lane,
        cache_ms=cache,
        archive_failed=failed.decode(errors="replace"),
        place=place if place >= 0 else None,
    )


def found_in(transaction_id: str, fields: dict[bytes, bytes]) -> Found:
    """A transaction in its hash, without a look at where it is; takes the fields over."""
    return Found(
        id=transaction_id,
        head=parse(fields.pop(b"head")),
        state=fields.pop(b"state"),
        extras=fields,
    )


def _time(score: bytes) -> int | None:
    return int(float(score)) if score else None
