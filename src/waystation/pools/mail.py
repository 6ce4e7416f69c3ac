"""The messages of a pool: enqueued for a recipient key, taken by its worker, settled.

A message stays in the list of its key until it is acknowledged or a dead letter, and one of a key
is taken at a time: so none is lost with a worker, and none overtakes another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from waystation.errors import InvalidInputError
from waystation.pools.held import (
    Acked,
    Batch,
    Enqueued,
    FoundLetters,
    Letter,
    Nack,
    Nacked,
    Session,
    Taken,
    Takings,
)
from waystation.pools.names import Place
from waystation.pools.recipient import check_id, check_key
from waystation.pools.refusals import check
from waystation.pools.states import WorkerState
from waystation.pools.terms import Terms
from waystation.runtime.ids import require_name
from waystation.store.client import Store
from waystation.store.connection import Reply
from waystation.store.scripts import script

_ENQUEUE = script(__package__, "enqueue")
_TAKE = script(__package__, "take")
_ACK = script(__package__, "ack")
_NACK = script(__package__, "nack")
_RENEW = script(__package__, "renew")
_FIND = script(__package__, "find")

_T = TypeVar("_T")

#: Messages of one call; a loop in a script is never much longer.
BATCH_MAX = 100
#: No wait of a message, no lease and no memory of an id is longer.
_MS_MAX = 30 * 86_400_000
_CAUSE_MAX = 1000


class Mail:
    """Runs the scripts of messages."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def enqueue(
        self, place: Place, terms: Terms, letters: Sequence[Letter], *, remember_ms: int
    ) -> Batch:
        """Enqueues messages, in their order; ids that were there within `remember_ms` are not."""
        words: list[str | bytes | int] = [terms.argument, _within(remember_ms, 1)]
        for each in _batch(letters):
            words += (check_id(each.id), check_key(each.key), each.packed)
        reply = check(await self._store.run(_ENQUEUE, [place.head], words), place)
        first = 2 + int(reply[1])
        items = [_enqueued(reply[i : i + 5]) for i in range(first, len(reply), 5)]
        return Batch(items, [each.decode() for each in reply[2:first]])

    async def take(
        self,
        place: Place,
        terms: Terms,
        session: Session,
        *,
        token: str,
        most: int,
        bytes_max: int,
        lease_ms: int,
    ) -> Takings:
        """Gives a worker messages, one of each key; with the same token again the same ones."""
        require_name(token, field="token")
        arguments = (
            *(terms.argument, session.uid, session.number, token),
            *(min(most, BATCH_MAX), bytes_max, _within(lease_ms, 1)),
        )
        reply = check(await self._store.run(_TAKE, [place.head], arguments), place)
        items = []
        for i in range(2, len(reply), 7):
            key, epoch, *rest = reply[i : i + 7]
            items.append(_taken(key.decode(), int(epoch), token, rest))
        return Takings(WorkerState(reply[0].decode()), int(reply[1]), items)

    async def ack(
        self,
        place: Place,
        terms: Terms,
        session: Session,
        items: Sequence[Taken],
        *,
        next_lease_ms: int = 0,
    ) -> list[Acked]:
        """Settles messages; with a lease for them the next of their keys come with the reply."""
        words = self._words(terms, session, _within(next_lease_ms, 0), items)
        reply = check(await self._store.run(_ACK, [place.head], words), place)
        acked = []
        for each, i in zip(items, range(1, len(reply), 6), strict=True):
            outcome, *rest = reply[i : i + 6]
            more = int(rest[0]) > 0
            following = _taken(each.key, each.epoch, each.token, rest) if more else None
            acked.append(Acked(outcome.decode(), following))
        return acked

    async def nack(
        self, place: Place, terms: Terms, session: Session, items: Sequence[Nack]
    ) -> list[Nacked]:
        """Gives messages back: to be tried again, as dead letters, or uncounted."""
        words: list[str | bytes | int] = [terms.argument, session.uid, session.number]
        for each in _batch(items):
            taken = each.taken
            words += (taken.key, taken.epoch, taken.number, taken.token)
            words += (each.verdict, _within(each.wait_ms, 0), each.cause[:_CAUSE_MAX])
        reply = check(await self._store.run(_NACK, [place.head], words), place)
        return [each.decode() for each in reply[1:]]

    async def renew(
        self, place: Place, terms: Terms, session: Session, items: Sequence[Taken], *, lease_ms: int
    ) -> list[str]:
        """Makes leases longer; the keys of those that are lost."""
        words = self._words(terms, session, _within(lease_ms, 1), items)
        reply = check(await self._store.run(_RENEW, [place.head], words), place)
        return [each.decode() for each in reply[1:]]

    async def find(self, place: Place, key: str, numbers: Sequence[int]) -> FoundLetters:
        """Find out where messages of a recipient key are, by their numbers."""
        withheld, *places = await self._store.run(_FIND, [place.head], [key, *numbers])
        return FoundLetters(int(withheld), [each.decode() for each in places])

    def _words(
        self, terms: Terms, session: Session, ms: int, items: Sequence[Taken]
    ) -> list[str | bytes | int]:
        words: list[str | bytes | int] = [terms.argument, session.uid, session.number, ms]
        for each in _batch(items):
            words += (each.key, each.epoch, each.number, each.token)
        return words


def _batch(items: Sequence[_T]) -> Sequence[_T]:
    assert len(items) <= BATCH_MAX, "more items than one call may have"
    return items


def _within(ms: int, least: int) -> int:
    """Milliseconds, if they can be meant."""
    if not least <= ms <= _MS_MAX:
        raise InvalidInputError(f"A time of {ms} ms is out of its bounds.", field="ms")
    return ms


def _enqueued(words: list[Reply]) -> Enqueued:
    outcome, number, owner, epoch, pending = words
    return Enqueued(outcome.decode(), int(number), owner.decode(), int(epoch), int(pending))


def _taken(key: str, epoch: int, token: str, words: list[Reply]) -> Taken:
    number, tries, crashes, enqueued_ms, packed = words
    return Taken(key, epoch, int(number), token, int(tries), int(crashes), int(enqueued_ms), packed)
