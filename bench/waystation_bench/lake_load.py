"""A lake as large as one likes: rows as ingest would have made them, written by tasks of Spark.

Messages of one topic in four partitions, and two subscriptions to it. The first delivers each at
once, the second at the second attempt: three rows of deliveries for each message. Nothing is
missing, doubled or overtaken, so an audit has to look at all of it and finds nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from waystation.history.lake.files import TableWriter, WrittenFile
from waystation.history.lake.schema import DELIVERIES, MESSAGES, TableSchema
from waystation.history.lake.table import Lake, TableOffset
from waystation.history.offsets import OffsetRange, pack_ranges
from waystation.store.keys import DEFAULT_PROJECT
from waystation_bench.delivery_node import DATA_BYTES, GROUPS, NAME, PARTITIONS

DATASET = "ds-bench"
#: Rows of deliveries for each message.
DELIVERIES_EACH = 3
#: Of the first row; the next ones come a millisecond later each.
_BEGUN_MS = 1_790_000_000_000
_ROWS_OF_A_MS = 100
#: Rows of a batch, and of a task.
_BATCH, _TASK = 65_536, 500_000
_TASKS_MAX = 150
_TOPIC_LOG = f"t.{DEFAULT_PROJECT}.{NAME}.0"
#: Subscription -> entries of its record log for each message.
_SUBSCRIPTIONS = {"first": 1, "second": 2}

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[WrittenFile]).decode


def make_lake(spark: SparkSession, lake: Lake, messages: int) -> None:
    """Fills an empty lake."""
    each = messages // PARTITIONS
    _make(spark, lake, MESSAGES, [OffsetRange(_TOPIC_LOG, n, 0, each) for n in range(PARTITIONS)])
    records = [
        # The first entry is the start.
        OffsetRange(_record_log(name), n, 0, 1 + each * entries)
        for name, entries in _SUBSCRIPTIONS.items()
        for n in range(PARTITIONS)
    ]
    _make(spark, lake, DELIVERIES, records)


def _make(spark: SparkSession, lake: Lake, spec: TableSchema, spans: list[OffsetRange]) -> None:
    tasks = pack_ranges(spans, rows=_TASK, tasks_max=_TASKS_MAX)
    root = lake.root

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                files = write_spans(root, spec.name, tasks[number])
                yield pa.record_batch({"files": pa.array([files], pa.binary())})

    table = lake.open(spec)
    rows = spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(work, "files binary").collect()
    files = [file for row in rows for file in _decode(bytes(row.files))]
    table.commit(files, {f"{DATASET}/{span.key}": TableOffset(span.end) for span in spans})


def write_spans(root: str, table: str, spans: list[OffsetRange]) -> bytes:
    """What a task does. A name of this module, so that Spark sends no more than that."""
    spec = {each.name: each for each in (MESSAGES, DELIVERIES)}[table]
    writer = TableWriter(f"{root}/{table}", spec)
    for span in spans:
        for start in range(span.start, span.end, _BATCH):
            part = OffsetRange(span.log, span.partition, start, min(span.end, start + _BATCH))
            made = _messages(part) if spec is MESSAGES else _deliveries(part)
            writer.write(_batch(spec, part, made))
    return _encode(writer.close())


def _messages(span: OffsetRange) -> dict[str, Any]:
    numbers = np.arange(span.start, span.end)
    payload = b'{"rest":"%b"}' % (b"x" * (DATA_BYTES - 11))
    return {
        **_same(project=DEFAULT_PROJECT, topic=NAME, storage=0, partition=span.partition),
        **_same(malformed=False, size=len(payload), payload=payload, recorded="full"),
        "position": _numbered(f"{DEFAULT_PROJECT}/{NAME}/0/{span.partition}/", numbers),
        "offset": pa.array(numbers),
        "id": _numbered(f"m-{span.partition}-", numbers),
        "group": _group(span, numbers),
    }


def _deliveries(span: OffsetRange) -> dict[str, Any]:
    """Hops of a shard: entry 0 is its start, then come those of each message."""
    subscription = span.log.split(".")[2]
    entries = _SUBSCRIPTIONS[subscription]
    at = np.arange(span.start, span.end)
    numbers, hop = np.divmod(np.maximum(at - 1, 0), entries)
    is_start, last = pa.array(at == 0), pa.array(hop == entries - 1)
    home = f"m0.{span.partition}."
    topic, retry = _numbered(home, numbers), _numbered("r", numbers + 1)
    was = pc.if_else(pa.array(hop == 0), topic, retry)
    now = pc.if_else(last, pa.scalar("-"), retry)
    none = pa.scalar(None, pa.int64())

    def unless_start(values: Any) -> Any:
        return pc.if_else(is_start, pa.scalar(None, values.type), values)

    return {
        **_same(project=DEFAULT_PROJECT, subscription=subscription, generation=0, epoch=1),
        **_same(shard=span.partition, incarnation=1, policy="park", malformed=False),
        "topic": pc.if_else(is_start, pa.scalar(NAME), pa.scalar(None, pa.string())),
        "storage": pc.if_else(pa.array(hop == 0), pa.scalar(0), none),
        "partition": pc.if_else(pa.array(hop == 0), pa.scalar(span.partition), none),
        "offset": pc.if_else(pa.array(hop == 0), pa.array(numbers), none),
        "message_id": unless_start(_numbered(f"m-{span.partition}-", numbers)),
        "group": unless_start(_group(span, numbers)),
        "kind": pc.if_else(is_start, pa.scalar("start"), pa.scalar("attempt")),
        "from_place": pc.if_else(is_start, pa.scalar(f"{home}0"), was),
        "to_place": pc.if_else(is_start, pa.scalar(f"{home}0"), now),
        "attempt": pa.array(np.where(at == 0, 0, hop + 1)),
        "outcome": pc.if_else(last, pa.scalar("done"), pa.scalar("again")),
        "endpoint": unless_start(pa.repeat(pa.scalar("http://127.0.0.1/hook"), len(at))),
        "status": unless_start(pc.if_else(last, pa.scalar(200), pa.scalar(503))),
        # All entries before were seen when the request began.
        "begun_after": unless_start(pa.array(at)),
        "position": unless_start(
            _numbered(f"{DEFAULT_PROJECT}/{NAME}/0/{span.partition}/", numbers)
        ),
    }


def _batch(spec: TableSchema, span: OffsetRange, made: dict[str, Any]) -> pa.RecordBatch:
    """Columns in their order and types; what is not told is null."""
    at = np.arange(span.start, span.end)
    times = (_BEGUN_MS + at // _ROWS_OF_A_MS) * 1000
    made |= {
        **_same(dataset=DATASET, log=span.log, log_partition=span.partition, item=0),
        "log_offset": pa.array(at),
        "time": pa.array(times),
        "ingested": pa.scalar(int(times[-1])),
    }
    columns = []
    for field in spec.file_schema:
        value = made.get(field.name)
        if value is None:
            columns.append(pa.nulls(span.rows, field.type))
        elif isinstance(value, pa.Scalar):
            columns.append(pa.repeat(value.cast(field.type), span.rows))
        else:
            columns.append(value.cast(field.type))
    return pa.record_batch(columns, schema=spec.file_schema)


def _same(**values: object) -> dict[str, pa.Scalar]:
    return {name: pa.scalar(value) for name, value in values.items()}


def _numbered(prefix: str, numbers: np.ndarray[Any, Any]) -> Any:
    return pc.binary_join_element_wise(prefix, pa.array(numbers).cast(pa.string()), "")


def _group(span: OffsetRange, numbers: np.ndarray[Any, Any]) -> Any:
    """A group is in one partition, as it is in a topic."""
    return _numbered(f"order-{span.partition}-", numbers % (GROUPS // PARTITIONS))


def _record_log(subscription: str) -> str:
    return f"s.{DEFAULT_PROJECT}.{subscription}.0"
