"""What tests of topics share: a bench of catalogue, store, topics and producer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.helpers.topics import open_topics
from waystation.catalogue import SqliteCatalogue
from waystation.logs.streams import StreamLogs
from waystation.messages.envelope import Envelope, unpack
from waystation.runtime.clock import Clock
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.topics.dedup import Deduplicator
from waystation.topics.model import TopicDefinition
from waystation.topics.producer import Producer
from waystation.topics.router import hash_of
from waystation.topics.service import TopicService
from waystation.types.message import Receipt


@dataclass
class TopicBench:
    """One process's view of all topics."""

    catalogue: SqliteCatalogue
    store: Store
    logs: StreamLogs
    topics: TopicService
    producer: Producer

    async def produce(self, topic: str, *ids: str, group: str | None = None) -> list[Receipt]:
        envelopes = [
            Envelope(id=each, project="default", data=each.encode(), group=group) for each in ids
        ]
        results = await self.producer.produce("default", topic, envelopes)
        for result in results:
            assert isinstance(result, Receipt), result
        return results  # type: ignore[return-value]

    async def contents(self, topic: TopicDefinition) -> list[tuple[int, int, Envelope]]:
        """All messages as (storage index, partition, message), in the order of each partition."""
        found = []
        for index, storage in enumerate(topic.storage):
            for partition in range(storage.partitions):
                at = 0
                while batch := await self.logs.read(topic.log(storage), partition, at, limit=1000):
                    at = batch.next_offset
                    for entry in batch.entries():
                        found.append((index, partition, unpack(entry.payload, project="default")))
        return found

    async def check(self, topic: TopicDefinition, sent: dict[str, list[str]]) -> None:
        """Each message is there once, in the order of its group, in the router's partition."""
        found: dict[str, list[str]] = defaultdict(list)
        # They come storage topic by storage topic, and a group has one partition in each.
        for index, partition, message in await self.contents(topic):
            assert message.group is not None
            spread = topic.storage[index].router
            assert partition == spread.partition_of(hash_of(message.group))
            found[message.group].append(message.id)
        assert found == sent


Open = Callable[[], AbstractAsyncContextManager[TopicBench]]


@asynccontextmanager
async def bench_at(server: EmbeddedServer, folder: Path) -> AsyncIterator[TopicBench]:
    """One more bench on the catalogue in a folder."""
    catalogue = SqliteCatalogue(folder / "catalogue.db")
    await catalogue.open()
    store, clock = Store(server.address), Clock()
    logs = StreamLogs(store)
    topics = open_topics(catalogue, store, logs, clock=clock)
    deduplication = Deduplicator(store, clock=clock)
    try:
        yield TopicBench(catalogue, store, logs, topics, Producer(topics, logs, deduplication))
    finally:
        await store.close()
        await catalogue.close()


@pytest.fixture
def open_bench(store_server: EmbeddedServer, tmp_path: Path) -> Open:
    """Opens benches on the same catalogue and store, as processes would; empty at first."""
    opened_before: list[TopicBench] = []

    @asynccontextmanager
    async def opened() -> AsyncIterator[TopicBench]:
        async with bench_at(store_server, tmp_path) as bench:
            if not opened_before:
                await bench.store.call("FLUSHALL")
            opened_before.append(bench)
            yield bench

    return opened
