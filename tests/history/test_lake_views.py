"""Views of an attached session: the commits that a query sees, and failures to read the lake."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.helpers.spark_cluster import connect_server
from tests.history.test_attach import run_as_user
from tests.history.test_connect import free_port
from waystation.errors import LakeDamagedError, NoLakeError
from waystation.history import attach
from waystation.history.lake import view_updates, views
from waystation.history.lake.files import TableWriter
from waystation.history.lake.maintenance import maintain
from waystation.history.lake.schema import DELIVERIES, MESSAGES, TRANSACTIONS, TableSchema
from waystation.history.lake.table import Lake
from waystation.history.lake.view_updates import stop_following
from waystation.history.lake.views import name_pattern, open_snapshot

# The first test of a run starts Spark, which takes minutes on a busy machine.
pytestmark = pytest.mark.timeout(300)

MIDNIGHT = datetime(2026, 3, 1, tzinfo=UTC)
COUNT = "select count(*) n from waystation.messages"
BOTH = "select (select count(*) from waystation.messages) a, (select count(*) from {}) b"
#: A user who attaches, and then commits a row as an ingest of another process does.
FOLLOWS = """
import pyarrow as pa
from datetime import UTC, datetime
from pyspark.sql import SparkSession

builder = SparkSession.builder
spark = (builder.remote(REMOTE) if REMOTE else builder).getOrCreate()
from waystation.history import attach
from waystation.history.lake.files import TableWriter
from waystation.history.lake.schema import MESSAGES
from waystation.history.lake.table import Lake

def count():
    return spark.sql("select count(*) from waystation.messages").first()[0]

attach(spark, lake=LAKE)
counts = [count()]
writer = TableWriter(LAKE + "/messages", MESSAGES)
moment = datetime(2026, 3, 1, tzinfo=UTC)
row = {"log_offset": 9, "time": moment, "ingested": moment}
writer.write(pa.RecordBatch.from_pylist([row], schema=MESSAGES.file_schema))
Lake(LAKE).open(MESSAGES).commit(writer.close(), {})
counts += [count(), spark.table("waystation.messages").count()]
counts += [spark.read.table("waystation.messages").count()]
print(json.dumps([counts, [each.name for each in spark.catalog.listTables("waystation")]]))
"""


def commit(
    lake: Path, *offsets: int, schema: TableSchema = MESSAGES, moment: datetime = MIDNIGHT
) -> None:
    """Commit a file with a row for each offset, as an ingest of another process does."""
    writer = TableWriter(str(lake / schema.name), schema)
    table = Lake(str(lake)).open(schema)
    rows = [{"log_offset": each, "time": moment, "ingested": moment} for each in offsets]
    writer.write(pa.RecordBatch.from_pylist(rows, schema=schema.file_schema))
    table.commit(writer.close(), {})


def only(frame: DataFrame) -> Any:
    """Return the row of a query with one row."""
    (row,) = frame.collect()
    return row[0] if len(row) == 1 else tuple(row)


@pytest.fixture
def attached(spark: SparkSession, lake: Path) -> Iterator[SparkSession]:
    """The shared session, attached to a lake with one message."""
    commit(lake, 0)
    yield attach(spark, lake=str(lake))
    stop_following(spark)


def test_session_after_a_commit_sees_new_rows_without_attach(
    attached: SparkSession, lake: Path
) -> None:
    assert only(attached.sql(COUNT)) == 1
    held = attached.table("waystation.messages")

    commit(lake, 1, 2)
    assert only(attached.sql(COUNT)) == 3
    commit(lake, 3)
    assert attached.table("waystation.messages").count() == 4
    commit(lake, 4)
    assert attached.read.table("waystation.messages_all").count() == 5
    commit(lake, 5)
    assert only(attached.newSession().sql(COUNT)) == 6
    # A table that did not exist when the session was attached
    assert only(attached.sql("select count(*) from waystation.deliveries")) == 0
    commit(lake, 0, schema=DELIVERIES)
    assert only(attached.sql("select count(*) from waystation.deliveries")) == 1
    # A DataFrame stays at its version
    assert held.count() == 1


def test_derived_views_after_a_commit_have_its_rows(attached: SparkSession, lake: Path) -> None:
    found = "select (select count(*) from waystation.steps), (select count(*) from waystation.gaps)"
    assert only(attached.sql(found)) == (0, 0)

    writer = TableWriter(str(lake / "transactions"), TRANSACTIONS)
    table = Lake(str(lake)).open(TRANSACTIONS)
    row = {"log_offset": 0, "time": MIDNIGHT, "ingested": MIDNIGHT}
    step = {**row, "attempts": [{"item": 0, "place": "1"}, {"item": 1, "place": "2"}]}
    gap = {**row, "log_offset": 1, "gap_end": 9, "gap_cause": "trimmed"}
    writer.write(pa.RecordBatch.from_pylist([step], schema=TRANSACTIONS.file_schema))
    writer.write(pa.RecordBatch.from_pylist([gap], schema=TRANSACTIONS.file_schema), "gap")
    table.commit(writer.close(), {})

    assert only(attached.sql(found)) == (2, 1)


def test_attach_to_a_snapshot_or_without_follow_keeps_its_version(
    attached: SparkSession, lake: Path
) -> None:
    snapshot = open_snapshot(str(lake))
    commit(lake, 1)

    attach(attached, lake=snapshot)
    assert only(attached.sql(COUNT)) == 1
    attach(attached, lake=str(lake), follow=False)
    assert only(attached.sql(COUNT)) == 2
    commit(lake, 2)
    assert only(attached.sql(COUNT)) == 2
    attach(attached, lake=str(lake))
    assert only(attached.sql(COUNT)) == 3
    assert type(attached).__name__ == "SparkSession"


def test_joined_views_under_commits_have_one_version(
    attached: SparkSession, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two views of one table have as many rows as each other, in each query of each thread."""
    # On a busy machine, the queries of the threads can take long to plan.
    monkeypatch.setattr(view_updates, "_PLANNING_S_MAX", 60.0)
    commits, seen = 5, []
    is_over = threading.Event()

    def ask() -> None:
        while not is_over.is_set():
            seen.append(only(attached.sql(BOTH.format("waystation.messages_all"))))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for number in range(1, commits + 1):
            commit(lake, number)
            assert only(attached.sql(COUNT)) == number + 1
    finally:
        is_over.set()
        for thread in threads:
            thread.join()

    assert seen
    assert all(both == one for one, both in seen), seen


def test_query_while_the_views_change_waits_for_all_of_them(
    attached: SparkSession, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_view, found, threads = views._create_view, [], []

    def ask() -> None:
        found.append(only(attached.sql(BOTH.format("waystation.messages_all"))))

    def create_and_let_another_ask(spark: SparkSession, name: str, query: str) -> None:
        create_view(spark, name, query)
        if name == "messages":
            # `messages_all` still shows the former version.
            threads.append(threading.Thread(target=ask))
            threads[0].start()

    monkeypatch.setattr(views, "_create_view", create_and_let_another_ask)
    commit(lake, 1)
    assert only(attached.sql(COUNT)) == 2
    threads[0].join()

    assert found == [(2, 2)]


def test_query_beside_a_long_command_reads_the_former_version(
    attached: SparkSession, lake: Path
) -> None:
    followed = attached._followed  # type: ignore[attr-defined]
    with followed.planning(attached, "create table … as select …"):
        commit(lake, 1)
        assert only(attached.sql(BOTH.format("waystation.messages_all"))) == (1, 1)
    assert only(attached.sql(BOTH.format("waystation.messages_all"))) == (2, 2)


def test_query_of_a_lake_that_cannot_be_read_fails_until_it_can(
    attached: SparkSession, lake: Path
) -> None:
    before = set((lake / "messages").glob("day=*/*/*.parquet"))
    commit(lake, 1)
    (newest,) = set((lake / "messages").glob("day=*/*/*.parquet")) - before
    whole = newest.read_bytes()
    newest.write_bytes(whole[:100])

    with pytest.raises(LakeDamagedError, match=f"{newest.name} has 100 bytes"):
        attached.sql(COUNT)
    # The lake has nothing to do with this query
    assert only(attached.sql("select 1")) == 1
    newest.write_bytes(whole)
    assert only(attached.sql(COUNT)) == 2

    lake.rename(lake.with_name("moved"))
    with pytest.raises(NoLakeError, match="There is no lake at"):
        attached.table("waystation.messages")
    assert only(attached.sql("select 1")) == 1
    lake.with_name("moved").rename(lake)
    assert only(attached.sql(COUNT)) == 2


def test_lake_that_was_created_again_is_read_from_its_first_version(
    attached: SparkSession, lake: Path
) -> None:
    commit(lake, 1)
    commit(lake, 2)
    assert only(attached.sql(COUNT)) == 3

    lake.rename(lake.with_name("former"))
    commit(lake, 7)
    assert only(attached.sql("select count(*), max(log_offset) from waystation.messages")) == (1, 7)


def test_vacuumed_file_fails_a_former_frame_and_not_a_new_query(
    attached: SparkSession, lake: Path
) -> None:
    for number in range(1, 40):
        commit(lake, number)
    former = attached.table("waystation.messages")
    assert maintain(str(lake / "messages"), 0).compacted == 40
    gone = DeltaTable(lake / "messages").vacuum(
        retention_hours=0, dry_run=False, enforce_retention_duration=False
    )
    assert len(gone) == 40

    with pytest.raises((PySparkException, Py4JJavaError), match="recreating the Dataset/DataFrame"):
        former.select("log_offset").collect()
    assert only(attached.sql(COUNT)) == 40


def test_views_after_many_versions_leave_two_file_tables(
    attached: SparkSession, lake: Path
) -> None:
    for number in range(1, 5):
        commit(lake, number)
        assert only(attached.sql(COUNT)) == number + 1

    tables = [row.tableName for row in attached.sql("show tables in waystation_files").collect()]
    assert len([each for each in tables if each.startswith("messages__")]) == 2
    # To drop a table deleted no file
    assert only(attached.sql(COUNT)) == 5


def test_name_pattern_matches_exactly_the_given_names() -> None:
    names = {"a1.parquet", "a2.parquet", "b.parquet", "part-00000-7f.zstd.parquet", "a1.par"}

    assert set(expand(name_pattern(names))) == names
    assert name_pattern({"one.parquet"}) == "one.parquet"
    assert name_pattern(set()) == ""


def expand(pattern: str) -> list[str]:
    """Return what a pattern with alternatives in braces matches."""
    start, brace, rest = pattern.partition("{")
    if not brace:
        return [pattern]
    depth, parts, last = 1, [], 0
    for place, letter in enumerate(rest):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if depth == 0 or (depth == 1 and letter == ","):
            parts.append(rest[last:place])
            last = place + 1
        if depth == 0:
            ends = expand(rest[place + 1 :])
            return [
                f"{start}{each}{end}" for part in parts for each in expand(part) for end in ends
            ]
    raise AssertionError(pattern)


@pytest.mark.slow
def test_attach_to_3000_files_starts_no_job_and_reads_committed_files_only(
    spark: SparkSession, lake: Path
) -> None:
    days, each = 30, 100
    folder = str(lake / "messages")
    table = Lake(str(lake)).open(MESSAGES)
    files = []
    for number in range(days * each):
        moment = MIDNIGHT + timedelta(days=number % days)
        writer = TableWriter(folder, MESSAGES)
        row = {"log_offset": number, "time": moment, "ingested": moment}
        writer.write(pa.RecordBatch.from_pylist([row], schema=MESSAGES.file_schema))
        files += writer.close()
    # Every tenth file belongs to no commit
    table.commit([file for number, file in enumerate(files) if number % 10], {})
    spark.sparkContext.setJobGroup("attach", "attach")
    try:
        attach(spark, lake=str(lake))
        frame = spark.sql("select count(*), sum(log_offset) from waystation.messages")
        jobs = list(spark.sparkContext.statusTracker().getJobIdsForGroup("attach"))
        found = only(frame)
    finally:
        spark.sparkContext._jsc.clearJobGroup()
        stop_following(spark)

    committed = [number for number in range(days * each) if number % 10]
    assert found == (len(committed), sum(committed))
    # A job would list 3,000 files one by one, or read one of them to find the columns
    assert jobs == []


@pytest.mark.slow
def test_plain_session_of_a_user_follows_the_lake(lake: Path, tmp_path: Path) -> None:
    commit(lake, 0)

    counts, names = run_as_user(tmp_path, FOLLOWS, LAKE=str(lake), REMOTE="")

    assert counts == [1, 2, 2, 2]
    assert {"messages", "messages_all", "steps", "gaps"} <= set(names)


@pytest.mark.slow
def test_session_of_spark_connect_follows_the_lake(lake: Path, tmp_path: Path) -> None:
    commit(lake, 0)
    folder = tmp_path / "server"
    folder.mkdir()

    with connect_server(folder, free_port()) as url:
        counts, _ = run_as_user(tmp_path, FOLLOWS, LAKE=str(lake), REMOTE=url)

    assert counts == [1, 2, 2, 2]
