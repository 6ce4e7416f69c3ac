"""A shard on the real store, opened for one test, with its slot in plain view."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from waystation.logs.protocol import Retention
from waystation.logs.streams import StreamLogs
from waystation.messages.envelope import Envelope
from waystation.messages.envelope import pack as pack_envelope
from waystation.runtime.clock import Clock
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.pubsub import PubSub
from waystation.store.scripts import script
from waystation.store.time_machine import TimeMachine
from waystation.subscriptions.commits import Commits
from waystation.subscriptions.held import Due, Head, Settled, Settlement
from waystation.subscriptions.log_entry import Fact, unpack
from waystation.subscriptions.looking import Looking
from waystation.subscriptions.names import Place
from waystation.subscriptions.operating import Operating, RedriveStep
from waystation.subscriptions.positions import Position
from waystation.subscriptions.record import RetryRecord, pack
from waystation.subscriptions.shard_store import ShardStore
from waystation.subscriptions.states import Verdict
from waystation.subscriptions.terms import Terms

PLACE = Place("default", "crm", 0, 0)
TERMS = Terms(
    dataset="ds-1",
    epoch=1,
    incarnation=1,
    policy="park",
    retry_bytes_max=None,
    dead_bytes_max=None,
    dead_full_policy="refuse",
)
_ACQUIRE = script("waystation.store", "lease_acquire")
#: What tests mean by a shard's whole state: all but time.
_SETS = ("due", "taken", "failed")


def record_for(group: str, offset: int, *, size: int = 0) -> bytes:
    """A record of the message at an offset of partition 0."""
    position = Position(1, 0, 0, offset)
    envelope = Envelope(id=f"m-{offset}", project="default", data=b"e" * size, group=group or None)
    packed = pack_envelope(envelope)
    return pack(RetryRecord(group=group, position=position, envelope=packed))


def main(offset: int, group: str = "g", verdict: str = "done", **more: Any) -> Settlement:
    """An item for a message of the topic itself."""
    record = b"" if verdict == "done" else record_for(group, offset)
    given = {"member": f"m0.0.{offset}", "group": group, "record": record, **more}
    return Settlement(verdict=Verdict(verdict), **given)


def ended(member: str, group: str = "g", verdict: str = "done", **more: Any) -> Settlement:
    """An item for a head."""
    return Settlement(member=member, group=group, verdict=Verdict(verdict), **more)


@dataclass
class ShardSlot:
    """The scripts of a shard, and what they leave."""

    store: Store
    logs: StreamLogs
    machine: TimeMachine
    place: Place = PLACE
    terms: Terms = TERMS
    calls: int = 0
    shard: ShardStore = field(init=False)
    commits: Commits = field(init=False)
    operating: Operating = field(init=False)
    looking: Looking = field(init=False)

    def __post_init__(self) -> None:
        self.shard, self.commits = ShardStore(self.store), Commits(self.store)
        self.operating = Operating(self.store, dataset=self.terms.dataset)
        self.looking = Looking(self.store)

    def use(self, **changes: Any) -> None:
        """Goes on with other terms, say another policy."""
        self.terms = msgspec.structs.replace(self.terms, **changes)

    async def acquire(self, owner: str, *, lease_ms: int = 60_000) -> int:
        """Takes the lease as an owner takes it, by force: the deadline is over. The epoch."""
        await self.store.call("HSET", self.place.lease, "until_ms", 0)
        (epoch,) = await self.store.run(_ACQUIRE, [self.place.lease], [owner, lease_ms])
        self.use(epoch=epoch)
        return int(epoch)

    async def commit(
        self, *items: Settlement, call: int | None = None, heads: bool = True
    ) -> list[Settled]:
        """A commit with the next number."""
        self.calls += 1
        number = (self.calls if heads else 0) if call is None else call
        return (await self.commits.commit(self.place, self.terms, items, call=number)).items

    async def one(self, item: Settlement, **more: Any) -> Settled:
        """A commit of one item."""
        (settled,) = await self.commit(item, **more)
        return settled

    async def due(self, *, most: int = 100, bytes_max: int = 10**7) -> Due:
        """Heads that are due, with the next number."""
        self.calls += 1
        return await self.shard.due(
            self.place, self.terms, call=self.calls, most=most, bytes_max=bytes_max
        )

    async def heads(self) -> list[Head]:
        """The same, the heads alone."""
        return (await self.due()).heads

    # -- Set-ups -----------------------------------------------------------------------------

    async def retrying(self, count: int, group: str = "g", first: int = 0) -> None:
        """A group with `count` messages in retry; its head is due."""
        await self.commit(main(first, group, "again"), heads=False)
        for from_ in range(first + 1, first + count, 100):
            until = min(from_ + 100, first + count)
            await self.commit(*(main(i, group, "behind") for i in range(from_, until)))

    async def parked(self, count: int, group: str = "g", first: int = 0) -> None:
        """A group with `count` dead letters."""
        await self.commit(main(first, group, "dead"))
        for from_ in range(first + 1, first + count, 100):
            until = min(from_ + 100, first + count)
            await self.commit(*(main(i, group, "behind") for i in range(from_, until)))

    async def redriven(
        self, group: str = "g", upto: int | None = None, operation: str = "op"
    ) -> str:
        """Redrives a parked group; the member of its head."""
        step = RedriveStep(operation=operation, group=group, upto=upto, failed_before_ms=0)
        assert (await self.operating.redrive(self.place, step)).groups == 1
        return f"{(await self.looking.group(self.place, group)).head_name}.0"

    # -- What is in the store ----------------------------------------------------------------

    def key(self, kind: str) -> str:
        """A key of the shard."""
        return self.place.key(kind)

    async def hash(self, kind: str) -> dict[str, str]:
        """A hash; bytes that are no text are shown as they are."""
        pairs = await self.store.call("HGETALL", self.key(kind))
        return {
            pairs[i].decode(): pairs[i + 1].decode(errors="backslashreplace")
            for i in range(0, len(pairs), 2)
        }

    async def scores(self, kind: str) -> dict[str, int]:
        """A sorted set."""
        pairs = await self.store.call("ZRANGE", self.key(kind), 0, -1, "WITHSCORES")
        return {pairs[i].decode(): int(pairs[i + 1]) for i in range(0, len(pairs), 2)}

    async def low(self) -> int:
        """All below is acknowledged, in partition 0 of storage topic 0."""
        return int((await self.hash("pos"))["0.0"])

    async def acks(self) -> list[int]:
        """What is acknowledged above that."""
        return list((await self.scores("acks:0.0")).values())

    async def facts(self) -> list[Fact]:
        """All that the record log has."""
        read = (
            await self.logs.read(self.place.record_log, self.place.shard, 0, limit=10_000)
        ).entries()
        return [fact for each in read for fact in unpack(each.payload).facts]

    async def slot(self) -> dict[str, Any]:
        """Every key of the shard but its lease and log, with all that it holds."""
        found: dict[str, Any] = {}
        for key in await self.store.call("KEYS", self.key("*").replace("[", r"\[")):
            kind = key.decode().removeprefix(self.place.tag)
            if kind.startswith("log") or kind == "lease":
                continue
            match (await self.store.call("TYPE", key)).decode():
                case "hash":
                    found[kind] = await self.hash(kind)
                case "zset":
                    found[kind] = await self.scores(kind)
                case "list":
                    found[kind] = await self.store.call("LRANGE", key, 0, -1)
        return found

    async def everything(self) -> tuple[dict[str, Any], int]:
        """The slot, and how much the record log has."""
        state = await self.logs.state(self.place.record_log, self.place.shard)
        return await self.slot(), state.end


@asynccontextmanager
async def open_shard_slot(
    server: EmbeddedServer, *, test_mode: bool = True
) -> AsyncIterator[ShardSlot]:
    """A shard that begins at 0, on an empty store, owned under epoch 1."""
    store = Store(server.address, test_mode=test_mode)
    wakeups, clock = PubSub(server.address), Clock()
    machine, logs = TimeMachine(store, wakeups, clock), StreamLogs(store)
    slot = ShardSlot(store, logs, machine)
    try:
        await store.call("FLUSHALL")
        await wakeups.start()
        await machine.start()
        await logs.create(PLACE.record_log, 1, Retention())
        assert await slot.shard.establish(PLACE, TERMS, {"0.0": 0}, topic="orders")
        assert await slot.acquire("me") == 1
        yield slot
    finally:
        await machine.stop()
        await wakeups.stop()
        await store.close()
