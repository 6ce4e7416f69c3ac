"""The script that archivers live by: it hands out what is due, and confirms what the archive has.

Nothing that is handed out leaves the store, or its schedule, before it is confirmed; a confirm
counts for the version that was read, so it may come late, twice, or from anybody. Handing out needs
the role: one node at a time per cell, for a minute, and then whoever asks first after a short grace
time. Two that believe to have it do no harm, they only do the same work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from waystation.store.client import Store
from waystation.store.scripts import script
from waystation.transactions import names
from waystation.transactions.cells import BATCH_MAX, Terms

_LOOK = script(__package__, "look")
_TO_ARCHIVE = script(__package__, "to_archive")

#: A call hands out about as many bytes; a larger state comes alone.
TURN_BYTES_MAX = 4 * 1_048_576
#: What is kept of the reason of a refusal.
CAUSE_BYTES_MAX = 500
#: Ids of one pass over what was set aside.
_PAGE = 1_000

Role = Literal["archiver", "other", "grace"]
#: What the caller has in its hands after this call: `idle`: nothing. `leave`: it ends, or cannot
#: reach the archive, and gives the role to whoever can.
Flight = Literal["", "idle", "leave"]


class Confirmed(msgspec.Struct, frozen=True):
    """What the archive did with a state that was handed out."""

    id: str
    version: int
    #: The store's time at which it was read: `now_ms` of that turn.
    read_ms: int
    #: The version that the archive has, if that is higher, or the same with another content: the
    #: store has lost something then.
    above: int = 0
    #: Why the archive refuses it.
    cause: str = ""


class Given(msgspec.Struct, frozen=True):
    """A state to be archived."""

    id: str
    #: The whole hash, `head` and `state` among it.
    fields: dict[bytes, bytes]


class ArchiveTurn(msgspec.Struct, frozen=True, kw_only=True):
    """What came of an ask."""

    role: Role
    #: Until the role changes.
    wait_ms: int
    now_ms: int
    #: Ids that are scheduled, due or not.
    waiting: int
    #: When the first of them is due, or was.
    oldest_ms: int | None
    set_aside: int
    items: list[Given]


class SetAside(msgspec.Struct, frozen=True):
    """A state that the archive has refused; it is tried again, less and less often."""

    id: str
    since_ms: int
    tries: int
    cause: str


class Archiving:
    """Runs the script, and shows what was set aside."""

    def __init__(self, store: Store, terms: Terms, *, role_ms: int, grace_ms: int) -> None:
        self._store = store
        self._terms = terms
        self._role_ms = role_ms
        self._grace_ms = grace_ms

    async def turn(
        self,
        cell: int,
        *,
        node: str,
        most: int,
        skip: int = 0,
        confirmed: Sequence[Confirmed] = (),
        flight: Flight = "",
    ) -> ArchiveTurn:
        """Confirms, then hands out up to `most` (0: nothing) of what is due, behind `skip`."""
        assert most <= BATCH_MAX, "no loop in a script is longer"
        assert len(confirmed) <= BATCH_MAX, "no loop in a script is longer"
        locks = (self._role_ms, self._role_ms + self._grace_ms)
        words: list[str | bytes | int] = [
            self._terms.argument,
            node,
            most,
            skip,
            TURN_BYTES_MAX,
            *locks,
        ]
        words += [self._terms.cache_ms, flight]
        for each in confirmed:
            cause = each.cause and each.cause.encode(errors="replace")[:CAUSE_BYTES_MAX]
            words += (each.id, each.version, each.read_ms, each.above, cause)
        reply = await self._store.run(_TO_ARCHIVE, [names.log(cell)], words)
        role, wait_ms, now_ms, waiting, oldest, set_aside, *given = reply
        return ArchiveTurn(
            role=role.decode(),
            wait_ms=int(wait_ms),
            now_ms=int(now_ms),
            waiting=int(waiting),
            oldest_ms=int(float(oldest)) if oldest else None,
            set_aside=int(set_aside),
            items=[_given(*each) for each in zip(given[::2], given[1::2], strict=True)],
        )

    async def set_aside(
        self, cell: int, *, cursor: str = "", limit: int = BATCH_MAX
    ) -> tuple[list[SetAside], str]:
        """About `limit` of what was set aside, and the cursor of the next page; '': no more."""
        key = names.archive_failed(cell)
        after, flat = await self._store.call(
            "HSCAN", key, cursor or "0", "COUNT", limit, repeatable=True
        )
        page = [_set_aside(*each) for each in zip(flat[::2], flat[1::2], strict=True)]
        return page, "" if after == b"0" else after.decode()

    async def retry(self, cell: int) -> int:
        """Makes all that was set aside due now; how many were not."""
        count, cursor = 0, ""
        now_ms, *_ = await self._store.run(_LOOK, [names.log(cell)], [])
        while True:
            page, cursor = await self.set_aside(cell, cursor=cursor, limit=_PAGE)
            if page:
                # XX: what has left meanwhile stays away. LT: what is due already stays so.
                due = [word for each in page for word in (int(now_ms), each.id)]
                key = names.sorted_set(cell, "toArchiveZ")
                count += await self._store.call(
                    "ZADD", key, "XX", "LT", "CH", *due, repeatable=True
                )
            if not cursor:
                return count


def _given(transaction_id: bytes, flat: list[bytes]) -> Given:
    return Given(transaction_id.decode(), dict(zip(flat[::2], flat[1::2], strict=True)))


def _set_aside(transaction_id: bytes, note: bytes) -> SetAside:
    since, tries, cause = note.decode(errors="replace").split(" ", 2)
    return SetAside(transaction_id.decode(), int(since), int(tries), cause)
