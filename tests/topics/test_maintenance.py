"""Topic maintenance: trims logs, reports them, and finishes changes that a crash interrupted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec
import pytest

from tests.topics.conftest import OpenProcess, TopicProcess
from waystation.catalogue import DefinitionRecord
from waystation.errors import BusyError, StoreUnavailableError
from waystation.logs import trimmer
from waystation.logs.protocol import Retention, TrimResult
from waystation.logs.trimmer import MemoryRelief
from waystation.messages.envelope import Envelope
from waystation.runtime.clock import Clock
from waystation.runtime.metrics import registry
from waystation.store import keys
from waystation.store.leader import Leader
from waystation.store.leases import LeaseRenewer, Leases
from waystation.store.memory import StoreMemory
from waystation.topics.maintenance import MaintenanceReport, TopicMaintenance
from waystation.topics.model import StorageTopicDefinition, TopicDefinition, encode_topic
from waystation.types.topic import TopicOptions


@dataclass(frozen=True)
class MaintenanceOnNode:
    """Maintenance of topics on one node, with the leader that runs it."""

    leader: Leader
    topics: TopicMaintenance
    memory: StoreMemory
    relief: MemoryRelief

    async def run_pass(self) -> MaintenanceReport:
        return await self.topics.run_pass()


@asynccontextmanager
async def maintenance_of(
    process: TopicProcess, owner: str = "one", *, every_s: float = 0.01
) -> AsyncIterator[MaintenanceOnNode]:
    renewer = LeaseRenewer(process.store.address)
    leases = Leases(process.store, renewer, owner=owner)
    memory = StoreMemory(process.store, clock=Clock())
    await memory.read()
    topics, relief = (
        TopicMaintenance(process.topics, process.logs),
        MemoryRelief(process.logs, memory),
    )
    steps = [topics, relief]
    leader = Leader(leases, keys.MAINTENANCE_LEASE, steps, every_s=every_s, clock=Clock())
    try:
        yield MaintenanceOnNode(leader, topics, memory, relief)
    finally:
        await leader.stop()
        renewer.close()


@pytest.fixture
async def maintenance(process: TopicProcess) -> AsyncIterator[MaintenanceOnNode]:
    """Build the maintenance of `process` without starting its leader."""
    async with maintenance_of(process) as opened:
        yield opened


async def fill(process: TopicProcess, topic: str, count: int, size: int = 100) -> None:
    """Produce messages of one group, of about `size` bytes each."""
    envelopes = [
        Envelope(id=f"{n:03}", project="default", data=b"x" * (size - 20), group="g")
        for n in range(count)
    ]
    results = await process.producer.produce("default", topic, envelopes)
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


async def row_only(process: TopicProcess, topic: TopicDefinition) -> None:
    """Write a definition to the database only, as a node that crashes during a change."""
    await process.catalogue.change_definition(record_of(topic))


def gauge(name: str, **labels: str) -> float:
    return registry.get_sample_value(name, labels) or 0.0


async def test_maintenance_trims_old_messages_that_no_reader_holds(
    maintenance: MaintenanceOnNode,
    process: TopicProcess,
) -> None:
    options = TopicOptions(max_age_seconds=0.001)
    topic = await process.topics.create("default", "orders", partitions=1, options=options)
    await fill(process, "orders", 1700)
    log = topic.log(topic.target)
    await process.logs.hold(log, 0, "reader", 1600)
    await asyncio.sleep(0.01)
    assert (await maintenance.run_pass()).trimmed.deleted == 1600
    assert (await process.logs.state(log, 0)).first == 1600
    await process.logs.release(log, 0, "reader")
    report = await maintenance.run_pass()
    assert (report.trimmed.deleted, report.trimmed.bytes, report.trimmed.dropped) == (100, 0, 0)


@asynccontextmanager
async def short_memory(process: TopicProcess, share: float) -> AsyncIterator[None]:
    """Set the memory limit of the store so that the used memory is `share` of the limit."""
    room = StoreMemory(process.store, clock=Clock())
    await room.read()
    await process.store.call("CONFIG", "SET", "maxmemory", int(room.usage.used_bytes / share))
    try:
        yield
    finally:
        await process.store.call("CONFIG", "SET", "maxmemory", 0)


async def test_memory_relief_with_little_memory_deletes_settled_messages(
    process: TopicProcess,
) -> None:
    topics = {
        name: await process.topics.create("default", name, partitions=1)
        for name in ("settled", "behind", "unread", "copied")
    }
    logs = {name: topic.log(topic.target) for name, topic in topics.items()}
    for name in topics:
        await fill(process, name, 1200)
    await process.logs.hold(logs["settled"], 0, "crm", 1200)
    await process.logs.hold(logs["settled"], 0, "~history", 1100)
    await process.logs.hold(logs["behind"], 0, "crm", 3)
    await process.logs.hold(logs["copied"], 0, "~history", 1200)

    async def first() -> dict[str, int]:
        return {name: (await process.logs.state(log, 0)).first for name, log in logs.items()}

    async with short_memory(process, 0.6), maintenance_of(process) as maintenance:
        assert await maintenance.relief.run() == trimmer.MEMORY_CHECK_S
        assert (await first())["settled"] == 0
    async with short_memory(process, 1.5), maintenance_of(process) as maintenance:
        assert await maintenance.relief.free() == 1103
        assert await first() == {"settled": 1100, "behind": 3, "unread": 0, "copied": 0}


async def test_memory_relief_below_warning_level_stops_deleting(
    process: TopicProcess,
) -> None:
    topic = await process.topics.create("default", "orders", partitions=1)
    for _ in range(20):
        await fill(process, "orders", 200, size=4000)
    log = topic.log(topic.target)
    await process.logs.hold(log, 0, "crm", 4000)
    async with short_memory(process, 0.9), maintenance_of(process) as maintenance:
        assert 500 <= await maintenance.relief.free() < 3500
        assert await maintenance.relief.free() == 0


async def test_memory_relief_between_passes_frees_memory(
    open_process: OpenProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trimmer, "MEMORY_CHECK_S", 0.01)
    async with open_process() as process, maintenance_of(process, every_s=600) as maintenance:
        topic = await process.topics.create("default", "orders", partitions=1)
        log = topic.log(topic.target)
        await maintenance.leader.start()
        await fill(process, "orders", 500)
        await process.logs.hold(log, 0, "crm", 500)
        room = maintenance.memory
        async with short_memory(process, 1.5), asyncio.timeout(10):
            await room.read()
            while (await process.logs.state(log, 0)).first < 500:
                await asyncio.sleep(0.01)


async def test_maintenance_counts_dropped_messages(
    maintenance: MaintenanceOnNode, process: TopicProcess
) -> None:
    topic = await process.topics.create("default", "orders", partitions=1)
    await fill(process, "orders", 100)
    log = topic.log(topic.target)
    await process.logs.hold(log, 0, "slow", 10)
    options = TopicOptions(max_bytes=2000, full_policy="drop_and_count")
    await process.topics.change_options("default", "orders", options, version=topic.version)
    report = await maintenance.run_pass()
    state = await process.logs.state(log, 0)
    assert report.trimmed.deleted == state.first > 70
    assert report.trimmed.dropped == state.dropped == state.first - 10
    assert report.trimmed.bytes == state.bytes <= 2000


async def test_maintenance_logs_nearly_full_partitions_once_per_change(
    open_process: OpenProcess, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="waystation")
    async with (
        open_process() as process,
        open_process() as other,
        maintenance_of(process) as one,
        maintenance_of(other, "two") as two,
    ):
        options = TopicOptions(max_bytes=10_000)
        topic = await process.topics.create("default", "orders", partitions=1, options=options)
        await fill(process, "orders", 50)
        assert not (await one.run_pass()).trimmed.nearly_full["refuse"]
        await fill(process, "orders", 30)
        for maintenance in (one, two, one):
            assert (await maintenance.run_pass()).trimmed.nearly_full == {"refuse": 1}
        lines = [record for record in caplog.records if "nearly full" in record.message]
        (fields,) = [record.fields for record in lines]  # type: ignore[attr-defined]
        assert (fields["log"], fields["policy"], fields["partitions"]) == (
            "t.default.orders.0",
            "refuse",
            [0],
        )
        assert fields["needed_by"] == ""
        log = topic.log(topic.target)
        assert (await process.logs.state(log, 0)).warned_ms > 0
        await process.logs.hold(log, 0, "reader", 60)
        assert not (await two.run_pass()).trimmed.nearly_full["refuse"]
        assert [record for record in caplog.records if "no longer nearly full" in record.message]
        assert (await process.logs.state(log, 0)).warned_ms == 0
        # The warning names the reader with the lowest hold.
        await process.logs.hold(log, 0, "history", 0)
        await one.run_pass()
        last = [record for record in caplog.records if "nearly full" in record.message][-1]
        assert last.fields["needed_by"] == "history"  # type: ignore[attr-defined]


async def test_maintenance_runs_on_one_node_until_another_takes_over(
    process: TopicProcess,
    open_process: OpenProcess,
) -> None:
    async with open_process() as other:
        options = TopicOptions(max_bytes=1000)
        await process.topics.create("default", "orders", partitions=1, options=options)
        await fill(process, "orders", 8)

        async def owner() -> bytes | None:
            found: bytes | None = await process.store.call("HGET", keys.MAINTENANCE_LEASE, "owner")
            return found

        async with maintenance_of(other, "two") as second:
            async with maintenance_of(process, "one") as first:
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
        # A stopped node reports nothing, so that sums over all nodes stay correct.
        assert gauge("waystation_log_bytes") == 0


async def test_maintenance_publishes_change_after_crash(
    maintenance: MaintenanceOnNode,
    process: TopicProcess,
) -> None:
    topic = await process.topics.create("default", "orders", partitions=1)
    await row_only(process, topic.in_state("blocked"))
    assert (await process.topics.get("default", "orders")).state == "active"
    await maintenance.run_pass()
    assert (await process.topics.get("default", "orders")).state == "blocked"


async def test_maintenance_writes_newer_definition_to_restored_database(
    maintenance: MaintenanceOnNode,
    process: TopicProcess,
) -> None:
    backup = await process.topics.create("default", "orders", partitions=1)
    topic = await process.topics.add_storage_topic("default", "orders", 4)
    await process.catalogue.change_definition(record_of(backup), over=topic.version)
    assert await process.topics.list("default", limit=10) == [backup]
    assert (await maintenance.run_pass()).failures == 0
    assert await process.topics.list("default", limit=10) == [topic]


async def test_maintenance_sets_retention_after_crash(
    maintenance: MaintenanceOnNode,
    process: TopicProcess,
) -> None:
    topic = await process.topics.create("default", "orders", partitions=2)
    changed = topic.with_options(TopicOptions(max_bytes=5000), now_ms=0)
    await row_only(process, changed)
    await maintenance.run_pass()
    for partition in range(2):
        trimmed = await process.logs.trim(topic.log(topic.target), partition)
        assert trimmed.retention == changed.retention


async def test_maintenance_finishes_purge_after_crash_and_deletes_nothing_else(
    maintenance: MaintenanceOnNode,
    process: TopicProcess,
) -> None:
    topic = await process.topics.create("default", "orders", partitions=2)
    kept = await process.topics.create("default", "kept", partitions=2)
    await process.topics.delete("default", "kept")
    await process.logs.create("t.default.unknown.0", 1, Retention())
    deleted = await process.topics.delete("default", "orders")
    await row_only(process, deleted.in_state("purged"))
    await maintenance.run_pass()
    assert sorted(await process.logs.names()) == [kept.log(kept.target), "t.default.unknown.0"]
    again = await process.topics.create("default", "orders", partitions=1)
    # A producer that read the topic before the purge created its log again.
    await process.logs.create(topic.log(topic.target), 2, Retention())
    await maintenance.run_pass()
    assert topic.log(topic.target) not in await process.logs.names()
    assert (await process.logs.state(again.log(again.target), 0)).end == 0


async def test_maintenance_trims_record_logs_of_other_parts(
    maintenance: MaintenanceOnNode, process: TopicProcess
) -> None:
    retention = Retention(max_bytes=100, policy="drop_and_count")
    await process.logs.create("s.default.mails.0", 1, Retention())
    await process.logs.append("s.default.mails.0", 0, [b"x" * 10] * 30)
    await process.logs.set_retention("s.default.mails.0", 0, retention)
    assert (await maintenance.run_pass()).trimmed.deleted == 20


async def told(caplog: pytest.LogCaptureFixture, text: str, *, times: int = 1) -> None:
    """Wait until the log output has `times` lines that contain a text."""
    async with asyncio.timeout(10):
        while len([each for each in caplog.records if text in each.message]) < times:
            await asyncio.sleep(0.005)


async def test_maintenance_after_failed_pass_logs_and_repeats(
    open_process: OpenProcess, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="waystation")
    async with open_process() as process, maintenance_of(process) as maintenance:
        await process.catalogue.close()
        await maintenance.leader.start()
        await told(caplog, "maintenance pass incomplete", times=2)


@pytest.mark.parametrize("problem", [BusyError("too much"), ValueError("a bug")], ids=str)
async def test_maintenance_after_unexpected_error_continues(
    maintenance: MaintenanceOnNode,
    process: TopicProcess,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    problem: Exception,
) -> None:
    options = TopicOptions(max_age_seconds=0.001)
    await process.topics.create("default", "orders", partitions=1, options=options)
    names = process.logs.names

    async def failing() -> dict[str, int]:
        monkeypatch.setattr(process.logs, "names", names)
        raise problem

    monkeypatch.setattr(process.logs, "names", failing)
    await fill(process, "orders", 10)
    before = gauge("waystation_log_trimmed_messages_total")
    await maintenance.leader.start()
    await told(caplog, "task attempt failed" if isinstance(problem, BusyError) else "task failed")
    async with asyncio.timeout(10):
        while gauge("waystation_log_trimmed_messages_total") < before + 10:
            await asyncio.sleep(0.005)


async def test_maintenance_with_invalid_row_or_log_completes_other_tasks(
    maintenance: MaintenanceOnNode, process: TopicProcess, caplog: pytest.LogCaptureFixture
) -> None:
    options = TopicOptions(max_age_seconds=0.001)
    for name in ("a-bad-row", "b-bad-log", "c-bad-copy", "orders"):
        topic = await process.topics.create("default", name, partitions=1, options=options)
        await fill(process, name, 10)
        if name == "a-bad-row":
            bad = msgspec.structs.replace(record_of(topic.in_state("blocked")), body=b"{")
            await process.catalogue.change_definition(bad)
    await row_only(process, topic.in_state("blocked"))
    for key in ("{t.default.b-bad-log.0.0}:log:head", "{t.default.c-bad-copy}:topic"):
        await process.store.call("DEL", key)
        await process.store.call("SET", key, "no hash")
    await asyncio.sleep(0.01)
    report = await maintenance.run_pass()
    assert (report.trimmed.deleted, report.failures) == (30, 2)
    assert "WRONGTYPE" in str(report.first_error)
    assert "definition row invalid" in caplog.text
    assert (await process.topics.get("default", "orders")).state == "blocked"


async def test_maintenance_with_unavailable_database_trims_logs(
    maintenance: MaintenanceOnNode, process: TopicProcess
) -> None:
    options = TopicOptions(max_age_seconds=0.001)
    await process.topics.create("default", "orders", partitions=1, options=options)
    await fill(process, "orders", 10)
    await asyncio.sleep(0.01)
    await process.catalogue.close()
    report = await maintenance.run_pass()
    assert (report.trimmed.deleted, report.failures) == (10, 1)


async def test_maintenance_with_unavailable_store_ends_pass(
    maintenance: MaintenanceOnNode, process: TopicProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The pass must end at the first error, because each log would wait for the store.
    for number in range(40):
        await process.logs.create(f"log.{number}", 1, Retention())
    looks = 0

    async def away(*_: object) -> TrimResult:
        nonlocal looks
        looks += 1
        await asyncio.sleep(0)
        raise StoreUnavailableError("away")

    monkeypatch.setattr(process.logs, "trim", away)
    with pytest.raises(StoreUnavailableError):
        await maintenance.run_pass()
    assert looks <= 16


async def test_maintenance_continues_to_trim_and_purge_when_store_is_full(
    maintenance: MaintenanceOnNode, process: TopicProcess
) -> None:
    options = TopicOptions(max_age_seconds=0.001)
    old = await process.topics.create("default", "old", partitions=1, options=options)
    read = await process.topics.create("default", "read", partitions=1, options=options)
    await process.topics.create("default", "gone", partitions=1)
    for name in ("old", "read", "gone"):
        await fill(process, name, 100)
    await process.logs.hold(read.log(read.target), 0, "reader", 0)
    await process.topics.delete("default", "gone")
    # The interrupted change needs a log, which a full store cannot create.
    await row_only(process, (await process.topics.get("default", "old")).with_storage(2))
    await asyncio.sleep(0.01)
    await process.store.call("CONFIG", "SET", "maxmemory", "1")
    try:
        report = await maintenance.run_pass()
        assert (report.trimmed.deleted, report.failures) == (100, 1)
        assert (await process.logs.state(old.log(old.target), 0)).bytes == 0
        # The reader moves its hold, so that the messages before it can be deleted.
        await process.logs.hold(read.log(read.target), 0, "reader", 60)
        assert (await maintenance.run_pass()).trimmed.deleted == 60
        await process.topics.purge("default", "gone")
        assert "t.default.gone.0" not in await process.logs.names()
        # A node can acquire the lease of the leader in a full store. Otherwise no node would
        # run a pass.
        await maintenance.leader.start()
        async with asyncio.timeout(10):
            while await process.store.call("HGET", keys.MAINTENANCE_LEASE, "owner") != b"one":
                await asyncio.sleep(0.005)
    finally:
        await process.store.call("CONFIG", "SET", "maxmemory", "0")


async def test_maintenance_during_change_of_options_keeps_new_retention(
    open_process: OpenProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = TopicOptions(max_bytes=10_000, full_policy="drop_and_count")
    large = TopicOptions(max_bytes=10_000_000)
    async with (
        open_process() as process,
        open_process() as other,
        maintenance_of(process) as maintenance,
    ):
        topic = await process.topics.create("default", "orders", partitions=1, options=small)
        log, trim = topic.log(topic.target), process.logs.trim

        async def changed_first(*arguments: object) -> TrimResult:
            monkeypatch.setattr(process.logs, "trim", trim)
            # The change is confirmed after the pass read the topic, and before it trims the log.
            await other.topics.change_options("default", "orders", large, version=topic.version)
            await fill(other, "orders", 500)
            return await trim(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(process.logs, "trim", changed_first)
        await maintenance.run_pass()
        await maintenance.run_pass()
        state = await process.logs.state(log, 0)
        assert (state.first, state.end) == (0, 500)
        assert (await process.logs.trim(log, 0)).retention.max_bytes == 10_000_000


async def test_maintenance_trims_by_retention_that_the_database_stores(
    maintenance: MaintenanceOnNode,
    process: TopicProcess,
) -> None:
    options = TopicOptions(max_age_seconds=0.001)
    topic = await process.topics.create("default", "orders", partitions=1, options=options)
    await fill(process, "orders", 10)
    await asyncio.sleep(0.01)
    await row_only(process, topic.with_options(TopicOptions(), now_ms=0))
    assert (await maintenance.run_pass()).trimmed.deleted == 0


async def test_maintenance_creates_logs_after_crash_of_creation(
    process: TopicProcess,
    open_process: OpenProcess,
) -> None:
    async with open_process() as other, maintenance_of(process) as maintenance:
        topic = TopicDefinition(
            project="default",
            name="orders",
            version=1,
            options=TopicOptions(),
            storage=(StorageTopicDefinition(number=0, partitions=2),),
        )
        await process.catalogue.add_definition(record_of(topic))
        await maintenance.run_pass()
        topic = await other.topics.get("default", "orders")
        for partition in range(2):
            assert (await other.logs.state(topic.log(topic.target), partition)).end == 0
