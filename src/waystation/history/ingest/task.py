"""Ingest tasks: read ranges of logs and write their rows to Parquet files.

A task commits nothing. A task that crashes, or that Spark runs twice, leaves files that belong to
no table; maintenance deletes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from waystation.errors import LakeWriteError
from waystation.history.decoders.facts import WITHHELD
from waystation.history.decoders.messages import TIME, gc_disabled, kept
from waystation.history.decoders.registry import LogDecoder, decoder_for
from waystation.history.lake.files import TableWriter, WrittenFile
from waystation.history.lake.schema import GAP_COLUMNS, RowState, TableSchema
from waystation.history.lake.table import Lake, lake_write
from waystation.history.log_reader import LogReader, fingerprint
from waystation.history.offsets import Gap, OffsetRange
from waystation.history.sources.options import Location
from waystation.logs.protocol import LogBatch
from waystation.messages.redaction import FULL, RedactionPolicy


class IngestTask(msgspec.Struct, frozen=True):
    """Work of one Spark task."""

    store: Location
    lake: str
    dataset: str
    ingested_ms: int
    #: A gap is recorded and not read.
    ranges: list[OffsetRange | Gap]
    #: Policies of logs whose topics withhold payloads or parts of them.
    policies: dict[str, RedactionPolicy]


class RangeReceipt(msgspec.Struct, kw_only=True):
    """Outcome of one range."""

    range: OffsetRange
    table: str
    #: Rows of entries, without those of calls that a channel or pool withholds.
    rows: int = 0
    malformed_rows: int = 0
    #: Entries that retention trimmed.
    trimmed: int = 0
    #: Entries that are missing, and that retention did not trim.
    damaged: int = 0
    #: Entries of topics, and calls of channels and pools, that `record` none withholds.
    withheld: int = 0
    #: Fingerprint of the last entry; 0 if the task did not find the entry.
    fingerprint: int = 0

    def count(self, part: pa.RecordBatch) -> None:
        """Count rows of entries."""
        withheld = 0
        if "kind" in part.schema.names:
            withheld = pc.sum(pc.equal(part.column("kind"), WITHHELD["kind"])).as_py() or 0
        self.rows += part.num_rows - withheld
        self.withheld += withheld
        if "malformed" in part.schema.names:
            self.malformed_rows += pc.sum(part.column("malformed")).as_py() or 0

    def count_gap(self, gap: Gap) -> None:
        """Count entries without rows."""
        match gap.cause:
            case "damaged":
                self.damaged += gap.rows
            case "policy":
                self.withheld += gap.rows
            case _:
                self.trimmed += gap.rows


class TaskResult(msgspec.Struct, frozen=True):
    """Outcome of a task: receipts, and the files that it wrote, by table."""

    receipts: list[RangeReceipt] = []
    files: dict[str, list[WrittenFile]] = {}
    #: Message of the error if the lake could not be written; otherwise empty.
    error: str = ""


_encode = msgspec.msgpack.Encoder().encode
decode_result = msgspec.msgpack.Decoder(TaskResult).decode


def run_encoded(task: IngestTask) -> bytes:
    """Run a task and return its encoded result.

    A function of this module, so that Spark sends its name to the workers and not its code.
    """
    return _encode(run_task(task))


def run_task(task: IngestTask) -> TaskResult:
    """Write the rows of all ranges to files. If the lake is full, delete the files and say so."""
    try:
        with (
            LogReader(task.store.resolve(), dataset=task.dataset) as logs,
            TableWriters(task.lake) as writers,
        ):
            receipts = [_copy_range(logs, writers, task, each) for each in task.ranges]
            return TaskResult(receipts, writers.close())
    except LakeWriteError as error:
        # Returned, because Spark would repeat the task three times and print its traceback.
        return TaskResult(error=error.message)


def _copy_range(
    logs: LogReader, writers: TableWriters, task: IngestTask, offsets: OffsetRange
) -> RangeReceipt:
    decoder = decoder_for(offsets.log)
    assert decoder is not None, "the planner plans only logs with a decoder"
    receipt = RangeReceipt(
        range=OffsetRange(offsets.log, offsets.partition, offsets.start, offsets.end),
        table=decoder.table.name,
    )
    if isinstance(offsets, Gap):
        writers.write(decoder.table, gap_row(task, decoder.table, offsets), "gap")
        receipt.count_gap(offsets)
        if offsets.cause == "policy":
            receipt.fingerprint = logs.fingerprint_before(offsets)
        return receipt
    with gc_disabled():
        for part in logs.blocks(offsets, on_gap="count"):
            if isinstance(part, Gap):
                writers.write(decoder.table, gap_row(task, decoder.table, part), "gap")
                receipt.count_gap(part)
                receipt.fingerprint = 0
            else:
                rows = _decoded(decoder, offsets, part, task.policies.get(offsets.log, FULL))
                writers.write(decoder.table, stamped(task, decoder.table, offsets, rows), "live")
                receipt.count(rows)
                receipt.fingerprint = fingerprint(part.times_ms[-1], part.payloads[-1])
    return receipt


def _decoded(
    decoder: LogDecoder, offsets: OffsetRange, block: LogBatch, policy: RedactionPolicy
) -> pa.RecordBatch:
    rows = decoder.decode(offsets, block)
    # Redact here, so that no withheld byte reaches a file of the lake.
    return rows if policy is FULL else kept(rows, policy)


def stamped(
    task: IngestTask, table: TableSchema, offsets: OffsetRange, rows: pa.RecordBatch
) -> pa.RecordBatch:
    """Return decoded rows with all columns of a file."""
    shared = {
        "dataset": pa.scalar(task.dataset),
        "log": pa.scalar(offsets.log),
        "log_partition": pa.scalar(offsets.partition, pa.int32()),
        "ingested": pa.scalar(task.ingested_ms * 1000, pa.int64()).cast(TIME),
        **{name: pa.scalar(None, table.schema.field(name).type) for name in GAP_COLUMNS},
    }
    columns = [
        pa.repeat(shared[name], rows.num_rows) if name in shared else rows.column(name)
        for name in table.file_schema.names
    ]
    return pa.record_batch(columns, schema=table.file_schema)


def gap_row(task: IngestTask, table: TableSchema, gap: Gap) -> pa.RecordBatch:
    """Return the row of a gap."""
    row = {
        "dataset": task.dataset,
        "log": gap.log,
        "log_partition": gap.partition,
        "log_offset": gap.start,
        "item": 0,
        "time": task.ingested_ms * 1000,
        "ingested": task.ingested_ms * 1000,
        "gap_end": gap.end,
        "gap_cause": gap.cause,
    }
    return pa.RecordBatch.from_pylist([row], schema=table.file_schema)


class TableWriters:
    """Writers of the tables of a lake. If the block raises, they delete their files."""

    def __init__(self, lake: str) -> None:
        self._lake = Lake(lake)
        self._writers: dict[str, TableWriter] = {}

    def __enter__(self) -> TableWriters:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            for writer in self._writers.values():
                writer.abandon()

    def write(self, table: TableSchema, rows: pa.RecordBatch, row_state: RowState) -> None:
        """Write rows of a table. Raise LakeWriteError if the lake cannot be written."""
        if not rows.num_rows:
            return
        with _writing(table.name):
            if table.name not in self._writers:
                self._writers[table.name] = TableWriter(self._lake.folder(table), table)
            self._writers[table.name].write(rows, row_state)

    def close(self) -> dict[str, list[WrittenFile]]:
        """Close all files and return them by table. Raise the error of `write`."""
        files = {}
        for name, writer in self._writers.items():
            with _writing(name):
                files[name] = writer.close()
        return files


@contextmanager
def _writing(table: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise lake_write(table, error) from error
