"""Lists transactions of a project, page by page.

There is no index by project: it would cost every start. What runs and what sleeps is found by the
sets that scripts keep anyway, all else by scanning the key space in bounded steps. So a page ends
after the step in which it became full: it may hold more than was asked for, or nothing; only one
without a cursor is the last. What is there all the time is listed, perhaps twice; what comes or
goes meanwhile may be or not.
"""

from __future__ import annotations

import re

import msgspec

from waystation.errors import InvalidInputError
from waystation.store import Store
from waystation.transactions import names
from waystation.transactions.head import parse
from waystation.transactions.order import check_external_id
from waystation.transactions.states import State

#: What one step of a scan looks at, and the most steps of a page.
_STEP = 1000
_STEPS_MAX = 20
#: The store counts cursors in 64 bits.
_CURSOR_MAX = 2**64 - 1
_read_cursor = re.compile(r"([0-9]{1,5})\.([0-9]{1,20})", re.ASCII).fullmatch
#: Sets that have all ids of a state, and perhaps some of others.
_SETS = {
    State.RUNNING: "processingZ",
    State.SCHEDULED: "sleepingZ",
    State.SLEEPING: "sleepingZ",
    State.WAITING_SWITCH: "sleepingZ",
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

    def __init__(self, store: Store, *, cells: int) -> None:
        self._store = store
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
        cell, position = self._place(cursor)
        found: dict[str, TransactionRow] = {}
        for _ in range(_STEPS_MAX):
            ids, position = await self._step(cell, position, state)
            for row in await self._rows(project, ids):
                if state in (None, row.state) and pipeline in ("", row.pipeline):
                    found[row.id] = row
            if position == "0":
                # A scan of all keys sees every cell; a set belongs to one.
                cell = cell + 1 if state in _SETS else self._cells
            if cell >= self._cells or len(found) >= limit:
                break
        rows = sorted(found.values(), key=lambda row: (row.since_ms, row.id))
        return rows, "" if cell >= self._cells else f"{cell}.{position}"

    async def by_external_id(self, project: str, external_id: str) -> list[TransactionRow]:
        """The transaction that has an external id, if one has."""
        check_external_id(external_id, field="external_id")
        cell = names.cell_for(project, external_id, self._cells)
        key = names.external_id(cell, project, external_id)
        found = await self._store.call("GET", key, repeatable=True)
        return [] if found is None else await self._rows(project, [found.decode()])

    async def asleep(self) -> int:
        """How many sleep, wait for a switch or are scheduled, in all projects."""
        count = 0
        for first in range(0, self._cells, _STEP):
            cells = range(first, min(first + _STEP, self._cells))
            commands = [("ZCARD", names.sorted_set(cell, "sleepingZ")) for cell in cells]
            for reply in await self._store.pipeline(commands, repeatable=True):
                if isinstance(reply, Exception):
                    raise reply
                count += int(reply)
        return count

    def _place(self, cursor: str) -> tuple[int, str]:
        if not cursor:
            return 0, "0"
        match = _read_cursor(cursor)
        if match is None or int(match[1]) >= self._cells or int(match[2]) > _CURSOR_MAX:
            raise InvalidInputError("The cursor is not one of ours.", field="cursor")
        return int(match[1]), match[2]

    async def _step(self, cell: int, position: str, state: State | None) -> tuple[list[str], str]:
        if state in _SETS:
            key = names.sorted_set(cell, _SETS[state])
            reply = await self._store.call("ZSCAN", key, position, "COUNT", _STEP, repeatable=True)
            return [each.decode() for each in reply[1][::2]], reply[0].decode()
        pattern = f"{{{names.LOG}.*}}:stateH:*"
        reply = await self._store.call(
            "SCAN", position, "MATCH", pattern, "COUNT", _STEP, repeatable=True
        )
        ids = [each.decode().rpartition(":")[2] for each in reply[1]]
        return ids, reply[0].decode()

    async def _rows(self, project: str, ids: list[str]) -> list[TransactionRow]:
        commands = [("HMGET", names.state(each), "head", "externalId") for each in ids]
        replies = await self._store.pipeline(commands, repeatable=True)
        rows = []
        for each, reply in zip(ids, replies, strict=True):
            if isinstance(reply, Exception):
                raise reply
            line, external_id = reply
            if line is None:
                continue
            head = parse(line)
            if head.owner != project:
                continue
            rows.append(
                TransactionRow(
                    id=each,
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
            )
        return rows
