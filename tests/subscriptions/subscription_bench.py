"""What tests of definitions share: a bench of catalogue, store, topics and subscriptions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tests.helpers.topics import open_readers
from waystation.catalogue import SqliteCatalogue
from waystation.delivery.addresses import AddressGuard
from waystation.logs import keys as log_names
from waystation.logs.protocol import Retention
from waystation.logs.streams import StreamLogs
from waystation.messages.envelope import Envelope
from waystation.runtime.clock import Clock
from waystation.runtime.ids import RandomIds
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.subscriptions.definition import (
    NewSubscription,
    Subscription,
    is_address,
)
from waystation.subscriptions.log_entry import Fact, unpack
from waystation.subscriptions.operations import Operations
from waystation.subscriptions.subscriptions import Subscriptions
from waystation.subscriptions.topic_readers import SubscriptionReaders
from waystation.subscriptions.upkeep import SubscriptionUpkeep
from waystation.topics.dedup import Deduplicator
from waystation.topics.model import TopicDefinition
from waystation.topics.producer import Producer
from waystation.topics.service import TopicService

PROJECT = "default"
DATASET = "ds-1"
ENDPOINT = "http://127.0.0.1:9000/hook"
KEEP_MS = 7 * 86_400_000


def new(topic: str = "orders", endpoint: str = ENDPOINT, **more: Any) -> NewSubscription:
    """A subscription as it is asked for; `from` as in a request."""
    asked = {"topic": topic, "endpoint": endpoint, **more}
    return msgspec.convert(asked, NewSubscription)


async def check_endpoint(project: str, endpoint: str) -> None:
    """As a node checks endpoints: addresses by the guard of deliveries."""
    if is_address(endpoint):
        AddressGuard(loopback=True).check_url(endpoint)


@dataclass
class SubscriptionBench:
    """One process's view of all subscriptions."""

    catalogue: SqliteCatalogue
    store: Store
    logs: StreamLogs
    clock: Clock
    readers: SubscriptionReaders
    topics: TopicService
    producer: Producer
    subscriptions: Subscriptions
    operations: Operations
    upkeep: SubscriptionUpkeep

    async def produce(self, count: int, *, first: int = 0, topic: str = "orders") -> None:
        """Messages that are spread over all partitions."""
        envelopes = [
            Envelope(id=f"m-{n}", project=PROJECT, data=b"{}", group=f"g-{n}")
            for n in range(first, first + count)
        ]
        results = await self.producer.produce(PROJECT, topic, envelopes)
        assert not [each for each in results if isinstance(each, Exception)]

    async def create(self, name: str = "crm", **more: Any) -> Subscription:
        """A subscription of `orders`."""
        return await self.subscriptions.create(PROJECT, name, new(**more))

    async def ends(self, topic: TopicDefinition) -> dict[str, int]:
        """The end of each partition of all storage topics."""
        return {
            f"{storage.number}.{partition}": (
                await self.logs.state(topic.log(storage), partition)
            ).end
            for storage in topic.storage
            for partition in range(storage.partitions)
        }

    async def positions(self, subscription: Subscription) -> dict[str, int]:
        """Where all shards are."""
        found: dict[str, int] = {}
        for shard in range(subscription.shards):
            pairs = await self.store.call("HGETALL", subscription.place(shard).key("pos"))
            here = {pairs[i].decode(): int(pairs[i + 1]) for i in range(0, len(pairs), 2)}
            assert not found.keys() & here.keys(), "a partition belongs to one shard"
            found |= here
        return found

    async def holds(self, topic: TopicDefinition, name: str = "crm") -> dict[str, int]:
        """What a subscription holds of a topic."""
        found = {}
        for storage in topic.storage:
            for partition in range(storage.partitions):
                key = log_names.holds(topic.log(storage), partition)
                held = await self.store.call("HGET", key, f"sub.{name}")
                if held is not None:
                    found[f"{storage.number}.{partition}"] = int(held.split()[0])
        return found

    async def facts(self, subscription: Subscription, shard: int = 0) -> list[Fact]:
        """The record log of a shard."""
        read = (await self.logs.read(subscription.record_log, shard, 0, limit=1000)).entries()
        return [fact for each in read for fact in unpack(each.payload).facts]

    async def keys(self, pattern: str = "*") -> list[str]:
        """Keys of the store."""
        return sorted(key.decode() for key in await self.store.call("KEYS", pattern))


def bench_on(catalogue: SqliteCatalogue, store: Store) -> SubscriptionBench:
    """All parts on a catalogue and a store that are open."""
    clock, logs = Clock(), StreamLogs(store)
    readers = open_readers(catalogue, store, logs, clock=clock)
    topics = TopicService(catalogue, store, logs, readers, clock=clock)
    subscriptions = Subscriptions(
        catalogue,
        store,
        logs,
        topics,
        clock=clock,
        identity=RandomIds(),
        dataset=DATASET,
        keeps=Retention(max_bytes=1_048_576, policy="drop_and_count"),
        check=check_endpoint,
    )
    producer = Producer(topics, logs, Deduplicator(store, clock=clock))
    operations = Operations(
        subscriptions,
        store,
        clock=clock,
        identity=RandomIds(),
        dataset=DATASET,
        keep_ms=KEEP_MS,
    )
    upkeep = SubscriptionUpkeep(subscriptions, operations, logs, clock=clock, keep_ms=KEEP_MS)
    return SubscriptionBench(
        catalogue, store, logs, clock, readers, topics, producer, subscriptions, operations, upkeep
    )


@asynccontextmanager
async def open_bench(
    server: EmbeddedServer, folder: Path, *, empty: bool = True
) -> AsyncIterator[SubscriptionBench]:
    """A bench on an empty store, or one more beside it, as another process would have it."""
    catalogue = SqliteCatalogue(folder / "catalogue.db")
    await catalogue.open()
    store = Store(server.address)
    try:
        if empty:
            await store.call("FLUSHALL")
        yield bench_on(catalogue, store)
    finally:
        await store.close()
        await catalogue.close()
