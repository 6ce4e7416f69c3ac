"""A shard at work on the real store and a real HTTP endpoint, with all that a test wants to see."""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tests.helpers.waiting import eventually
from waystation.delivery.addresses import AddressGuard
from waystation.delivery.sender import Sender
from waystation.delivery.standing import Standing
from waystation.delivery.states import EndpointStates
from waystation.errors import TopicNotFoundError
from waystation.logs.protocol import Retention
from waystation.logs.streams import StreamLogs
from waystation.messages import envelope
from waystation.messages.envelope import Envelope
from waystation.runtime.clock import Clock
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.leases import Lease, LeaseRenewer, Leases
from waystation.store.pubsub import PubSub
from waystation.store.time_machine import TimeMachine
from waystation.subscriptions.commits import Commits
from waystation.subscriptions.definition import RetryPolicy, Subscription, SubscriptionOptions
from waystation.subscriptions.endpoints.http import HttpEndpoint
from waystation.subscriptions.endpoints.means import Means
from waystation.subscriptions.endpoints.protocol import Endpoint
from waystation.subscriptions.log_entry import Fact, unpack, unpack_attempt
from waystation.subscriptions.means import ShardMeans
from waystation.subscriptions.names import Place
from waystation.subscriptions.record import RetryRecord
from waystation.subscriptions.record import unpack as unpack_record
from waystation.subscriptions.shard import Shard
from waystation.subscriptions.shard_store import ShardStore
from waystation.subscriptions.slots import Slots
from waystation.subscriptions.states import Verdict
from waystation.subscriptions.terms import NO_EPOCH
from waystation.testing.endpoint import Answer, FakeEndpoint, ReceivedRequest
from waystation.topics.model import StorageTopicDefinition, TopicDefinition
from waystation.types.topic import TopicOptions

DATASET = "ds-1"
QUICK = RetryPolicy(attempts=3, first_seconds=0.02, jitter=0)


@dataclass
class Hook(FakeEndpoint):
    """An endpoint that decides by the request."""

    decide: Callable[[ReceivedRequest], int | Answer] = lambda request: 200

    def next_answer(self) -> Answer:
        decided = self.decide(self.received[-1])
        answer = decided if isinstance(decided, Answer) else Answer(decided)
        self.received[-1].status = answer.status
        return answer

    def ids(self, *, status: int | None = None) -> list[str]:
        """Ids of what has come, in their order."""
        return [
            each.headers["waystation-id"]
            for each in self.received
            if status is None or each.status == status
        ]

    def of(self, group: str, *, status: int | None = None) -> list[str]:
        """The same, of one group."""
        return [
            each.headers["waystation-id"]
            for each in self.received
            if each.headers.get("waystation-group") == group
            and (status is None or each.status == status)
        ]


class Counted:
    """Counts what shards tell."""

    def __init__(self) -> None:
        self.attempts: list[Verdict] = []
        self.doubles = 0

    def attempted(self, place: Place, verdict: Verdict) -> None:
        self.attempts.append(verdict)

    def doubled(self, place: Place) -> None:
        self.doubles += 1


def subscription_to(url: str, *, shards: int = 1, **options: Any) -> Subscription:
    """A subscription that tries again quickly."""
    given = {"retry": QUICK, **options}
    storage = (StorageTopicDefinition(number=0, partitions=shards),)
    return Subscription(
        project="default",
        name="crm",
        version=1,
        topic="orders",
        endpoint=url,
        shards=shards,
        options=SubscriptionOptions(**given),
        state="active",
        retry=storage,
        dead=storage,
        start="beginning",
    )


@dataclass
class AtWork:
    """The parts of a process that delivers, and what a test does with them."""

    store: Store
    logs: StreamLogs
    wakeups: PubSub
    clock: Clock
    machine: TimeMachine
    sender: Sender
    leases: Leases
    subscription: Subscription
    topic: TopicDefinition
    counts: Counted = field(default_factory=Counted)
    standings: dict[str, Standing] = field(default_factory=dict)
    slots: Slots = field(default_factory=Slots)
    #: In the place of the HTTP endpoint, for tests that need no requests.
    endpoint: Endpoint | None = None
    topic_is_there: bool = True
    started: list[tuple[Shard, Lease]] = field(default_factory=list)
    produced: int = 0

    def __post_init__(self) -> None:
        self.states = EndpointStates(self.store)
        self.shards = ShardStore(self.store)

    @property
    def place(self) -> Place:
        return self.subscription.place(0)

    def means(self, **more: Any) -> ShardMeans:
        """What a shard gets."""
        given: dict[str, Any] = {
            "store": self.shards,
            "commits": Commits(self.store),
            "logs": self.logs,
            "wakeups": self.wakeups,
            "clock": self.clock,
            "rng": random.Random(1),
            "dataset": DATASET,
            "node": "n1",
            "topic": self._topic,
            "endpoint": self._endpoint,
            "standing": self._standing,
            "states": self.states,
            "slots": self.slots,
            "counts": self.counts,
        }
        return ShardMeans(**{**given, **more})

    async def _topic(self, project: str, name: str) -> TopicDefinition:
        if not self.topic_is_there:
            raise TopicNotFoundError(f"There is no topic {name}.")
        return self.topic

    async def _endpoint(self, subscription: Subscription) -> Endpoint:
        if self.endpoint is not None:
            return self.endpoint

        async def nobody(*_: Any) -> Any:
            raise AssertionError("only requests are made here")

        guard = AddressGuard(loopback=True)
        means = Means(
            sender=self.sender,
            guard=guard,
            start_many=nobody,
            publish_many=nobody,
            enqueue_many=nobody,
            clock=self.clock,
        )
        return HttpEndpoint(subscription, (), means)

    def _standing(self, target: str) -> Standing:
        return self.standings.setdefault(target, Standing(target))

    # -- Doing -------------------------------------------------------------------------------

    async def start(self, shard: int = 0, **more: Any) -> Shard:
        """A shard, as its owner starts it."""
        place = self.subscription.place(shard)
        lease = None
        while lease is None:
            lease = await self.leases.acquire(place.lease)
        opened = Shard(self.subscription, place, lease, self.means(**more))
        self.started.append((opened, lease))
        await opened.start()
        return opened

    async def stop(self, shard: Shard, *, grace_seconds: float = 1.0) -> None:
        """Ends it, and gives the lease back."""
        lease = next(lease for each, lease in self.started if each is shard)
        self.started = [(each, held) for each, held in self.started if each is not shard]
        await shard.stop(grace_seconds=grace_seconds)
        await lease.release()

    async def kill(self, shard: Shard) -> None:
        """Ends it as a death would: nothing is written, given back or told any more."""
        lease = next(lease for each, lease in self.started if each is shard)
        self.started = [(each, held) for each, held in self.started if each is not shard]
        shard._tenure.lose("killed")
        await shard.stop(grace_seconds=0)
        await lease.release()

    async def produce(
        self,
        *groups: str | None,
        partition: int = 0,
        number: int = 0,
        data: bytes = b"{}",
        not_before_ms: int = 0,
    ) -> list[str]:
        """One message for each group; their ids tell the order: `<group>-<n>`."""
        packed, ids = [], []
        for group in groups:
            self.produced += 1
            ids.append(f"{group}-{self.produced:05}")
            packed.append(
                envelope.pack(
                    Envelope(
                        id=ids[-1],
                        project="default",
                        data=data,
                        group=group,
                        not_before_ms=not_before_ms,
                    )
                )
            )
        log = self.topic.log_of(number)
        for i in range(0, len(packed), 1000):
            await self.logs.append(log, partition, packed[i : i + 1000])
        return ids

    def add_storage(self, partitions: int) -> StorageTopicDefinition:
        """One more storage topic; its log is to be created."""
        self.topic = self.topic.with_storage(partitions)
        return self.topic.storage[-1]

    def change(self, **options: Any) -> Subscription:
        """A newer version of the subscription."""
        changed = msgspec.structs.replace(self.subscription.options, **options)
        self.subscription = self.subscription.changed(options=changed)
        return self.subscription

    # -- Seeing ------------------------------------------------------------------------------

    async def low(self, at: str = "0.0") -> int:
        """All below is acknowledged."""
        return int(await self.store.call("HGET", self.place.key("pos"), at, repeatable=True) or 0)

    async def until_low(self, low: int, at: str = "0.0") -> None:
        """Waits until all below is acknowledged."""

        async def there() -> bool:
            return await self.low(at) >= low

        await eventually(there)

    async def count(self, kind: str) -> int:
        """How many there are in a hash or a set of the shard."""
        kinds = {b"hash": "HLEN", b"zset": "ZCARD", b"none": "EXISTS"}
        key = self.place.key(kind)
        kind_ = await self.store.call("TYPE", key, repeatable=True)
        name = kind_ if isinstance(kind_, bytes) else kind_.encode()
        return int(await self.store.call(kinds[name], key, repeatable=True))

    async def until_count(self, kind: str, count: int) -> None:
        """Waits until there are so many."""

        async def there() -> bool:
            return await self.count(kind) == count

        await eventually(there)

    async def records(self, kind: str) -> list[RetryRecord]:
        """What is in `retry` or `dead`, by number."""
        pairs = await self.store.call("HGETALL", self.place.key(kind))
        found = {int(pairs[i]): pairs[i + 1] for i in range(0, len(pairs), 2)}
        return [unpack_record(found[number]) for number in sorted(found)]

    async def hold_of(self, number: int = 0, partition: int = 0) -> int | None:
        """What the topic keeps for the subscription."""
        key = f"{{{self.topic.log_of(number)}.{partition}}}:log:holds"
        found = await self.store.call("HGET", key, "sub.crm")
        return None if found is None else int(found.split()[0])

    async def facts(self) -> list[Fact]:
        """All that the record log has."""
        read = (await self.logs.read(self.place.record_log, 0, 0, limit=100_000)).entries()
        return [fact for each in read for fact in unpack(each.payload).facts]

    async def check_order(self, groups: Sequence[str]) -> None:
        """No message was attempted before the one before it in its group was settled.

        By the record log alone: an attempt has seen the end of the log when it began, and what
        settled the message before it lies below that.
        """
        read = (await self.logs.read(self.place.record_log, 0, 0, limit=100_000)).entries()
        settled: dict[str, int] = {}
        begun: dict[str, list[int]] = {}
        for entry in read:
            for fact in unpack(entry.payload).facts:
                if fact.kind not in ("attempt", "parked", "dead") or fact.detail is None:
                    continue
                detail = unpack_attempt(fact.detail)
                begun.setdefault(detail.id, []).append(detail.begun_after)
                if fact.now == "-" or fact.kind == "dead":
                    settled[detail.id] = entry.offset
        for group in groups:
            ids = sorted(each for each in begun if each.rpartition("-")[0] == group)
            for before, after in itertools.pairwise(ids):
                assert before in settled, f"{after} was attempted, {before} not settled"
                assert min(begun[after]) > settled[before], f"{after} began before {before} ended"


@asynccontextmanager
async def at_work(
    server: EmbeddedServer,
    url: str = "",
    *,
    partitions: int = 1,
    shards: int = 1,
    grouped: bool = True,
    lease_ms: int = 10_000,
    **options: Any,
) -> AsyncIterator[AtWork]:
    """A topic with a subscription from its beginning, on an empty store; no shard runs yet."""
    store = Store(server.address, test_mode=True)
    subscription = subscription_to(url or "http://127.0.0.1:9/", shards=shards, **options)
    topic = TopicDefinition(
        project="default",
        name="orders",
        version=1,
        options=TopicOptions(grouped=grouped),
        storage=(StorageTopicDefinition(number=0, partitions=partitions),),
    )
    try:
        await store.call("FLUSHALL")
        async with working(store, subscription, topic, lease_ms=lease_ms) as work:
            await establish(work)
            yield work
    finally:
        await store.close()


@asynccontextmanager
async def working(
    store: Store, subscription: Subscription, topic: TopicDefinition, *, lease_ms: int = 10_000
) -> AsyncIterator[AtWork]:
    """A process that works for a subscription, on a store as it is."""
    wakeups, clock = PubSub(store.address), Clock()
    machine, logs = TimeMachine(store, wakeups, clock), StreamLogs(store)
    renewer = LeaseRenewer(store.address, test_mode=store.test_mode)
    sender = Sender(AddressGuard(loopback=True))
    leases = Leases(store, renewer, owner="n1", lease_ms=lease_ms)
    work = AtWork(store, logs, wakeups, clock, machine, sender, leases, subscription, topic)
    try:
        await wakeups.start()
        await machine.start()
        yield work
    finally:
        for shard, _ in work.started:
            await shard.stop(grace_seconds=0)
        await sender.close()
        await machine.stop()
        await wakeups.stop()
        renewer.close()


async def establish(work: AtWork) -> None:
    """Logs and positions of a new subscription, and of its topic."""
    subscription, (storage,) = work.subscription, work.topic.storage
    shards, partitions = subscription.shards, storage.partitions
    await work.logs.create(work.topic.log(storage), partitions, Retention())
    await work.logs.create(subscription.record_log, shards, Retention())
    for shard in range(shards):
        first, end = shard * partitions // shards, (shard + 1) * partitions // shards
        at = {f"0.{each}": 0 for each in range(first, end)}
        terms = subscription.terms(DATASET, NO_EPOCH)
        await work.shards.establish(subscription.place(shard), terms, at, topic=subscription.topic)
