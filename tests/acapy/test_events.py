"""Events of agents: each is produced to its topic, in order, whatever dies or is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tests.helpers.topics import open_topics
from waystation.acapy.events import EventPump
from waystation.catalogue import SqliteCatalogue
from waystation.config import EventRule
from waystation.logs.streams import StreamLogs
from waystation.messages.envelope import unpack
from waystation.runtime.clock import Clock
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.topics.dedup import Deduplicator
from waystation.topics.producer import CheckedProducer, Producer
from waystation.topics.rate_limits import RateLimiter
from waystation.topics.schemas import SchemaValidator
from waystation.topics.service import TopicService
from waystation.types.topic import TopicOptions

LIST = "acapy-record-base"
RULE = EventRule(list=LIST, topic="records")


@dataclass
class World:
    """A topic, and what is in it."""

    store: Store
    topics: TopicService
    within: CheckedProducer
    logs: StreamLogs

    async def create(self, **options: object) -> None:
        chosen = TopicOptions(grouped=True, dedup_seconds=60, **options)  # type: ignore[arg-type]
        await self.topics.create("default", "records", partitions=1, options=chosen)

    async def push(self, *events: str) -> None:
        """An agent tells of events."""
        await self.store.call("RPUSH", LIST, *(json.dumps({"event": each}) for each in events))

    async def produced(self) -> list[str]:
        """What the topic has, in its order."""
        topic = await self.topics.get("default", "records")
        found = (await self.logs.read(topic.log(topic.storage[0]), 0, 0, limit=1000)).entries()
        messages = [unpack(each.payload, project="default") for each in found]
        return [json.loads(each.data)["event"] for each in messages]


@asynccontextmanager
async def world(server: EmbeddedServer, folder: Path) -> AsyncIterator[World]:
    catalogue, clock = SqliteCatalogue(folder / "catalogue.db"), Clock()
    await catalogue.open()
    store = Store(server.address)
    await store.call("FLUSHALL")
    logs = StreamLogs(store)
    topics = open_topics(catalogue, store, logs, clock=clock)
    producer = Producer(topics, logs, Deduplicator(store, clock=clock))
    within = CheckedProducer(
        topics, producer, SchemaValidator(), RateLimiter(clock=clock), 1_000_000
    )
    try:
        yield World(store, topics, within, logs)
    finally:
        await store.close()
        await catalogue.close()


async def test_events_are_in_the_topic_in_the_order_of_their_list(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with world(store_server, tmp_path) as there:
        await there.create()
        pump = EventPump(there.store, there.within, RULE)
        await pump.start()
        names = [str(number) for number in range(200)]
        await there.push(*names[:100])
        await there.push(*names[100:])
        async with asyncio.timeout(20):
            while await there.produced() != names:
                await asyncio.sleep(0.01)
        await pump.stop()
        assert await there.store.call("HLEN", f"{{{LIST}}}.taken") == 0


async def test_an_event_that_was_produced_and_not_let_go_of_is_there_once(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with world(store_server, tmp_path) as there:
        await there.create()
        await there.push("one", "two")
        first = EventPump(there.store, there.within, RULE)
        # As one that dies after it has produced: its leases end, and the next takes over.
        for each in await first._queue.take(2, 1):
            assert await first._produce(each.raw, f"{LIST}:{each.number}")
        await asyncio.sleep(0.01)
        assert await EventPump(there.store, there.within, RULE).step() == 0.0
        assert await there.produced() == ["one", "two"]
        assert await there.store.call("HLEN", f"{{{LIST}}}.taken") == 0


async def test_events_wait_in_their_order_while_there_is_no_topic(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with world(store_server, tmp_path) as there:
        await there.push("one", "two", "three")
        pump = EventPump(there.store, there.within, RULE)
        assert await pump.step() > 1
        assert await there.store.call("LLEN", LIST) == 3
        await there.create()
        await pump.step()
        assert await there.produced() == ["one", "two", "three"]


async def test_an_event_that_the_topic_never_takes_is_a_dead_letter_and_can_be_redriven(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with world(store_server, tmp_path) as there:
        schema = {"properties": {"event": {"maxLength": 3}}}
        await there.create(json_schema=schema)
        await there.push("one", "too long", "too long", "two")
        pump = EventPump(there.store, there.within, RULE)
        await pump.step()
        assert await there.produced() == ["one", "two"]
        letters = await pump.refused.dead()
        assert [each.message for each in letters] == [
            b'%b:%d {"event": "too long"}' % (LIST.encode(), number) for number in (2, 3)
        ]
        assert await pump.refused.redrive() == 2
        await pump.step()
        assert len(await pump.refused.dead()) == 2, "refused once more, and still there"
        topic = await there.topics.get("default", "records")
        options = msgspec.structs.replace(topic.options, json_schema=None)
        await there.topics.change_options("default", "records", options, version=topic.version)
        await pump.refused.redrive()
        await pump.step()
        assert await there.produced() == ["one", "two", "too long", "too long"]
        assert await pump.refused.dead() == []
