"""Upkeep of subscriptions: whatever dies half-way is finished, and what ended is swept."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.subscriptions.deaths import Deaths
from tests.subscriptions.subscription_bench import (
    KEEP_MS,
    PROJECT,
    SubscriptionBench,
    open_bench,
)
from waystation.catalogue import DefinitionRecord
from waystation.errors import StoreUnavailableError, SubscriptionNotFoundError
from waystation.store.embedded.server import EmbeddedServer
from waystation.subscriptions.definition import Subscription, encode_subscription


async def consistent(bench: SubscriptionBench, subscription: Subscription) -> None:
    """Row, working copy and shards agree; every partition has a position, which is held."""
    row = await bench.subscriptions._definitions.read_row(PROJECT, subscription.name)
    assert row == subscription
    topic = await bench.topics.get(PROJECT, "orders")
    positions, holds = await bench.positions(subscription), await bench.holds(topic)
    assert positions.keys() == (await bench.ends(topic)).keys() == holds.keys()
    # A hold that is too low keeps messages longer, until the next owner moves it.
    assert all(holds[at] <= position for at, position in positions.items())
    for shard in range(subscription.shards):
        head = subscription.place(shard).key("head")
        incarnation = await bench.store.call("HGET", head, "incarnation")
        assert int(incarnation) == subscription.incarnation
    assert len(await bench.subscriptions.secrets(subscription)) == 1


@pytest.mark.slow
def test_a_creation_that_dies_anywhere_is_finished_or_never_was(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    finished = []

    async def check(bench: SubscriptionBench) -> None:
        if await bench.subscriptions._definitions.read_row(PROJECT, "crm") is None:
            assert await bench.keys("{s*") == []
            return
        made = await bench.subscriptions.get(PROJECT, "crm")
        assert made.state == "active"
        await consistent(bench, made)
        topic = await bench.topics.get(PROJECT, "orders")
        assert await bench.positions(made) == await bench.ends(topic)
        finished.append(made)

    Deaths(tmp_path, store_server).run(
        lambda bench: bench.create(shards=2), check, subscribed=False
    )
    assert finished


def test_a_change_that_dies_anywhere_is_seen_by_all_or_never_was(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    seen = set()

    async def check(bench: SubscriptionBench) -> None:
        made = await bench.subscriptions.get(PROJECT, "crm")
        await consistent(bench, made)
        seen.add(made.paused)

    async def verb(bench: SubscriptionBench) -> None:
        await bench.subscriptions.pause(PROJECT, "crm", reason="by hand")

    Deaths(tmp_path, store_server).run(verb, check)
    assert seen == {False, True}


@pytest.mark.slow
@pytest.mark.parametrize("to", ["beginning", "end"])
def test_a_reset_that_dies_anywhere_is_done_in_all_shards_or_in_none(
    store_server: EmbeddedServer, tmp_path: Path, to: str
) -> None:
    seen = set()

    async def check(bench: SubscriptionBench) -> None:
        made = await bench.subscriptions.get(PROJECT, "crm")
        await consistent(bench, made)
        seen.add(made.incarnation)
        positions = await bench.positions(made)
        if made.incarnation == 2:
            ends = await bench.ends(await bench.topics.get(PROJECT, "orders"))
            assert positions == (ends if to == "end" else dict.fromkeys(ends, 0))
            assert made.start == to
        else:
            assert 0 < sum(positions.values()) < 18

    async def verb(bench: SubscriptionBench) -> None:
        await bench.subscriptions.reset(PROJECT, "crm", to)  # type: ignore[arg-type]

    Deaths(tmp_path, store_server).run(verb, check)
    assert seen == {1, 2}


@pytest.mark.slow
def test_a_deletion_that_dies_anywhere_is_finished_or_never_was(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    seen = set()

    async def check(bench: SubscriptionBench) -> None:
        row = await bench.subscriptions._definitions.read_row(PROJECT, "crm")
        assert row is not None
        seen.add(row.state)
        if row.state == "active":
            await consistent(bench, row)
            return
        assert row.state == "deleted"
        with pytest.raises(SubscriptionNotFoundError):
            await bench.subscriptions.get(PROJECT, "crm")
        assert await bench.holds(await bench.topics.get(PROJECT, "orders")) == {}
        assert await bench.subscriptions.secrets(row) == ()
        for shard in range(2):
            assert (await bench.logs.state(row.record_log, shard)).sealed == 1
            assert await bench.positions(row) == {}
        again = await bench.create(shards=2)
        await consistent(bench, again)

    async def verb(bench: SubscriptionBench) -> None:
        await bench.subscriptions.delete(PROJECT, "crm")

    Deaths(tmp_path, store_server).run(verb, check)
    assert seen == {"active", "deleted"}


async def test_who_repeats_a_creation_that_died_finishes_it(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders")
        made = await bench.create()
        row = msgspec.structs.replace(made, state="creating", version=3)
        await bench.store.call("FLUSHALL")
        await bench.topics.get(PROJECT, "orders")
        await put_row(bench, row, over=2)
        with pytest.raises(Exception, match="already"):
            await bench.create()
        finished = await bench.subscriptions.get(PROJECT, "crm")
        assert finished.state == "active"
        await consistent(bench, finished)


async def test_a_new_store_gets_its_subscriptions_from_the_catalogue_and_they_miss_nothing(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders")
        made = await bench.create()
        await bench.subscriptions.reset(PROJECT, "crm", "end")
        await bench.store.call("FLUSHALL")
        topic = await bench.topics.get(PROJECT, "orders")
        await bench.produce(20)
        await bench.upkeep.mend()
        found = await bench.subscriptions.get(PROJECT, "crm")
        assert found.incarnation == 2
        assert await bench.positions(made) == dict.fromkeys(await bench.ends(topic), 0)
        await consistent(bench, found)


async def test_a_catalogue_that_came_from_a_backup_is_brought_up(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders")
        made = await bench.create()
        paused = await bench.subscriptions.pause(PROJECT, "crm")
        await put_row(bench, made, over=paused.version)
        await bench.upkeep.mend()
        assert await bench.subscriptions._definitions.read_row(PROJECT, "crm") == paused


async def test_a_row_that_nobody_can_read_keeps_no_other_from_being_mended(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders")
        first, second = await bench.create("a"), await bench.create("b")
        record = DefinitionRecord(
            kind="subscription", project=PROJECT, name="a", version=3, body=b"{}", changed_ms=1
        )
        await bench.catalogue.change_definition(record)
        await bench.store.call("DEL", second.place(0).key("head"), second.place(0).key("pos"))
        await bench.upkeep.mend()
        assert await bench.store.call("HGET", second.place(0).key("head"), "incarnation") == b"1"
        assert first.name == "a"


async def test_one_that_cannot_be_mended_is_told_at_the_end_and_the_others_are_mended(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders")
        first, second = await bench.create("a"), await bench.create("b")
        for each in (first, second):
            await bench.store.call("DEL", each.place(0).key("head"))
        # Something else stands in the place of its record log.
        await bench.store.call("DEL", first.place(0).log, first.place(0).log + ":head")
        await bench.store.call("SET", first.place(0).log + ":head", "x")
        with pytest.raises(Exception, match="WRONGTYPE"):
            await bench.upkeep.mend()
        assert await bench.store.call("HGET", second.place(0).key("head"), "incarnation") == b"1"


async def test_a_store_that_is_away_ends_the_pass(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders")
        await bench.create()
        await bench.store.close()
        with pytest.raises(StoreUnavailableError):
            await bench.upkeep.mend()


async def test_a_hold_that_came_after_the_deletion_is_released(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        topic = await bench.topics.create(PROJECT, "orders")
        await bench.create()
        await bench.subscriptions.delete(PROJECT, "crm")
        await bench.logs.hold(topic.log(topic.target), 0, "sub.crm", 0)
        await bench.upkeep.mend()
        assert await bench.holds(topic) == {}


async def test_the_record_log_of_a_deleted_subscription_goes_when_its_time_is_over_and_it_was_read(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders")
        made = await bench.create(shards=2)
        await bench.subscriptions.delete(PROJECT, "crm")
        again = await bench.create(shards=2)
        await bench.upkeep.mend()
        assert made.record_log in await bench.logs.names()
        await bench.logs.hold(made.record_log, 1, "history", 0)
        bench.clock.shift_to(KEEP_MS + 60_000)
        await bench.upkeep.mend()
        assert made.record_log in await bench.logs.names()
        await bench.logs.hold(made.record_log, 1, "history", 1)
        await bench.upkeep.mend()
        names = await bench.logs.names()
        assert made.record_log not in names
        assert again.record_log in names
        assert await bench.keys("{s.default.crm.0.*:log*") == []


async def put_row(bench: SubscriptionBench, row: Subscription, *, over: int) -> None:
    """Writes a row as it is, whatever else there is."""
    record = DefinitionRecord(
        kind="subscription",
        project=row.project,
        name=row.name,
        version=row.version,
        body=encode_subscription(row),
        changed_ms=1,
    )
    await bench.catalogue.change_definition(record, over=over)
