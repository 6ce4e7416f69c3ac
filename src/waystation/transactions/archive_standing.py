"""How archiving stands, cell by cell: what waits, who archives, what was set aside and why.

For operators. It reads the store, so it tells about all processes; only what this process has
against the archive is its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import msgspec

from waystation.errors import InvalidInputError, StoreError
from waystation.store.client import Store
from waystation.store.connection import Reply
from waystation.transactions import names
from waystation.transactions.archiving import Archiving, SetAside
from waystation.transactions.signals import Signals

#: Cells of one page.
CELLS_MOST = 250
_COMMANDS = 4
_read_cell = re.compile(r"[0-9]{1,5}", re.ASCII).fullmatch
_read_cursor = re.compile(r"([0-9]{1,5})\.([0-9]{0,20})", re.ASCII).fullmatch


class CellStanding(msgspec.Struct, frozen=True, kw_only=True):
    """How it stands in one cell."""

    cell: int
    #: Scheduled to be archived, due or not.
    waiting: int
    #: When the first of them is due, or was; null without one.
    oldest_ms: int | None
    #: By how much; 0 if it is not due yet.
    late_ms: int
    #: Id of the node that archives, and until when; empty for none.
    archiver: str
    until_ms: int
    #: Refused by the archive, and tried again, less and less often.
    set_aside: int


class ArchivePage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of cells."""

    now_ms: int
    cells: list[CellStanding]
    #: Of the next page; empty on the last.
    cursor: str
    #: What the process that answers has against the archive; empty for nothing.
    problem: str


class ArchiveStanding:
    """Looks at archiving, and sets going again what was set aside."""

    def __init__(
        self,
        store: Store,
        signals: Signals,
        archiving: Archiving,
        *,
        cells: int,
        problem: Callable[[], str],
    ) -> None:
        self._store = store
        self._signals = signals
        self._archiving = archiving
        self._cells = cells
        self._problem = problem

    async def page(self, cursor: str = "") -> ArchivePage:
        """A page of cells, in their order."""
        if cursor and (not _read_cell(cursor) or int(cursor) >= self._cells):
            raise _no_cursor()
        first = int(cursor or 0)
        cells = range(first, min(first + CELLS_MOST, self._cells))
        now_ms = (await self._signals.look(first)).now_ms
        commands = [command for cell in cells for command in _looking(cell)]
        replies = await self._store.pipeline(commands, repeatable=True)
        rows = [
            _standing(cell, replies[i : i + _COMMANDS], now_ms)
            for cell, i in zip(cells, range(0, len(replies), _COMMANDS), strict=True)
        ]
        following = str(cells.stop) if cells.stop < self._cells else ""
        return ArchivePage(now_ms=now_ms, cells=rows, cursor=following, problem=self._problem())

    async def set_aside(self, cursor: str = "", *, limit: int) -> tuple[list[SetAside], str]:
        """About so many of what was set aside, and the cursor of the next page; '': no more.

        A page may be empty: it ends after so many cells, too.
        """
        match = _read_cursor(cursor or "0.")
        if match is None or int(match[1]) >= self._cells:
            raise _no_cursor()
        cell, place, rows = int(match[1]), match[2], list[SetAside]()
        last = min(cell + CELLS_MOST, self._cells)
        while cell < last and len(rows) < limit:
            page, place = await self._archiving.set_aside(cell, cursor=place, limit=limit)
            rows += page
            if not place:
                cell += 1
        return rows, f"{cell}.{place}" if cell < self._cells else ""

    async def retry(self) -> int:
        """Makes all that was set aside due now; how many were not."""
        return sum([await self._archiving.retry(cell) for cell in range(self._cells)])


def _looking(cell: int) -> Iterator[tuple[str | int, ...]]:
    scheduled = names.sorted_set(cell, "toArchiveZ")
    yield "ZCARD", scheduled
    yield "ZRANGE", scheduled, 0, 0, "WITHSCORES"
    yield "GET", names.archive_lock(cell, 1)
    yield "HLEN", names.archive_failed(cell)


def _standing(cell: int, replies: Sequence[Reply | StoreError], now_ms: int) -> CellStanding:
    for reply in replies:
        if isinstance(reply, StoreError):
            raise reply
    waiting, first, lock, set_aside = cast("Sequence[Reply]", replies)
    oldest_ms = int(float(first[1])) if first else None
    node, _, until = (lock or b"").decode().partition(" ")
    # The lock is cleaned up later; the time in it decides.
    is_held = int(until or 0) > now_ms
    return CellStanding(
        cell=cell,
        waiting=waiting,
        oldest_ms=oldest_ms,
        late_ms=max(0, now_ms - oldest_ms) if oldest_ms is not None else 0,
        archiver=node if is_held else "",
        until_ms=int(until) if is_held else 0,
        set_aside=set_aside,
    )


def _no_cursor() -> InvalidInputError:
    return InvalidInputError("The cursor is not one of ours.", field="cursor")
