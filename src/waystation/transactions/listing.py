"""Lists transactions of a project, page by page.

There is no index by project: it would cost every start. What runs and what sleeps is found by the
sets that scripts keep anyway, all else by scanning the key space in bounded steps, and then the set
of those that sleep, for those that do so in the archive. So a page ends after the step in which it
became full: it may hold more than was asked for, or nothing; only one without a cursor is the last.
What is there all the time is listed, perhaps twice; what comes or goes meanwhile may be or not.
What has ended and left the store is not listed here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from waystation.archive import Archive, join_hash
from waystation.errors import InvalidInputError
from waystation.store.client import Store
from waystation.store.connection import Reply
from waystation.transactions import names
from waystation.transactions.head import parse
from waystation.transactions.order import check_external_id
from waystation.transactions.states import State

#: What one step of a scan looks at, and the most steps of a page.
_STEP = 1000
_STEPS_MAX = 20
#: A server counts the cursors of a set in 64 bits.
_CURSOR_MAX = 2**64 - 1
_read_cursor = re.compile(r"(z?)([0-9]{1,5})\.([0-9]{1,24})", re.ASCII).fullmatch
#: Sets that have all ids of a state, and perhaps some of others.
_ASLEEP = "sleepingZ"
_SETS: dict[State | None, str] = {
    State.RUNNING: "processingZ",
    State.SCHEDULED: _ASLEEP,
    State.SLEEPING: _ASLEEP,
    State.WAITING_SWITCH: _ASLEEP,
}


class TransactionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction in a list."""

    id: str
    external_id: str | None
    #: Of the frame that runs: a child pipeline, if it is in one.
    pipeline: str
    group: str
    state: State
    #: Final status; empty before.
    status: str
    #: Of the last change of state.
    since_ms: int
    #: When it wakes at the latest; 0 unless it sleeps.
    wake_ms: int
    #: That it waits for; empty for none.
    switch: str
    #: Whether a cancel was asked for, or its deadline has passed.
    cancelling: bool


class Listing:
    """Finds the transactions of a project."""

    def __init__(self, store: Store, archive: Archive | None = None, *, cells: int) -> None:
        self._store = store
        self._archive = archive
        self._cells = cells

    async def page(
        self,
        project: str,
        *,
        state: State | None = None,
        pipeline: str = "",
        limit: int,
        cursor: str = "",
    ) -> tuple[list[TransactionRow], str]:
        """One page, and the cursor of the next; empty after the last."""
        place = self._place(cursor, _SETS.get(state, ""))
        found: dict[str, TransactionRow] = {}
        for _ in range(_STEPS_MAX):
            ids, after = await self._step(place)
            # The scan of keys has seen all that is in the store, but what came back since.
            restored_only = state not in _SETS
            for row in await self._rows(project, ids, place.set, restored_only=restored_only):
                if state in (None, row.state) and pipeline in ("", row.pipeline):
                    found[row.id] = row
            place = self._next(place, after, asleep=state is None)
            if place.cell >= self._cells or len(found) >= limit:
                break
        rows = sorted(found.values(), key=lambda row: (row.since_ms, row.id))
        return rows, "" if place.cell >= self._cells else place.cursor(state)

    async def by_external_id(self, project: str, external_id: str) -> list[TransactionRow]:
        """The transaction that has an external id, if one has."""
        check_external_id(external_id, field="external_id")
        cell = names.cell_for(project, external_id, self._cells)
        key = names.external_id(cell, project, external_id)
        found = await self._store.call("GET", key, repeatable=True)
        return [] if found is None else await self._rows(project, [found.decode()], _ASLEEP)

    async def asleep(self) -> int:
        """How many sleep, wait for a switch or are scheduled, in all projects."""
        count = 0
        for first in range(0, self._cells, _STEP):
            cells = range(first, min(first + _STEP, self._cells))
            commands = [("ZCARD", names.sorted_set(cell, _ASLEEP)) for cell in cells]
            count += sum(await self._replies(commands))
        return count

    def _place(self, cursor: str, set_: str) -> _Place:
        if not cursor:
            return _Place(set_, 0, "0")
        match = _read_cursor(cursor)
        if match is None or int(match[2]) >= self._cells:
            raise _not_ours()
        place = _Place(_ASLEEP if match[1] else set_, int(match[2]), match[3])
        if place.set and int(place.position) > _CURSOR_MAX:
            raise _not_ours()
        return place

    def _next(self, place: _Place, after: str, *, asleep: bool) -> _Place:
        """Where to go on; behind all cells at the end."""
        if after != "0":
            return place._replace(position=after)
        if place.set:
            return _Place(place.set, place.cell + 1, "0")
        # A scan of all keys sees every cell; a set belongs to one.
        return _Place(_ASLEEP, 0 if asleep and self._archive is not None else self._cells, "0")

    async def _step(self, place: _Place) -> tuple[list[str], str]:
        if place.set:
            key = names.sorted_set(place.cell, place.set)
            reply = await self._store.call(
                "ZSCAN", key, place.position, "COUNT", _STEP, repeatable=True
            )
            return [each.decode() for each in reply[1][::2]], reply[0].decode()
        pattern = f"{{{names.LOG}.*}}:stateH:*"
        after, keys = await self._store.scan(place.position, match=pattern, count=_STEP)
        return [each.decode().rpartition(":")[2] for each in keys], after

    async def _rows(
        self, project: str, ids: list[str], set_: str, *, restored_only: bool = False
    ) -> list[TransactionRow]:
        if set_ == _ASLEEP and restored_only:
            left = await self._replies([("PTTL", names.state(each)) for each in ids])
            # In the store without an end: it was seen there.
            ids = [each for each, ms in zip(ids, left, strict=True) if ms != -1]
        commands = [("HMGET", names.state(each), "head", "externalId") for each in ids]
        rows, gone = [], []
        for each, (line, external_id) in zip(ids, await self._replies(commands), strict=True):
            if line is None:
                gone.append(each)
            else:
                rows.append(_row(each, line, external_id))
        if set_ == _ASLEEP and gone and self._archive is not None:
            rows += await self._archived(self._archive, gone)
        return [row for owner, row in rows if owner == project]

    async def _replies(self, commands: Sequence[tuple[str, ...]]) -> list[Reply]:
        replies = await self._store.pipeline(commands, repeatable=True)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    async def _archived(self, archive: Archive, ids: list[str]) -> list[tuple[str, TransactionRow]]:
        """Those that sleep in the archive; what the archive does not have is not there at all."""
        rows = []
        for first in range(0, len(ids), _STEP):
            found = await archive.get(ids[first : first + _STEP])
            for each, row in found.items():
                fields = join_hash(row.packed, row.fields)
                rows.append(_row(each, fields[b"head"], fields.get(b"externalId")))
        return rows


class _Place(NamedTuple):
    """How far a list has come."""

    #: The set that is gone through; empty: all keys.
    set: str
    cell: int
    #: The store's cursor.
    position: str

    def cursor(self, state: State | None) -> str:
        """As clients get it; what is asked for tells the set, except for the last part of all."""
        mark = "z" if self.set == _ASLEEP and state is None else ""
        return f"{mark}{self.cell}.{self.position}"


def _row(transaction_id: str, line: bytes, external_id: bytes | None) -> tuple[str, TransactionRow]:
    """Its owner, and what is told."""
    head = parse(line)
    return head.owner, TransactionRow(
        id=transaction_id,
        external_id=external_id.decode() if external_id else None,
        pipeline=head.pipeline,
        group=head.group,
        state=head.state,
        status=head.status or "",
        since_ms=head.since,
        wake_ms=head.wake,
        switch=head.switch,
        cancelling=head.cancelling,
    )


def _not_ours() -> InvalidInputError:
    return InvalidInputError("The cursor is not one of ours.", field="cursor")
