"""An owner of a shard that does what tests say: fails messages, delivers heads, takes steps."""

from __future__ import annotations

from dataclasses import dataclass

from tests.subscriptions.subscription_bench import DATASET, PROJECT, SubscriptionBench
from waystation.messages.envelope import Envelope
from waystation.messages.envelope import pack as pack_envelope
from waystation.store.scripts import script
from waystation.subscriptions.commits import Commits
from waystation.subscriptions.definition import Subscription
from waystation.subscriptions.held import Settlement
from waystation.subscriptions.names import Place
from waystation.subscriptions.positions import Position
from waystation.subscriptions.record import RetryRecord, pack
from waystation.subscriptions.shard_store import ShardStore
from waystation.subscriptions.states import Verdict
from waystation.subscriptions.terms import Terms

_ACQUIRE = script("waystation.store", "lease_acquire")


@dataclass
class ShardOwner:
    """Commits under its epoch; offsets and calls are counted."""

    bench: SubscriptionBench
    place: Place
    terms: Terms
    partition: int
    offset: int
    calls: int = 0

    async def park(self, group: str, count: int = 1, *, alone: bool = False) -> list[str]:
        """Has messages of a group die, the first by itself; their ids."""
        ids = []
        for n in range(count):
            verdict = Verdict.DEAD if alone or n == 0 else Verdict.BEHIND
            ids.append(f"{group}-{self.offset}")
            position = Position(self.terms.incarnation, 0, self.partition, self.offset)
            envelope = Envelope(id=ids[-1], project=PROJECT, data=b"{}", group=group)
            record = RetryRecord(
                group=group, position=position, envelope=pack_envelope(envelope), failure="500"
            )
            item = Settlement(
                member=position.member, group=group, verdict=verdict, record=pack(record)
            )
            self.offset += 1
            await self._commit(item)
        return ids

    async def deliver(self, *, verdict: Verdict = Verdict.DONE, most: int = 1000) -> list[str]:
        """Attempts what is due, head after head; the members."""
        seen: list[str] = []
        while len(seen) < most:
            self.calls += 1
            due = await ShardStore(self.bench.store).due(
                self.place, self.terms, call=self.calls, most=1, bytes_max=10**6
            )
            if not due.heads:
                break
            (head,) = due.heads
            seen.append(head.member)
            await self._commit(
                Settlement(
                    member=head.member, group=head.group, verdict=verdict, record=head.record
                )
            )
        return seen

    async def step(self, credit: int = 200) -> float:
        """Works off operations."""
        return await self.bench.operations.step(self.place, self.terms, credit)

    async def steps(self, most: int = 100) -> int:
        """The same, until there is nothing to do at once; how many steps that were."""
        for n in range(1, most + 1):
            if await self.step() > 0:
                return n
        raise AssertionError("there is no end of steps")

    async def _commit(self, item: Settlement) -> None:
        await Commits(self.bench.store).commit(self.place, self.terms, [item], call=0)


async def own(bench: SubscriptionBench, subscription: Subscription, shard: int = 0) -> ShardOwner:
    """Takes the lease of a shard that has one partition or more of storage topic 0."""
    place = subscription.place(shard)
    (epoch,) = await bench.store.run(_ACQUIRE, [place.lease], [f"owner-{shard}", 600_000])
    pos = await bench.store.call("HGETALL", place.key("pos"))
    partition, offset = int(pos[0].partition(b".")[2]), int(pos[1])
    terms = subscription.terms(DATASET, int(epoch))
    return ShardOwner(bench, place, terms, partition, offset)
