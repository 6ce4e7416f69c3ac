"""A process dies at every store call of what is done to a topic, from its creation to its purge.

Whoever comes next finishes it: every message is there once, where the router says, in the order of
its group.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.helpers.topics import open_topics
from waystation.catalogue import SqliteCatalogue
from waystation.errors import ConflictError, TopicNotFoundError
from waystation.logs.streams import StreamLogs
from waystation.messages.envelope import Envelope, unpack
from waystation.runtime.clock import Clock
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.testing import CrashPoint, crash_points
from waystation.topics.dedup import Deduplicator
from waystation.topics.producer import Producer
from waystation.topics.router import hash_of
from waystation.types.message import Receipt
from waystation.types.topic import TopicOptions

PROJECT, NAME = "default", "orders"
GROUPS = [f"g{n}" for n in range(6)]


class Process:
    """What a process has of topics."""

    def __init__(self, store: Store, catalogue: SqliteCatalogue) -> None:
        clock = Clock()
        self.store = store
        self.logs = StreamLogs(store)
        self.topics = open_topics(catalogue, store, self.logs, clock=clock)
        self.producer = Producer(self.topics, self.logs, Deduplicator(store, clock=clock))

    async def create(self) -> None:
        try:
            await self.topics.create(
                PROJECT, NAME, partitions=2, options=TopicOptions(dedup_seconds=600)
            )
        except ConflictError:
            await self.topics.get(PROJECT, NAME)

    async def produce(self, number: int) -> None:
        envelopes = [
            Envelope(id=f"{group}-{number}", project=PROJECT, data=b"x", group=group)
            for group in GROUPS
        ]
        for result in await self.producer.produce(PROJECT, NAME, envelopes):
            assert isinstance(result, Receipt), result

    async def grow(self) -> None:
        topic = await self.topics.get(PROJECT, NAME)
        if len(topic.storage) == 1:
            await self.topics.add_storage_topic(PROJECT, NAME, 6)

    async def switch(self) -> None:
        await self.topics.switch_produce(PROJECT, NAME)

    async def limit(self) -> None:
        for _ in range(2):
            topic = await self.topics.get(PROJECT, NAME)
            options = TopicOptions(dedup_seconds=600, max_bytes=10_000_000)
            try:
                await self.topics.change_options(PROJECT, NAME, options, version=topic.version)
            except ConflictError:
                # The working copy was old; to be refused brought it up to date.
                continue
            break
        topic = await self.topics.get(PROJECT, NAME)
        for partition in range(topic.target.partitions):
            trimmed = await self.logs.trim(topic.log(topic.target), partition)
            assert trimmed.retention.max_bytes == 10_000_000

    async def purge(self) -> None:
        with suppress(TopicNotFoundError):
            await self.topics.delete(PROJECT, NAME)
        await self.topics.purge(PROJECT, NAME)
        # Ids of messages included, which no register lists.
        assert await self.store.call("KEYS", f"{{t.{PROJECT}.{NAME}.*") == []

    async def check(self, numbers: int) -> None:
        topic = await self.topics.get(PROJECT, NAME)
        assert set(await self.logs.names()) == {topic.log(storage) for storage in topic.storage}
        found: dict[str, list[str]] = {group: [] for group in GROUPS}
        for storage in topic.storage:
            for partition in range(storage.partitions):
                batch = await self.logs.read(topic.log(storage), partition, 0, limit=1000)
                for entry in batch.entries():
                    message = unpack(entry.payload, project=PROJECT)
                    assert message.group is not None
                    assert storage.router.partition_of(hash_of(message.group)) == partition
                    found[message.group].append(message.id)
        assert found == {
            group: [f"{group}-{number}" for number in range(numbers)] for group in GROUPS
        }


Step = Callable[[Process], Awaitable[None]]

STEPS: dict[str, tuple[Step, int]] = {
    "create": (Process.create, 0),
    "produce": (lambda process: process.produce(1), 1),
    "grow": (Process.grow, 1),
    "switch": (Process.switch, 1),
    "limit": (Process.limit, 1),
    "purge": (Process.purge, 1),
}


@pytest.mark.slow
@pytest.mark.parametrize(("step", "made"), STEPS.values(), ids=STEPS)
def test_a_step_that_is_repeated_after_a_death_leaves_everything_in_order(
    store_server: EmbeddedServer, tmp_path: Path, step: Step, made: int
) -> None:
    files = [tmp_path / "0.db"]

    async def opened(store: Store) -> tuple[Process, SqliteCatalogue]:
        catalogue = SqliteCatalogue(files[-1])
        await catalogue.open()
        return Process(store, catalogue), catalogue

    async def prepare(store: Store) -> None:
        # Each death has a catalogue of its own, as it has a store that was emptied.
        files.append(tmp_path / f"{len(files)}.db")
        process, catalogue = await opened(store)
        if made:
            await process.create()
            await process.produce(0)
        if step is Process.switch:
            await process.grow()
        await catalogue.close()

    async def scenario(store: Store) -> None:
        process, catalogue = await opened(store)
        await step(process)
        await catalogue.close()

    async def after(store: Store, point: CrashPoint) -> None:
        process, catalogue = await opened(store)
        await step(process)
        await process.create()
        for number in range(3):
            # Repeating all is what a client does that knows nothing; ids make it harmless.
            await process.produce(number)
        await process.grow()
        await process.switch()
        await process.produce(3)
        await process.check(4)
        await catalogue.close()

    points = crash_points(store_server.address, scenario, after, prepare=prepare)
    assert len(points) >= 6
