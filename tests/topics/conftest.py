"""Fixtures of the tests of topics: processes on one database and one store."""

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
class TopicProcess:
    """The parts of one process that concern topics."""

    catalogue: SqliteCatalogue
    store: Store
    logs: StreamLogs
    topics: TopicService
    producer: Producer

    async def produce(self, topic: str, *ids: str, group: str | None = None) -> list[Receipt]:
        """Produce messages with these ids; fail if one is rejected."""
        envelopes = [
            Envelope(id=each, project="default", data=each.encode(), group=group) for each in ids
        ]
        results = await self.producer.produce("default", topic, envelopes)
        for result in results:
            assert isinstance(result, Receipt), result
        return results  # type: ignore[return-value]

    async def contents(self, topic: TopicDefinition) -> list[tuple[int, int, Envelope]]:
        """Return all messages as (storage index, partition, message), by partition and offset."""
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
        """Check that the topic has each message once, by group in order, in its partition."""
        found: dict[str, list[str]] = defaultdict(list)
        # The contents are sorted by storage topic, and a group has one partition in each.
        for index, partition, message in await self.contents(topic):
            assert message.group is not None
            router = topic.storage[index].router
            assert partition == router.partition_of(hash_of(message.group))
            found[message.group].append(message.id)
        assert found == sent


OpenProcess = Callable[[], AbstractAsyncContextManager[TopicProcess]]


@asynccontextmanager
async def process_at(server: EmbeddedServer, folder: Path) -> AsyncIterator[TopicProcess]:
    """Open a process on the database in a folder."""
    catalogue = SqliteCatalogue(folder / "catalogue.db")
    await catalogue.open()
    store, clock = Store(server.address), Clock()
    logs = StreamLogs(store)
    topics = open_topics(catalogue, store, logs, clock=clock)
    dedup = Deduplicator(store, clock=clock)
    try:
        yield TopicProcess(catalogue, store, logs, topics, Producer(topics, logs, dedup))
    finally:
        await store.close()
        await catalogue.close()


@pytest.fixture
def open_process(store_server: EmbeddedServer, tmp_path: Path) -> OpenProcess:
    """Return a function that opens processes on one database and one emptied store."""
    opened_before: list[TopicProcess] = []

    @asynccontextmanager
    async def opened() -> AsyncIterator[TopicProcess]:
        async with process_at(store_server, tmp_path) as process:
            if not opened_before:
                await process.store.call("FLUSHALL")
            opened_before.append(process)
            yield process

    return opened


@pytest.fixture
async def process(open_process: OpenProcess) -> AsyncIterator[TopicProcess]:
    """Open the first process. A test opens further ones with `open_process`."""
    async with open_process() as opened:
        yield opened
