"""The Spark data source `waystation`: topics and record logs as tables and as streams.

    spark.read.format("waystation").option("topic", "orders").load()
    spark.readStream.format("waystation").option("topic", "*").load()
    spark.read.format("waystation").option("table", "deliveries").load()

Spark discovers `TopicSource` through the installed package `pyspark_waystation`. It works in every
session, but reads whole topics. `register` replaces it by `PushdownTopicSource`, which skips
partitions and offsets that the filters of a query exclude.
"""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from waystation.errors import SourceOptionError
from waystation.history.decoders.messages import MESSAGE_SCHEMA
from waystation.history.session import enable_pushdown, use_this_python
from waystation.history.sources.archive import PushdownArchiveSource
from waystation.history.sources.batch_reader import BatchReader, NarrowingBatchReader
from waystation.history.sources.options import SourceOptions, read_options
from waystation.history.sources.record_table import record_schema
from waystation.history.sources.stream_reader import StreamReader

#: The same columns, as Spark has them.
MESSAGE_COLUMNS = from_arrow_schema(MESSAGE_SCHEMA)


class TopicSource(DataSource):
    """Data source of topics and record logs for any session; it pushes no filters down.

    The options are described in docs/internals/history.md.
    """

    @classmethod
    def name(cls) -> str:
        return "waystation"

    def schema(self) -> StructType:
        # Parse here, so that `load` reports an invalid option.
        return _columns(read_options(self.options))

    def reader(self, schema: StructType) -> BatchReader:
        return BatchReader(self._checked(schema))

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 (Spark's name)
        return StreamReader(self._checked(schema))

    def _checked(self, schema: StructType) -> SourceOptions:
        options = read_options(self.options)
        if schema != _columns(options):
            raise SourceOptionError(
                "The columns of a topic cannot be chosen.",
                field="schema",
                hint="Leave out schema(…), and select what you need.",
            )
        return options


class PushdownTopicSource(TopicSource):
    """The same source with filter push-down, for sessions in which `register` enabled it."""

    def reader(self, schema: StructType) -> BatchReader:
        return NarrowingBatchReader(self._checked(schema))


def _columns(options: SourceOptions) -> StructType:
    if options.table:
        return from_arrow_schema(record_schema(options.table))
    return MESSAGE_COLUMNS


def register(spark: SparkSession) -> None:
    """Register both data sources with filter push-down in a session and enable it there."""
    use_this_python(spark)
    enable_pushdown(spark)
    spark.dataSource.register(PushdownTopicSource)
    spark.dataSource.register(PushdownArchiveSource)
