"""Finds transactions that may have left the store: by their external id, and in the archive."""

from __future__ import annotations

import re
from collections.abc import Sequence

from waystation.archive import Archive, ArchivedFacts, Mark
from waystation.errors import InvalidInputError
from waystation.store.client import Store
from waystation.transactions import names
from waystation.transactions.found import Found, found_of
from waystation.transactions.listing import TransactionRow
from waystation.transactions.order import check_external_id
from waystation.transactions.signals import Signals
from waystation.transactions.states import State, Status

_FINAL = frozenset(each.value for each in Status)
_NUMBER_MAX = 2**63 - 1
_read_cursor = re.compile(r"([0-9]{1,19})\.(tx-[0-9a-f]{40})", re.ASCII).fullmatch


class Finder:
    """Finds in the store first, then in the archive."""

    def __init__(self, store: Store, signals: Signals, archive: Archive, *, cells: int) -> None:
        self._store = store
        self._signals = signals
        self._archive = archive
        self._cells = cells

    async def by_external_id(self, project: str, external_id: str) -> Found | None:
        """The transaction that has an external id, or the newest that had it; None: nobody."""
        check_external_id(external_id, field="external_id")
        cell = names.cell_for(project, external_id, self._cells)
        key = names.external_id(cell, project, external_id)
        holder = await self._store.call("GET", key, repeatable=True)
        if holder is not None:
            found = await self._get(project, holder.decode())
            if found is not None:
                return found
        facts = await self._archive.find(project, external_id)
        return None if facts is None else await self._get(project, facts.id)

    async def newest(self, project: str, external_id: str) -> list[TransactionRow]:
        """The newest of the archive that has, or had, an external id; it stays there."""
        facts = await self._archive.find(project, check_external_id(external_id))
        return [] if facts is None else [_row(facts)]

    async def in_archive(self, project: str, transaction_id: str) -> Found | None:
        """A transaction as the archive has it; it stays there."""
        row = (await self._archive.get([transaction_id])).get(transaction_id)
        return found_of(row) if row is not None and row.owner == project else None

    async def wake_ms(self, transaction_id: str) -> int | None:
        """When one whose state is nowhere is looked for again; None: never, or it is somewhere.

        What is another project's is somewhere: of that nothing is told.
        """
        there = await self._store.call("EXISTS", names.state(transaction_id), repeatable=True)
        if there or transaction_id in await self._archive.get([transaction_id]):
            return None
        key = names.sorted_set(names.cell_of(transaction_id), "sleepingZ")
        score = await self._store.call("ZSCORE", key, transaction_id, repeatable=True)
        return None if score is None else int(float(score))

    async def archived(
        self,
        project: str,
        statuses: Sequence[str] = (),
        *,
        pipeline: str = "",
        since_ms: int = 0,
        cursor: str = "",
        limit: int,
    ) -> tuple[list[TransactionRow], str]:
        """A page of what the archive has, newest change first, and the cursor of the next.

        Without statuses what has ended, in whatever way. What is alive is told as it was when it
        was archived.
        """
        before = _mark(cursor)
        page = await self._archive.page(
            project,
            statuses or sorted(_FINAL),
            pipeline=pipeline,
            since_ms=since_ms,
            before=before,
            limit=limit,
        )
        last = page[-1] if len(page) >= limit else None
        return [_row(each) for each in page], f"{last.updated_ms}.{last.id}" if last else ""

    async def _get(self, project: str, transaction_id: str) -> Found | None:
        (found,) = await self._signals.get(project, [transaction_id], renew=True)
        return found


def _mark(cursor: str) -> Mark | None:
    if not cursor:
        return None
    match = _read_cursor(cursor)
    if match is None or int(match[1]) > _NUMBER_MAX:
        raise InvalidInputError("The cursor is not one of ours.", field="cursor")
    return Mark(int(match[1]), match[2])


def _row(facts: ArchivedFacts) -> TransactionRow:
    ended = facts.status in _FINAL
    return TransactionRow(
        id=facts.id,
        external_id=facts.external_id or None,
        pipeline=facts.pipeline,
        group="",
        state=State.COMPLETE if ended else State(facts.status),
        status=facts.status if ended else "",
        since_ms=facts.updated_ms,
        wake_ms=facts.wake_ms,
        switch="",
        cancelling=False,
    )
