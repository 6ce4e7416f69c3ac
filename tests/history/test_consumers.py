"""Retention holds of named streams: what they keep, and what an abandoned one costs."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.cli.conftest import Run, run  # noqa: F401 (a fixture)
from tests.helpers.waiting import eventually_sync
from tests.history.log_writer import LogWriter, envelopes
from waystation.errors import LogFullError, SourceOptionError, TrimmedError
from waystation.history.log_reader import LogReader
from waystation.history.sources.consumers import ConsumerHold, consumer_holds, release_consumer
from waystation.history.sources.options import TopicSourceOptions
from waystation.history.sources.topics import TopicSource, TopicStreamReader
from waystation.logs import keys
from waystation.messages.envelope import pack

ORDERS = "t.default.orders.0"
LATER = "t.default.orders.1"
FIRST, SECOND = f"{ORDERS}/0", f"{ORDERS}/1"
READER = "spark:files"


@pytest.fixture
def stream(store_url: str) -> Callable[..., TopicStreamReader]:
    """Return a function that makes the reader of a query, as another process would."""

    def make(**more: str) -> TopicStreamReader:
        given = {"topic": "orders", "store": store_url, "consumer": "files", **more}
        reader = TopicStreamReader(TopicSourceOptions.parse(given))
        copy: TopicStreamReader = pickle.loads(pickle.dumps(reader))
        return copy

    return make


@pytest.fixture
def logs(store_url: str) -> Iterator[LogReader]:
    """The logs of the store of this test."""
    with LogReader(store_url) as logs:
        yield logs


def ids(reader: TopicStreamReader, start: dict[str, int], end: dict[str, int]) -> list[str]:
    parts = reader.partitions(start, end)
    return [row["id"] for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def test_consumer_holds_what_its_stream_has_not_completed(
    writer: LogWriter, stream: Callable[..., TopicStreamReader]
) -> None:
    writer.create(ORDERS, 2)
    writer.append(ORDERS, envelopes(50), 0)
    writer.append(ORDERS, envelopes(10, first=100), 1)
    reader = stream()

    start = reader.initialOffset()
    assert (writer.held(ORDERS, 0), writer.held(ORDERS, 1)) == ({READER: 0}, {READER: 0})
    assert writer.expire(ORDERS, 0) == 0

    # Planned and read, but not completed: a crash would repeat the micro-batch
    end = {FIRST: 30, SECOND: 10}
    assert len(ids(reader, start, end)) == 40
    assert writer.expire(ORDERS, 0) == 0

    reader.commit(end)
    assert (writer.held(ORDERS, 0), writer.held(ORDERS, 1)) == ({READER: 30}, {READER: 10})
    assert (writer.expire(ORDERS, 0), writer.expire(ORDERS, 1)) == (30, 10)


def test_stream_without_consumer_holds_nothing(writer: LogWriter, store_url: str) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(5))
    options = TopicSourceOptions.parse({"topic": "orders", "store": store_url})
    reader = TopicStreamReader(options)
    start = reader.initialOffset()
    reader.partitions(start, {FIRST: 3})
    reader.commit({FIRST: 3})
    assert writer.held(ORDERS) == {}
    assert writer.expire(ORDERS) == 5


def test_consumer_after_a_crash_continues_with_the_entries_of_its_checkpoint(
    writer: LogWriter, stream: Callable[..., TopicStreamReader]
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(50))
    crashed = stream()
    start = crashed.initialOffset()
    crashed.partitions(start, {FIRST: 20})
    crashed.commit({FIRST: 20})
    crashed.partitions({FIRST: 20}, {FIRST: 40})
    # The checkpoint contains the second micro-batch, but not its completion
    assert writer.expire(ORDERS) == 20

    restarted = stream()

    assert ids(restarted, {FIRST: 20}, {FIRST: 40}) == [f"m-{n}" for n in range(20, 40)]
    # The reply to the first commit was lost, so Spark sends it again
    restarted.commit({FIRST: 40})
    restarted.commit({FIRST: 40})
    assert writer.held(ORDERS) == {READER: 40}


def test_consumer_holds_partitions_again_that_an_operator_or_the_store_released(
    writer: LogWriter, stream: Callable[..., TopicStreamReader], logs: LogReader
) -> None:
    writer.create(ORDERS, 2)
    writer.append(ORDERS, envelopes(50), 0)
    reader = stream()
    reader.initialOffset()

    assert release_consumer(logs, "files") == 2
    assert release_consumer(logs, "files") == 0
    assert consumer_holds(logs) == []
    reader.partitions({FIRST: 10, SECOND: 0}, {FIRST: 20, SECOND: 0})

    assert (writer.held(ORDERS, 0), writer.held(ORDERS, 1)) == ({READER: 10}, {})


def test_consumer_holds_a_storage_topic_from_its_first_batch_and_releases_a_sealed_one(
    writer: LogWriter, stream: Callable[..., TopicStreamReader]
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(5))
    reader = stream(**{"from": "latest"})
    start = reader.initialOffset()
    assert writer.held(ORDERS) == {READER: 5}

    writer.create(LATER)
    writer.append(LATER, envelopes(3, first=5))
    writer.seal(ORDERS)
    end = reader.latestOffset(start)
    assert ids(reader, start, end) == ["m-5", "m-6", "m-7"]
    assert writer.held(LATER) == {READER: 0}
    reader.commit(end)

    assert (writer.held(ORDERS), writer.held(LATER)) == ({}, {READER: 3})
    # The topic is purged between two micro-batches
    writer.delete(ORDERS)
    writer.delete(LATER)
    reader.commit(end)


def test_consumers_are_listed_with_the_entries_that_they_need(
    writer: LogWriter, stream: Callable[..., TopicStreamReader], logs: LogReader
) -> None:
    writer.create(ORDERS, 2)
    writer.append(ORDERS, envelopes(50), 0)
    stream().initialOffset()
    stream(consumer="audit").partitions({FIRST: 20}, {FIRST: 30})
    writer.command("HSET", keys.holds(ORDERS, 0), "~history", "7")

    assert consumer_holds(logs) == [
        ConsumerHold("audit", ORDERS, 0, 20, 30),
        ConsumerHold("files", ORDERS, 0, 0, 50),
        ConsumerHold("files", ORDERS, 1, 0, 0),
    ]
    assert release_consumer(logs, "audit") == 1
    assert [each.consumer for each in consumer_holds(logs)] == ["files", "files"]


def test_abandoned_consumer_of_topic_that_refuses_stops_producers_until_it_is_released(
    writer: LogWriter, stream: Callable[..., TopicStreamReader], logs: LogReader
) -> None:
    messages = envelopes(100)
    writer.create(ORDERS, max_bytes=150 * len(pack(messages[-1])))
    writer.append(ORDERS, messages)
    stream().initialOffset()
    # A subscription has read everything
    writer.command("HSET", keys.holds(ORDERS, 0), "subscription", "100")

    with pytest.raises(LogFullError):
        writer.append(ORDERS, messages)

    assert release_consumer(logs, "files") == 1
    writer.append(ORDERS, messages)


def test_abandoned_consumer_of_topic_that_drops_loses_entries_and_its_stream_says_so(
    writer: LogWriter, stream: Callable[..., TopicStreamReader]
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(100))
    reader = stream()
    start = reader.initialOffset()

    first = writer.trim_to(ORDERS, 500)

    assert first > 0
    end = reader.latestOffset(start)
    with pytest.raises(TrimmedError):
        ids(reader, start, end)
    counting = stream(on_gap="count")
    found = [
        row
        for part in counting.partitions(start, end)
        for batch in counting.read(part)
        for row in batch.to_pylist()
    ]
    assert sum(row["gap"] for row in found) == first
    assert writer.held(ORDERS) == {READER: first}


def test_consumer_of_a_batch_query_or_of_record_logs_is_refused(store_url: str) -> None:
    given = {"topic": "orders", "store": store_url, "consumer": "files"}
    source = TopicSource(given)
    with pytest.raises(SourceOptionError, match="Option consumer is for streams"):
        source.reader(source.schema())
    with pytest.raises(SourceOptionError, match="cannot be combined with table"):
        TopicSourceOptions.parse({"table": "deliveries", "consumer": "files"})
    with pytest.raises(SourceOptionError) as refusal:
        TopicSourceOptions.parse({**given, "consumer": "no.name"})
    assert refusal.value.field == "consumer"


def test_history_commands_list_and_release_consumers(
    run: Run,  # noqa: F811
    writer: LogWriter,
    store_url: str,
    stream: Callable[..., TopicStreamReader],
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(5))
    stream().initialOffset()

    listed = run("history", "consumers", "--store", store_url, "--json")
    shown = run("history", "consumers", "--store", store_url)
    released = run("history", "release", "--consumer", "files", "--store", store_url, "--json")
    after = run("history", "consumers", "--store", store_url)

    assert json.loads(listed.stdout) == {
        "consumer": "files", "log": ORDERS, "partition": 0, "offset": 0, "behind": 5,
    }  # fmt: skip
    assert shown.stdout.splitlines()[1].split() == ["files", ORDERS, "0", "0", "5"]
    assert json.loads(released.stdout) == {"released": 1}
    assert after.stdout == "No Spark stream holds a topic.\n"
    assert writer.held(ORDERS) == {}


@pytest.mark.spark_oldest
@pytest.mark.timeout(240)
def test_stream_in_spark_moves_the_hold_of_its_consumer(
    spark: SparkSession, store_url: str, writer: LogWriter, tmp_path: Path
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(50))
    query = (
        spark.readStream.format("waystation")
        .options(topic="orders", store=store_url, consumer="files")
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start(str(tmp_path / "out"))
    )
    try:
        query.processAllAvailable()
        # Spark completes a micro-batch when it plans the next one
        writer.append(ORDERS, envelopes(5, first=50))
        query.processAllAvailable()
    finally:
        query.stop()
    assert writer.held(ORDERS) == {READER: 50}
    assert writer.expire(ORDERS) == 50


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_stream_that_is_killed_finds_its_entries_after_retention(
    store_url: str, writer: LogWriter, tmp_path: Path
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(100))
    begun = tmp_path / "begun"

    def job(*arguments: str) -> Any:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.history.consumer_process", str(tmp_path), *arguments],
            env={**os.environ, "WAYSTATION_STORE_URL": store_url},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    # Given a job that is killed, with its JVM, in the midst of its third micro-batch
    with job("2") as killed:
        eventually_sync(lambda: begun.exists() or killed.poll() is not None, timeout=240)
        os.killpg(killed.pid, signal.SIGKILL)
    assert killed.returncode == -signal.SIGKILL
    assert writer.held(ORDERS) == {READER: 40}
    assert writer.expire(ORDERS) == 40

    with job() as finished:
        assert finished.wait(240) == 0

    files = sorted(tmp_path.glob("batch-*"))
    found = [line for file in files for line in file.read_text().split()]
    assert sorted(found) == sorted(f"m-{n}" for n in range(100))
