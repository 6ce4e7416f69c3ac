"""The Spark data source `waystation`: topics and record logs as tables and as streams.

    spark.read.format("waystation").option("topic", "orders").load()
    spark.readStream.format("waystation").option("topic", "*").load()
    spark.read.format("waystation").option("table", "deliveries").load()

Spark finds it by itself where the package is installed (`pyspark_waystation`).
"""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from waystation.errors import SourceOptionError
from waystation.history.decoders.messages import MESSAGE_SCHEMA
from waystation.history.session import prepared
from waystation.history.sources.archive import WaystationArchiveSource
from waystation.history.sources.batch_reader import BatchReader, NarrowingBatchReader
from waystation.history.sources.options import SourceOptions, read_options
from waystation.history.sources.record_table import record_schema
from waystation.history.sources.stream_reader import StreamReader

#: The same columns, as Spark has them.
MESSAGE_COLUMNS = from_arrow_schema(MESSAGE_SCHEMA)


class WaystationSource(DataSource):
    """Reads topics and record logs; options are told in docs/internals/history.md."""

    @classmethod
    def name(cls) -> str:
        return "waystation"

    def schema(self) -> StructType:
        # Here at the latest, so that a wrong option is told by `load`.
        return _columns(read_options(self.options))

    def reader(self, schema: StructType) -> BatchReader:
        options = self._checked(schema)
        return NarrowingBatchReader(options) if options.pushdown else BatchReader(options)

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


def _columns(options: SourceOptions) -> StructType:
    if options.table:
        return from_arrow_schema(record_schema(options.table))
    return MESSAGE_COLUMNS


def register(spark: SparkSession) -> None:
    """Registers the sources in a session, and sets what they need there."""
    sources = prepared(spark).dataSource
    sources.register(WaystationSource)
    sources.register(WaystationArchiveSource)
