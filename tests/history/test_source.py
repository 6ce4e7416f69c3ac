"""The source `waystation` in a real session: `spark.read` and `spark.readStream`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

from tests.history.log_writer import LogWriter, envelopes
from waystation.messages.envelope import Envelope

ORDERS = "t.default.orders.0"


@pytest.fixture
def orders(spark: SparkSession, store_url: str) -> Any:
    """Return a function that reads the topic with options."""

    def read(**options: str) -> DataFrame:
        return (
            spark.read.format("waystation")
            .options(**{"topic": "orders", "store": store_url, **options})
            .load()
        )

    return read


@pytest.mark.spark_oldest
def test_topic_source_returns_all_columns_of_a_message_and_of_malformed_bytes(
    orders: Any, writer: LogWriter
) -> None:
    writer.create(ORDERS, 2)
    message = Envelope(
        id="a",
        project="default",
        data=b'{"n":12345678901234567890}',
        group="g",
        headers=(("x", "1"), ("x", "2")),
        not_before_ms=1_800_000_000_123,
        cause="c",
        traceparent="t",
    )
    receipt = writer.append(ORDERS, [message], 1)
    writer.append_raw(ORDERS, [b"no envelope"], 1)

    first, second = orders().orderBy("offset").collect()

    assert first.asDict(recursive=True) == {
        "position": "default/orders/0/1/0",
        "project": "default",
        "topic": "orders",
        "storage": 0,
        "partition": 1,
        "offset": 0,
        "time": _local(receipt.ms),
        "id": "a",
        "group": "g",
        "headers": [{"name": "x", "value": "1"}, {"name": "x", "value": "2"}],
        "payload": b'{"n":12345678901234567890}',
        "not_before": _local(1_800_000_000_123),
        "cause": "c",
        "traceparent": "t",
        "malformed": False,
        "size": 26,
        "gap": 0,
    }
    assert (second.malformed, second.payload, second.id) == (True, b"no envelope", None)


@pytest.mark.spark_oldest
def test_topic_source_in_many_tasks_reads_each_message_once(orders: Any, writer: LogWriter) -> None:
    writer.create(ORDERS, 3)
    for partition in range(3):
        writer.append(ORDERS, envelopes(4000, first=4000 * partition), partition)

    read = orders(partition_rows="2500", partitions_max="8")

    assert read.rdd.getNumPartitions() == 5
    found = read.selectExpr("count(*) n", "count(distinct id) ids", "sum(offset) offsets").first()
    assert (found.n, found.ids, found.offsets) == (12000, 12000, 3 * sum(range(4000)))


def test_topic_source_with_filters_plans_fewer_rows_and_returns_the_same_result(
    orders: Any, writer: LogWriter
) -> None:
    writer.create(ORDERS, 2)
    writer.append(ORDERS, envelopes(1000), 0)
    writer.append(ORDERS, envelopes(1000, first=1000), 1)
    later = writer.append(ORDERS, envelopes(5, first=5000), 1)
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=later.ms)

    some = orders(partition_rows="100", partitions_max="99").where(
        (col("partition") == 1) & (col("offset") >= 950) & (col("time") <= moment)
    )

    # Read were 55 rows of 2,005, as the tasks tell
    assert some.rdd.getNumPartitions() == 1
    expected = [f"m-{n}" for n in (*range(1950, 2000), *range(5000, 5005))]
    assert sorted(row.id for row in some.select("id").collect()) == sorted(expected)


@pytest.mark.spark_oldest
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"topc": "x"}, "Option topc does not exist"),
        ({"store": "redis://:hunter2@127.0.0.1"}, "password of the store must not be in an option"),
        ({"topic": "none"}, "Topic none does not exist in project default"),
    ],
)
def test_topic_source_with_invalid_option_reports_it_in_one_sentence(
    orders: Any, writer: LogWriter, options: dict[str, str], told: str
) -> None:
    writer.create(ORDERS)
    with pytest.raises(PySparkException, match=re.escape(told)) as refusal:
        orders(**options).collect()
    assert "hunter2" not in str(refusal.value)


@pytest.mark.spark_oldest
def test_topic_source_with_store_file_shows_no_url_in_the_plan(
    spark: SparkSession, store_url: str, writer: LogWriter, tmp_path: Path
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(1))
    file = tmp_path / "store-url"
    file.write_text(store_url)
    read = spark.read.format("waystation").options(topic="orders", store_file=str(file)).load()
    assert read.count() == 1
    plan = read._jdf.queryExecution().toString()
    assert store_url not in plan


@pytest.mark.spark_oldest
def test_stream_after_a_restart_continues_with_each_message_once(
    spark: SparkSession, store_url: str, writer: LogWriter, tmp_path: Path
) -> None:
    writer.create(ORDERS, 2)
    writer.append(ORDERS, envelopes(50), 0)

    def run() -> list[int]:
        """Read all present messages in small micro-batches; return the sizes of the batches."""
        query = (
            spark.readStream.format("waystation")
            .options(topic="orders", store=store_url, rows_max="30")
            .load()
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )
        query.awaitTermination()
        return [progress.numInputRows for progress in query.recentProgress]

    assert sum(run()) == 50
    # A storage topic is added, and the older one gets more
    writer.append(ORDERS, envelopes(5, first=50), 1)
    writer.create("t.default.orders.1", 3)
    writer.append("t.default.orders.1", envelopes(20, first=100), 2)
    sizes = run()
    assert sum(sizes) == 25
    assert max(sizes) <= 30

    found = spark.read.parquet(str(tmp_path / "out"))
    ids = [row.id for row in found.select("id").collect()]
    assert sorted(ids) == sorted(f"m-{n}" for n in (*range(55), *range(100, 120)))


@pytest.mark.spark_oldest
def test_running_stream_reads_an_added_storage_topic_from_its_beginning(
    spark: SparkSession, store_url: str, writer: LogWriter, tmp_path: Path
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(3))
    query = (
        spark.readStream.format("waystation")
        .options(topic="orders", store=store_url)
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start(str(tmp_path / "out"))
    )
    try:
        query.processAllAvailable()
        # With more partitions than the older one, which ends
        writer.create("t.default.orders.1", 2)
        writer.append("t.default.orders.1", envelopes(4, first=3), 1)
        writer.seal(ORDERS)
        query.processAllAvailable()
    finally:
        query.stop()
    found = spark.read.parquet(str(tmp_path / "out")).select("id", "storage").collect()
    assert sorted((row.id, row.storage) for row in found) == [
        (f"m-{n}", int(n > 2)) for n in range(7)
    ]


def _local(ms: int) -> datetime:
    """Return a time in the form that `collect` returns: local, without a zone."""
    return datetime.fromtimestamp(ms / 1000)
