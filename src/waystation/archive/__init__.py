"""The archive: the database that keeps states of transactions which have left the store."""

from __future__ import annotations

from waystation.archive.hashes import join_hash, split_hash
from waystation.archive.opening import archive_at, archive_place
from waystation.archive.protocol import (
    Archive,
    ArchivedFacts,
    ArchivedState,
    Mark,
    Refused,
    Upserted,
)
from waystation.archive.sqlite import SqliteArchive

__all__ = [
    "Archive",
    "ArchivedFacts",
    "ArchivedState",
    "Mark",
    "Refused",
    "SqliteArchive",
    "Upserted",
    "archive_at",
    "archive_place",
    "join_hash",
    "split_hash",
]
