"""Record log of a subscription as rows of the lake, for tests of code that reads such rows.

Twenty messages of two groups, `a` (even) and `b` (odd): delivered, retried, parked, redriven, dead,
passed over, and three that are not settled. Spark makes the rows, and they are committed as ingest
commits them.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from tests.history.log_writer import LogWriter
from waystation.history.lake.files import TableWriter
from waystation.history.lake.schema import DELIVERIES, TableSchema
from waystation.history.lake.table import Lake, TableOffset
from waystation.subscriptions.log_entry import AttemptDetail, OperationDetail, StartDetail

LOG = "s.default.billing.0"
TAG = "{s.default.billing.0.0}:"
#: Kind, where it was, where it is then, attempt, message, policy: one entry of the log each.
HOPS: list[tuple[str, str, str, int, int | None, str]] = [
    ("start", "m0.0.2", "m0.0.2", 0, None, "park"),
    *(("attempt", f"m0.0.{number}", "-", 1, number, "park") for number in range(2, 10)),
    ("attempt", "m0.0.10", "r1", 1, 10, "park"),
    ("attempt", "m0.0.11", "-", 1, 11, "park"),
    ("behind", "m0.0.12", "r2", 0, 12, "park"),
    ("attempt", "r1", "r1", 2, 10, "park"),
    ("parked", "r1", "d1", 3, 10, "park"),
    ("followed", "r2", "d2", 0, None, "park"),
    ("redriven", "d1", "d1", 0, None, "park"),
    ("attempt", "d1", "-", 4, 10, "park"),
    ("attempt", "d2", "-", 1, 12, "park"),
    ("dead", "m0.0.13", "d3", 1, 13, "skip"),
    ("passed", "m0.0.14", "m0.0.15", 0, None, "skip"),
    ("attempt", "m0.0.15", "-", 1, 15, "skip"),
    ("parked", "m0.0.16", "d4", 1, 16, "park"),
    ("attempt", "m0.0.17", "r3", 1, 17, "park"),
    ("behind", "m0.0.18", "d5", 0, 18, "park"),
]


def story() -> list[dict[str, Any]]:
    """Return the rows, without the columns of the stamp that are the same in all of them."""
    return [hop_row(offset, *hop) for offset, hop in enumerate(HOPS)]


def hop_row(
    offset: int, kind: str, was: str, now: str, attempt: int, message: int | None, policy: str
) -> dict[str, Any]:
    """Return the row of one hop. A request begins after all earlier entries were written."""
    names = ("storage", "partition", "offset") if was.startswith("m") else ()
    place = dict(zip(names, map(int, was[1:].split(".")), strict=False))
    failed = attempt > 0 and now != "-"
    return {
        **place,
        "log_offset": offset,
        "kind": kind,
        "from_place": was,
        "to_place": now,
        "attempt": attempt,
        "policy": policy,
        "outcome": "again" if failed else "done",
        "topic": "orders" if kind == "start" else None,
        "message_id": None if message is None else f"m-{message}",
        "group": None if message is None else "ab"[message % 2],
        "begun_after": offset if attempt else None,
        "endpoint": "crm" if attempt else None,
        "status": (503 if failed else 200) if attempt else None,
        "seconds": 0.25 * attempt,
    }


def commit(
    spark: SparkSession, lake: Path, rows: list[dict[str, Any]], *, spec: TableSchema = DELIVERIES
) -> None:
    """Commit rows to a table, with the offset behind the last of them."""
    columns = from_arrow_schema(spec.file_schema)
    made = spark.createDataFrame(
        [tuple(_shared(row).get(name) for name in columns.names) for row in rows], columns
    )
    writer = TableWriter(str(lake / spec.name), spec)
    for batch in made.toArrow().cast(spec.file_schema).to_batches():
        writer.write(batch)
    end = max(row["log_offset"] for row in rows) + 1
    table = Lake(str(lake)).open(spec)
    key = f"ds-test/{rows[0].get('log', LOG)}/0"
    table.commit(writer.close(), {key: TableOffset(max(end, table.offset(key).offset))})


def _shared(row: dict[str, Any]) -> dict[str, Any]:
    begun = datetime(2026, 3, 1, 12, tzinfo=UTC) + timedelta(seconds=row["log_offset"])
    ended = begun + timedelta(seconds=row.get("seconds", 0))
    return {
        "dataset": "ds-test",
        "log": LOG,
        "log_partition": 0,
        "item": 0,
        "time": ended,
        "ingested": ended,
        "project": "default",
        "subscription": "billing",
        "generation": 0,
        "shard": 0,
        "incarnation": 1,
        "epoch": 1,
        "malformed": False,
        "started_at": begun if row.get("attempt") else None,
        "ended_at": ended if row.get("attempt") else None,
        **row,
    }


def write(writer: LogWriter) -> None:
    """Write the same rows as a log to the store, with the state of the shard at its end.

    Message 17 is in retry, 19 is not read yet, and 13, 16 and 18 are dead letters.
    """
    writer.create(LOG)
    writer.append_raw(LOG, [_entry(row) for row in story()])
    writer.command("HSET", f"{TAG}head", "incarnation", 1)
    writer.command("HSET", f"{TAG}pos", "0.0", 18)
    writer.command("ZADD", f"{TAG}acks:0.0", 18, 18)
    writer.command("HSET", f"{TAG}retry", 3, "a record")
    for number in (3, 4, 5):
        writer.command("HSET", f"{TAG}dead", number, "a record")


def _entry(row: dict[str, Any]) -> bytes:
    places = f"{row['from_place']} {row['to_place']}"
    words = f"{row['kind']} {places} 1 1 {row['attempt']} {row['outcome']}"
    detail: object = None
    if row["kind"] == "start":
        detail = StartDetail("orders")
    elif row["kind"] == "redriven":
        detail = OperationDetail("op-1")
    elif row["message_id"] is not None:
        detail = AttemptDetail(
            id=row["message_id"],
            group=row["group"],
            failure=str(row["status"] or ""),
            begun_ms=1_000 if row["attempt"] else 0,
            ended_ms=1_250 if row["attempt"] else 0,
            begun_after=row["begun_after"] or 0,
            endpoint=row["endpoint"] or "",
        )
    return msgspec.msgpack.encode([1, "ds-test", [[f"{words} {row['policy']}", detail]]])
