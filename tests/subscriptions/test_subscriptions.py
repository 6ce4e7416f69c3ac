"""Subscriptions: made, changed, paused; the catalogue has the truth."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.subscriptions.subscription_bench import ENDPOINT, PROJECT, open_bench
from waystation.errors import (
    ConflictError,
    ForbiddenAddressError,
    InvalidInputError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
    WaystationError,
)
from waystation.store.embedded.server import EmbeddedServer
from waystation.subscriptions.definition import RetryPolicy, Subscription, SubscriptionOptions


async def test_name_topic_and_endpoint_are_enough(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders", partitions=6)
        made = await bench.create()
        assert (made.state, made.version, made.incarnation) == ("active", 2, 1)
        assert (made.shards, made.generation, made.start) == (3, 0, "end")
        assert [each.partitions for each in (*made.retry, *made.dead)] == [3, 3]
        assert await bench.subscriptions.get(PROJECT, "crm") == made
        assert bench.subscriptions.known(PROJECT, "crm") == made


@pytest.mark.parametrize(
    ("partitions", "shards"), [(1, 1), (2, 2), (4, 4), (5, 1), (6, 3), (7, 1), (9, 3), (12, 4)]
)
async def test_it_has_the_largest_divisor_of_the_partitions_up_to_four_as_shards(
    store_server: EmbeddedServer, tmp_path: Path, partitions: int, shards: int
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders", partitions=partitions)
        assert (await bench.create()).shards == shards


async def test_a_topic_that_grew_counts_by_the_base_of_its_chain(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders", partitions=2)
        await bench.topics.add_storage_topic(PROJECT, "orders", 8)
        await bench.topics.switch_produce(PROJECT, "orders")
        assert (await bench.create("grown")).shards == 2
        # A chain of another base: no group keeps its shard over both, but for a single one.
        await bench.topics.add_storage_topic(PROJECT, "orders", 9, force=True)
        await bench.topics.switch_produce(PROJECT, "orders", force=True)
        assert (await bench.create("late")).shards == 3
        assert (await bench.create("whole", **{"from": "beginning"})).shards == 1


# -- Bad input -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "code", "field"),
    [
        ({"endpoint": "pull:workers"}, "subscription.endpoint-invalid", "endpoint"),
        ({"endpoint": "ftp://crm.example/"}, "subscription.endpoint-invalid", "endpoint"),
        ({"endpoint": "pipeline:}{"}, "subscription.endpoint-invalid", "endpoint"),
        ({"endpoint": "channel:"}, "subscription.endpoint-invalid", "endpoint"),
        ({"endpoint": "https://u:p@crm.example/"}, "subscription.endpoint-invalid", "endpoint"),
        ({"endpoint": "http://10.0.0.1/hook"}, "endpoint.forbidden", "endpoint"),
        ({"endpoint": "http://[::ffff:10.0.0.1]/"}, "endpoint.forbidden", "endpoint"),
        ({"shards": 0}, "subscription.shards-invalid", "shards"),
        ({"shards": 1025}, "subscription.shards-invalid", "shards"),
        ({"options": {"grouped": True}}, "subscription.group-mismatch", "grouped"),
        ({"options": {"headers": [["host", "x"]]}}, "input.invalid", "headers"),
        ({"from": 2**52}, "input.invalid", "from"),
        ({"topic": "a}b"}, "input.invalid", "topic"),
    ],
    ids=str,
)
async def test_what_cannot_be_is_refused_by_field_and_nothing_is_written(
    store_server: EmbeddedServer, tmp_path: Path, asked: dict[str, Any], code: str, field: str
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders")
        before = await bench.keys()
        with pytest.raises(InvalidInputError) as caught:
            await bench.create(**asked)
        assert (caught.value.code, caught.value.field) == (code, field)
        assert await bench.subscriptions.list(PROJECT, limit=10) == []
        assert await bench.keys() == before


@pytest.mark.parametrize("name", ["", "{", "a}b", "a*", "a:b", "A", "x" * 64, "a b", "a.b"])
async def test_a_name_that_could_break_out_of_keys_is_refused(
    store_server: EmbeddedServer, tmp_path: Path, name: str
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders")
        for refused in (
            bench.create(name),
            bench.subscriptions.get(PROJECT, name),
            bench.subscriptions.pause(PROJECT, name),
            bench.subscriptions.delete(PROJECT, name),
        ):
            with pytest.raises(InvalidInputError):
                await refused


async def test_a_topic_that_is_not_there_cannot_be_subscribed_to(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        with pytest.raises(TopicNotFoundError):
            await bench.create()
        await bench.topics.create(PROJECT, "orders")
        await bench.topics.delete(PROJECT, "orders")
        with pytest.raises(TopicNotFoundError):
            await bench.create()


async def test_subscriptions_of_another_project_are_as_good_as_absent(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders")
        await bench.create()
        for absent in (
            bench.subscriptions.get("other", "crm"),
            bench.subscriptions.resume("other", "crm"),
            bench.subscriptions.reset("other", "crm", "end"),
            bench.subscriptions.delete("other", "crm"),
        ):
            with pytest.raises(SubscriptionNotFoundError):
                await absent
        assert await bench.subscriptions.list("other", limit=10) == []


# -- Changes ---------------------------------------------------------------------------------


async def test_of_two_who_create_a_subscription_one_does(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with (
        open_bench(store_server, tmp_path) as one,
        open_bench(store_server, tmp_path, empty=False) as other,
    ):
        topic = await one.topics.create(PROJECT, "orders")
        await one.produce(20)
        results = await asyncio.gather(
            one.create(endpoint=ENDPOINT),
            other.create(endpoint="channel:x"),
            return_exceptions=True,
        )
        errors = [each for each in results if isinstance(each, BaseException)]
        assert [type(each) for each in errors] == [ConflictError]
        (made,) = [each for each in results if isinstance(each, Subscription)]
        assert await other.subscriptions.get(PROJECT, "crm") == made
        assert await one.positions(made) == await one.ends(topic) == await one.holds(topic)


async def test_a_change_is_made_to_the_version_it_was_meant_for(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders")
        made = await bench.create()
        options = SubscriptionOptions(retry=RetryPolicy(attempts=1), poison="skip")
        change = bench.subscriptions.change
        changed = await change(PROJECT, "crm", options, version=made.version)
        assert (changed.version, changed.options) == (3, options)
        assert changed.endpoint == made.endpoint
        with pytest.raises(ConflictError, match="version 3"):
            await change(PROJECT, "crm", SubscriptionOptions(), version=made.version)
        moved = await change(PROJECT, "crm", options, version=3, endpoint="channel:crm")
        assert (moved.endpoint, moved.options, moved.version) == ("channel:crm", options, 4)
        assert await bench.subscriptions.get(PROJECT, "crm") == moved


@pytest.mark.parametrize(
    ("options", "endpoint", "kind"),
    [
        ({"grouped": True}, None, InvalidInputError),
        ({"headers": (("webhook-id", "1"),)}, None, InvalidInputError),
        ({}, "http://169.254.169.254/", ForbiddenAddressError),
        ({}, "pull:x", InvalidInputError),
    ],
)
async def test_a_change_is_checked_like_a_creation(
    store_server: EmbeddedServer,
    tmp_path: Path,
    options: dict[str, Any],
    endpoint: str | None,
    kind: type[WaystationError],
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders")
        made = await bench.create()
        asked = SubscriptionOptions(**options)
        with pytest.raises(kind):
            await bench.subscriptions.change(
                PROJECT, "crm", asked, version=made.version, endpoint=endpoint
            )
        assert await bench.subscriptions.get(PROJECT, "crm") == made


async def test_a_pause_has_an_end_and_a_reason(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders")
        made = await bench.create()
        now_ms = bench.clock.now_ms()
        paused = await bench.subscriptions.pause(
            PROJECT, "crm", until_ms=now_ms + 60_000, reason="the receiver moves"
        )
        assert paused.paused_reason == "the receiver moves"
        assert (paused.is_paused(now_ms), paused.is_paused(now_ms + 60_000)) == (True, False)
        endless = await bench.subscriptions.pause(PROJECT, "crm")
        assert endless.is_paused(now_ms + 10**12)
        resumed = await bench.subscriptions.resume(PROJECT, "crm")
        assert resumed == msgspec.structs.replace(made, version=resumed.version)
        assert await bench.subscriptions.resume(PROJECT, "crm") == resumed
        for bad in ({"until_ms": now_ms - 1}, {"reason": "x" * 501}):
            with pytest.raises(InvalidInputError):
                await bench.subscriptions.pause(PROJECT, "crm", **bad)  # type: ignore[arg-type]


async def test_nodes_are_told_of_every_change(store_server: EmbeddedServer, tmp_path: Path) -> None:
    async with (
        open_bench(store_server, tmp_path) as one,
        open_bench(store_server, tmp_path, empty=False) as other,
    ):
        await one.topics.create(PROJECT, "orders")
        await one.create()
        assert (await other.subscriptions.get(PROJECT, "crm")).version == 2
        await one.subscriptions.pause(PROJECT, "crm")
        assert (await other.subscriptions.get(PROJECT, "crm")).paused


async def test_a_page_is_full_however_many_were_deleted_before(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders", partitions=1)
        for n in range(5):
            await bench.create(f"s{n}", endpoint="channel:x")
        for n in range(2):
            await bench.subscriptions.delete(PROJECT, f"s{n}")
        page = await bench.subscriptions.list(PROJECT, limit=2)
        assert [each.name for each in page] == ["s2", "s3"]
        rest = await bench.subscriptions.list(PROJECT, after="s3", limit=2)
        assert [each.name for each in rest] == ["s4"]
