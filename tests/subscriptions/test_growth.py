"""Growth of a topic that subscriptions cannot follow: refused, warned of, and shown."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.http import async_ask
from tests.subscriptions.subscription_bench import (
    PROJECT,
    SubscriptionBench,
    bench_on,
    new,
    open_bench,
)
from waystation.catalogue import SqliteCatalogue
from waystation.client import AsyncWaystation
from waystation.config import Config
from waystation.errors import (
    ConflictError,
    GrowthStopsSubscriptionsError,
    ResetOutOfRangeError,
    SubscriptionNotFoundError,
)
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.subscriptions.definition import Subscription
from waystation.subscriptions.shards import growth_warning, readable
from waystation.testing import CrashPoint, crash_points, serving
from waystation.testing.endpoint import FakeEndpoint
from waystation.topics.router import Router


@asynccontextmanager
async def grown(
    server: EmbeddedServer, folder: Path, partitions: int, **subscriptions: int
) -> AsyncIterator[SubscriptionBench]:
    """A topic with subscriptions of so many shards."""
    async with open_bench(server, folder) as bench:
        await bench.topics.create(PROJECT, "orders", partitions=partitions)
        for name, shards in subscriptions.items():
            await bench.create(name, shards=shards)
        yield bench


@pytest.mark.parametrize(
    ("partitions", "grown_to", "shards", "stops"),
    [
        (4, 6, 4, True),
        (4, 12, 3, True),
        (4, 12, 7, True),
        (4, 8, 8, True),
        (6, 9, 3, True),
        (4, 12, 4, False),
        (4, 12, 2, False),
        (4, 6, 1, False),
    ],
)
async def test_topic_growth_that_stops_a_subscription_is_refused_unless_forced(
    store_server: EmbeddedServer,
    tmp_path: Path,
    partitions: int,
    grown_to: int,
    shards: int,
    stops: bool,
) -> None:
    async with grown(store_server, tmp_path, partitions, crm=shards, plain=1) as bench:
        if stops:
            with pytest.raises(
                GrowthStopsSubscriptionsError, match=rf": crm \({shards} shards\)\. "
            ):
                await bench.topics.add_storage_topic(PROJECT, "orders", grown_to)
            topic = await bench.topics.get(PROJECT, "orders")
            assert (len(topic.storage), topic.version) == (1, 1), "nothing was written"
        await bench.topics.add_storage_topic(PROJECT, "orders", grown_to, force=stops)
        if stops:
            with pytest.raises(GrowthStopsSubscriptionsError, match="crm"):
                await bench.topics.switch_produce(PROJECT, "orders")
            await bench.produce(10)
            topic = await bench.topics.get(PROJECT, "orders")
            assert sum((await bench.ends(topic)).values()) == 10, "nothing was sealed"
        topic = await bench.topics.switch_produce(PROJECT, "orders", force=stops)
        assert topic.produce_pointer == 1


async def test_topic_growth_ignores_a_subscription_that_begins_behind_it_or_is_deleted(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with grown(store_server, tmp_path, 4, gone=4) as bench:
        await bench.subscriptions.delete(PROJECT, "gone")
        await bench.topics.add_storage_topic(PROJECT, "orders", 6)
        await bench.topics.switch_produce(PROJECT, "orders")
        # It begins at the end, in the storage topic with six partitions
        later = await bench.create("later", shards=6)
        assert later.first_storage == 1
        await bench.topics.add_storage_topic(PROJECT, "orders", 12)
        await bench.topics.switch_produce(PROJECT, "orders")


async def test_topic_growth_by_two_nodes_at_once_checks_what_it_adds_to(
    store_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve partitions can be followed after six; after the four of the other node they cannot."""
    async with grown(store_server, tmp_path, 6, crm=3) as bench:
        other, readers = bench_on(bench.catalogue, bench.store), bench.readers
        looked = readers.stopped_by

        async def late(*asked: Any) -> list[str]:
            found = await looked(*asked)
            monkeypatch.setattr(readers, "stopped_by", looked)
            await other.topics.add_storage_topic(PROJECT, "orders", 4, force=True)
            return found

        monkeypatch.setattr(readers, "stopped_by", late)
        with pytest.raises(GrowthStopsSubscriptionsError, match="With 12 partitions, storage"):
            await bench.topics.add_storage_topic(PROJECT, "orders", 12)
        assert len((await other.topics.get_newest(PROJECT, "orders")).storage) == 2


async def test_subscription_created_while_a_topic_is_added_to_is_found_by_the_switch(
    store_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The add saw no subscription, the creation no second storage topic; the switch sees both."""
    async with grown(store_server, tmp_path, 4) as bench:
        other, readers = bench_on(bench.catalogue, bench.store), bench.readers
        looked = readers.stopped_by

        async def late(*asked: Any) -> list[str]:
            found = await looked(*asked)
            await other.create("crm")
            return found

        with monkeypatch.context() as patched:
            patched.setattr(readers, "stopped_by", late)
            await bench.topics.add_storage_topic(PROJECT, "orders", 6)
        with pytest.raises(GrowthStopsSubscriptionsError, match="crm"):
            await bench.topics.switch_produce(PROJECT, "orders")


async def test_subscription_created_while_a_topic_is_switched_is_undone(
    store_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Add and switch saw no subscription; the creation finds that its topic is another."""
    async with grown(store_server, tmp_path, 4) as bench:
        other = bench_on(bench.catalogue, bench.store)
        definitions = bench.subscriptions._definitions
        create = definitions.create

        async def late(subscription: Subscription, **more: Any) -> None:
            await other.topics.add_storage_topic(PROJECT, "orders", 6)
            await other.topics.switch_produce(PROJECT, "orders")
            await create(subscription, **more)

        with monkeypatch.context() as patched:
            patched.setattr(definitions, "create", late)
            with pytest.raises(ConflictError, match="grew while"):
                await bench.create("crm")
        with pytest.raises(SubscriptionNotFoundError):
            await bench.subscriptions.get(PROJECT, "crm")
        again = await bench.create("crm")
        assert await bench.subscriptions.growth_warning(again) is None


async def test_subscription_created_just_after_a_topic_grew_reads_the_newest_definition(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """A node believes its copy of a topic for two seconds; the number of shards must not."""
    async with grown(store_server, tmp_path, 4) as bench:
        await bench.topics.get(PROJECT, "orders")
        other = bench_on(bench.catalogue, bench.store)
        await other.topics.add_storage_topic(PROJECT, "orders", 6)
        made = await bench.create("crm")
        assert made.shards == 1


async def test_subscription_reset_to_before_growth_that_it_cannot_follow_is_refused(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with grown(store_server, tmp_path, 4) as bench:
        await bench.topics.add_storage_topic(PROJECT, "orders", 6)
        await bench.topics.switch_produce(PROJECT, "orders")
        crm = await bench.create("crm", shards=3)
        with pytest.raises(ResetOutOfRangeError, match="before its topic grew"):
            await bench.subscriptions.reset(PROJECT, "crm", "beginning")
        assert await bench.subscriptions.get(PROJECT, "crm") == crm
        plain = await bench.create("plain", shards=1)
        await bench.subscriptions.reset(PROJECT, "plain", "beginning")
        assert (plain.first_storage, crm.first_storage) == (1, 1)


@given(
    st.lists(st.integers(1, 24), min_size=1, max_size=4),
    st.integers(1, 26),
    st.integers(1, 24),
)
def test_growth_warning_is_given_exactly_where_no_growth_can_be_followed(
    partitions: list[int], shards: int, factor: int
) -> None:
    spreads = [Router(partitions[0])]
    for count in partitions[1:]:
        spreads.append(spreads[-1].followed_by(count))
    warning = growth_warning(spreads, shards)
    if warning is None:
        longer = [*spreads, spreads[-1].followed_by(spreads[-1].base * factor)]
        assert all(readable(longer, i, shards) > i + 1 for i in range(len(spreads)))
    else:
        growths = (spreads[-1].followed_by(count) for count in range(1, 200))
        stops_already = any(readable(spreads, i, shards) == i + 1 for i in range(len(spreads) - 1))
        assert stops_already or not any(
            readable([*spreads, each], len(spreads) - 1, shards) > len(spreads) for each in growths
        )


@pytest.mark.parametrize(
    ("partitions", "shards", "told"),
    [
        (4, 3, ["when its topic grows", "divides 4: 1, 2, 4."]),
        (4, 7, ["3 of the shards have no partition", "divides 4: 1, 2, 4."]),
        (4, 4, []),
        (4, 1, []),
    ],
)
async def test_subscription_create_warns_of_shards_that_cannot_follow(
    settings: Config, partitions: int, shards: int, told: list[str]
) -> None:
    async with (
        FakeEndpoint() as receiver,
        serving(settings) as station,
        AsyncWaystation(station.url) as client,
    ):
        await client.topics.create("orders", partitions=partitions)
        made = await client.subscriptions.create(
            "crm", topic="orders", endpoint=receiver.url, shards=shards
        )
        assert (made.warning is not None) == bool(told)
        assert all(each in (made.warning or "") for each in told)


async def test_readiness_shows_shards_at_a_barrier_and_why_says_what_to_do(
    settings: Config,
) -> None:
    async with (
        FakeEndpoint() as receiver,
        serving(settings) as station,
        AsyncWaystation(station.url) as client,
    ):
        await client.topics.create("orders", partitions=4)
        await client.subscriptions.create("crm", topic="orders", endpoint=receiver.url, shards=4)
        with pytest.raises(GrowthStopsSubscriptionsError) as caught:
            await client.topics.add_storage_topic("orders", 6)
        assert caught.value.code == "topic.growth-stops-subscriptions"
        await client.topics.add_storage_topic("orders", 6, force=True)
        with pytest.raises(GrowthStopsSubscriptionsError):
            await client.topics.switch_produce("orders")
        await client.topics.switch_produce("orders", force=True)
        async with asyncio.timeout(20):
            for _ in itertools.count():
                ready = (await async_ask(station.url, "GET", "/readyz")).json()
                if any("4 shards of 1 subscriptions" in each for each in ready["notes"]):
                    break
                await asyncio.sleep(0.05)
        assert ready["ready"], "it is a note: other subscriptions deliver"
        assert "crm" not in str(ready), "readiness is public"
        why = await client.subscriptions.why("crm")
        assert why.code == "inconsistent_shards"
        assert "create another subscription" in why.text


async def test_subscription_names_in_a_refusal_are_bounded(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with grown(store_server, tmp_path, 4) as bench:
        for number in range(12):
            await bench.subscriptions.create(PROJECT, f"s{number}", new(shards=3))
        with pytest.raises(GrowthStopsSubscriptionsError, match="and 2 more"):
            await bench.topics.add_storage_topic(PROJECT, "orders", 12)


@pytest.mark.slow
def test_forced_growth_crashed_at_any_store_call_is_finished_by_a_producer_or_by_a_repeat(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    files = [tmp_path / "0.db"]

    @asynccontextmanager
    async def opened(store: Store) -> AsyncIterator[SubscriptionBench]:
        catalogue = SqliteCatalogue(files[-1])
        await catalogue.open()
        yield bench_on(catalogue, store)
        await catalogue.close()

    async def prepare(store: Store) -> None:
        # The crash points empty the store each time, so each has a catalogue of its own.
        files.append(tmp_path / f"{len(files)}.db")
        async with opened(store) as bench:
            await bench.topics.create(PROJECT, "orders", partitions=4)
            await bench.create(shards=4)
            await bench.produce(10)

    async def grow(store: Store) -> None:
        async with opened(store) as bench:
            topic = await bench.topics.get_newest(PROJECT, "orders")
            if len(topic.storage) == 1:
                await bench.topics.add_storage_topic(PROJECT, "orders", 6, force=True)
            await bench.topics.switch_produce(PROJECT, "orders", force=True)

    async def after(store: Store, point: CrashPoint) -> None:
        async with opened(store) as bench:
            # A half-done switch has sealed partitions; a producer that meets one finishes it.
            await bench.produce(10, first=10)
        await grow(store)
        async with opened(store) as bench:
            await bench.produce(10, first=20)
            topic = await bench.topics.get_newest(PROJECT, "orders")
            assert (len(topic.storage), topic.produce_pointer) == (2, 1), point
            ends = await bench.ends(topic)
            assert sum(ends.values()) == 30, point
            # The subscription stops before the second storage topic, so nothing there is trimmed.
            assert (await bench.holds(topic)).keys() == ends.keys(), point

    assert crash_points(store_server.address, grow, after, prepare=prepare)
