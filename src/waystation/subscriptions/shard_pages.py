"""Pages of what waits in a shard: dead letters by the age of their failure, and groups in order."""

from __future__ import annotations

from collections.abc import AsyncIterator

from waystation.store.client import Store
from waystation.store.connection import Reply
from waystation.store.scripts import script
from waystation.subscriptions.group_entry import GroupEntry, parse_entry
from waystation.subscriptions.looks import DeadLetter, Queue
from waystation.subscriptions.names import Place
from waystation.subscriptions.record import RetryRecord, shown
from waystation.subscriptions.refusals import check
from waystation.subscriptions.states import MessageState
from waystation.subscriptions.terms import anyone

_CHAIN_PAGE = script(__package__, "chain_page")
_DEAD_PAGE = script(__package__, "dead_page")

#: Records or groups of one call; a loop in a script is never longer.
PAGE_MAX = 200
_TERMS = anyone().argument


class ShardPages:
    """Reads pages; each is one moment, and one call."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def failed(
        self, place: Place, after: int, before: int, cursor: str, most: int
    ) -> tuple[list[tuple[str, DeadLetter, GroupEntry | None]], str]:
        """Heads of groups with their group and its entry, and what stands alone; and a cursor."""
        arguments = (_TERMS, after, before, cursor, most)
        reply = check(await self._store.run(_DEAD_PAGE, [place.log], arguments), place)
        found = []
        for i in range(1, len(reply), 4):
            name, _, entry, _ = words = reply[i : i + 4]
            group = name.partition(b" ")[2].decode()
            found.append((group, letter_of(*words), parse_entry(entry) if entry else None))
        return found, reply[0].decode()

    async def chain(
        self, place: Place, group: str, behind: int, most: int
    ) -> tuple[list[DeadLetter], bool]:
        """Dead letters of a group, in order, behind a number; and whether there are more."""
        reply = await self._chain(place, group, "dead", behind, most)
        letters = []
        for i in range(3, len(reply), 2):
            entry, number = parse_entry(reply[0]), int(reply[i])
            head = number == entry.dead_head
            letters.append(
                DeadLetter(
                    number=number,
                    state=MessageState.PARKED if head else MessageState.BEHIND,
                    failed_ms=int(reply[1]),
                    behind=entry.dead - 1 if head else 0,
                    record=shown(reply[i + 1], group),
                )
            )
        return letters, bool(reply[2])

    async def walk(
        self, place: Place, group: str, queue: Queue
    ) -> AsyncIterator[tuple[int, RetryRecord, GroupEntry]]:
        """All that a group has in a queue, in order."""
        behind, more = 0, True
        while more:
            reply = await self._chain(place, group, queue, behind, PAGE_MAX)
            more = bool(reply[2])
            for i in range(3, len(reply), 2):
                behind = int(reply[i])
                yield behind, shown(reply[i + 1], group), parse_entry(reply[0])

    async def scan(self, place: Place, queue: Queue) -> AsyncIterator[tuple[int, RetryRecord]]:
        """All in a queue, in no order."""
        cursor = b"0"
        while True:
            cursor, pairs = await self._store.call(
                "HSCAN", place.key(queue), cursor, "COUNT", PAGE_MAX
            )
            for i in range(0, len(pairs), 2):
                yield int(pairs[i]), shown(pairs[i + 1])
            if cursor == b"0":
                return

    async def _chain(
        self, place: Place, group: str, queue: Queue, behind: int, most: int
    ) -> list[Reply]:
        arguments = (_TERMS, group, queue, behind, most)
        return check(await self._store.run(_CHAIN_PAGE, [place.log], arguments), place)


def letter_of(name: bytes, ms: bytes, entry: bytes, record: bytes) -> DeadLetter:
    """A dead letter of `failed`, as scripts tell it: name, time, entry of its group, record."""
    number, _, group = name.partition(b" ")
    return DeadLetter(
        number=int(number),
        state=MessageState.PARKED if entry else MessageState.ALONE,
        failed_ms=int(ms),
        behind=parse_entry(entry).dead - 1 if entry else 0,
        record=shown(record, group.decode()),
    )
