"""What operators get to see of archiving."""

from __future__ import annotations

import msgspec


class ArchiveCell(msgspec.Struct, frozen=True, kw_only=True):
    """How archiving stands in one cell."""

    cell: int
    #: Scheduled to be archived, due or not.
    waiting: int
    #: When the first of them is due, or was.
    oldest_ms: int | None
    #: By how much; 0 if it is not due yet.
    late_ms: int
    #: Id of the node that archives, and until when; empty for none.
    archiver: str
    until_ms: int
    #: Refused by the archive.
    set_aside: int


class ArchiveStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How archiving stands."""

    now_ms: int
    cells: list[ArchiveCell]
    cursor: str
    #: What the process that answered has against the archive; empty for nothing.
    problem: str


class SetAside(msgspec.Struct, frozen=True, kw_only=True):
    """A state that the archive has refused; it is tried again, less and less often."""

    id: str
    since_ms: int
    tries: int
    cause: str


class SetAsidePage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of what was set aside."""

    set_aside: list[SetAside]
    cursor: str


class Retried(msgspec.Struct, frozen=True, kw_only=True):
    """How many were not due before."""

    count: int
