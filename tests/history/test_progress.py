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


def test_task_watch_reports_ended_and_known_tasks(spark: SparkSession) -> None:
    told: list[tuple[int, int]] = []
    with task_watch(spark, "slow", lambda ended, known: told.append((ended, known))):
        rows = spark.range(0, 24, 1, 24).mapInArrow(slowly, "id long").collect()
    assert len(rows) == 24
    assert told, "a job of many seconds reports progress"
    assert {known for _, known in told} == {24}
    assert [ended for ended, _ in told] == sorted({ended for ended, _ in told})
    assert 0 < told[-1][0] <= 24


def test_task_watch_of_local_iterator_reports_tasks(spark: SparkSession) -> None:
    """`history sql` iterates over rows in this way."""
    told: list[int] = []
    with task_watch(spark, "slow rows", lambda ended, _: told.append(ended)):
        frame = spark.range(0, 12, 1, 12).mapInArrow(slowly, "id long")
        assert sum(1 for _ in frame.toLocalIterator()) == 12
    assert told


def test_phase_watch_counts_each_phase_from_zero(
    spark: SparkSession,
) -> None:
    """The audit ingests within a phase, and watches that ingest separately."""
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
    assert offsets[0] == messages[0] == (0, 0), "no task is known yet"
    assert {known for _, known in offsets[1:]} == {8}
    assert {known for _, known in messages[1:]} == {6}, "the inner watch has its own count"
