"""Record logs through the source, on a real store and without ingest."""

from __future__ import annotations

import pickle
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, In

from pyspark_waystation import register
from tests.history import shard_story
from tests.history.log_writer import LogWriter
from waystation.errors import TrimmedError
from waystation.history.lake.schema import BASE
from waystation.history.sources.options import RECORD_TABLES, TopicSourceOptions
from waystation.history.sources.topics import (
    PushdownTopicReader,
    TopicReader,
    TopicStreamReader,
    record_schema,
)
from waystation.logs.operations import OperationRecord

LOG = shard_story.LOG
OPERATIONS = [
    OperationRecord(kind="prune", detail={"before_ms": 5}),
    OperationRecord(kind="erase", subject="tx-1"),
]


@pytest.fixture
def given(writer: LogWriter, store_url: str) -> Any:
    """Return a function that makes options for a store with records of shards and operators."""
    shard_story.write(writer)
    writer.create("operations")
    writer.append_raw("operations", [msgspec.msgpack.encode(each) for each in OPERATIONS])
    writer.create("t.default.orders.0")
    return lambda table, **more: TopicSourceOptions.parse(
        {"table": table, "store": store_url, **more}
    )


def rows_of(reader: TopicReader | TopicStreamReader, parts: list[Any]) -> list[dict[str, Any]]:
    # As Spark does: plan here, and read in another process
    reader, parts = pickle.loads(pickle.dumps((reader, parts)))
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def test_record_tables_are_all_tables_of_ingest_except_messages() -> None:
    tables = {spec.name for spec in BASE} | {"steps"}
    assert set(RECORD_TABLES) == tables - {"messages"}
    for table in RECORD_TABLES:
        names = record_schema(table).names
        assert names[:5] == ["log", "log_partition", "log_offset", "item", "time"]
        assert names[-1] == "gap"


def test_topic_reader_reads_deliveries_from_shards_and_operations_from_several_logs(
    given: Any,
) -> None:
    reader = TopicReader(given("deliveries", partition_rows="10"))
    parts = reader.partitions()
    rows = rows_of(reader, parts)

    assert len(parts) == 3
    assert [row["log_offset"] for row in rows] == list(range(len(shard_story.HOPS)))
    assert [(row["kind"], row["from_place"]) for row in rows] == [
        hop[:2] for hop in shard_story.HOPS
    ]
    assert {(row["log"], row["log_partition"], row["gap"]) for row in rows} == {(LOG, 0, None)}
    assert (rows[1]["message_id"], rows[1]["status"], rows[1]["subscription"]) == (
        "m-2", 200, "billing",
    )  # fmt: skip

    operations = TopicReader(given("operations"))
    told = rows_of(operations, operations.partitions())
    assert [(row["log"], row["kind"]) for row in told] == [
        ("operations", "prune"),
        ("operations", "erase"),
        (LOG, "start"),
        (LOG, "redriven"),
        (LOG, "passed"),
    ]


def test_pushdown_reader_of_record_logs_plans_only_ranges_within_the_filters(given: Any) -> None:
    def planned(*filters: Any) -> list[tuple[str, int, int]]:
        reader = PushdownTopicReader(given("operations"))
        assert reader.pushFilters(list(filters)) == list(filters)
        return [
            (span.log, span.start, span.end)
            for part in reader.partitions()
            for span in part.value  # type: ignore[attr-defined]
        ]

    hops = len(shard_story.HOPS)
    assert planned() == [("operations", 0, 2), (LOG, 0, hops)]
    assert planned(EqualTo(("log",), LOG)) == [(LOG, 0, hops)]
    assert planned(GreaterThanOrEqual(("log_offset",), 5)) == [(LOG, 5, hops)]
    assert planned(In(("log_partition",), (1, 2))) == []
    # A column of topics says nothing of record logs
    assert len(planned(EqualTo(("project",), "other"), EqualTo(("offset",), 99))) == 2


def test_stream_reader_of_trimmed_record_log_fails_or_counts_the_entries(
    given: Any, writer: LogWriter
) -> None:
    stream = TopicStreamReader(given("deliveries"))
    start = stream.initialOffset()
    end = stream.reportLatestOffset()
    first = writer.trim_to(LOG, 500)
    assert first > 0
    with pytest.raises(TrimmedError):
        rows_of(stream, stream.partitions(start, end))

    counting = TopicStreamReader(given("deliveries", on_gap="count"))
    rows = rows_of(counting, counting.partitions(start, end))

    assert (rows[0]["log"], rows[0]["log_offset"], rows[0]["gap"]) == (LOG, 0, first)
    assert [row["log_offset"] for row in rows[1:]] == list(range(first, len(shard_story.HOPS)))


@pytest.mark.timeout(120)
def test_registered_source_reads_record_logs_in_spark(
    spark: SparkSession, given: Any, store_url: str
) -> None:
    given("deliveries")
    # As where Spark does not find the package by itself
    session = spark.newSession()
    session.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    register(session)
    options = {"table": "deliveries", "store": store_url}
    found = session.read.format("waystation").options(**options).load()
    counted = (
        found.where("kind = 'attempt' and log_offset >= 5").groupBy("to_place").count().collect()
    )
    wanted = [hop[2] for hop in shard_story.HOPS[5:] if hop[0] == "attempt"]
    assert {row.to_place: row["count"] for row in counted} == {
        place: wanted.count(place) for place in set(wanted)
    }
