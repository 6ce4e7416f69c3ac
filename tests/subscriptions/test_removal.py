"""Subscriptions that are deleted: what goes, what stays, and who is refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.subscriptions.subscription_bench import PROJECT, open_bench
from waystation.errors import (
    SubscriptionNotFoundError,
    TopicSubscribedError,
)
from waystation.store.embedded.server import EmbeddedServer


async def test_a_deleted_subscription_leaves_its_record_log_and_its_numbers(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        topic = await bench.topics.create(PROJECT, "orders")
        made = await bench.create()
        await bench.subscriptions.delete(PROJECT, "crm")
        with pytest.raises(SubscriptionNotFoundError):
            await bench.subscriptions.get(PROJECT, "crm")
        with pytest.raises(SubscriptionNotFoundError):
            await bench.subscriptions.delete(PROJECT, "crm")
        assert await bench.holds(topic) == {}
        state = await bench.logs.state(made.record_log, 0)
        assert (state.end, state.sealed) == (1, 1)
        for key in await bench.keys("{s.default.crm.*"):
            kind = key.partition("}:")[2]
            assert kind.startswith("log") or kind in ("head", "lease")
            # What keeps late ones off goes by itself.
            assert kind.startswith("log") or 0 < await bench.store.call("PTTL", key) <= 3_600_000
        again = await bench.create()
        assert again.version > made.version
        assert (again.generation, again.incarnation) == (1, 2)
        assert [each.number for each in again.retry] == [1]
        assert await bench.positions(again) == await bench.ends(topic)


async def test_an_owner_of_a_deleted_shard_is_refused_and_cannot_hold_it_again(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders", partitions=1)
        made = await bench.create()
        await bench.store.call("HSET", made.place(0).lease, "epoch", 7, "until_ms", 10**15)
        await bench.subscriptions.delete(PROJECT, "crm")
        lease = await bench.store.call("HMGET", made.place(0).lease, "epoch", "until_ms")
        assert lease == [b"8", b"0"]
        # One who believes that it is still to be created comes too late.
        with pytest.raises(SubscriptionNotFoundError):
            await bench.subscriptions.lifecycle.finish_creation(
                msgspec.structs.replace(made, state="creating")
            )
        assert await bench.positions(made) == {}


async def test_a_removal_that_is_repeated_changes_nothing_more(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders", partitions=2)
        made = await bench.create()
        construction, found = bench.subscriptions.construction, []
        for _ in range(2):
            await construction.remove(made)
            keys = await bench.keys("{s.*")
            found.append({key: await bench.store.call("DUMP", key) for key in keys})
        assert found[0] == found[1]


async def test_a_topic_that_is_read_cannot_be_deleted(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders")
        await bench.topics.create(PROJECT, "other")
        await bench.create()
        with pytest.raises(TopicSubscribedError, match="crm") as caught:
            await bench.topics.delete(PROJECT, "orders")
        assert caught.value.code == "topic.subscribed"
        await bench.topics.delete(PROJECT, "other")
        await bench.subscriptions.delete(PROJECT, "crm")
        await bench.topics.delete(PROJECT, "orders")
        await bench.topics.purge(PROJECT, "orders")


async def test_a_subscription_that_came_while_its_topic_was_deleted_keeps_it_from_being_purged(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders")
        await bench.create()
        # As if it had not been there yet when the deletion looked.
        await bench.topics._definitions.change(PROJECT, "orders", lambda topic: topic.deleted())
        with pytest.raises(TopicSubscribedError):
            await bench.topics.purge(PROJECT, "orders")
        await bench.subscriptions.delete(PROJECT, "crm")
        await bench.topics.purge(PROJECT, "orders")
