"""Upkeep: retention is kept, warnings are told once, and what died half-way is finished."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec
import pytest

from tests.topics.conftest import Open, TopicBench
from waystation.catalogue import DefinitionRecord
from waystation.errors import BusyError, StoreUnavailableError
from waystation.logs import trimmer
from waystation.logs.protocol import Retention, TrimResult
from waystation.logs.trimmer import MemoryRelief
from waystation.messages.envelope import Envelope
from waystation.runtime.clock import Clock
from waystation.store import keys
from waystation.store.leader import Leader
from waystation.store.leases import LeaseRenewer, Leases
from waystation.store.memory import StoreMemory
from waystation.telemetry import metrics
from waystation.topics.maintenance import MaintenanceReport, TopicMaintenance
from waystation.topics.model import StorageTopicDefinition, TopicDefinition, encode_topic
from waystation.types.topic import TopicOptions


@dataclass(frozen=True)
class Maintained:
    """Maintenance of topics on one node, with the leader that runs it."""

    leader: Leader
    topics: TopicMaintenance
    memory: StoreMemory
    relief: MemoryRelief

    async def run_pass(self) -> MaintenanceReport:
        return await self.topics.run_pass()


@asynccontextmanager
async def upkeep_of(
    bench: TopicBench, owner: str = "one", *, every_s: float = 0.01
) -> AsyncIterator[Maintained]:
    renewer = LeaseRenewer(bench.store.address)
    leases = Leases(bench.store, renewer, owner=owner)
    memory = StoreMemory(bench.store)
    await memory.read()
    topics, relief = TopicMaintenance(bench.topics, bench.logs), MemoryRelief(bench.logs, memory)
    steps = [topics, relief]
    leader = Leader(leases, keys.MAINTENANCE_LEASE, steps, every_s=every_s, clock=Clock())
    try:
        yield Maintained(leader, topics, memory, relief)
    finally:
        await leader.stop()
        renewer.close()


async def fill(bench: TopicBench, topic: str, count: int, size: int = 100) -> None:
    """Messages of one group of about that many bytes each."""
    envelopes = [
        Envelope(id=f"{n:03}", project="default", data=b"x" * (size - 20), group="g")
        for n in range(count)
    ]
    results = await bench.producer.produce("default", topic, envelopes)
    assert not [each for each in results if isinstance(each, Exception)]


def record_of(topic: TopicDefinition) -> DefinitionRecord:
    return DefinitionRecord(
        kind="topic",
        project=topic.project,
        name=topic.name,
        version=topic.version,
        body=encode_topic(topic),
        changed_ms=1,
    )


async def row_only(bench: TopicBench, topic: TopicDefinition) -> None:
    """A change that died after the catalogue had it."""
    await bench.catalogue.change_definition(record_of(topic))


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
        assert (await upkeep.run_pass()).trimmed.deleted == 1600
        assert (await bench.logs.state(log, 0)).first == 1600
        await bench.logs.release(log, 0, "reader")
        report = await upkeep.run_pass()
        assert (report.trimmed.deleted, report.trimmed.bytes, report.trimmed.dropped) == (100, 0, 0)


@asynccontextmanager
async def short_memory(bench: TopicBench, share: float) -> AsyncIterator[None]:
    """Set the memory limit of the store so that it uses this share of it."""
    room = StoreMemory(bench.store)
    await room.read()
    await bench.store.call("CONFIG", "SET", "maxmemory", int(room.usage.used_bytes / share))
    try:
        yield
    finally:
        await bench.store.call("CONFIG", "SET", "maxmemory", 0)


async def test_maintenance_with_a_store_short_of_memory_deletes_messages_that_all_readers_passed(
    open_bench: Open,
) -> None:
    async with open_bench() as bench:
        topics = {
            name: await bench.topics.create("default", name, partitions=1)
            for name in ("settled", "behind", "unread", "copied")
        }
        logs = {name: topic.log(topic.target) for name, topic in topics.items()}
        for name in topics:
            await fill(bench, name, 1200)
        await bench.logs.hold(logs["settled"], 0, "crm", 1200)
        await bench.logs.hold(logs["settled"], 0, "~history", 1100)
        await bench.logs.hold(logs["behind"], 0, "crm", 3)
        await bench.logs.hold(logs["copied"], 0, "~history", 1200)

        async def first() -> dict[str, int]:
            return {name: (await bench.logs.state(log, 0)).first for name, log in logs.items()}

        async with short_memory(bench, 0.6), upkeep_of(bench) as upkeep:
            assert await upkeep.relief.run() == trimmer.MEMORY_CHECK_S
            assert (await first())["settled"] == 0
        async with short_memory(bench, 1.5), upkeep_of(bench) as upkeep:
            assert await upkeep.relief.free() == 1103
            assert await first() == {"settled": 1100, "behind": 3, "unread": 0, "copied": 0}


async def test_maintenance_stops_deleting_settled_messages_below_the_warning_level(
    open_bench: Open,
) -> None:
    async with open_bench() as bench:
        topic = await bench.topics.create("default", "orders", partitions=1)
        for _ in range(20):
            await fill(bench, "orders", 200, size=4000)
        log = topic.log(topic.target)
        await bench.logs.hold(log, 0, "crm", 4000)
        async with short_memory(bench, 0.9), upkeep_of(bench) as upkeep:
            assert 500 <= await upkeep.relief.free() < 3500
            assert await upkeep.relief.free() == 0


async def test_maintenance_between_passes_frees_memory_within_seconds(
    open_bench: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trimmer, "MEMORY_CHECK_S", 0.01)
    async with open_bench() as bench, upkeep_of(bench, every_s=600) as upkeep:
        topic = await bench.topics.create("default", "orders", partitions=1)
        log = topic.log(topic.target)
        await upkeep.leader.start()
        await fill(bench, "orders", 500)
        await bench.logs.hold(log, 0, "crm", 500)
        room = upkeep.memory
        async with short_memory(bench, 1.5), asyncio.timeout(10):
            await room.read()
            while (await bench.logs.state(log, 0)).first < 500:
                await asyncio.sleep(0.01)


async def test_a_loss_is_counted_and_shown(open_bench: Open) -> None:
    async with open_bench() as bench, upkeep_of(bench) as upkeep:
        topic = await bench.topics.create("default", "orders", partitions=1)
        await fill(bench, "orders", 100)
        log = topic.log(topic.target)
        await bench.logs.hold(log, 0, "slow", 10)
        options = TopicOptions(max_bytes=2000, full_policy="drop_and_count")
        await bench.topics.change_options("default", "orders", options, version=topic.version)
        report = await upkeep.run_pass()
        state = await bench.logs.state(log, 0)
        assert report.trimmed.deleted == state.first > 70
        assert report.trimmed.dropped == state.dropped == state.first - 10
        assert report.trimmed.bytes == state.bytes <= 2000


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
        assert not (await one.run_pass()).trimmed.nearly_full["refuse"]
        await fill(bench, "orders", 30)
        for upkeep in (one, two, one):
            assert (await upkeep.run_pass()).trimmed.nearly_full == {"refuse": 1}
        lines = [record for record in caplog.records if "nearly full" in record.message]
        (fields,) = [record.fields for record in lines]  # type: ignore[attr-defined]
        assert (fields["log"], fields["policy"], fields["partitions"]) == (
            "t.default.orders.0",
            "refuse",
            [0],
        )
        assert fields["needed_by"] == ""
        log = topic.log(topic.target)
        assert (await bench.logs.state(log, 0)).warned_ms > 0
        await bench.logs.hold(log, 0, "reader", 60)
        assert not (await two.run_pass()).trimmed.nearly_full["refuse"]
        assert [record for record in caplog.records if "no longer nearly full" in record.message]
        assert (await bench.logs.state(log, 0)).warned_ms == 0
        # A reader that stalls is named
        await bench.logs.hold(log, 0, "history", 0)
        await one.run_pass()
        last = [record for record in caplog.records if "nearly full" in record.message][-1]
        assert last.fields["needed_by"] == "history"  # type: ignore[attr-defined]


async def test_one_node_at_a_time_does_it_and_another_takes_over(open_bench: Open) -> None:
    async with open_bench() as bench, open_bench() as other:
        options = TopicOptions(max_bytes=1000)
        await bench.topics.create("default", "orders", partitions=1, options=options)
        await fill(bench, "orders", 8)

        async def owner() -> bytes | None:
            found: bytes | None = await bench.store.call("HGET", keys.MAINTENANCE_LEASE, "owner")
            return found

        async with upkeep_of(other, "two") as second:
            async with upkeep_of(bench, "one") as first:
                await first.leader.start()
                async with asyncio.timeout(10):
                    while gauge("waystation_log_partitions_warned", policy="refuse") != 1:
                        await asyncio.sleep(0.005)
                assert gauge("waystation_log_bytes") > 700
                await second.leader.start()
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
        await upkeep.run_pass()
        assert (await bench.topics.get("default", "orders")).state == "blocked"


async def test_a_catalogue_that_came_from_a_backup_is_brought_up_to_what_the_store_knows(
    open_bench: Open,
) -> None:
    async with open_bench() as bench, upkeep_of(bench) as upkeep:
        backup = await bench.topics.create("default", "orders", partitions=1)
        topic = await bench.topics.add_storage_topic("default", "orders", 4)
        await bench.catalogue.change_definition(record_of(backup), over=topic.version)
        assert await bench.topics.list("default", limit=10) == [backup]
        assert (await upkeep.run_pass()).failures == 0
        assert await bench.topics.list("default", limit=10) == [topic]


async def test_a_change_of_retention_that_died_before_all_logs_knew_reaches_them(
    open_bench: Open,
) -> None:
    async with open_bench() as bench, upkeep_of(bench) as upkeep:
        topic = await bench.topics.create("default", "orders", partitions=2)
        changed = topic.with_options(TopicOptions(max_bytes=5000), now_ms=0)
        await row_only(bench, changed)
        await upkeep.run_pass()
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
        await upkeep.run_pass()
        assert sorted(await bench.logs.names()) == [kept.log(kept.target), "t.default.unknown.0"]
        again = await bench.topics.create("default", "orders", partitions=1)
        # A producer from before made a log of the purged topic once more.
        await bench.logs.create(topic.log(topic.target), 2, Retention())
        await upkeep.run_pass()
        assert topic.log(topic.target) not in await bench.logs.names()
        assert (await bench.logs.state(again.log(again.target), 0)).end == 0


async def test_records_of_other_parts_are_trimmed_too(open_bench: Open) -> None:
    async with open_bench() as bench, upkeep_of(bench) as upkeep:
        retention = Retention(max_bytes=100, policy="drop_and_count")
        await bench.logs.create("s.default.mails.0", 1, Retention())
        await bench.logs.append("s.default.mails.0", 0, [b"x" * 10] * 30)
        await bench.logs.set_retention("s.default.mails.0", 0, retention)
        assert (await upkeep.run_pass()).trimmed.deleted == 20


async def told(caplog: pytest.LogCaptureFixture, text: str, *, times: int = 1) -> None:
    """Waits until the log has so many lines with a text."""
    async with asyncio.timeout(10):
        while len([each for each in caplog.records if text in each.message]) < times:
            await asyncio.sleep(0.005)


async def test_a_pass_that_fails_is_told_and_the_next_one_is_made(
    open_bench: Open, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="waystation")
    async with open_bench() as bench, upkeep_of(bench) as upkeep:
        await bench.catalogue.close()
        await upkeep.leader.start()
        await told(caplog, "maintenance pass incomplete", times=2)


@pytest.mark.parametrize("problem", [BusyError("too much"), ValueError("a bug")], ids=str)
async def test_an_error_that_nobody_foresaw_does_not_end_upkeep(
    open_bench: Open,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    problem: Exception,
) -> None:
    async with open_bench() as bench, upkeep_of(bench) as upkeep:
        options = TopicOptions(max_age_seconds=0.001)
        await bench.topics.create("default", "orders", partitions=1, options=options)
        names = bench.logs.names

        async def failing() -> dict[str, int]:
            monkeypatch.setattr(bench.logs, "names", names)
            raise problem

        monkeypatch.setattr(bench.logs, "names", failing)
        await fill(bench, "orders", 10)
        before = gauge("waystation_log_trimmed_messages_total")
        await upkeep.leader.start()
        await told(
            caplog, "task attempt failed" if isinstance(problem, BusyError) else "task failed"
        )
        async with asyncio.timeout(10):
            while gauge("waystation_log_trimmed_messages_total") < before + 10:
                await asyncio.sleep(0.005)


async def test_a_bad_row_or_a_bad_log_keeps_upkeep_from_nothing_else(
    open_bench: Open, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_bench() as bench, upkeep_of(bench) as upkeep:
        options = TopicOptions(max_age_seconds=0.001)
        for name in ("a-bad-row", "b-bad-log", "c-bad-copy", "orders"):
            topic = await bench.topics.create("default", name, partitions=1, options=options)
            await fill(bench, name, 10)
            if name == "a-bad-row":
                bad = msgspec.structs.replace(record_of(topic.in_state("blocked")), body=b"{")
                await bench.catalogue.change_definition(bad)
        await row_only(bench, topic.in_state("blocked"))
        for key in ("{t.default.b-bad-log.0.0}:log:head", "{t.default.c-bad-copy}:topic"):
            await bench.store.call("DEL", key)
            await bench.store.call("SET", key, "no hash")
        await asyncio.sleep(0.01)
        report = await upkeep.run_pass()
        assert (report.trimmed.deleted, report.failures) == (30, 2)
        assert "WRONGTYPE" in str(report.first_error)
        assert "definition row invalid" in caplog.text
        assert (await bench.topics.get("default", "orders")).state == "blocked"


async def test_logs_are_trimmed_also_while_the_catalogue_is_away(open_bench: Open) -> None:
    async with open_bench() as bench, upkeep_of(bench) as upkeep:
        options = TopicOptions(max_age_seconds=0.001)
        await bench.topics.create("default", "orders", partitions=1, options=options)
        await fill(bench, "orders", 10)
        await asyncio.sleep(0.01)
        await bench.catalogue.close()
        report = await upkeep.run_pass()
        assert (report.trimmed.deleted, report.failures) == (10, 1)


async def test_a_store_that_is_away_ends_the_pass_at_once(
    open_bench: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each of many logs would wait for it in vain."""
    async with open_bench() as bench, upkeep_of(bench) as upkeep:
        for number in range(40):
            await bench.logs.create(f"log.{number}", 1, Retention())
        looks = 0

        async def away(*_: object) -> TrimResult:
            nonlocal looks
            looks += 1
            await asyncio.sleep(0)
            raise StoreUnavailableError("away")

        monkeypatch.setattr(bench.logs, "trim", away)
        with pytest.raises(StoreUnavailableError):
            await upkeep.run_pass()
        assert looks <= 16


async def test_a_full_store_is_cleaned_all_the_same(open_bench: Open) -> None:
    async with open_bench() as bench, upkeep_of(bench) as upkeep:
        options = TopicOptions(max_age_seconds=0.001)
        old = await bench.topics.create("default", "old", partitions=1, options=options)
        read = await bench.topics.create("default", "read", partitions=1, options=options)
        await bench.topics.create("default", "gone", partitions=1)
        for name in ("old", "read", "gone"):
            await fill(bench, name, 100)
        await bench.logs.hold(read.log(read.target), 0, "reader", 0)
        await bench.topics.delete("default", "gone")
        # A change that died half-way and needs a log, which a full store does not make.
        await row_only(bench, (await bench.topics.get("default", "old")).with_storage(2))
        await asyncio.sleep(0.01)
        await bench.store.call("CONFIG", "SET", "maxmemory", "1")
        try:
            report = await upkeep.run_pass()
            assert (report.trimmed.deleted, report.failures) == (100, 1)
            assert (await bench.logs.state(old.log(old.target), 0)).bytes == 0
            # A reader goes on, so what it has passed can go.
            await bench.logs.hold(read.log(read.target), 0, "reader", 60)
            assert (await upkeep.run_pass()).trimmed.deleted == 60
            await bench.topics.purge("default", "gone")
            assert "t.default.gone.0" not in await bench.logs.names()
            # And whoever is to do all this can take the lease.
            await upkeep.leader.start()
            async with asyncio.timeout(10):
                while await bench.store.call("HGET", keys.MAINTENANCE_LEASE, "owner") != b"one":
                    await asyncio.sleep(0.005)
        finally:
            await bench.store.call("CONFIG", "SET", "maxmemory", "0")


async def test_a_change_of_options_during_a_pass_is_not_undone(
    open_bench: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = TopicOptions(max_bytes=10_000, full_policy="drop_and_count")
    large = TopicOptions(max_bytes=10_000_000)
    async with open_bench() as bench, open_bench() as other, upkeep_of(bench) as upkeep:
        topic = await bench.topics.create("default", "orders", partitions=1, options=small)
        log, trim = topic.log(topic.target), bench.logs.trim

        async def changed_first(*arguments: object) -> TrimResult:
            monkeypatch.setattr(bench.logs, "trim", trim)
            # The pass has read the topic; this is confirmed before it comes to the log.
            await other.topics.change_options("default", "orders", large, version=topic.version)
            await fill(other, "orders", 500)
            return await trim(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(bench.logs, "trim", changed_first)
        await upkeep.run_pass()
        await upkeep.run_pass()
        state = await bench.logs.state(log, 0)
        assert (state.first, state.end) == (0, 500)
        assert (await bench.logs.trim(log, 0)).retention.max_bytes == 10_000_000


async def test_limits_that_only_the_catalogue_has_count_before_anything_is_trimmed(
    open_bench: Open,
) -> None:
    async with open_bench() as bench, upkeep_of(bench) as upkeep:
        options = TopicOptions(max_age_seconds=0.001)
        topic = await bench.topics.create("default", "orders", partitions=1, options=options)
        await fill(bench, "orders", 10)
        await asyncio.sleep(0.01)
        await row_only(bench, topic.with_options(TopicOptions(), now_ms=0))
        assert (await upkeep.run_pass()).trimmed.deleted == 0


async def test_a_creation_that_died_after_its_row_has_logs_before_it_has_a_working_copy(
    open_bench: Open,
) -> None:
    async with open_bench() as bench, open_bench() as other, upkeep_of(bench) as upkeep:
        topic = TopicDefinition(
            project="default",
            name="orders",
            version=1,
            options=TopicOptions(),
            storage=(StorageTopicDefinition(number=0, partitions=2),),
        )
        await bench.catalogue.add_definition(record_of(topic))
        await upkeep.run_pass()
        topic = await other.topics.get("default", "orders")
        for partition in range(2):
            assert (await other.logs.state(topic.log(topic.target), partition)).end == 0
