"""The scripts of a holder: claim, keep, give back; and rescue, for holders that have died.

A claimed transaction runs under a lease and an epoch. While its worker lives the lease is renewed;
when it ends, a rescue gives the transaction a higher epoch and puts it back into its queue. From
then on every call of the former holder is refused, however late it comes.

A claim cannot be sent twice. When its reply is lost, `reclaim` finds what it took, by the number
that the claim had; below that is the lease.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from waystation.store.client import Store
from waystation.store.connection import Reply
from waystation.store.scripts import script
from waystation.transactions import names
from waystation.transactions.cells import BATCH_MAX, Terms
from waystation.transactions.head import Head, parse
from waystation.transactions.held import Due, Held, Verdict

_BEGIN = script(__package__, "begin")
_CLAIM = script(__package__, "claim")
_RECLAIM = script(__package__, "reclaim")
_RELEASE = script(__package__, "release")
_RESCUE = script(__package__, "rescue")
#: Run by the thread that keeps leases, over a line of its own: at most `RENEW_MAX` ids a call.
RENEW = script(__package__, "renew")
RENEW_MAX = 500

#: A claim stops after about as many bytes of states; the last one may be large.
CLAIM_BYTES_MAX = 4 * 1_048_576


class Claimed(msgspec.Struct, frozen=True):
    """A transaction that is ours now."""

    id: str
    head: Head
    state: bytes
    #: Fields beside head and state: switches, `once:…`, `wait:…`, `kids`, `result:…`.
    extras: dict[bytes, bytes]

    @property
    def held(self) -> Held:
        """What proves it."""
        return Held(self.id, self.head.epoch, self.head.commits)


class Claim(msgspec.Struct, frozen=True):
    """What a claim brought."""

    #: The store's time.
    now_ms: int
    log_end: int
    items: list[Claimed]
    #: Ids that wait yet in the queues that were looked at.
    left: int
    #: Ids that were in a queue without being queued.
    dropped: int
    #: Admin events that were applied.
    admin: int


class Holding:
    """Runs the scripts of holders."""

    def __init__(self, store: Store, terms: Terms) -> None:
        self._store = store
        self._terms = terms.argument

    async def claim(
        self,
        cell: int,
        group: str,
        *,
        node: str,
        number: int,
        most: int,
        lease_ms: int,
        most_new: int = BATCH_MAX,
    ) -> Claim:
        """Claim up to `most` transactions that are queued for a node group; 0 only looks.

        Of these, up to `most_new` begin; the others continue, because a child has ended.
        """
        assert most <= BATCH_MAX, "more ids than one call may have"
        limits = (most, lease_ms, CLAIM_BYTES_MAX, min(most, most_new))
        arguments = (self._terms, group, node, number, *limits)
        reply = await self._store.run(_CLAIM, [names.log(cell)], arguments)
        now_ms, log_end, left, dropped, admin = (int(each) for each in reply[:5])
        return Claim(now_ms, log_end, list(_claimed(reply, 5)), left, dropped, admin)

    async def reclaim(self, cell: int, *, node: str, number: int, since_ms: int) -> Claim:
        """What a claim took whose reply was lost; `since_ms` is a time of the store before it."""
        found: dict[str, Claimed] = {}
        skipped = 0
        while True:
            arguments = (node, number, since_ms, skipped, BATCH_MAX)
            reply = await self._store.run(_RECLAIM, [names.log(cell)], arguments)
            now_ms, log_end, looked, last_ms = (int(each) for each in reply[:4])
            found |= {each.id: each for each in _claimed(reply, 4)}
            if looked < BATCH_MAX:
                return Claim(now_ms, log_end, list(found.values()), 0, 0, 0)
            # From the last time on, not from the last place: others leave the set meanwhile.
            skipped = skipped + looked if last_ms == since_ms else 0
            since_ms = last_ms

    async def begin(self, held: Held) -> Verdict:
        """Says that a suspect is about to run: a death counts from now on."""
        key = names.log(names.cell_of(held.id))
        reply = await self._store.run(_BEGIN, [key], [held.id, held.epoch, held.commits])
        return Verdict(reply[0].decode(), int(reply[1]), int(reply[2]))

    async def release(self, cell: int, items: Sequence[Held]) -> list[Verdict]:
        """Gives back what is held, in this order, to the heads of the queues; counts nothing."""
        assert len(items) <= BATCH_MAX, "more ids than one call may have"
        if not items:
            return []
        words = [word for each in items for word in (each.id, each.epoch, each.commits)]
        reply = await self._store.run(_RELEASE, [names.log(cell)], [self._terms, *words])
        log_end = int(reply[0])
        return [
            Verdict(reply[i].decode(), int(reply[i + 1]), log_end) for i in range(1, len(reply), 2)
        ]

    async def rescue(self, cell: int, *, most: int, rescues_max: int) -> Due:
        """Takes what nobody renews any more from its holders."""
        assert most <= BATCH_MAX, "more ids than one call may have"
        arguments = (self._terms, most, rescues_max)
        done, next_ms = await self._store.run(_RESCUE, [names.log(cell)], arguments)
        return Due(int(done), int(next_ms))


def _claimed(reply: list[Reply], first: int) -> Iterator[Claimed]:
    for i in range(first, len(reply), 4):
        fields = reply[i + 3]
        extras = dict(zip(fields[::2], fields[1::2], strict=True)) if fields else {}
        extras.pop(b"head", None)
        extras.pop(b"state", None)
        yield Claimed(reply[i].decode(), parse(reply[i + 1]), reply[i + 2], extras)
