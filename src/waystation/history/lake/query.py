"""Asking the lake in SQL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from waystation.errors import QueryError
from waystation.history.lake.table import Lake
from waystation.history.lake.views import attach


class Answer(msgspec.Struct, frozen=True):
    """What a query gives; rows are made as they are taken."""

    columns: list[str]
    frame: DataFrame

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """All rows, with what is nested in them as dictionaries and lists."""
        try:
            for row in self.frame.toLocalIterator():
                yield tuple(_plain(value) for value in row)
        except PySparkException as error:
            raise _refused(error) from error


def ask(spark: SparkSession, lake: Lake, query: str) -> Answer:
    """Asks; QueryError for what Spark does not understand or cannot do."""
    attach(spark, lake=lake.root)
    try:
        frame = spark.sql(query)
    except PySparkException as error:
        raise _refused(error) from error
    return Answer(frame.columns, frame)


def _refused(error: PySparkException) -> QueryError:
    # A sentence, and then pages of plans.
    first = next((line for line in str(error).splitlines() if line.strip()), str(error))
    return QueryError(first.strip(), hint="`show tables in waystation` tells what there is.")


def _plain(value: Any) -> Any:
    if isinstance(value, Row):
        return {name: _plain(each) for name, each in value.asDict().items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return bytes(value) if isinstance(value, bytearray) else value
