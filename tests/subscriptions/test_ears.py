"""An idle shard hears of new messages: it need not wait until it looks again."""

from __future__ import annotations

import asyncio

import pytest

from tests.subscriptions.at_work import Hook, at_work
from waystation.logs import keys
from waystation.logs.protocol import Retention
from waystation.logs.streams import StreamLogs
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.subscriptions import feed, shard

#: Longer than any test takes: who delivers within it has heard, not looked.
NEVER = 60.0


@pytest.fixture
def looks_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing makes a shard look at its topic by itself."""
    monkeypatch.setattr(feed, "_LOOK_SECONDS_MIN", NEVER)
    monkeypatch.setattr(feed, "_LOOK_SECONDS_MAX", NEVER)
    monkeypatch.setattr(shard, "_HOLD_SECONDS", NEVER)


async def watched(store: Store, log: str, partition: int = 0) -> bool:
    return bool(await store.call("HEXISTS", keys.head(log, partition), "watched"))


@pytest.mark.usefixtures("looks_rarely")
async def test_an_idle_shard_delivers_what_is_produced_long_before_it_would_look(
    store_server: EmbeddedServer,
) -> None:
    async with Hook() as hook, at_work(store_server, hook.url, partitions=3) as work:
        log = work.topic.log_of(0)
        await work.start()
        # Given that it has read each partition to its end, time and again
        for round_ in range(3):
            async with asyncio.timeout(10):
                while not all([await watched(work.store, log, each) for each in range(3)]):
                    await asyncio.sleep(0.005)
            for partition in range(3):
                # When another process, as here another connection, produces
                await work.produce("g", partition=partition)
                # Then it is delivered
                await work.until_low(round_ + 1, at=f"0.{partition}")


@pytest.mark.usefixtures("looks_rarely")
async def test_a_shard_hears_of_the_storage_topic_that_it_went_on_to(
    store_server: EmbeddedServer,
) -> None:
    async with Hook() as hook, at_work(store_server, hook.url) as work:
        following = work.add_storage(1)
        await work.logs.create(work.topic.log(following), 1, Retention())
        await work.logs.seal(work.topic.log_of(0), 0, following.number)
        running = await work.start()
        async with asyncio.timeout(10):
            while not await watched(work.store, work.topic.log(following)):
                # A seal is not told: this is the look that sees it.
                running._wake_all()
                await asyncio.sleep(0.02)

        await work.produce("g", number=following.number)

        await work.until_low(1, at=f"{following.number}.0")


async def test_an_append_tells_once_and_only_if_somebody_watches(
    store_server: EmbeddedServer,
) -> None:
    async with at_work(store_server) as work:
        log, heard = work.topic.log_of(0), asyncio.Queue[bytes | None]()
        end = work.wakeups.listen(keys.more(log, 0).encode(), heard.put_nowait)
        assert await heard.get() is None, "the subscription takes effect"

        # Nobody watches
        await work.produce("g")
        # Two watch, one after the other
        assert (await work.logs.watch(log, 0)).end == 1
        assert (await work.logs.watch(log, 0)) == await work.logs.state(log, 0)
        await work.produce("g", "g")
        await work.produce("g")
        await work.logs.watch(log, 0)
        await work.produce("g")
        # Something that comes for sure, behind all the others
        await work.store.call("PUBLISH", keys.more(log, 0), "end")

        assert [await heard.get() for _ in range(3)] == [b"", b"", b"end"]
        assert not await watched(work.store, log)
        end()


async def test_watching_writes_once_until_something_is_appended(
    store_server: EmbeddedServer,
) -> None:
    """An idle partition costs one read a look, and nothing in the append-only file."""
    async with at_work(store_server) as work:
        logs, log = StreamLogs(work.store), work.topic.log_of(0)
        await logs.watch(log, 0)
        await work.store.call("CONFIG", "RESETSTAT")
        for _ in range(5):
            await logs.watch(log, 0)
        told = (await work.store.call("INFO", "commandstats")).decode()
        assert "cmdstat_hmget:calls=5," in told
        assert "cmdstat_hset" not in told
