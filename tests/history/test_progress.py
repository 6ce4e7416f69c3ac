"""How far a job of Spark is, as its tasks end."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

from waystation.history.progress import phase_watch, task_watch


def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import time

    for batch in batches:
        time.sleep(0.5)
        yield batch


def test_tasks_are_told_as_they_end_and_of_how_many(spark: SparkSession) -> None:
    told: list[tuple[int, int]] = []
    with task_watch(spark, "slow", lambda ended, known: told.append((ended, known))):
        rows = spark.range(0, 24, 1, 24).mapInArrow(slowly, "id long").collect()
    assert len(rows) == 24
    assert told, "a job of many seconds is told of"
    assert {known for _, known in told} == {24}
    assert [ended for ended, _ in told] == sorted({ended for ended, _ in told})
    assert 0 < told[-1][0] <= 24


def test_rows_that_come_one_by_one_are_told_of_too(spark: SparkSession) -> None:
    """As `sql` takes them."""
    told: list[int] = []
    with task_watch(spark, "slow rows", lambda ended, _: told.append(ended)):
        frame = spark.range(0, 12, 1, 12).mapInArrow(slowly, "id long")
        assert sum(1 for _ in frame.toLocalIterator()) == 12
    assert told


def test_of_several_parts_each_is_told_by_itself_also_after_a_watch_within(
    spark: SparkSession,
) -> None:
    """As `audit` does, which ingests within its parts."""
    told: list[tuple[int, int, str]] = []

    def work(tasks: int) -> None:
        spark.range(0, tasks, 1, tasks).mapInArrow(slowly, "id long").collect()

    with phase_watch(spark, lambda *each: told.append(each)) as begin:
        begin("offsets")
        work(8)
        begin("messages")
        with task_watch(spark, "ingest", lambda ended, known: None):
            work(4)
        work(6)

    offsets = [each[:2] for each in told if each[2] == "offsets"]
    messages = [each[:2] for each in told if each[2] == "messages"]
    assert told == [(*each, "offsets") for each in offsets] + [
        (*each, "messages") for each in messages
    ]
    assert offsets[0] == messages[0] == (0, 0), "nobody knows yet"
    assert {known for _, known in offsets[1:]} == {8}
    assert {known for _, known in messages[1:]} == {6}, "what is watched within is not told twice"
