"""Rows of record logs of shards that are damaged, foreign or restored; see `test_deliveries`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.history.log_writer import LogWriter
from waystation.history import attach
from waystation.history.decoders.registry import decoder_for
from waystation.history.decoders.shards import shard_rows
from waystation.history.ingest.job import ingest_job
from waystation.history.lake.projections import PROJECTIONS
from waystation.history.lake.table import Lake
from waystation.history.offsets import OffsetRange
from waystation.history.sources.options import Location
from waystation.logs.protocol import LogBatch
from waystation.subscriptions.log_entry import (
    AttemptDetail,
    OperationDetail,
    StartDetail,
    pack_detail,
)

LOG = "s.default.billing.2"
ATTEMPT = pack_detail(
    AttemptDetail(
        id="m-17",
        group="g",
        failure="503",
        begun_ms=1000,
        ended_ms=1250,
        begun_after=40,
        position="orders/0/3/17",
    )
)
#: Arrays in arrays, more deeply than msgspec decodes.
DEEP = b"\x91" * 5000 + b"\xc0"


def entry(*facts: tuple[str, bytes]) -> bytes:
    """Return an entry with the bytes that the scripts of shards write: texts have long headers."""
    dataset, packed = b"ds-test", b""
    for words, detail in facts:
        text = words.encode()
        packed += b"\x92\xda" + len(text).to_bytes(2, "big") + text + (detail or b"\xc0")
    head = b"\x93\x01\xd9" + bytes([len(dataset)]) + dataset
    return head + b"\xdc" + len(facts).to_bytes(2, "big") + packed


#: The life of one message, and what happened around it.
STORY = [
    entry(("start m0.3.10 m0.3.10 0 1 0 start park", pack_detail(StartDetail("orders")))),
    entry(
        ("attempt m0.3.16 - 4 1 1 done park", ATTEMPT),
        ("attempt m0.3.17 r5 4 1 1 again park", ATTEMPT),
        ("behind m0.3.18 r6 4 1 0 behind park", pack_detail(AttemptDetail(id="m-18", group="g"))),
    ),
    entry(
        ("parked r5 d2 4 1 2 dead park", ATTEMPT),
        ("followed r6 d3 4 1 0 dead park", b""),
    ),
    entry(("redriven d2 d2 0 1 0 redriven park", pack_detail(OperationDetail("op-1")))),
    entry(("attempt d2 - 5 1 3 done park", ATTEMPT)),
    entry(("trimmed m0.3.19 m0.3.30 5 1 0 trimmed park", b"")),
]


def made(*payloads: bytes) -> dict[str, list[dict[str, Any]]]:
    block = LogBatch(70, 70 + len(payloads), [1_000] * len(payloads), list(payloads))
    deliveries = shard_rows(OffsetRange(LOG, 1, 70, 99), block)
    return {
        "deliveries": deliveries.to_pylist(),
        "operations": PROJECTIONS["operations"].rows(deliveries).to_pylist(),
    }


def test_a_range_that_is_passed_over_has_both_its_ends() -> None:
    """Check the kind `passed`, which no code writes; `test_deliveries` has the other kinds."""
    made_ = made(entry(("passed m0.3.19 m0.3.30 5 1 0 passed park", b"")))
    (row,), (operation,) = made_["deliveries"], made_["operations"]
    assert (row["kind"], row["storage"], row["partition"], row["offset"]) == ("passed", 0, 3, 19)
    assert (operation["from_position"], operation["to_position"]) == ("m0.3.19", "m0.3.30")


@pytest.mark.parametrize(
    "payload",
    [
        b"no entry",
        entry(("attempt m0.3.17", b"")),
        entry(("attempt m0.x.17 - 4 1 1 done park", b"")),
        b"\x93\x02" + entry()[2:],
        entry(("attempt m0.3.17 - 4 1 1 done park", DEEP)),
        entry().replace(b"ds-test", b"\xff" * 7),
    ],
    ids=["no-msgpack", "few-words", "no-position", "newer-format", "too-deep", "no-utf-8"],
)
def test_an_entry_that_cannot_be_read_is_a_row_with_its_bytes(payload: bytes) -> None:
    rows = made(STORY[0], payload)
    assert [row["malformed"] for row in rows["deliveries"]] == [False, True]
    assert rows["deliveries"][1]["excerpt"] == payload
    assert len(rows["operations"]) == 1


@pytest.mark.parametrize("detail", [b"\x91\x01", b"\x92\xa1\xff\xa1g"], ids=["type", "no-utf-8"])
def test_a_detail_that_cannot_be_read_leaves_the_facts(detail: bytes) -> None:
    row = made(entry(("attempt m0.3.17 - 4 1 1 done park", detail)))["deliveries"][0]
    assert (row["malformed"], row["excerpt"], row["offset"]) == (True, detail, 17)


def test_logs_of_others_are_no_shards() -> None:
    for log in ("s.default.billing", "s.default.billing.x", "s.a.b.1.2", "x.default.billing.1"):
        assert decoder_for(log) is None


def test_shards_are_brought_into_the_lake_once_and_a_store_that_went_back_is_repaired(
    spark: SparkSession, writer: LogWriter, store_url: str, lake: Path
) -> None:
    def ingest() -> int:
        return ingest_job(spark, Lake(str(lake)), Location(store_url)).run().rows

    def rows(table: str) -> list[dict[str, Any]]:
        found = DeltaTable(str(lake / table)).to_pyarrow_table()
        return [row for row in found.to_pylist() if row["row_state"] == "live"]

    writer.create(LOG, 2)
    writer.append_raw(LOG, STORY[:3], 1)
    backup = writer.backup()
    writer.append_raw(LOG, STORY[3:], 1)

    assert (ingest(), ingest()) == (9, 0)
    attach(spark, lake=str(lake))
    operations = spark.table("waystation.operations").orderBy("log_offset").collect()
    assert [(row.kind, row.subject, row.from_position) for row in operations] == [
        ("start", "billing", "m0.3.10"),
        ("redriven", "billing", "d2"),
        ("trimmed", "billing", "m0.3.19"),
    ]
    assert [json.loads(row.detail) for row in operations] == [
        {"topic": "orders", "incarnation": 1, "epoch": 0},
        {"operation": "op-1", "incarnation": 1, "epoch": 0},
        {"incarnation": 1, "epoch": 5},
    ]
    assert {(row.project, row.generation, row.shard) for row in operations} == {("default", 2, 1)}

    writer.restore(backup)
    writer.append_raw(LOG, STORY[4:5], 1)
    assert ingest() == 1
    assert [row["from_place"] for row in rows("deliveries")].count("d2") == 1
    attach(spark, lake=str(lake))
    assert [row.kind for row in spark.table("waystation.operations").collect()] == ["start"]
