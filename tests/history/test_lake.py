"""Delta tables of the lake: files and offsets in one commit, each range once for all writers."""

from __future__ import annotations

import signal
import threading
import time
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable

from waystation.errors import HistoryBusyError, LakeDamagedError, LakeRefusedError
from waystation.history.decoders.messages import moments
from waystation.history.lake import view_updates
from waystation.history.lake.files import TableWriter, WrittenFile, split_by_day
from waystation.history.lake.schema import MESSAGES, OPERATIONS, POOLS, TRANSACTIONS
from waystation.history.lake.table import Lake, LakeSnapshot, TableOffset
from waystation.history.lake.view_updates import FollowedLake
from waystation.history.log_reader import fingerprint
from waystation.history.offsets import OffsetRange

#: The last millisecond of a day, and the first of the next.
MIDNIGHT_MS = 1_767_312_000_000


def rows_at(*times_ms: int, first: int = 0) -> pa.RecordBatch:
    count = len(times_ms)
    offsets = list(range(first, first + count))
    columns = {
        "dataset": ["ds"] * count,
        "log": ["log"] * count,
        "log_partition": [0] * count,
        "log_offset": offsets,
        "item": [0] * count,
        "time": moments(times_ms),
        "ingested": moments(times_ms),
    }
    nulls = {
        field.name: pa.nulls(count, field.type)
        for field in OPERATIONS.file_schema
        if field.name not in columns
    }
    return pa.record_batch(columns | nulls, schema=OPERATIONS.file_schema)


def write(lake: Lake, *times_ms: int, first: int = 0) -> list[WrittenFile]:
    writer = TableWriter(lake.folder(OPERATIONS), OPERATIONS)
    writer.write(rows_at(*times_ms, first=first))
    return writer.close()


def test_rows_and_marks_come_with_one_commit(lake: Path) -> None:
    where = Lake(str(lake))
    table = where.open(OPERATIONS)
    assert table.offset("ds/log/0") == TableOffset(0)
    files = write(where, MIDNIGHT_MS - 1, MIDNIGHT_MS)
    # Written is not committed
    assert DeltaTable(where.folder(OPERATIONS)).to_pyarrow_table().num_rows == 0

    table.commit(files, {"ds/log/0": TableOffset(2, 77), "ds/log/1": TableOffset(0)})

    table = where.open(OPERATIONS)
    assert (table.offset("ds/log/0"), table.offset("ds/log/1")) == (
        TableOffset(2, 77),
        TableOffset(0),
    )
    found = (
        DeltaTable(where.folder(OPERATIONS)).to_pyarrow_table().sort_by("log_offset").to_pylist()
    )
    assert [(row["day"], row["log_offset"]) for row in found] == [
        (date(2026, 1, 1), 0),
        (date(2026, 1, 2), 1),
    ]
    files = table.files()
    assert sorted(file.partition("/")[0] for file in files) == [
        "day=2026-01-01",
        "day=2026-01-02",
    ]
    assert list(where.snapshot()) == [OPERATIONS.name]


def test_commit_of_a_range_that_another_writer_committed_is_refused(lake: Path) -> None:
    where = Lake(str(lake))
    one, other = where.open(OPERATIONS), where.open(OPERATIONS)
    files = write(where, MIDNIGHT_MS)
    one.commit(files, {"ds/log/0": TableOffset(1)})
    with pytest.raises(HistoryBusyError):
        other.commit(
            write(where, MIDNIGHT_MS), {"ds/log/9": TableOffset(5), "ds/log/0": TableOffset(1)}
        )
    table = where.open(OPERATIONS)
    assert (table.offset("ds/log/0"), table.offset("ds/log/9")) == (TableOffset(1), TableOffset(0))
    assert DeltaTable(where.folder(OPERATIONS)).to_pyarrow_table().num_rows == 1


def test_commits_of_different_logs_from_one_version_succeed(lake: Path) -> None:
    where = Lake(str(lake))
    one, other = where.open(OPERATIONS), where.open(OPERATIONS)
    one.commit(write(where, MIDNIGHT_MS), {"ds/log/0": TableOffset(1)})
    other.commit(write(where, MIDNIGHT_MS, first=9), {"ds/log/1": TableOffset(10)})
    assert DeltaTable(where.folder(OPERATIONS)).to_pyarrow_table().num_rows == 2


def test_a_mark_moves_without_rows_and_backwards_too(lake: Path) -> None:
    where = Lake(str(lake))
    for offset in (5, 3):
        where.open(OPERATIONS).commit([], {"ds/log/0": TableOffset(offset, offset)})
        assert where.open(OPERATIONS).offset("ds/log/0") == TableOffset(offset, offset)


def test_an_update_moves_rows_to_another_partition_with_an_offset_or_is_refused(
    lake: Path,
) -> None:
    where, key = Lake(str(lake)), "ds/log/0"
    where.open(OPERATIONS).commit(
        write(where, *[MIDNIGHT_MS - 1, MIDNIGHT_MS] * 2), {key: TableOffset(4, 7)}
    )
    one, other = where.open(OPERATIONS), where.open(OPERATIONS)
    behind, lost = "row_state = 'live' and log_offset >= 2", {"row_state": "'lost'"}

    assert one.update(behind, lost, {key: TableOffset(2, 5)}) == 2

    with pytest.raises(HistoryBusyError):
        other.update(behind, lost, {key: TableOffset(2, 5)})
    # Not even if no row matches
    with pytest.raises(HistoryBusyError):
        other.update("log_offset > 9", lost, {key: TableOffset(2, 5)})
    table = where.open(OPERATIONS)
    assert table.offset(key) == TableOffset(2, 5)
    assert (len(table.files()), len(table.files(("lost",)))) == (2, 2)
    live = table.rows("ds", OffsetRange("log", 0, 0, 9), ["log_offset"])
    assert sorted(live.column("log_offset").to_pylist()) == [0, 1]
    # Which is what DuckDB and Polars see
    rows = DeltaTable(where.folder(OPERATIONS)).to_pyarrow_table().to_pylist()
    assert {(row["log_offset"], row["row_state"]) for row in rows} == {
        (0, "live"), (1, "live"), (2, "lost"), (3, "lost"),
    }  # fmt: skip


def test_statistics_let_readers_skip_files(lake: Path) -> None:
    where = Lake(str(lake))
    for first in (0, 100, 200):
        files = write(where, MIDNIGHT_MS, MIDNIGHT_MS + 5, first=first)
        where.open(OPERATIONS).commit(files, {f"ds/log/{first}": TableOffset(1)})
    table = DeltaTable(where.folder(OPERATIONS))
    added = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    assert sorted((row["min.log_offset"], row["max.log_offset"]) for row in added) == [
        (0, 1),
        (100, 101),
        (200, 201),
    ]
    (low,) = {row["min.time"] for row in added}
    (high,) = {row["max.time"] for row in added}
    assert low.timestamp() * 1000 == MIDNIGHT_MS
    assert high.timestamp() * 1000 == MIDNIGHT_MS + 5
    some = ds.field("log_offset") >= 200
    fragments = list(table.to_pyarrow_dataset().get_fragments(filter=some))
    assert len(fragments) == 1


def test_open_of_a_table_of_another_program_is_refused(lake: Path) -> None:
    where = Lake(str(lake))
    DeltaTable.create(where.folder(OPERATIONS), schema=pa.schema([("x", pa.string())]))
    with pytest.raises(LakeRefusedError, match="partitioned by nothing, not by day and row_state"):
        where.open(OPERATIONS)
    # As an older release created it
    DeltaTable.create(
        where.folder(POOLS), schema=POOLS.schema.remove(1), partition_by=["day"], mode="error"
    )
    for read in (where.snapshot, lambda: where.open(POOLS)):
        with pytest.raises(LakeRefusedError, match="another release") as told:
            read()
        assert "ingest anew" in told.value.hint
    other = [
        field if field.name != "offset" else pa.field("offset", pa.string())
        for field in MESSAGES.schema
    ]
    DeltaTable.create(
        where.folder(MESSAGES), schema=pa.schema(other), partition_by=["day", "row_state"]
    )
    with pytest.raises(LakeRefusedError, match="Column offset of messages"):
        where.open(MESSAGES)


def test_verify_files_names_a_missing_or_cut_file(lake: Path) -> None:
    where = Lake(str(lake))
    where.open(OPERATIONS).commit(write(where, MIDNIGHT_MS), {"ds/log/0": TableOffset(1)})
    (path,) = where.open(OPERATIONS).files()
    file = lake / "operations" / path
    whole = file.read_bytes()

    file.write_bytes(whole[:100])
    with pytest.raises(LakeDamagedError, match=f"operations: {path} has 100 bytes, and ") as told:
        where.snapshot().verify_files()
    assert f"{len(whole):,} bytes were written" in told.value.message
    assert "from a copy of the lake" in told.value.hint
    file.unlink()
    with pytest.raises(LakeDamagedError, match=f"operations: {path} is missing"):
        where.snapshot().verify_files()

    # New rows can be committed nevertheless, and with the file restored all rows are there
    where.open(OPERATIONS).commit(write(where, MIDNIGHT_MS, first=1), {"ds/log/0": TableOffset(2)})
    file.write_bytes(whole)
    snapshot = where.snapshot()
    snapshot.verify_files()
    assert len(snapshot[OPERATIONS.name].files()) == 2


def test_commit_marks_after_a_commit_a_new_table_or_a_new_lake_differ(lake: Path) -> None:
    where = Lake(str(lake))
    empty = where.snapshot()
    assert not empty.commit_marks().has_later_commits
    where.open(OPERATIONS)
    assert empty.commit_marks().has_later_commits

    first = where.snapshot()
    marks = first.commit_marks()
    assert not marks.has_later_commits
    where.open(OPERATIONS).commit(write(where, MIDNIGHT_MS), {"ds/log/0": TableOffset(1)})
    assert first.commit_marks().has_later_commits
    second = where.snapshot()
    assert not second.commit_marks().has_later_commits
    where.open(POOLS)
    assert second.commit_marks().has_later_commits

    # A table of the same version in the place of the former one
    third = where.snapshot()
    marks = third.commit_marks()
    assert third.commit_marks() == marks
    (lake / "operations").rename(lake / "former")
    assert third.commit_marks() != marks
    where.open(OPERATIONS).commit(write(where, MIDNIGHT_MS), {"ds/log/0": TableOffset(1)})
    assert third.commit_marks() != marks
    assert not third.commit_marks().has_later_commits


def test_planning_after_an_interrupted_wait_of_an_update_does_not_hang(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_updates, "_PLANNING_S_MAX", 60.0)
    # A test worker may ignore the signal of Ctrl-C.
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    where = Lake(str(lake))
    where.open(OPERATIONS)
    shown: list[LakeSnapshot] = []
    followed = FollowedLake(
        where.snapshot(), lambda spark, snapshot, former: shown.append(snapshot)
    )
    spark: Any = None
    ready, done = threading.Event(), threading.Event()
    main = threading.get_ident()

    def plan_for_long() -> None:
        with followed.planning(spark, "select 1"):
            where.open(POOLS)
            ready.set()
            while not followed._is_updating:
                time.sleep(0.01)
            signal.pthread_kill(main, signal.SIGINT)
            done.wait(60)

    planner = threading.Thread(target=plan_for_long)
    planner.start()
    assert ready.wait(60)
    # The update of this query waits for the other thread when Ctrl-C interrupts it.
    try:
        with pytest.raises(KeyboardInterrupt), followed.planning(spark, "select 1"):
            pass
    finally:
        signal.signal(signal.SIGINT, former)
    done.set()
    planner.join()
    assert not shown

    def plan() -> None:
        with followed.planning(spark, "select 1"):
            pass

    query = threading.Thread(target=plan, daemon=True)
    query.start()
    query.join(60)
    assert not query.is_alive()
    assert len(shown) == 1


def test_open_and_snapshot_of_a_table_with_a_cut_log_report_damage(lake: Path) -> None:
    where = Lake(str(lake))
    where.open(OPERATIONS).commit(write(where, MIDNIGHT_MS), {"ds/log/0": TableOffset(1)})
    last = sorted((lake / "operations" / "_delta_log").glob("*.json"))[-1]
    whole = last.read_bytes()
    last.write_bytes(whole[:50])
    for read in (where.snapshot, lambda: where.open(OPERATIONS)):
        with pytest.raises(LakeDamagedError, match="The log of operations cannot be read: "):
            read()
    last.write_bytes(whole)
    assert where.open(OPERATIONS).offset("ds/log/0") == TableOffset(1)


def test_rows_are_split_by_the_day_in_utc() -> None:
    batch = rows_at(MIDNIGHT_MS - 1, MIDNIGHT_MS, MIDNIGHT_MS + 1)
    parts = {day: part.column("log_offset").to_pylist() for day, part in split_by_day(batch)}
    assert parts == {date(2026, 1, 1): [0], date(2026, 1, 2): [1, 2]}


def test_fingerprints_of_entries_differ_and_fit_into_63_bits() -> None:
    prints = {fingerprint(ms, payload) for ms in (1, 2) for payload in (b"", b"a", b"b")}
    assert len(prints) == 6
    assert all(0 < each < 2**63 for each in prints)


def test_a_filter_on_any_column_finds_what_is_there(tmp_path: Path) -> None:
    """Check statistics: a reader that skips files takes a column without them for nulls."""
    lake = Lake(str(tmp_path / "lake"))
    texts = {
        field.name: "é" * 9000 if field.name == "data" else field.name * 5
        for field in TRANSACTIONS.file_schema
        if pa.types.is_string(field.type) and field.name != "cause"
    }
    row = {**texts, "time": moments([MIDNIGHT_MS])[0].as_py(), "version": 7, "malformed": True}
    writer = TableWriter(lake.folder(TRANSACTIONS), TRANSACTIONS)
    writer.write(pa.RecordBatch.from_pylist([row, {**row, "data": None}], TRANSACTIONS.file_schema))
    lake.open(TRANSACTIONS).commit(writer.close(), {})

    found = DeltaTable(lake.folder(TRANSACTIONS)).to_pyarrow_dataset()
    for name, value in row.items():
        wanted = 1 if name == "data" else 2
        assert found.count_rows(filter=ds.field(name) == value) == wanted, name
    assert found.count_rows(filter=ds.field("data").is_null()) == 1
    assert found.count_rows(filter=ds.field("cause").is_null()) == 2
    # And the log of the table does not carry whole texts
    (entry,) = (tmp_path / "lake" / "transactions" / "_delta_log").glob("*1.json")
    assert len(entry.read_bytes()) < 10_000


def test_lake_that_open_creates_is_private(tmp_path: Path) -> None:
    """Check the mode of folders only; files in them follow the umask."""
    root = tmp_path / "data" / "lake"

    Lake(str(root)).open(OPERATIONS)

    assert [each.stat().st_mode & 0o777 for each in (root.parent, root)] == [0o700, 0o700]


def test_lake_in_a_folder_that_exists_keeps_its_permissions(tmp_path: Path) -> None:
    (root := tmp_path / "shared").mkdir(mode=0o750)

    Lake(str(root)).open(OPERATIONS)

    assert root.stat().st_mode & 0o777 == 0o750
