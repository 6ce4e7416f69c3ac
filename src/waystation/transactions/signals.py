"""The scripts that reach a transaction from outside, and those that time calls for.

None of them needs to hold a transaction. An unknown one, or one of another project, is told as such
and leaves nothing behind; what has ended does not change any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from waystation.errors import StoreFullError
from waystation.store import Store, script
from waystation.store.connection import Reply
from waystation.store.scripts import Script
from waystation.transaction_errors import (
    NotSleepingError,
    SwitchInvalidError,
    TransactionFinalError,
    TransactionUnknownError,
)
from waystation.transactions import names
from waystation.transactions.cells import BATCH_MAX, Terms
from waystation.transactions.head import Head, parse
from waystation.transactions.held import Due
from waystation.transactions.states import Status
from waystation.transactions.switches import (
    SWITCHES_MAX,
    Scalar,
    check_switch,
    encode_value,
    parse_switches,
)

_CANCEL = script(__package__, "cancel")
_EXPIRE = script(__package__, "expire")
_GET = script(__package__, "get")
_LOOK = script(__package__, "look")
_MARK = script(__package__, "mark")
_SWEEP = script(__package__, "sweep")
_SWITCH = script(__package__, "switch")
_WAKE = script(__package__, "wake")
_WAKE_DUE = script(__package__, "wake_due")

#: How far into a queue a look for a place goes: a look must not block the store.
PLACES_MAX = 10_000


class Switched(msgspec.Struct, frozen=True):
    """What setting a switch has done."""

    outcome: Literal["nochange", "updated", "woken"]
    #: All switches of the transaction, by name.
    switches: dict[str, Scalar]


class Cancelled(msgspec.Struct, frozen=True):
    """What a cancel has done; `asked` ends with the next commit, or after the grace time."""

    outcome: Literal["cancelled", "asked", "known", "final", "unknown"]
    #: Of one that is complete.
    status: Status | None


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """When the first of each kind is due, by the store's clock; None where there is none."""

    now_ms: int
    sleeping_ms: int | None
    lease_ms: int | None
    deadline_ms: int | None
    sweep_ms: int | None


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction as it is kept, and where it is."""

    id: str
    head: Head
    #: The packed state.
    state: bytes
    #: All other fields.
    extras: dict[bytes, bytes]
    #: When it was dequeued.
    processing_ms: int | None
    #: When the lease of its holder is over.
    lease_ms: int | None
    #: When it wakes at the latest.
    sleeping_ms: int | None
    #: When it is to be ended.
    deadline_ms: int | None
    #: When archiving is due.
    archive_ms: int | None
    #: In its queue, from 0; None in none, or too far behind, or not asked for.
    place: int | None


class Signals:
    """Reaches transactions that others hold, or nobody."""

    def __init__(self, store: Store, terms: Terms) -> None:
        self._store = store
        self._terms = terms

    # -- From outside ------------------------------------------------------------------------

    async def set_switch(
        self, owner: str, transaction_id: str, name: str, value: Scalar | None
    ) -> Switched:
        """Sets a switch, or deletes it; wakes the step that waits for it."""
        text = "-" if value is None else encode_value(value)
        cell, name = names.cell_of(transaction_id), check_switch(name)
        outcome, _, kept = await self._run(
            _SWITCH, cell, self._terms.argument, owner, transaction_id, name, text, SWITCHES_MAX
        )
        if outcome == b"too-many":
            raise SwitchInvalidError(
                f"The transaction has {SWITCHES_MAX} switches, and may not have more.",
                field="switch",
            )
        _raise_gone(outcome, transaction_id)
        return Switched(outcome.decode(), parse_switches(kept))

    async def cancel(
        self, owner: str, ids: Sequence[str], *, cause: str, grace_ms: int
    ) -> list[Cancelled]:
        """Cancels transactions of one cell: at once, or at the next commit."""
        if not ids:
            return []
        reply = await self._run(
            _CANCEL, _cell_of_all(ids), self._terms.argument, owner, cause, grace_ms, *ids
        )
        statuses = [None if each == b"-" else Status(each.decode()) for each in reply[1::2]]
        outcomes = [each.decode() for each in reply[::2]]
        return list(map(Cancelled, outcomes, statuses))

    async def wake(self, owner: str, transaction_id: str) -> None:
        """Wakes what sleeps, before its time."""
        cell = names.cell_of(transaction_id)
        outcome, state = await self._run(_WAKE, cell, self._terms.argument, owner, transaction_id)
        _raise_gone(outcome, transaction_id)
        if outcome == b"not-sleeping":
            raise NotSleepingError(state=state.decode())

    async def get(
        self, owner: str, ids: Sequence[str], *, places: bool = False
    ) -> list[Found | None]:
        """Reads transactions of one cell; None for one that is unknown."""
        if not ids:
            return []
        far = PLACES_MAX if places else 0
        reply = await self._run(_GET, _cell_of_all(ids), owner, far, *ids)
        return [_found(*each) if each[1] else None for each in zip(ids, reply, strict=True)]

    async def mark(self, ids: Sequence[str], *, wait_ms: int) -> None:
        """Says that somebody waits for the ends of transactions of one cell.

        Look at them afterwards: what had ended before is not told any more.
        """
        if ids:
            await self._run(_MARK, _cell_of_all(ids), wait_ms, *ids)

    async def has_room(self, cell: int) -> bool:
        """Whether the store lets anything begin; what is under way goes on without room, too."""
        try:
            await self._run(_MARK, cell, 0)
        except StoreFullError:
            return False
        return True

    # -- By time -----------------------------------------------------------------------------

    async def wake_due(self, cell: int, *, most: int = BATCH_MAX) -> Due:
        """Queues what has slept long enough."""
        done, next_ms, *missing = await self._run(
            _WAKE_DUE, cell, self._terms.argument, min(most, BATCH_MAX)
        )
        return Due(int(done), int(next_ms), tuple(each.decode() for each in missing))

    async def expire(self, cell: int, *, grace_ms: int, most: int = BATCH_MAX) -> Due:
        """Ends what is over its deadline, or over the grace time of its cancel."""
        done, next_ms = await self._run(
            _EXPIRE, cell, self._terms.argument, grace_ms, min(most, BATCH_MAX)
        )
        return Due(int(done), int(next_ms))

    async def sweep(self, cell: int, *, grace_ms: int) -> Due:
        """Cancels children that nobody waits for, 100 at a time."""
        done, next_ms = await self._run(_SWEEP, cell, self._terms.argument, grace_ms)
        return Due(int(done), int(next_ms))

    async def look(self, cell: int) -> Look:
        """When something is due."""
        now, *times = await self._run(_LOOK, cell)
        sleeping, lease, deadline, sweep = map(_time, times)
        return Look(
            now_ms=int(now),
            sleeping_ms=sleeping,
            lease_ms=lease,
            deadline_ms=deadline,
            sweep_ms=sweep,
        )

    async def _run(self, verb: Script, cell: int, *words: str | bytes | int) -> Reply:
        return await self._store.run(verb, [names.log(cell)], words)


def _cell_of_all(ids: Sequence[str]) -> int:
    """The cell of ids that go into one call."""
    assert len(ids) <= BATCH_MAX, "no loop in a script is longer"
    cells = {names.cell_of(each) for each in ids}
    assert len(cells) == 1, "a call is of one cell"
    return cells.pop()


def _raise_gone(outcome: bytes, transaction_id: str) -> None:
    if outcome == b"unknown":
        raise TransactionUnknownError(f"There is no transaction {transaction_id}.")
    if outcome == b"final":
        raise TransactionFinalError(f"{transaction_id} has ended.")


def _found(transaction_id: str, reply: Reply) -> Found:
    times, place, *fields = reply
    extras = dict(zip(fields[::2], fields[1::2], strict=True))
    processing, lease, sleeping, deadline, archive = map(_time, times)
    return Found(
        id=transaction_id,
        head=parse(extras.pop(b"head")),
        state=extras.pop(b"state"),
        extras=extras,
        processing_ms=processing,
        lease_ms=lease,
        sleeping_ms=sleeping,
        deadline_ms=deadline,
        archive_ms=archive,
        place=place if place >= 0 else None,
    )


def _time(score: bytes) -> int | None:
    return int(float(score)) if score else None
