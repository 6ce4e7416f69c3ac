"""What an archive can do. Every implementation passes `tests/archive/conformance.py`.

What is raised is of the database: `ArchiveUnavailableError`, and the call may be repeated. What is
of a state is in the answer, and its neighbours are kept all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec


class ArchivedFacts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What an archived transaction can be found by."""

    id: str
    #: The project.
    owner: str
    #: Empty for none.
    external_id: str
    pipeline: str
    #: Final status; before that the state it is in.
    status: str
    #: Place of the step at which it stands; may be empty.
    step: str
    #: Of its head; only a higher one takes the place of what is there.
    version: int
    #: Latest wake-up, or 0.
    wake_ms: int
    #: 0 for none.
    deadline_ms: int
    started_ms: int
    #: Of the last change of state.
    updated_ms: int
    #: 0 while it lives.
    completed_ms: int


class ArchivedState(ArchivedFacts, frozen=True, kw_only=True, gc=False):
    """A state as it is kept: facts to find it by, and its hash, see `hashes`."""

    #: Field `state` of the hash.
    packed: bytes
    #: All other fields of it.
    fields: bytes


class Refused(msgspec.Struct, frozen=True):
    """A state that will never be kept as it is, and why."""

    id: str
    reason: str


class Upserted(msgspec.Struct, frozen=True):
    """What became of states: all but those refused are there, in their version or a higher one."""

    #: How many were new, or higher than what was there.
    applied: int
    refused: list[Refused]


class Mark(NamedTuple):
    """Where a page ended: the last of it."""

    updated_ms: int
    id: str


class Archive(Protocol):
    """A database of states. All methods may be called from any task; each may be repeated."""

    async def open(self) -> None:
        """Connects and brings the schema up to date, one process at a time.

        ArchiveRefusedError: never. ArchiveUnavailableError: may be called again.
        """
        ...

    async def close(self) -> None:
        """Lets go of the database; what is asked later ends with ArchiveUnavailableError."""
        ...

    async def ping(self) -> None:
        """One round trip, or ArchiveUnavailableError."""
        ...

    async def identity(self) -> str:
        """What this archive was called when it was made; no other has that name.

        A backup of it has, so it can take its place.
        """
        ...

    async def upsert(self, states: Sequence[ArchivedState]) -> Upserted:
        """Keeps states where they are of a higher version than what is there.

        They are on disk when this returns. If it raises, some may be kept and some not.
        """
        ...

    async def get(self, ids: Sequence[str]) -> dict[str, ArchivedState]:
        """States by id; who is not there is not in it."""
        ...

    async def find(self, owner: str, external_id: str) -> ArchivedFacts | None:
        """The newest transaction of that owner and external id: the one that began last."""
        ...

    async def page(
        self,
        owner: str,
        statuses: Sequence[str],
        *,
        pipeline: str = "",
        since_ms: int = 0,
        before: Mark | None = None,
        limit: int,
    ) -> list[ArchivedFacts]:
        """Transactions in one of the statuses, newest change first, from behind `before` on.

        Only those changed at `since_ms` or later.
        """
        ...

    async def counts(self, owner: str | None = None) -> dict[str, int]:
        """How many there are by status, of one owner or of all. Reads a whole index: not often."""
        ...

    async def oldest_completed(self) -> int:
        """When the first of all that it has was completed, in ms; 0: nothing was."""
        ...

    async def delete_completed(self, *, before_ms: int, most: int) -> int:
        """Deletes what was completed before that, the oldest first, so many at most; how many.

        What has not been completed is never deleted.
        """
        ...
