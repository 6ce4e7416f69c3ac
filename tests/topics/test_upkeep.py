"""Upkeep: retention is kept, warnings are told once, and what died half-way is finished."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.topics.conftest import Open, TopicBench
from waystation.catalogue import DefinitionRecord
from waystation.clock import Clock
from waystation.envelope import Envelope
from waystation.logs import Retention
from waystation.store.heartbeat import Heartbeat
from waystation.store.leases import Leases
from waystation.telemetry import metrics
from waystation.topics.topic import Topic, TopicOptions, encode_topic
from waystation.topics.upkeep import LEASE_KEY, Upkeep


@asynccontextmanager
async def upkeep_of(
    bench: TopicBench, owner: str = "one", *, period_seconds: float = 0.01, lease_ms: int = 10_000
) -> AsyncIterator[Upkeep]:
    heartbeat = Heartbeat(bench.store.address)
    leases = Leases(bench.store, heartbeat, owner=owner, lease_ms=lease_ms)
    made = Upkeep(bench.topics, bench.logs, leases, clock=Clock(), period_seconds=period_seconds)
    try:
        yield made
    finally:
        await made.stop()
        heartbeat.close()


async def fill(bench: TopicBench, topic: str, count: int, size: int = 100) -> None:
    """Messages of one group of about that many bytes each."""
    envelopes = [
        Envelope(id=f"{n:03}", project="default", data=b"x" * (size - 20), group="g")
        for n in range(count)
    ]
    results = await bench.producer.produce("default", topic, envelopes)
    assert not [each for each in results if isinstance(each, Exception)]


async def row_only(bench: TopicBench, topic: Topic) -> None:
    """A change that died after the catalogue had it."""
    await bench.catalogue.change_definition(
        DefinitionRecord(
            kind="topic",
            project=topic.project,
            name=topic.name,
            version=topic.version,
            body=encode_topic(topic),
            changed_ms=1,
        )
    )


def gauge(name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(name, labels) or 0.0


async def test_what_is_old_goes_in_many_steps_but_nothing_that_a_reader_holds(
    open_bench: Open,
) -> None:
    async with open_bench() as bench, upkeep_of(bench) as upkeep:
        options = TopicOptions(max_age_seconds=0.001)
        topic = await bench.topics.create("default", "orders", partitions=1, options=options)
        await fill(bench, "orders", 1700)
        log = topic.log(topic.target)
        await bench.logs.hold(log, 0, "reader", 1600)
        await asyncio.sleep(0.01)
        assert (await upkeep.pass_once()).trimmed == 1600
        assert (await bench.logs.state(log, 0)).first == 1600
        await bench.logs.release(log, 0, "reader")
        tally = await upkeep.pass_once()
        assert (tally.trimmed, tally.bytes, tally.dropped) == (100, 0, 0)


async def test_a_loss_is_counted_and_shown(open_bench: Open) -> None:
    async with open_bench() as bench, upkeep_of(bench) as upkeep:
        topic = await bench.topics.create("default", "orders", partitions=1)
        await fill(bench, "orders", 100)
        log = topic.log(topic.target)
        await bench.logs.hold(log, 0, "slow", 10)
        options = TopicOptions(max_bytes=2000, full_policy="drop_and_count")
        await bench.topics.change_options("default", "orders", options, version=topic.version)
        tally = await upkeep.pass_once()
        state = await bench.logs.state(log, 0)
        assert tally.trimmed == state.first > 70
        assert tally.dropped == state.dropped == state.first - 10
        assert tally.bytes == state.bytes <= 2000


async def test_a_warning_is_told_once_noted_and_counted_with_its_policy(
    open_bench: Open, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="waystation")
    async with (
        open_bench() as bench,
        open_bench() as other,
        upkeep_of(bench) as one,
        upkeep_of(other, "two") as two,
    ):
        options = TopicOptions(max_bytes=10_000)
        topic = await bench.topics.create("default", "orders", partitions=1, options=options)
        await fill(bench, "orders", 50)
        assert not (await one.pass_once()).warned["refuse"]
        await fill(bench, "orders", 30)
        for upkeep in (one, two, one):
            assert (await upkeep.pass_once()).warned == {"refuse": 1}
        lines = [record for record in caplog.records if "nearly full" in record.message]
        (fields,) = [record.fields for record in lines]  # type: ignore[attr-defined]
        assert (fields["log"], fields["policy"], fields["partitions"]) == (
            "t.default.orders.0",
            "refuse",
            [0],
        )
        log = topic.log(topic.target)
        assert (await bench.logs.state(log, 0)).warned_ms > 0
        await bench.logs.hold(log, 0, "reader", 60)
        assert not (await two.pass_once()).warned["refuse"]
        assert [record for record in caplog.records if "room again" in record.message]
        assert (await bench.logs.state(log, 0)).warned_ms == 0


async def test_one_node_at_a_time_does_it_and_another_takes_over(open_bench: Open) -> None:
    async with open_bench() as bench, open_bench() as other:
        options = TopicOptions(max_bytes=1000)
        await bench.topics.create("default", "orders", partitions=1, options=options)
        await fill(bench, "orders", 8)

        async def owner() -> bytes | None:
            found: bytes | None = await bench.store.call("HGET", LEASE_KEY, "owner")
            return found

        async with upkeep_of(other, "two") as second:
            async with upkeep_of(bench, "one") as first:
                await first.start()
                async with asyncio.timeout(10):
                    while gauge("waystation_log_partitions_warned", policy="refuse") != 1:
                        await asyncio.sleep(0.005)
                assert gauge("waystation_log_bytes") > 700
                await second.start()
                await asyncio.sleep(0.1)
                assert await owner() == b"one"
            async with asyncio.timeout(10):
                while await owner() != b"two":
                    await asyncio.sleep(0.005)
        # Who stops has nothing to tell any more.
        assert gauge("waystation_log_bytes") == 0


async def test_a_change_that_died_before_the_working_copy_knew_reaches_it(
    open_bench: Open,
) -> None:
    async with open_bench() as bench, upkeep_of(bench) as upkeep:
        topic = await bench.topics.create("default", "orders", partitions=1)
        await row_only(bench, topic.in_state("blocked"))
        assert (await bench.topics.get("default", "orders")).state == "active"
        await upkeep.pass_once()
        assert (await bench.topics.get("default", "orders")).state == "blocked"


async def test_a_change_of_retention_that_died_before_all_logs_knew_reaches_them(
    open_bench: Open,
) -> None:
    async with open_bench() as bench, upkeep_of(bench) as upkeep:
        topic = await bench.topics.create("default", "orders", partitions=2)
        changed = topic.with_options(TopicOptions(max_bytes=5000))
        await row_only(bench, changed)
        await upkeep.pass_once()
        for partition in range(2):
            trimmed = await bench.logs.trim(topic.log(topic.target), partition)
            assert trimmed.retention == changed.retention


async def test_a_purge_that_died_half_way_is_finished_and_nothing_else_is_deleted(
    open_bench: Open,
) -> None:
    async with open_bench() as bench, upkeep_of(bench) as upkeep:
        topic = await bench.topics.create("default", "orders", partitions=2)
        kept = await bench.topics.create("default", "kept", partitions=2)
        await bench.topics.delete("default", "kept")
        await bench.logs.create("t.default.unknown.0", 1, Retention())
        deleted = await bench.topics.delete("default", "orders")
        await row_only(bench, deleted.in_state("purged"))
        await upkeep.pass_once()
        assert sorted(await bench.logs.names()) == [kept.log(kept.target), "t.default.unknown.0"]
        again = await bench.topics.create("default", "orders", partitions=1)
        # A producer from before made a log of the purged topic once more.
        await bench.logs.create(topic.log(topic.target), 2, Retention())
        await upkeep.pass_once()
        assert topic.log(topic.target) not in await bench.logs.names()
        assert (await bench.logs.state(again.log(again.target), 0)).end == 0


async def test_records_of_other_parts_are_trimmed_too(open_bench: Open) -> None:
    async with open_bench() as bench, upkeep_of(bench) as upkeep:
        retention = Retention(max_bytes=100, policy="drop_and_count")
        await bench.logs.create("s.default.mails.0", 1, Retention())
        await bench.logs.append("s.default.mails.0", 0, [b"x" * 10] * 30)
        await bench.logs.retain("s.default.mails.0", 0, retention)
        assert (await upkeep.pass_once()).trimmed == 20


async def test_a_pass_that_fails_is_told_and_the_next_one_is_made(
    open_bench: Open, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="waystation")
    async with open_bench() as bench, upkeep_of(bench) as upkeep:
        await bench.catalogue.close()
        await upkeep.start()
        async with asyncio.timeout(10):
            while len([each for each in caplog.records if "ended early" in each.message]) < 2:
                await asyncio.sleep(0.005)
