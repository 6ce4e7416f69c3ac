"""Ingest: each message of topics is in the lake once, after crashes and beside other ingests."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.history import local_ingest as local
from tests.history import shard_story
from tests.history.lake_check import gaps_of
from tests.history.local_ingest import local_ingest
from tests.history.log_writer import LogWriter, change, envelopes
from waystation.errors import (
    HistoryBusyError,
    StoreDamagedError,
    StoreDataLostError,
    TaskFailedError,
)
from waystation.history.audit import Live, audit
from waystation.history.ingest.job import IngestJob, ingest_job
from waystation.history.ingest.planner import ingested_states
from waystation.history.ingest.retention import SOFT
from waystation.history.ingest.task import IngestTask, TaskResult
from waystation.history.jobs import IngestProgress
from waystation.history.lake.table import Lake, LakeTable
from waystation.history.log_reader import LogReader
from waystation.history.sources.options import Location
from waystation.logs import keys
from waystation.store.keys import FORMAT

ORDERS = "t.default.orders.0"


class DeathError(Exception):
    """Simulated crash of the process."""


@pytest.fixture
def ingest(store_url: str, lake: Path) -> Any:
    """A new process, as far as ingest is concerned; its tasks need no Spark."""
    return lambda **more: local_ingest(lake, store_url, **more)


def rows(lake: Path, table: str = "messages") -> list[dict[str, Any]]:
    found = DeltaTable(str(lake / table)).to_pyarrow_table(filters=[("row_state", "!=", "gap")])
    return found.sort_by([("log", "ascending"), ("log_offset", "ascending")]).to_pylist()


def ids(lake: Path) -> list[str]:
    return [row["id"] for row in rows(lake)]


def expected(*ranges: range) -> list[str]:
    return [f"m-{number}" for numbers in ranges for number in numbers]


@pytest.mark.spark_oldest
def test_ingest_of_topics_writes_each_message_once_and_moves_the_holds(
    writer: LogWriter, store_url: str, lake: Path, spark: SparkSession
) -> None:
    def ingest() -> IngestJob:
        return ingest_job(spark, Lake(str(lake)), Location(store_url))

    writer.create(ORDERS)
    receipt = writer.append(ORDERS, envelopes(10, group="g"))
    writer.append_raw(ORDERS, [b"no envelope"])
    writer.create("tx")

    first = ingest()
    done = first.run()

    assert (done.rows, done.malformed, done.gap_rows, done.left) == (11, 1, 0, 0)
    found = rows(lake)
    assert [row["id"] for row in found] == [*expected(range(10)), None]
    assert found[3]["position"] == "default/orders/0/0/3"
    assert found[3]["time"].timestamp() * 1000 == receipt.ms
    assert (found[3]["dataset"], found[3]["log"]) == ("ds-test", ORDERS)
    assert (found[3]["row_state"], found[3]["recorded"]) == ("live", "full")
    assert (found[10]["malformed"], found[10]["payload"]) == (True, b"no envelope")
    # The last one stays, to be compared with
    assert writer.held(ORDERS) == {SOFT: 10}

    # Ingest again, by this process and by another: only new messages are added
    assert first.run().rows == 0
    writer.append(ORDERS, envelopes(5, first=11))
    assert ingest().run().rows == 5
    assert first.run().rows == 0
    assert len(rows(lake)) == 16
    assert writer.held(ORDERS) == {SOFT: 15}

    # Spark reads the same, by the files that the table consists of
    files = DeltaTable(str(lake / "messages")).file_uris()
    read = spark.read.option("basePath", str(lake / "messages")).parquet(*files)
    assert read.where("group = 'g' and day is not null").count() == 10


def test_rounds_are_bounded_and_add_up(ingest: Any, writer: LogWriter, lake: Path) -> None:
    writer.create(ORDERS, 2)
    writer.append(ORDERS, envelopes(70), 0)
    writer.append(ORDERS, envelopes(10, first=100), 1)
    told: list[tuple[int, int]] = []

    def note(so_far: IngestProgress) -> None:
        told.append((so_far.rows, so_far.left))

    done = ingest(batch_rows=40, task_rows=16).run(note)

    assert (done.rows, done.rounds) == (80, 2)
    assert told == [(40, 40), (80, 0)]
    assert sorted(ids(lake)) == sorted(expected(range(70), range(100, 110)))
    # The tasks of a round write a file each, and nothing else is in the table
    assert len(DeltaTable(str(lake / "messages")).file_uris()) == 6


def test_ingest_that_crashes_before_or_after_a_commit_loses_and_doubles_nothing(
    ingest: Any, writer: LogWriter, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check F-05 at the two steps where it would show. Slow tests kill the process itself."""
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(10))
    commit = LakeTable.commit

    def before(table: LakeTable, *given: Any) -> None:
        raise DeathError

    def after(table: LakeTable, *given: Any) -> None:
        commit(table, *given)
        raise DeathError

    for death in (before, after):
        with monkeypatch.context() as patch:
            patch.setattr(LakeTable, "commit", death)
            with pytest.raises(DeathError):
                ingest().run()
    assert writer.held(ORDERS) == {}

    # The next ingest finds the commit from before the crash, and sets the hold
    assert ingest().run().rows == 0
    assert ids(lake) == expected(range(10))
    assert writer.held(ORDERS) == {SOFT: 9}
    # Files of the first attempt lie there, and belong to nothing
    written = list((lake / "messages").glob("day=*/*/*.parquet"))
    assert len(written) == 2
    assert len(DeltaTable(str(lake / "messages")).file_uris()) == 1


def test_ingest_that_commits_after_another_is_refused_and_doubles_nothing(
    ingest: Any, writer: LogWriter, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(10))
    slow = ingest()
    commit = LakeTable.commit

    def overtaken(table: LakeTable, *given: Any) -> None:
        monkeypatch.setattr(LakeTable, "commit", commit)
        writer.append(ORDERS, envelopes(5, first=10))
        assert ingest().run().rows == 15
        commit(table, *given)

    monkeypatch.setattr(LakeTable, "commit", overtaken)
    with pytest.raises(HistoryBusyError):
        slow.run()
    assert slow.run().rows == 0
    assert ids(lake) == expected(range(15))


def test_ingest_of_trimmed_entries_counts_them_once(
    ingest: Any, writer: LogWriter, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(100))
    first = writer.trim_to(ORDERS, 500)
    commit = LakeTable.commit

    def dies(table: LakeTable, *given: Any) -> None:
        raise DeathError

    # Given a micro-batch that crashed when its tasks had written the gap to a file
    with monkeypatch.context() as patch:
        patch.setattr(LakeTable, "commit", dies)
        with pytest.raises(DeathError):
            ingest().run()
    # And more that is trimmed before the next
    second = writer.trim_to(ORDERS, 300)
    assert second > first

    def dies_later(table: LakeTable, *given: Any) -> None:
        commit(table, *given)
        raise DeathError

    # Given a micro-batch that crashed when it had committed the gap with a first row
    with monkeypatch.context() as patch:
        patch.setattr(LakeTable, "commit", dies_later)
        with pytest.raises(DeathError):
            ingest(batch_rows=1).run()
    third = writer.trim_to(ORDERS, 200)
    assert third > second

    done = ingest().run()

    assert (done.rows, done.gap_rows) == (100 - third, third - second - 1)
    assert gaps_of(lake) == [
        (ORDERS, 0, second, "trimmed"),
        (ORDERS, second + 1, third, "trimmed"),
    ]
    assert [row["log_offset"] for row in rows(lake)] == [second, *range(third, 100)]


def test_another_data_set_begins_anew_beside_the_older_one(
    ingest: Any, writer: LogWriter, lake: Path
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(10))
    living = ingest()
    living.run()

    # With as many messages, so that no offset tells
    writer.flush()
    writer.command("HSET", "waystation.format", "dataset", "ds-other")
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(10))

    assert living.run().rows == 10
    assert [row["dataset"] for row in rows(lake)].count("ds-other") == 10
    assert {row["row_state"] for row in rows(lake)} == {"live"}


def test_ingests_that_run_at_the_same_time_bring_everything_once(
    ingest: Any, writer: LogWriter, lake: Path
) -> None:
    """Run ingests without a lease, because correctness does not depend on it."""
    writer.create(ORDERS, 2)
    done = 0
    for turn in range(3):
        for partition in (0, 1):
            writer.append(ORDERS, envelopes(20, first=40 * turn + 20 * partition), partition)
        with ThreadPoolExecutor(3) as pool:
            futures = [pool.submit(ingest(batch_rows=16).run) for _ in range(3)]
        for future in futures:
            try:
                done += future.result().rows
            except HistoryBusyError:
                continue
    ingest().run()
    assert sorted(ids(lake)) == sorted(expected(range(120)))
    assert done <= 120
    assert [writer.held(ORDERS, partition) for partition in (0, 1)] == [{SOFT: 59}] * 2


def test_ingest_of_a_sealed_log_reads_it_to_its_end_and_releases_it(
    ingest: Any, writer: LogWriter, lake: Path
) -> None:
    """Check also a process that had read the whole log before it was sealed."""
    logs = (ORDERS, "tx", "s.default.billing.1")
    for log in logs:
        writer.create(log)
        writer.append_raw(log, [b"one", b"two"])
    living = ingest()
    assert living.run().read == 6
    assert [writer.held(log) for log in logs] == [{SOFT: 1}] * 3

    writer.append_raw("tx", [b"three"])
    for log in logs:
        writer.seal(log)
    assert living.run().read == 1
    assert [writer.held(log) for log in logs] == [{}] * 3

    # The logs are deleted, because nobody needs them, and their rows stay
    for log in logs:
        writer.delete(log)
    assert living.run().read == ingest().run().read == 0
    assert len(rows(lake)) == 2
    assert len(rows(lake, "transactions")) == 3
    assert {row["row_state"] for row in rows(lake)} == {"live"}


def test_a_topic_that_is_purged_while_it_is_read_is_a_counted_gap(
    ingest: Any, writer: LogWriter, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(10))
    run = local.run_task

    def purged(task: IngestTask) -> TaskResult:
        writer.delete(ORDERS)
        return run(task)

    with monkeypatch.context() as patch:
        patch.setattr(local, "run_task", purged)
        done = ingest().run()
    assert (done.rows, done.gap_rows) == (0, 10)
    assert gaps_of(lake) == [(ORDERS, 0, 10, "trimmed")]
    # A partition that does not exist is not held
    assert writer.held(ORDERS) == {}
    assert ingest().run().read == 0


@pytest.mark.parametrize("stamp", ["", "ds-other"])
def test_store_that_loses_its_data_before_the_tasks_read_leaves_no_gap(
    ingest: Any, writer: LogWriter, lake: Path, monkeypatch: pytest.MonkeyPatch, stamp: str
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(10))
    backup = writer.backup()
    run = local.run_task

    def emptied(task: IngestTask) -> TaskResult:
        writer.command("FLUSHALL")
        if stamp:
            writer.command("HSET", FORMAT, "dataset", stamp, "replaces", "ds-test")
        return run(task)

    with monkeypatch.context() as patch:
        patch.setattr(local, "run_task", emptied)
        with pytest.raises(StoreDataLostError):
            ingest().run()

    # The operator restores the data: everything is ingested.
    writer.restore(backup)
    done = ingest().run()
    assert (done.rows, done.gap_rows) == (10, 0)
    assert ids(lake) == expected(range(10))
    assert gaps_of(lake) == []


def test_store_that_loses_its_data_before_the_commit_moves_no_offset(
    ingest: Any, writer: LogWriter, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(10))
    backup = writer.backup()
    run = local.run_task

    def emptied(task: IngestTask) -> TaskResult:
        result = run(task)
        writer.command("FLUSHALL")
        return result

    with monkeypatch.context() as patch:
        patch.setattr(local, "run_task", emptied)
        with pytest.raises(StoreDataLostError):
            ingest().run()

    writer.restore(backup)
    assert ingest().run().rows == 10
    assert ids(lake) == expected(range(10))


def test_ingest_of_malformed_entries_writes_rows_with_their_bytes(
    ingest: Any, writer: LogWriter, lake: Path
) -> None:
    bad = b"\xc1 no message of ours"
    kinds = {
        ORDERS: ("messages", "payload"),
        "tx": ("transactions", "snapshot"),
        "s.default.billing.1": ("deliveries", "excerpt"),
        "webhooks": ("webhook_attempts", "excerpt"),
        "channels.3": ("channels", "content"),
        "pools.5": ("pools", "payload"),
    }
    for log in kinds:
        writer.create(log)
        writer.append_raw(log, [bad])
    done = ingest().run()
    assert (done.read, done.rows, done.malformed) == (6, 6, 6)
    for table, column in kinds.values():
        (row,) = rows(lake, table)
        assert (row["malformed"], row[column]) == (True, bad)


@pytest.mark.spark_oldest
def test_ingest_with_a_failing_task_raises_one_sentence_and_commits_nothing(
    writer: LogWriter,
    store_url: str,
    lake: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(3))
    ingest = ingest_job(spark, Lake(str(lake)), Location(store_url))

    def fails(*_: Any) -> bytes:
        raise ValueError("the store is upside down")

    with monkeypatch.context() as patch:
        patch.setattr("waystation.history.ingest.job.run_encoded", fails)
        with pytest.raises(TaskFailedError, match="ValueError: the store is upside down") as told:
            ingest.run()
    assert "\n" not in told.value.message
    assert writer.held(ORDERS) == {}
    assert ingest.run().rows == 3


def test_ingest_reports_read_entries_and_their_total(ingest: Any, writer: LogWriter) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(70))
    told: list[tuple[int, int]] = []
    ingest(batch_rows=40, task_rows=10).run(on_reading=lambda *given: told.append(given))
    assert {total for _, total in told} == {70}
    assert [read for read, _ in told] == sorted(read for read, _ in told)
    assert {0, 40, 70} <= {read for read, _ in told}


@pytest.mark.spark_oldest
@pytest.mark.timeout(240)
def test_ingest_of_a_damaged_log_keeps_stored_offsets_and_writes_a_gap_with_its_cause(
    ingest: Any, writer: LogWriter, lake: Path, store_url: str, spark: SparkSession
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(20))
    writer.create("tx")
    writer.append_raw("tx", [change(number) for number in range(6)])
    writer.remove(ORDERS, 5)
    writer.remove("tx", 2, 3)

    done = ingest().run()

    assert (done.damaged_rows, done.gap_rows, done.lost_rows) == (3, 0, 0)
    assert {row["log_offset"]: row["id"] for row in rows(lake)} == {
        number: f"m-{number}" for number in range(20) if number != 5
    }
    assert [row["log_offset"] for row in rows(lake, "transactions")] == [0, 1, 4, 5]
    assert gaps_of(lake) == [(ORDERS, 5, 6, "damaged"), ("tx", 2, 4, "damaged")]
    # And an entry that is removed after it was ingested is still in the lake
    writer.remove(ORDERS, 19)
    assert ingest().run().rows == 0
    with Live(store_url) as live:
        findings = audit(spark, Lake(str(lake)), live=live)
    assert findings.counts["log.damaged"] == 3
    told = {
        (each.subject, each.position, each.text.partition(" are")[0])
        for each in findings.examples
        if each.check == "log.damaged"
    }
    assert told == {
        (f"{ORDERS}/0", "default/orders/0/0/5", "Offsets 5 to 5"),
        (f"{ORDERS}/0", "default/orders/0/0/19", "Offsets 19 to 19"),
        ("tx/0", "tx/0/2", "Offsets 2 to 3"),
    }
    assert "missing" not in findings.counts


def test_deliveries_are_committed_after_the_messages_of_all_topics(
    ingest: Any, writer: LogWriter, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-05: whatever a crash leaves and a snapshot reads, each delivery has its message."""
    writer.create(ORDERS, 2)
    for partition in (0, 1):
        writer.append(ORDERS, envelopes(50, first=100 * partition), partition)
    shard_story.write(writer)
    committed: list[str] = []
    commit = LakeTable.commit

    def observed(table: LakeTable, *given: Any) -> None:
        committed.append(table.schema.name)
        commit(table, *given)

    monkeypatch.setattr(LakeTable, "commit", observed)
    found: list[tuple[int, bool]] = []

    def note(progress: IngestProgress) -> None:
        tables = Lake(str(lake)).snapshot()
        has_deliveries = "deliveries" in tables and bool(tables["deliveries"].files())
        found.append((len(ids(lake)), has_deliveries))

    done = ingest(batch_rows=60).run(note)

    # The first micro-batch would have room for deliveries.
    assert found[0] == (60, False)
    assert found[-1] == (100, True)
    assert all(messages == 100 for messages, has_deliveries in found if has_deliveries)
    assert done.left == 0
    assert committed.index("deliveries") > committed.index("messages")
    committed.clear()
    writer.append(ORDERS, envelopes(1, first=500))
    delivery = shard_story.hop_row(17, "attempt", "m0.0.50", "-", 1, 50, "park")
    writer.append_raw(shard_story.LOG, [shard_story._entry(delivery)])
    # Both in one micro-batch.
    assert ingest().run().rows == 2
    assert committed == ["messages", "deliveries"]


def test_states_of_topics_are_read_after_those_of_record_logs(
    writer: LogWriter, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that is produced and delivered in between is in both states."""
    writer.create(ORDERS)
    shard_story.write(writer)
    states = LogReader.states

    def late(logs: LogReader, partitions: Any) -> Any:
        found = states(logs, partitions)
        if any(log == shard_story.LOG for log, _ in found):
            writer.append(ORDERS, envelopes(1))
        return found

    monkeypatch.setattr(LogReader, "states", late)
    with LogReader(store_url) as logs:
        assert ingested_states(logs)[f"{ORDERS}/0"].end == 1


def test_snapshot_opens_messages_after_deliveries(
    ingest: Any, writer: LogWriter, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(1))
    shard_story.write(writer)
    ingest().run()
    snapshot = Lake(str(lake)).snapshot()
    names = list(snapshot)
    assert names.index("messages") > names.index("deliveries")


def test_ingest_with_a_damaged_log_head_reads_the_other_logs(
    ingest: Any, writer: LogWriter, store_url: str, lake: Path
) -> None:
    for log in (ORDERS, "t.default.other.0"):
        writer.create(log)
        writer.append(log, envelopes(2))
    head = keys.head("t.default.other.0", 0)
    writer.command("HSET", head, "end", "many")
    assert ingest().run().rows == 2
    # A reader that does not ingest must not take the log for a deleted one.
    with LogReader(store_url) as logs, pytest.raises(StoreDamagedError, match="other"):
        logs.states([(ORDERS, 0), ("t.default.other.0", 0)])
    writer.command("HSET", head, "end", 2)
    assert ingest().run().rows == 2
