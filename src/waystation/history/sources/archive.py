"""The Spark data source `waystation.archive`: archived transactions as a table.

    spark.read.format("waystation.archive").option("archive", "/data/archive.db").load()

Spark tasks read ranges of ids in parallel. In a session that `attach` or
`pyspark_waystation.register` prepared, the database evaluates filters on ids, projects, pipelines,
statuses and times, and Spark evaluates them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from waystation.archive.scan import ArchiveScan, Condition, IdRange
from waystation.errors import SourceOptionError
from waystation.history.decoders.messages import TIME
from waystation.history.sources.filters import archive_condition
from waystation.history.sources.options import ArchiveOptions

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

#: Columns of the source, in the order of the archive's columns.
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
#: Columns in which the archive stores an empty text for a missing value.
_OPTIONAL = ("external_id", "step")


class ArchiveSource(DataSource):
    """Data source of the archive for any session; it pushes no filters down.

    The options are described in docs/internals/history.md.
    """

    @classmethod
    def name(cls) -> str:
        return "waystation.archive"

    def schema(self) -> StructType:
        # Parse here, so that `load` reports an invalid option.
        ArchiveOptions.parse(self.options)
        return _COLUMNS

    def reader(self, schema: StructType) -> ArchiveReader:
        return ArchiveReader(self._checked(schema))

    def _checked(self, schema: StructType) -> ArchiveOptions:
        if schema != _COLUMNS:
            raise SourceOptionError(
                "The source determines its columns.",
                field="schema",
                hint="Leave out schema(…), and select the columns that you need.",
            )
        return ArchiveOptions.parse(self.options)


class PushdownArchiveSource(ArchiveSource):
    """The same source with filter push-down, for sessions in which `register` enabled it."""

    def reader(self, schema: StructType) -> ArchiveReader:
        return PushdownArchiveReader(self._checked(schema))


class ArchivePartition(InputPartition):
    """Range of ids that one Spark task reads."""

    value: IdRange


class ArchiveReader(DataSourceReader):
    """Batch reader of all archived transactions."""

    def __init__(self, options: ArchiveOptions) -> None:
        self._options = options
        self._conditions: list[Condition] = []

    def partitions(self) -> list[InputPartition]:
        """Return a range of ids for each task.

        The ranges cover all ids, so a task also reads transactions that are archived later.
        """
        options = self._options
        with ArchiveScan(options.location.resolve()) as scan:
            ranges = scan.ranges(
                self._conditions, rows=options.partition_rows, most=options.tasks_max
            )
        return [ArchivePartition(each) for each in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ArchivePartition), "Spark returns what it was given"
        with ArchiveScan(self._options.location.resolve()) as scan:
            for page in scan.pages(partition.value, self._conditions):
                yield _batch(page)


class PushdownArchiveReader(ArchiveReader):
    """Batch reader whose database evaluates filters of the query.

    Spark refuses a class with this method in a session without filter push-down.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's name)
        """Use the filters that the archive can evaluate, and return all of them for Spark."""
        found = (archive_condition(each) for each in filters)
        self._conditions += [each for each in found if each is not None]
        return filters


def _batch(page: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(*page, strict=True)
    return pa.record_batch(
        [_column(field, values) for field, values in zip(ARCHIVE_SCHEMA, columns, strict=True)],
        schema=ARCHIVE_SCHEMA,
    )


def _column(field: pa.Field, values: tuple[Any, ...]) -> pa.Array:
    if field.type == TIME:
        # The archive has milliseconds, and 0 for a missing time.
        return pa.array([ms * 1000 if ms else None for ms in values], pa.int64()).cast(TIME)
    if field.name in _OPTIONAL:
        return pa.array([value or None for value in values], field.type)
    return pa.array(values, field.type)
