"""Record logs of channels and pools become rows of the lake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from tests.history.lake_check import require_whole
from tests.history.log_writer import LogWriter
from tests.history.part_life import PartLife
from waystation.channels.model import EXPIRY_MARGIN_S
from waystation.config import ChannelRule
from waystation.history.decoders.channels import channel_rows
from waystation.history.decoders.pools import pool_rows
from waystation.history.ingest.job import ingest_job
from waystation.history.lake.table import Lake
from waystation.history.lake.views import attach
from waystation.history.offsets import OffsetRange
from waystation.history.sources.options import Location
from waystation.logs.protocol import LogBatch


def block(*payloads: Any) -> LogBatch:
    """Return a block of entries of the times 1000, 1001, …; pack payloads that are not bytes."""
    packed = [
        each if isinstance(each, bytes) else msgspec.msgpack.encode(each) for each in payloads
    ]
    return LogBatch(0, len(packed), [1000 + place for place in range(len(packed))], packed)


def test_channel_rows_of_invalid_entries_are_malformed_and_keep_their_bytes() -> None:
    entries = block(
        b"\xc1",
        [2, "default", "room", [["published 1 60", b""]]],
        [1, "default", "room", [["published 1 60", b"no message"], ["acknowledged x", "me"]]],
        [1, "default", "room", [["published 2 60", "m-2"], ["dropped 1 2", None]]],
        [1, "", "", []],
    )
    rows = channel_rows(OffsetRange("channels.0", 0, 0, 5), entries).to_pylist()

    assert [(row["log_offset"], row["item"]) for row in rows] == [
        *((0, 0), (1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (4, 0))
    ]
    assert [row["malformed"] for row in rows] == [True, True, True, True, False, False, False]
    assert [row["content"] for row in rows[2:4]] == [b"no message", b"acknowledged x"]
    assert rows[0]["content"] == b"\xc1"
    published, dropped, withheld = rows[4:]
    assert (published["message_id"], published["recorded"]) == ("m-2", "headers")
    assert published["expires"].timestamp() == 61.003
    assert (dropped["clock"], dropped["to_clock"]) == (1, 2)
    assert (withheld["kind"], withheld["channel"]) == ("withheld", None)


def test_pool_rows_of_invalid_entries_are_malformed_and_keep_their_bytes() -> None:
    entries = block(
        b"\xc1",
        [1, "default", "agents", [["enqueued 1", ["k", "m-1", b"no envelope"]]]],
        [1, "default", "agents", [["enqueued 2", ["k", "m-2"]], ["unknown 7", None]]],
        [1, "default", "agents", [["moved 3", ["k", "-", "left"]], ["closed 2", None]]],
        [1, "", "", []],
    )
    rows = pool_rows(OffsetRange("pools.0", 0, 0, 5), entries).to_pylist()

    assert [row["malformed"] for row in rows] == [True, True, False, True, False, False, False]
    assert [row["payload"] for row in rows[:2]] == [b"\xc1", b"no envelope"]
    assert rows[3]["payload"] == b"unknown 7"
    assert (rows[1]["number"], rows[1]["recipient_key"], rows[1]["message_id"]) == (1, "k", "m-1")
    assert (rows[2]["number"], rows[2]["recorded"]) == (2, "headers")
    moved, closed, withheld = rows[4:]
    assert (moved["epoch"], moved["worker"], moved["reason"]) == (3, None, "left")
    assert closed["number"] == 2
    assert (withheld["kind"], withheld["recorded"]) == ("withheld", "none")


@pytest.mark.timeout(240)
def test_ingest_brings_life_of_channels_and_pools_into_spark_sql(
    spark: SparkSession, writer: LogWriter, store_url: str, lake: Path, tmp_path: Path
) -> None:
    ingest = ingest_job(spark, Lake(str(lake)), Location(store_url))
    with PartLife(store_url, tmp_path) as life:
        life.subscribe("room", "me")
        life.publish("room", "a", "b", "a", "c")
        life.acknowledge("room", "me", 2)
        life.enqueue(("k", "m-1"), ("k", "m-2"), ("l", "m-3"))
        first, other = sorted(life.take(), key=lambda each: each.number)
        life.settle(first)
        life.bury(other)
        assert ingest.run().malformed == 0
        life.redrive(other.number)
        life.settle(*life.take())
    done = ingest.run()

    assert ingest.run().read == 0
    require_whole(lake, store_url)
    assert done.withheld_rows == 0
    attach(spark, lake=str(lake))
    found = spark.sql(
        """select kind, clock, message_id, cast(content as string) content, subscriber,
                  cast(expires as double) - cast(time as double) seconds
           from waystation.channels where channel = 'room' order by log_offset, item"""
    ).collect()
    assert [(row.kind, row.clock, row.message_id, row.content) for row in found] == [
        ("published", 1, "a", '"a"'),
        ("published", 2, "b", '"b"'),
        ("published", 3, "c", '"c"'),
        ("acknowledged", 2, None, None),
    ]
    assert [row.seconds for row in found[:3]] == [1800 + EXPIRY_MARGIN_S] * 3
    assert found[3].subscriber == "me"
    found = spark.sql(
        """select kind, number, new_number, recipient_key, worker, message_id, reason,
                  cast(payload as string) payload
           from waystation.pools where pool = 'agents' and kind <> 'moved'
           order by log_offset, item"""
    ).collect()
    assert [(row.kind, row.number, row.message_id) for row in found[:3]] == [
        ("enqueued", 1, "m-1"),
        ("enqueued", 2, "m-2"),
        ("enqueued", 3, "m-3"),
    ]
    assert {(row.kind, row.number, row.worker) for row in found[3:7]} == {
        ("taken", 1, "worker"),
        ("taken", 3, "worker"),
        ("acknowledged", 1, "worker"),
        ("dead", 3, "worker"),
    }
    assert (found[7].kind, found[7].number, found[7].new_number) == ("redriven", 3, 4)
    assert (found[7].message_id, found[7].payload) == ("m-3", "m-3")
    assert {(row.kind, row.number) for row in found[8:]} == {
        ("taken", 2),
        ("taken", 4),
        ("acknowledged", 2),
        ("acknowledged", 4),
    }


@pytest.mark.timeout(240)
def test_withheld_events_are_ranges_of_gaps_with_cause_policy(
    spark: SparkSession, writer: LogWriter, store_url: str, lake: Path, tmp_path: Path
) -> None:
    rules = (
        ChannelRule(pattern="secret", record="none"),
        ChannelRule(pattern="quiet", record="headers"),
    )
    with PartLife(store_url, tmp_path, *rules, record="none") as life:
        life.publish("secret", "s-1", "s-2")
        life.publish("quiet", "q-1")
        life.enqueue(("k", "hidden"))
        life.settle(*life.take())
    done = ingest_job(spark, Lake(str(lake)), Location(store_url)).run()

    # Two publishes and one enqueue. The second row is of the channel with `record` headers.
    assert (done.withheld_rows, done.rows) == (3, 1)
    require_whole(lake, store_url)
    attach(spark, lake=str(lake))
    gaps = spark.sql(
        """select split(log, '[.]')[0] part, from_offset, to_offset, rows, cause
           from waystation.gaps order by part"""
    ).collect()
    assert [tuple(row) for row in gaps] == [
        ("channels", 0, 2, 2, "policy"),
        ("pools", 0, 1, 1, "policy"),
    ]
    (row,) = spark.sql("select * from waystation.channels where kind <> 'withheld'").collect()
    assert (row.channel, row.message_id, row.content, row.recorded) == (
        *("quiet", "q-1", None, "headers"),
    )
    texts = "".join(
        repr(spark.sql(f"select * from waystation.{table}").collect())
        for table in ("channels", "pools")
    )
    assert not [each for each in ("s-1", "s-2", "secret", "hidden", "'k'") if each in texts]
