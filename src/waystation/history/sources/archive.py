"""The Spark data source `waystation.archive`: archived transactions as a table.

    spark.read.format("waystation.archive").option("archive", "/data/archive.db").load()

Spark tasks read ranges of ids in parallel. In a session that `attach` or
`pyspark_waystation.register` prepared, the database evaluates filters on ids, projects, pipelines,
statuses and times, and Spark evaluates them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from waystation.archive.scan import ArchiveScan, Condition, IdRange
from waystation.errors import SourceOptionError
from waystation.history.decoders.messages import TIME
from waystation.history.sources.archive_filters import condition_of
from waystation.history.sources.archive_options import ArchiveOptions, read_archive_options

#: In the order of the archive's own columns.
ARCHIVE_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("project", pa.string()),
        ("external_id", pa.string()),
        ("pipeline", pa.string()),
        ("status", pa.string()),
        ("step", pa.string()),
        ("version", pa.int64()),
        ("wake", TIME),
        ("deadline", TIME),
        ("started", TIME),
        ("updated", TIME),
        ("completed", TIME),
        ("state", pa.binary()),
        ("fields", pa.binary()),
    ]
)
_COLUMNS = from_arrow_schema(ARCHIVE_SCHEMA)
#: Empty in the archive where there is none.
_OPTIONAL = ("external_id", "step")


class Range(InputPartition):
    """What one task of Spark reads."""

    def __init__(self, ids: IdRange) -> None:
        super().__init__(ids)


class ArchiveReader(DataSourceReader):
    """Reads everything; Spark filters."""

    def __init__(self, options: ArchiveOptions) -> None:
        self._options = options
        self._conditions: list[Condition] = []

    def partitions(self) -> list[InputPartition]:
        """What is archived later comes with the range that its id falls into."""
        options = self._options
        with ArchiveScan(options.place.find()) as scan:
            ranges = scan.ranges(
                self._conditions, rows=options.partition_rows, most=options.tasks_max
            )
        return [Range(each) for each in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range), "Spark gives back what it was given"
        with ArchiveScan(self._options.place.find()) as scan:
            for page in scan.pages(partition.value, self._conditions):
                yield _batch(page)


class NarrowingArchiveReader(ArchiveReader):
    """Leaves out what filters rule out. Spark refuses it where push-down is not switched on."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's name)
        """Takes note of those it understands, and lets Spark check all of them too."""
        found = (condition_of(each) for each in filters)
        self._conditions += [each for each in found if each is not None]
        return filters


class ArchiveSource(DataSource):
    """Data source of the archive for any session; it pushes no filters down.

    The options are described in docs/internals/history.md.
    """

    @classmethod
    def name(cls) -> str:
        return "waystation.archive"

    def schema(self) -> StructType:
        # Parse here, so that `load` reports an invalid option.
        read_archive_options(self.options)
        return _COLUMNS

    def reader(self, schema: StructType) -> ArchiveReader:
        return ArchiveReader(self._checked(schema))

    def _checked(self, schema: StructType) -> ArchiveOptions:
        if schema != _COLUMNS:
            raise SourceOptionError(
                "The columns of the archive cannot be chosen.",
                field="schema",
                hint="Leave out schema(…), and select what you need.",
            )
        return read_archive_options(self.options)


class PushdownArchiveSource(ArchiveSource):
    """The same source with filter push-down, for sessions in which `register` enabled it."""

    def reader(self, schema: StructType) -> ArchiveReader:
        return NarrowingArchiveReader(self._checked(schema))


def _batch(page: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(*page, strict=True)
    return pa.record_batch(
        [_column(field, values) for field, values in zip(ARCHIVE_SCHEMA, columns, strict=True)],
        schema=ARCHIVE_SCHEMA,
    )


def _column(field: pa.Field, values: tuple[Any, ...]) -> pa.Array:
    if field.type == TIME:
        # Milliseconds; 0 is none.
        return pa.array([ms * 1000 if ms else None for ms in values], pa.int64()).cast(TIME)
    if field.name in _OPTIONAL:
        return pa.array([value or None for value in values], field.type)
    return pa.array(values, field.type)
