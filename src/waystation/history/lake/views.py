"""Views of a lake snapshot in a Spark session, and SQL queries over them.

    spark = attach(SparkSession.builder.getOrCreate(), lake="data/lake")
    spark.sql("select topic, count(*) from waystation.messages group by 1").show()

Each table is the view `waystation.<table>`. A view reads the files of one version of its table, so
it does not show later commits; attach again to see them. Rows that a restored store lost are only
in `waystation.<table>_all`. The view `gaps` also has the ranges that channels and pools withhold,
whose rows of kind `withheld` are in the tables `channels` and `pools`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from waystation.errors import LakeRefusedError, QueryError
from waystation.history.lake.files import DECLARED
from waystation.history.lake.rollup_schema import ROLLUPS
from waystation.history.lake.schema import BASE, DAY, GAPS
from waystation.history.lake.table import AnySchema, Lake, LakeSnapshot, LakeTable
from waystation.history.sources.topics import register

_DATABASE = "waystation"
#: Characters with a meaning in the path patterns from which views are created.
_SPECIAL = frozenset("`'{}[]*?,\\")
#: The gaps that ingest stored, and each range of consecutive withheld entries of a record log.
_GAPS = f"""
    select * from {_DATABASE}.gaps_all where not lost
    union all
    select min(day), dataset, log, log_partition, min(log_offset), 0, min(time), min(ingested),
           false, min(log_offset), max(log_offset) + 1, count(*), 'policy'
    from (select *, log_offset - row_number() over (
                        partition by dataset, log, log_partition order by log_offset) run
          from (select day, dataset, log, log_partition, log_offset, time, ingested
                from {_DATABASE}.channels where kind = 'withheld'
                union all
                select day, dataset, log, log_partition, log_offset, time, ingested
                from {_DATABASE}.pools where kind = 'withheld'))
    group by dataset, log, log_partition, run"""  # noqa: S608 (our names)


def attach(spark: SparkSession, *, lake: str | LakeSnapshot) -> SparkSession:
    """Create or replace the views of a lake, register the data sources, and return the session.

    A table that does not exist yet is an empty view. Raise NoLakeError if there is no lake,
    LakeDamagedError if one of its files is missing or was changed.
    """
    snapshot = open_snapshot(lake) if isinstance(lake, str) else lake
    _silence_path_warnings(spark)
    register(spark)
    spark.sql(f"create database if not exists {_DATABASE}")
    for schema in BASE:
        everything = f"{_DATABASE}.{schema.name}_all"
        query = _select(schema, snapshot.get(schema.name))
        spark.sql(f"create or replace view {everything} as {query}")
        spark.sql(
            f"create or replace view {_DATABASE}.{schema.name} as"  # noqa: S608 (our names)
            f" select * from {everything} where not lost"
        )
    spark.sql(f"create or replace view {_DATABASE}.{GAPS.name} as {_GAPS}")
    for rollup in ROLLUPS:
        query = _select(rollup, snapshot.get(rollup.name))
        spark.sql(f"create or replace view {_DATABASE}.{rollup.name} as {query}")
    return spark


def open_snapshot(lake: str) -> LakeSnapshot:
    """Return a verified snapshot of a lake. Raise the errors of `attach`."""
    root = lake if "://" in lake else os.path.abspath(lake)
    if special := sorted(_SPECIAL & set(root)):
        raise LakeRefusedError(
            f"The path of the lake contains {special[0]}, which Spark reads as a pattern.",
            hint="Move the lake, or name it by a symbolic link.",
        )
    snapshot = Lake(root).snapshot()
    snapshot.require()
    snapshot.verify_files()
    return snapshot


class QueryResult(msgspec.Struct, frozen=True):
    """Result of an SQL query. Spark computes rows while the caller iterates."""

    columns: list[str]
    frame: DataFrame

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield all rows. Structs become dictionaries, arrays become lists."""
        try:
            for row in self.frame.toLocalIterator():
                yield tuple(_plain(value) for value in row)
        except PySparkException as error:
            raise _query_error(error) from error


def run_query(spark: SparkSession, lake: Lake, sql: str) -> QueryResult:
    """Run a query over the views of a lake. Raise QueryError if Spark rejects it."""
    attach(spark, lake=lake.root)
    try:
        frame = spark.sql(sql)
    except PySparkException as error:
        raise _query_error(error) from error
    return QueryResult(frame.columns, frame)


def _query_error(error: PySparkException) -> QueryError:
    # Only the first line, because Spark appends pages of plans.
    first = next((line for line in str(error).splitlines() if line.strip()), str(error))
    return QueryError(first.strip(), hint="List the views with `show tables in waystation`.")


def _plain(value: Any) -> Any:
    if isinstance(value, Row):
        return {name: _plain(each) for name, each in value.asDict().items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return bytes(value) if isinstance(value, bytearray) else value


def _silence_path_warnings(spark: SparkSession) -> None:
    """Stop Spark from logging 100 lines per view because a path pattern is not a folder."""
    # A session of Spark Connect has no Java here; its server has a log of its own.
    with suppress(PySparkException, AttributeError):
        java = spark.sparkContext._jvm
        level = java.org.apache.logging.log4j.Level.ERROR  # type: ignore[union-attr]
        java.org.apache.logging.log4j.core.config.Configurator.setLevel(  # type: ignore[union-attr]
            "org.apache.spark.sql.execution.streaming.sinks.FileStreamSink", level
        )


def _select(schema: AnySchema, table: LakeTable | None) -> str:
    """Return a query for all rows of a table.

    List the files of its version, because the folder also contains files of no version.
    """
    columns = from_arrow_schema(schema.schema)
    files = table.files() if table is not None else []
    if table is None or not files:
        empty = (f"cast(null as {each.dataType.simpleString()}) `{each.name}`" for each in columns)
        return f"select {', '.join(empty)} where false"
    names = ", ".join(f"`{each.name}`" for each in columns)
    # Files that were written before a column was added do not have it.
    has_new_columns = any(path.startswith(f"{DAY}={DECLARED}/") for path in files)
    merged = ", mergeSchema 'true'" if has_new_columns else ""
    # Spark finds the column `day` in the paths only if it knows the base path.
    return (
        f"select {names} from parquet.`{table.folder}/{{{','.join(files)}}}`"  # noqa: S608 (ours)
        f" with (basePath '{table.folder}'{merged})"
    )
