"""Expiry: rows of old days are deleted, and ingest, recovery and audit go on as before."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from tests.history.lake_check import gaps_of
from tests.history.local_ingest import local_ingest
from tests.history.log_writer import LogWriter, envelopes
from tests.history.test_maintenance import DAY_MS, FIRST_MS, row
from waystation.history.ingest import job as ingest_job
from waystation.history.ingest.job import store_time_ms
from waystation.history.lake.expiry import expire_rows, first_kept_day
from waystation.history.lake.files import TableWriter
from waystation.history.lake.maintenance import maintain
from waystation.history.lake.schema import DELIVERIES, MESSAGES, TableSchema
from waystation.history.lake.table import Lake, LakeTable, TableOffset
from waystation.history.log_reader import LogReader
from waystation.runtime.clock import Clock

LOG, FIRST_DAY = "t.default.orders.0", date(2026, 1, 2)
ORDERS = LOG


def day_ms(days: int) -> int:
    return FIRST_MS + days * DAY_MS


def write(lake: Lake, spec: TableSchema, offsets: range, day: int, **values: Any) -> None:
    """Commit rows of one log, of one day after the first."""
    rows = [
        {
            **row(spec, offset, day_ms(day) + offset),
            "dataset": "ds",
            "log": LOG,
            "log_partition": 0,
            "item": 0,
            "gap_end": None,
            "gap_cause": None,
            **values,
        }
        for offset in offsets
    ]
    writer = TableWriter(lake.folder(spec), spec)
    writer.write(pa.RecordBatch.from_pylist(rows, spec.file_schema))
    lake.open(spec).commit(writer.close(), {f"ds/{LOG}/0": TableOffset(offsets.stop, 7)})


def live(lake: Path, spec: TableSchema = MESSAGES) -> list[int]:
    found = DeltaTable(str(lake / spec.name)).to_pyarrow_table(
        columns=["log_offset"], filters=[("row_state", "=", "live")]
    )
    return sorted(found.column("log_offset").to_pylist())


def test_first_kept_day_keeps_whole_days_in_utc() -> None:
    now = datetime(2026, 3, 10, 23, 59, tzinfo=UTC)
    assert first_kept_day(int(now.timestamp() * 1000), 7) == date(2026, 3, 3)


def test_expire_rows_of_old_days_leaves_one_gap_and_the_committed_offset(lake: Path) -> None:
    tables = Lake(str(lake))
    for day in range(4):
        write(tables, MESSAGES, range(day * 10, day * 10 + 10), day)

    assert expire_rows(tables, MESSAGES, date(2026, 1, 4), day_ms(3)) == 20
    assert live(lake) == list(range(20, 40))
    assert gaps_of(lake, "ds") == [(LOG, 0, 20, "expired")]
    table = tables.open(MESSAGES)
    assert table.offset(f"ds/{LOG}/0") == TableOffset(40, 7)
    assert table.kept_from == date(2026, 1, 4)
    version = table.version

    # Without older rows, nothing is committed
    assert expire_rows(tables, MESSAGES, date(2026, 1, 4), day_ms(3)) == 0
    assert tables.open(MESSAGES).version == version
    # A longer gap takes the place of the first one
    assert expire_rows(tables, MESSAGES, date(2026, 1, 5), day_ms(4)) == 10
    assert gaps_of(lake, "ds") == [(LOG, 0, 30, "expired")]
    assert live(lake) == list(range(30, 40))


def test_expire_rows_keeps_where_subscriptions_start_and_takes_gaps_and_lost_rows(
    lake: Path,
) -> None:
    tables = Lake(str(lake))
    write(tables, DELIVERIES, range(2), 0, kind="start")
    write(tables, DELIVERIES, range(2, 8), 0, kind="attempt")
    write(tables, DELIVERIES, range(8, 9), 1, kind="reset")
    write(tables, DELIVERIES, range(9, 12), 3, kind="attempt")
    gap = {"gap_end": 15, "gap_cause": "trimmed"}
    writer = TableWriter(tables.folder(DELIVERIES), DELIVERIES)
    lost = {**row(DELIVERIES, 50, day_ms(0)), "log": LOG, "gap_end": None, "gap_cause": None}
    writer.write(pa.RecordBatch.from_pylist([lost], DELIVERIES.file_schema), "lost")
    tables.open(DELIVERIES).commit(writer.close(), {})
    writer = TableWriter(tables.folder(DELIVERIES), DELIVERIES)
    gone = {**row(DELIVERIES, 12, day_ms(0)), "dataset": "ds", "log": LOG, "log_partition": 0}
    writer.write(pa.RecordBatch.from_pylist([gone | gap], DELIVERIES.file_schema), "gap")
    tables.open(DELIVERIES).commit(writer.close(), {})

    # Six attempts, the gap and the row that the store lost
    assert expire_rows(tables, DELIVERIES, date(2026, 1, 4), day_ms(3)) == 8
    assert live(lake, DELIVERIES) == [0, 1, 8, 9, 10, 11]
    assert gaps_of(lake, "ds") == [(LOG, 0, 15, "expired")]
    assert not tables.open(DELIVERIES).files(("lost",))
    assert expire_rows(tables, DELIVERIES, date(2026, 1, 4), day_ms(3)) == 0


def test_expired_rows_leave_the_disk_after_vacuum_hours(lake: Path) -> None:
    tables = Lake(str(lake))
    write(tables, MESSAGES, range(5), 0)
    write(tables, MESSAGES, range(5, 10), 3)
    (old,) = [
        file for file in tables.open(MESSAGES).listed() if file.day < FIRST_DAY.replace(day=3)
    ]
    now_ms = Clock().now_ms()
    expire_rows(tables, MESSAGES, date(2026, 1, 4), now_ms - 3 * 3_600_000)
    path = lake / "messages" / old.path
    # A reader of the version before is not disturbed until then
    assert path.exists()

    maintain(tables.folder(MESSAGES), now_ms, vacuum_hours=2)

    assert not path.exists()
    assert live(lake) == list(range(5, 10))


def test_expiry_beside_a_compaction_is_refused_and_doubles_nothing(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = Lake(str(lake))
    for offset in range(10):
        write(tables, MESSAGES, range(offset, offset + 1), 0)
    write(tables, MESSAGES, range(10, 12), 3)
    replace = LakeTable.replace

    def overtaken(table: LakeTable, *given: Any, **more: Any) -> None:
        assert maintain(table.folder, FIRST_MS).compacted == 10
        replace(table, *given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(LakeTable, "replace", overtaken)
        assert expire_rows(tables, MESSAGES, date(2026, 1, 4), day_ms(3)) is None
    assert live(lake) == list(range(12))

    assert expire_rows(tables, MESSAGES, date(2026, 1, 4), day_ms(3)) == 10
    assert live(lake) == [10, 11]


def test_a_compaction_that_began_before_an_expiry_is_refused(lake: Path) -> None:
    tables = Lake(str(lake))
    for offset in range(10):
        write(tables, MESSAGES, range(offset, offset + 1), 0)
    began_before = DeltaTable(tables.folder(MESSAGES))
    expire_rows(tables, MESSAGES, date(2026, 1, 4), day_ms(3))

    with pytest.raises(CommitFailedError):
        began_before.optimize.compact(partition_filters=[("day", "=", "2026-01-02")])

    assert live(lake) == []


def test_expiry_beside_an_ingest_commits_behind_it(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = Lake(str(lake))
    write(tables, MESSAGES, range(5), 0)
    replace = LakeTable.replace

    def overtaken(table: LakeTable, *given: Any, **more: Any) -> None:
        write(tables, MESSAGES, range(5, 7), 3)
        replace(table, *given, **more)

    monkeypatch.setattr(LakeTable, "replace", overtaken)
    assert expire_rows(tables, MESSAGES, date(2026, 1, 4), day_ms(3)) == 5
    assert live(lake) == [5, 6]
    assert tables.open(MESSAGES).offset(f"ds/{LOG}/0").offset == 7


def test_expiry_that_crashes_before_its_commit_leaves_the_table_as_it_is(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = Lake(str(lake))
    write(tables, MESSAGES, range(5), 0)

    def crash(*given: Any, **more: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LakeTable, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        expire_rows(tables, MESSAGES, date(2026, 1, 4), day_ms(3))

    assert live(lake) == list(range(5))
    assert len(list((lake / "messages").glob("day=*/*/*.parquet"))) == 1


class LaterClock(Clock):
    """A clock that is some days ahead."""

    def __init__(self, days: int) -> None:
        super().__init__()
        self.shift_to(days * DAY_MS)


@pytest.fixture
def later_ingest(store_url: str, lake: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return an ingest of a new process, some days later, that keeps one day.

    The clock of the store is as late, or a given number of days.
    """

    def make(days: int, *, store_days: int | None = None) -> Any:
        job = local_ingest(lake, store_url, keep_days=1)
        job.clock = LaterClock(days)
        store_clock = LaterClock(days if store_days is None else store_days)
        monkeypatch.setattr(ingest_job, "store_time_ms", lambda logs: store_clock.now_ms())
        return job

    return make


def test_ingest_of_an_idle_log_whose_rows_have_expired_reads_nothing_again(
    later_ingest: Any, writer: LogWriter, lake: Path
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(6))
    assert later_ingest(0).run().rows == 6

    done = later_ingest(3).run()
    assert (done.rows, done.lost_rows, done.expired_rows) == (0, 0, 6)
    assert live(lake) == []
    # A new process compares the last entry by its fingerprint, which no row has to have
    again = later_ingest(3).run()
    assert (again.rows, again.lost_rows, again.expired_rows) == (0, 0, 0)
    writer.append(ORDERS, envelopes(2, first=6))
    later = later_ingest(0).run()
    assert (later.rows, later.lost_rows) == (2, 0)
    assert live(lake) == [6, 7]
    assert gaps_of(lake) == [(ORDERS, 0, 6, "expired")]


def test_recovery_of_a_store_that_lost_expired_rows_reads_what_it_has_now(
    later_ingest: Any, writer: LogWriter, lake: Path
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(3))
    backup = writer.backup()
    writer.append(ORDERS, envelopes(3, first=3))
    later_ingest(0).run()
    assert later_ingest(3).run().expired_rows == 6
    writer.restore(backup)
    writer.append(ORDERS, envelopes(5, first=20))

    done = later_ingest(0).run()

    # No row is left to compare with, so all that the store has is read
    assert (done.rows, live(lake), gaps_of(lake)) == (8, list(range(8)), [])
    assert later_ingest(0).run().rows == 0
    # The rows that were read again expire like all others
    assert later_ingest(3).run().expired_rows == 8 + 1
    assert gaps_of(lake) == [(ORDERS, 0, 8, "expired")]


@pytest.mark.parametrize(("days", "store_days"), [(3, 0), (0, 3), (4000, 4000)])
def test_ingest_with_a_clock_that_is_ahead_deletes_no_row(
    later_ingest: Any, writer: LogWriter, lake: Path, days: int, store_days: int
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(6))
    later_ingest(0).run()

    assert later_ingest(days, store_days=store_days).run().expired_rows == 0
    assert later_ingest(days, store_days=store_days).run().expired_rows == 0

    assert live(lake) == list(range(6))
    assert later_ingest(3).run().expired_rows == 6


def test_store_time_is_that_of_the_store(store_url: str, writer: LogWriter) -> None:
    times = []
    with LogReader(store_url) as logs:
        for _ in range(2):
            reply: Any = writer.command("TIME")
            times += [int(reply[0]) * 1000 + int(reply[1]) // 1000, store_time_ms(logs)]
    assert times == sorted(times)


def test_ingest_after_a_failed_expiry_tries_it_again(
    later_ingest: Any, writer: LogWriter, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(6))
    later_ingest(0).run()
    job = later_ingest(3)
    with monkeypatch.context() as patch:

        def fail(*given: Any, **more: Any) -> None:
            raise OSError("The disk is full.")

        patch.setattr(LakeTable, "replace", fail)
        assert job.run().expired_rows == 0
    assert job.run().expired_rows == 6
