"""Recovery of a store that lost entries: lost rows are marked, and new entries are read once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.helpers.store_faults import plain_server
from tests.history.lake_check import gaps_of, projected_rows, require_whole
from tests.history.local_ingest import local_ingest
from tests.history.log_writer import LogWriter, change, envelopes
from waystation.errors import HistoryBusyError, HistoryError, LakeWriteError
from waystation.history import attach
from waystation.history.ingest import job
from waystation.history.ingest.job import IngestJob
from waystation.history.ingest.retention import SOFT
from waystation.history.lake.table import LakeTable

ORDERS = "t.default.orders.0"


class DeathError(Exception):
    """Simulated crash of the process."""


@pytest.fixture
def ingest(store_url: str, lake: Path) -> Any:
    return lambda **more: local_ingest(lake, store_url, **more)


def rows(lake: Path, table: str = "messages") -> list[dict[str, Any]]:
    found = DeltaTable(str(lake / table)).to_pyarrow_table(filters=[("row_state", "!=", "gap")])
    order = [(name, "ascending") for name in ("log", "log_offset", "item", "ingested")]
    return [row for row in found.sort_by(order).to_pylist() if row["gap_end"] is None]


def ids(lake: Path, *, lost: bool) -> list[str]:
    state = "lost" if lost else "live"
    return [row["id"] for row in rows(lake) if row["row_state"] == state]


def gaps(spark: SparkSession, lake: Path) -> list[tuple[int, int, int, str]]:
    attach(spark, lake=str(lake))
    query = "select from_offset, to_offset, rows, cause from waystation.gaps"
    return sorted(tuple(row) for row in spark.sql(query).collect())


def expected(*ranges: range) -> list[str]:
    return [f"m-{number}" for numbers in ranges for number in numbers]


def test_what_a_restored_store_has_lost_is_marked_and_read_anew(
    ingest: Any, writer: LogWriter, lake: Path, spark: SparkSession
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(6))
    backup = writer.backup()
    writer.append(ORDERS, envelopes(4, first=6))
    living = ingest()
    assert living.run().rows == 10

    # The store loses the tail
    writer.restore(backup)
    done = living.run()
    assert (done.rows, done.lost_rows) == (0, 4)
    assert (ids(lake, lost=False), ids(lake, lost=True)) == (
        expected(range(6)),
        expected(range(6, 10)),
    )
    assert gaps(spark, lake) == [(6, 10, 4, "lost")]
    assert writer.held(ORDERS) == {SOFT: 5}
    assert living.run().lost_rows == 0

    # New entries get these offsets and are lost in the same way, before an ingest has looked
    writer.append(ORDERS, envelopes(4, first=20))
    assert living.run().rows == 4
    writer.restore(backup)
    writer.append(ORDERS, envelopes(8, first=30))
    done = ingest().run()
    assert (done.rows, done.lost_rows) == (8, 4)
    assert ids(lake, lost=False) == expected(range(6), range(30, 38))
    assert gaps(spark, lake) == [(6, 10, 4, "lost")] * 2

    # Spark sees what is true now, and all there ever was if it asks for it
    assert spark.sql("select * from waystation.messages").count() == 14
    lost = "select * from waystation.messages_all where row_state = 'lost'"
    assert spark.sql(lost).count() == 8


def test_a_log_that_began_anew_has_lost_everything(
    ingest: Any, writer: LogWriter, lake: Path
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(5))
    ingest().run()
    writer.flush()
    writer.create(ORDERS)
    # The same ids, at another time
    writer.append(ORDERS, envelopes(7))

    done = ingest().run()

    assert (done.rows, done.lost_rows) == (7, 5)
    assert ids(lake, lost=False) == expected(range(7))


def test_repair_that_crashes_at_any_step_is_completed_by_the_next_run(
    ingest: Any,
    writer: LogWriter,
    store_url: str,
    lake: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F-05: with a gap that reaches over the divergence."""
    writer.create("tx")
    writer.append_raw("tx", [change(number) for number in range(6)])
    size = len(change(0))
    assert writer.trim_to("tx", 4 * size) == 2
    backup = writer.backup()
    writer.append_raw("tx", [change(number) for number in range(6, 10)])
    # The lake lacks what a store that is restored has again
    assert writer.trim_to("tx", 3 * size + 2) == 7
    assert ingest().run().gap_rows == 7
    writer.restore(backup)
    writer.append_raw("tx", [change(number, mark="-anew") for number in range(6, 9)])

    commit, update = LakeTable.commit, LakeTable.update
    died = 0
    while True:
        # At first before anything is done, then each time after one thing more
        left = min(died, 1)

        def mortal(original: Callable[..., Any]) -> Callable[..., Any]:
            def called(table: LakeTable, *given: Any) -> Any:
                nonlocal left
                if left == 0:
                    left = -1
                    raise DeathError
                left -= 1
                return original(table, *given)

            return called

        with monkeypatch.context() as patch:
            patch.setattr(LakeTable, "commit", mortal(commit))
            patch.setattr(LakeTable, "update", mortal(update))
            try:
                ingest().run()
            except DeathError:
                died += 1
                continue
        break

    assert died >= 2
    changes, steps = rows(lake, "transactions"), projected_rows(lake, "steps")
    alive = [row for row in changes if row["row_state"] == "live"]
    assert [row["log_offset"] for row in alive] == list(range(2, 9))
    done = [row["step_type"] for row in steps if row["row_state"] == "live"]
    assert done == ["step"] * 4 + ["step-anew"] * 3
    assert [row["log_offset"] for row in changes if row["row_state"] == "lost"] == [7, 8, 9]
    assert len(changes) == len(steps) == 10
    assert gaps(spark, lake) == [(0, 2, 2, "trimmed"), (7, 10, 3, "lost")]
    require_whole(lake, store_url)


def test_recovery_without_an_entry_to_compare_continues(
    ingest: Any, writer: LogWriter, lake: Path
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(10))
    ingest().run()
    writer.append(ORDERS, envelopes(50, first=10))
    first = writer.trim_to(ORDERS, 300)
    assert first > 10

    done = ingest().run()

    assert (done.lost_rows, done.gap_rows, done.rows) == (0, first - 10, 60 - first)


def test_a_store_that_was_started_anew_is_compared_again(lake: Path) -> None:
    with plain_server() as server:
        url = f"unix://{server.address.path}"
        with LogWriter(url) as writer:
            writer.flush()
            writer.create(ORDERS)
            writer.append(ORDERS, envelopes(5))
            living = local_ingest(lake, url)
            assert living.run().rows == 5
        # The log keeps nothing, and has more entries than before at the next look
        server.kill()
        server.start()
        with LogWriter(url) as writer:
            writer.flush()
            writer.create(ORDERS)
            writer.append(ORDERS, envelopes(9, first=10))
            done = living.run()
    assert (done.rows, done.lost_rows) == (9, 5)
    assert ids(lake, lost=False) == expected(range(10, 19))


def test_of_two_ingests_that_find_the_same_loss_one_repairs_it_and_the_other_is_refused(
    ingest: Any, writer: LogWriter, store_url: str, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(6))
    backup = writer.backup()
    writer.append(ORDERS, envelopes(4, first=6))
    ingest().run()
    writer.restore(backup)
    writer.append(ORDERS, envelopes(4, first=20))
    mark_lost = job.mark_lost

    def overtaken(*given: Any) -> int:
        monkeypatch.setattr(job, "mark_lost", mark_lost)
        assert ingest().run().rows == 4
        return mark_lost(*given)

    monkeypatch.setattr(job, "mark_lost", overtaken)
    slow = ingest()
    with pytest.raises(HistoryBusyError):
        slow.run()

    assert slow.run().lost_rows == 0
    assert ids(lake, lost=False) == expected(range(6), range(20, 24))
    assert ids(lake, lost=True) == expected(range(6, 10))
    require_whole(lake, store_url)


@pytest.mark.parametrize("error", [LakeWriteError("The disk is full."), HistoryBusyError("Busy.")])
def test_repair_that_failed_once_is_made_by_the_next_run_of_the_same_ingest(
    writer: LogWriter,
    store_url: str,
    lake: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: HistoryError,
) -> None:
    """F-05: with two partitions, of which the second is not looked at before the failure."""
    writer.create(ORDERS, 2)
    for partition in (0, 1):
        writer.append(ORDERS, envelopes(6, first=100 * partition), partition)
    backup = writer.backup()
    for partition in (0, 1):
        writer.append(ORDERS, envelopes(4, first=100 * partition + 6), partition)
    local_ingest(lake, store_url).run()
    writer.restore(backup)
    for partition in (0, 1):
        # The same number of entries, so that offsets alone show no difference.
        writer.append(ORDERS, envelopes(4, first=100 * partition + 20), partition)
    update = LakeTable.update

    def failing(*given: Any) -> int:
        monkeypatch.setattr(LakeTable, "update", update)
        raise error

    monkeypatch.setattr(LakeTable, "update", failing)
    same = local_ingest(lake, store_url)
    with pytest.raises(type(error)):
        same.run()

    done = same.run()

    assert (done.rows, done.lost_rows) == (8, 8)
    assert sorted(ids(lake, lost=False)) == sorted(
        expected(range(6), range(20, 24), range(100, 106), range(120, 124))
    )
    assert sorted(ids(lake, lost=True)) == sorted(expected(range(6, 10), range(106, 110)))
    require_whole(lake, store_url)
    assert same.run().lost_rows == 0


def test_entries_that_another_ingest_commits_after_a_look_at_the_log_are_not_lost(
    ingest: Any, writer: LogWriter, store_url: str, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(6))
    open_tables = IngestJob._open_tables

    def overtaken(job: IngestJob, keys: Any) -> Any:
        monkeypatch.setattr(IngestJob, "_open_tables", open_tables)
        writer.append(ORDERS, envelopes(4, first=6))
        assert ingest().run().rows == 10
        return open_tables(job, keys)

    monkeypatch.setattr(IngestJob, "_open_tables", overtaken)
    done = ingest().run()

    assert (done.rows, done.lost_rows) == (0, 0)
    assert ids(lake, lost=False) == expected(range(10))
    require_whole(lake, store_url)


def test_a_lost_data_set_is_a_gap_once(ingest: Any, writer: LogWriter, lake: Path) -> None:
    writer.command("HSET", "waystation.format", "replaces", "ds-2 ds-1")
    writer.create(ORDERS)
    for _ in range(2):
        ingest().run()
    assert sorted(gaps_of(lake)) == [("ds-1", 0, 0, "store-lost"), ("ds-2", 0, 0, "store-lost")]


@pytest.mark.parametrize("room", [100, 1500])
def test_repair_on_a_full_disk_is_told_and_made_by_the_same_ingest_when_there_is_room(
    ingest: Any, writer: LogWriter, store_url: str, lake: Path, room: int
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(6))
    backup = writer.backup()
    writer.append(ORDERS, envelopes(4, first=6))
    ingest().run()
    writer.restore(backup)
    writer.append(ORDERS, envelopes(4, first=20))

    done = subprocess.run(
        [sys.executable, "-m", "tests.history.repair_process", store_url, str(lake), str(room)],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )

    told, repaired = done.stdout.splitlines() or [done.stderr[-2000:], ""]
    assert told.startswith("history.lake-write: messages cannot be written to: ")
    assert "too large" in told
    assert repaired == "rows=4 lost=4"
    assert ids(lake, lost=False) == expected(range(6), range(20, 24))
    assert ids(lake, lost=True) == expected(range(6, 10))
    require_whole(lake, store_url)
