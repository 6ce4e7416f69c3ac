"""What a task of ingest does: reads spans of logs, writes files, says what came of it.

It commits nothing. A task that dies, or is run twice, leaves files that belong to no table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from waystation.errors import LakeWriteError
from waystation.history.decoders.facts import WITHHELD
from waystation.history.decoders.messages import TIME, kept, without_collections
from waystation.history.decoders.registry import decoder_for
from waystation.history.lake.files import TableWriter, WrittenFile
from waystation.history.lake.schema import TableSchema
from waystation.history.lake.table import Lake, lake_write
from waystation.history.log_reader import LogReader, fingerprint
from waystation.history.offsets import Gap, OffsetRange
from waystation.history.sources.options import StorePlace
from waystation.messages.redaction import FULL, RedactionPolicy


class IngestPlan(msgspec.Struct, frozen=True):
    """What all tasks of a round have to know."""

    lake: str
    store: StorePlace
    dataset: str
    #: When the round began.
    ingested_ms: int
    #: Partition -> table -> the first offset that it lacks. They differ where a round died between
    #: the commits of two tables.
    wanted: dict[str, dict[str, int]]
    #: Logs of which not all is recorded.
    recordings: dict[str, RedactionPolicy]


class SpanReport(msgspec.Struct, frozen=True):
    """What came of a span."""

    span: OffsetRange
    #: Of all its tables.
    rows: int
    malformed: int
    #: Rows of calls whose events the channel or pool withholds. `rows` does not include them.
    withheld: int
    #: Of the last entry; 0 if it was gone.
    fingerprint: int
    #: Entries that were not there when the task read the span, each gap with its cause.
    gaps: list[Gap]


class TaskReport(msgspec.Struct, frozen=True):
    """What came of a task."""

    #: Table -> files.
    files: dict[str, list[WrittenFile]]
    spans: list[SpanReport]
    #: Why the lake could not be written to; empty if it could.
    problem: str = ""


_encode = msgspec.msgpack.Encoder().encode
decode_report = msgspec.msgpack.Decoder(TaskReport).decode


def packed_report(plan: IngestPlan, spans: Iterable[OffsetRange]) -> bytes:
    """What a task answers. A name of this module: Spark sends that, and not what it stands for."""
    try:
        return _encode(ingest_spans(plan, spans))
    except LakeWriteError as error:
        # Told, not raised: Spark would make a page of text of it.
        return _encode(TaskReport({}, [], error.message))


def ingest_spans(plan: IngestPlan, spans: Iterable[OffsetRange]) -> TaskReport:
    """Reads and writes."""
    writers: dict[str, TableWriter] = {}
    try:
        return _ingest(plan, spans, writers)
    except LakeWriteError:
        for writer in writers.values():
            writer.abandon()
        raise


def _ingest(
    plan: IngestPlan, spans: Iterable[OffsetRange], writers: dict[str, TableWriter]
) -> TaskReport:
    lake, reports = Lake(plan.lake), []
    with LogReader(plan.store.url()) as logs:
        for span in spans:
            tally = _Tally()
            for spec, batch in without_collections(_rows(plan, logs, span, tally)):
                with _writing(spec.name):
                    if spec.name not in writers:
                        writers[spec.name] = TableWriter(lake.folder(spec), spec)
                    writers[spec.name].write(batch)
            reports.append(
                SpanReport(
                    span,
                    tally.rows,
                    tally.malformed,
                    tally.withheld,
                    tally.last_fingerprint,
                    tally.gaps,
                )
            )
    files: dict[str, list[WrittenFile]] = {}
    for name, writer in writers.items():
        with _writing(name):
            files[name] = writer.close()
    return TaskReport(files, reports)


@contextmanager
def _writing(table: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise lake_write(table, error) from error


class _Tally:
    """Counts of one span."""

    def __init__(self) -> None:
        self.rows = 0
        self.malformed = 0
        self.withheld = 0
        self.last_fingerprint = 0
        self.gaps: list[Gap] = []


def _rows(
    plan: IngestPlan, logs: LogReader, span: OffsetRange, tally: _Tally
) -> Iterator[tuple[TableSchema, pa.RecordBatch]]:
    decoder = decoder_for(span.log)
    assert decoder is not None, "only logs with a decoder are planned"
    recording = plan.recordings.get(span.log, FULL)
    for part in logs.blocks(span, on_gap="count"):
        if isinstance(part, Gap):
            tally.gaps.append(part)
            tally.last_fingerprint = 0
            continue
        tally.last_fingerprint = fingerprint(part.times_ms[-1], part.payloads[-1])
        batch = decoder.decode(span, part)
        if recording is not FULL:
            batch = kept(batch, recording)
        if not batch.num_rows:
            continue
        withheld = _withheld(batch)
        tally.rows += batch.num_rows - withheld
        tally.withheld += withheld
        if "malformed" in batch.schema.names:
            tally.malformed += pc.sum(batch.column("malformed")).as_py()
        yield decoder.table, stamped(plan, span, batch, decoder.table)


def _withheld(batch: pa.RecordBatch) -> int:
    """Return how many rows stand for events that a channel or pool withholds."""
    if "kind" not in batch.schema.names:
        return 0
    kinds = batch.column("kind")
    return pc.sum(pc.equal(kinds, WITHHELD["kind"])).as_py() or 0


def stamped(
    plan: IngestPlan, span: OffsetRange, batch: pa.RecordBatch, spec: TableSchema
) -> pa.RecordBatch:
    """Rows of a feed as they are in a table."""
    same = {
        "dataset": pa.scalar(plan.dataset),
        "log": pa.scalar(span.log),
        "log_partition": pa.scalar(span.partition, pa.int32()),
        "ingested": pa.scalar(plan.ingested_ms * 1000, pa.int64()).cast(TIME),
        "lost": pa.scalar(False),
    }
    columns = [
        pa.repeat(same[name], batch.num_rows) if name in same else batch.column(name)
        for name in spec.file_schema.names
    ]
    return pa.record_batch(columns, schema=spec.file_schema)
