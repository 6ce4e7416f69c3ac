"""The Spark data source `waystation`: topics and record logs as tables and as streams.

    spark.read.format("waystation").option("topic", "orders").load()
    spark.readStream.format("waystation").option("topic", "*").load()
    spark.read.format("waystation").option("table", "deliveries").load()

Spark discovers `TopicSource` through the installed package `pyspark_waystation`. It works in every
session, but reads whole topics. `register` replaces it by `PushdownTopicSource`, which skips
partitions and offsets that the filters of a query exclude.

Spark plans a scan in one process and reads its partitions in others: a reader is pickled, and each
of its methods opens its own connections to the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from waystation.errors import SourceOptionError, TopicNotFoundError
from waystation.history.decoders.facts import own_columns
from waystation.history.decoders.messages import (
    MESSAGE_SCHEMA,
    gap_batch,
    message_batch,
    without_collections,
)
from waystation.history.decoders.partitions import topic_place
from waystation.history.decoders.registry import decoder_for
from waystation.history.lake.projections import PROJECTIONS
from waystation.history.lake.schema import BASE, STEPS
from waystation.history.log_reader import LogReader, went_back
from waystation.history.offsets import (
    Gap,
    OffsetRange,
    limit_batch,
    pack_ranges,
    parse_key,
    ranges_between,
)
from waystation.history.session import use_this_python
from waystation.history.sources import consumers
from waystation.history.sources.archive import ArchiveSource, PushdownArchiveSource
from waystation.history.sources.compat import (
    READ_LIMITS,
    SupportsTriggerAvailableNow,
    enable_pushdown,
    limit_rows,
    read_limit,
    register_source,
    supports,
)
from waystation.history.sources.filters import ScanBounds
from waystation.history.sources.options import TopicSourceOptions
from waystation.logs.protocol import LogBatch, LogState

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter
    from pyspark.sql.streaming.datasource import ReadLimit

#: `<log>/<partition>` → next offset. Spark keeps it in the checkpoint of a stream.
Offsets = dict[str, int]

#: Columns of topics in Spark.
MESSAGE_COLUMNS = from_arrow_schema(MESSAGE_SCHEMA)
_TABLES = {schema.name: schema for schema in (*BASE, STEPS)}


class TopicSource(DataSource):
    """Data source of topics and record logs for any session; it pushes no filters down.

    The options are described in docs/internals/history.md.
    """

    @classmethod
    def name(cls) -> str:
        return "waystation"

    def schema(self) -> StructType:
        # Parse here, so that `load` reports an invalid option.
        return _columns(TopicSourceOptions.parse(self.options))

    def reader(self, schema: StructType) -> TopicReader:
        return TopicReader(self._batch_options(schema))

    def streamReader(self, schema: StructType) -> TopicStreamReader:  # noqa: N802 (Spark's name)
        options = self._checked(schema)
        if options.rows_max is not None:
            supports(READ_LIMITS)  # Warns that the option has no effect.
        return TopicStreamReader(options)

    def _batch_options(self, schema: StructType) -> TopicSourceOptions:
        options = self._checked(schema)
        if options.consumer:
            raise SourceOptionError(
                "Option consumer is for streams: a batch query holds no entries.",
                field="consumer",
                hint="Leave out consumer, or use spark.readStream.",
            )
        return options

    def _checked(self, schema: StructType) -> TopicSourceOptions:
        options = TopicSourceOptions.parse(self.options)
        if schema != _columns(options):
            raise SourceOptionError(
                "The source determines its columns.",
                field="schema",
                hint="Leave out schema(…), and select the columns that you need.",
            )
        return options


class PushdownTopicSource(TopicSource):
    """The same source with filter push-down, for sessions in which `register` enabled it."""

    def reader(self, schema: StructType) -> TopicReader:
        return PushdownTopicReader(self._batch_options(schema))


def register(spark: SparkSession) -> None:
    """Register both data sources in a session, with filter push-down if its Spark can."""
    use_this_python(spark)
    if enable_pushdown(spark):
        register_source(spark, PushdownTopicSource)
        register_source(spark, PushdownArchiveSource)
    else:
        register_source(spark, TopicSource)
        register_source(spark, ArchiveSource)


class ReadPartition(InputPartition):
    """Ranges of logs that one Spark task reads."""

    value: tuple[OffsetRange, ...]


class TopicReader(DataSourceReader):
    """Batch reader of the entries that exist when Spark plans the query."""

    def __init__(self, options: TopicSourceOptions) -> None:
        self._options = options
        self._bounds = ScanBounds()

    def partitions(self) -> list[InputPartition]:
        """Return the ranges of each task."""
        with LogReader(self._options.location.resolve()) as logs:
            states = requested_states(logs, self._options)
            ranges = (
                OffsetRange(*parse_key(key), state.first, state.end)
                for key, state in states.items()
            )
            narrowed = self._bounds.narrow(logs, ranges)
        # Spark replaces an empty list by a partition of its own, which `read` could not handle.
        return _partitions(narrowed, self._options) or [ReadPartition(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows(partition, self._options)


class PushdownTopicReader(TopicReader):
    """Batch reader that skips entries which the filters of the query exclude.

    Spark refuses a class with this method in a session without filter push-down.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's name)
        """Use filters to skip entries, and return all of them for Spark to evaluate again."""
        for condition in filters:
            self._bounds.add(condition)
        return filters


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream reader: micro-batches from offset to offset of every partition.

    Each micro-batch lists the logs again, so that a stream reads partitions and storage topics that
    are added while it runs from their beginning on. The offset of a purged log stays.
    """

    def __init__(self, options: TopicSourceOptions) -> None:
        self._options = options
        #: Last offsets of a query that reads what exists when it starts.
        self._target: Offsets | None = None
        #: Offsets up to which micro-batches are planned; Spark before 4.2 does not pass them.
        self._planned: Offsets = {}

    def initialOffset(self) -> Offsets:  # noqa: N802 (Spark's name)
        """Return the offsets of a new query, and hold entries from there on for its consumer."""
        options = self._options
        with LogReader(options.location.resolve()) as logs:
            states = requested_states(logs, options)
            offsets = {
                key: state.end if options.from_latest else state.first
                for key, state in states.items()
            }
            if options.consumer:
                consumers.hold(logs, options.consumer, offsets)
        self._planned = offsets
        return offsets

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 (Spark's name)
        """End the query with the entries that exist now."""
        self._target = self._ends()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 (Spark's name)
        """Return the limit of the option `rows_max`."""
        return read_limit(self._options.rows_max)

    def latestOffset(  # noqa: N802 (Spark's name)
        self, start: Offsets | None = None, limit: ReadLimit | None = None
    ) -> Offsets:
        """Return the offsets that the next micro-batch reaches.

        Spark before 4.2 passes no arguments. Raise StoreWentBackError if the store lost entries
        that the query has read.
        """
        start = self._planned if start is None else start
        ends = self._ends() if self._target is None else self._target
        _check_ends(start, ends)
        return limit_batch(start, ends, limit_rows(limit))

    def reportLatestOffset(self) -> Offsets:  # noqa: N802 (Spark's name)
        """Return the ends of the logs, which Spark shows in the progress of the query."""
        return self._ends()

    def partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        """Return the ranges of each task of a micro-batch."""
        # After a restart, older versions of Spark ask for the end without the start.
        _check_ends(start, end)
        ranges = ranges_between(start, end)
        if self._options.consumer:
            # `commit` has set these holds, except those of a partition that is new, of a query that
            # was started without a consumer, and those that the store or an operator removed.
            with LogReader(self._options.location.resolve()) as logs:
                unread = {each.key: each.start for each in ranges}
                consumers.hold(logs, self._options.consumer, unread)
        self._planned = end
        return _partitions(ranges, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows(partition, self._options)

    def commit(self, end: Offsets) -> None:
        """Move the holds of the consumer. Spark has recorded the micro-batch as completed."""
        if self._options.consumer:
            with LogReader(self._options.location.resolve()) as logs:
                consumers.commit(logs, self._options.consumer, end)

    def _ends(self) -> Offsets:
        with LogReader(self._options.location.resolve()) as logs:
            states = requested_states(logs, self._options)
        return {key: state.end for key, state in states.items()}


def requested_states(logs: LogReader, options: TopicSourceOptions) -> dict[str, LogState]:
    """Return the state of each partition that the options ask for, in the order of the logs.

    Raise TopicNotFoundError for a named topic without a log.
    """
    partitions: list[tuple[str, int]] = []
    found: set[str] = set()
    for log, count in logs.names().items():
        place = topic_place(log, 0)
        if options.table:
            is_requested = _feeds(log, options.table)
        elif place is None or place.project != options.project:
            is_requested = False
        else:
            is_requested = not options.topics or place.topic in options.topics
            found.add(place.topic)
        if is_requested:
            partitions += [(log, partition) for partition in range(count)]
    if missing := sorted(set(options.topics) - found):
        raise TopicNotFoundError(
            f"Topic {missing[0]} does not exist in project {options.project}.",
            hint="Give names that `waystation topic list` shows, or * for all topics.",
        )
    states = logs.states(partitions)
    return {f"{log}/{partition}": state for (log, partition), state in states.items()}


def record_schema(table: str) -> pa.Schema:
    """Return the columns of a table of record logs.

    In place of the lake's stamp, a row has its log, partition and offset, its number in the entry,
    and its time. `gap` is the number of entries that the reader did not find at the offset.
    """
    log = [("log", pa.string()), ("log_partition", pa.int32())]
    own = [(field.name, field.type) for field in own_columns(_TABLES[table])]
    return pa.schema([*log, *own, ("gap", pa.int64())])


def _feeds(log: str, table: str) -> bool:
    """Return whether entries of a log can become rows of a table."""
    decoder = decoder_for(log)
    if decoder is None:
        return False
    projection = PROJECTIONS.get(table)
    return decoder.table.name == table or (
        projection is not None and projection.source is decoder.table
    )


def _columns(options: TopicSourceOptions) -> StructType:
    return from_arrow_schema(record_schema(options.table)) if options.table else MESSAGE_COLUMNS


def _partitions(ranges: Iterable[OffsetRange], options: TopicSourceOptions) -> list[InputPartition]:
    """Return Spark partitions of about the same size: split large ranges, combine small ones."""
    packed = pack_ranges(ranges, rows=options.partition_rows, tasks_max=options.tasks_max)
    return [ReadPartition(tuple(each)) for each in packed]


def _check_ends(start: Offsets, ends: Offsets) -> None:
    """Raise StoreWentBackError if a partition ends before the start of a micro-batch."""
    for key, end in ends.items():
        if end < start.get(key, 0):
            raise went_back(OffsetRange(*parse_key(key), end, start[key]), end)


def _rows(partition: InputPartition, options: TopicSourceOptions) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Spark partition, range by range."""
    assert isinstance(partition, ReadPartition), "Spark returns the partitions that it was given"
    if not partition.value:
        return
    with LogReader(options.location.resolve()) as logs:
        yield from without_collections(_batches(logs, partition.value, options))


def _batches(
    logs: LogReader, ranges: Iterable[OffsetRange], options: TopicSourceOptions
) -> Iterator[pa.RecordBatch]:
    for offsets in ranges:
        place = topic_place(offsets.log, offsets.partition)
        for part in logs.blocks(offsets, on_gap=options.on_gap):
            if place is None:
                yield _record_batch(options.table, offsets, part)
            elif isinstance(part, Gap):
                yield gap_batch(place, part.start, part.end)
            else:
                yield message_batch(place, part)


def _record_batch(table: str, offsets: OffsetRange, part: LogBatch | Gap) -> pa.RecordBatch:
    """Return the rows of a block of a record log, or the one row of a gap."""
    schema = record_schema(table)
    if isinstance(part, Gap):
        gap = {"log": part.log, "log_partition": part.partition, "log_offset": part.start}
        return pa.RecordBatch.from_pylist([{**gap, "gap": part.rows}], schema=schema)
    decoder = decoder_for(offsets.log)
    assert decoder is not None, "only logs that feed the table are planned"
    rows = decoder.decode(offsets, part)
    if decoder.table.name != table:
        rows = PROJECTIONS[table].rows(rows)
    added = {
        "log": pa.repeat(pa.scalar(offsets.log), rows.num_rows),
        "log_partition": pa.repeat(pa.scalar(offsets.partition, pa.int32()), rows.num_rows),
        "gap": pa.nulls(rows.num_rows, pa.int64()),
    }
    columns = [added[name] if name in added else rows.column(name) for name in schema.names]
    return pa.record_batch(columns, schema=schema)
