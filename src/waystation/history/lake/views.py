"""Views of a lake snapshot in a Spark session, and SQL queries over them.

    spark = attach(SparkSession.builder.getOrCreate(), lake="data/lake")
    spark.sql("select topic, count(*) from waystation.messages group by 1").show()

Each table is the view `waystation.<table>`. A view reads the files of one version of its table, so
it does not show later commits; attach again to see them. Rows that a restored store lost are only
in `waystation.<table>_all`. `lake/projections.py` computes the views `steps`, `operations` and
`gaps` from the rows of tables.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from waystation.errors import LakeRefusedError, QueryError
from waystation.history.lake.files import DECLARED
from waystation.history.lake.projections import (
    GAPS,
    gaps_query,
    lost_query,
    operations_query,
    steps_query,
    withheld_query,
)
from waystation.history.lake.rollup_schema import ROLLUPS
from waystation.history.lake.schema import (
    BASE,
    CHANNELS,
    DAY,
    DELIVERIES,
    OPERATIONS,
    POOLS,
    ROW_STATE,
    STAMP,
    STEPS,
    TRANSACTIONS,
    RowState,
)
from waystation.history.lake.table import AnySchema, Lake, LakeSnapshot, LakeTable
from waystation.history.sources.topics import register
from waystation.history.spark_errors import spark_gone

_DATABASE = "waystation"
#: Characters with a meaning in the path patterns from which views are created.
_SPECIAL = frozenset("`'{}[]*?,\\")


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
        if schema is OPERATIONS:
            continue  # Its views have rows of `deliveries`, too.
        table = snapshot.get(schema.name)
        _create_view(spark, schema.name, _select(schema, table, schema.columns))
        columns = [*schema.columns, ROW_STATE]
        everything = _select(schema, table, columns, ("live", "lost"))
        _create_view(spark, f"{schema.name}_all", everything)
    _create_derived_views(spark, snapshot)
    for rollup in ROLLUPS:
        table = snapshot.get(rollup.name)
        _create_view(spark, rollup.name, _select(rollup, table, rollup.schema.names))
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
        except (EOFError, ConnectionError) as error:
            # Rows come over a socket of the Java process.
            raise spark_gone() from error


def run_query(spark: SparkSession, lake: Lake, sql: str) -> QueryResult:
    """Run a query over the views of a lake. Raise QueryError if Spark rejects it."""
    attach(spark, lake=lake.root)
    return query_views(spark, sql)


def query_views(spark: SparkSession, sql: str) -> QueryResult:
    """Run a query over the views that a session has. Raise QueryError if Spark rejects it."""
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


def _create_derived_views(spark: SparkSession, snapshot: LakeSnapshot) -> None:
    """Create the views of rows that are computed from other tables."""
    for suffix, more in (("", []), ("_all", [ROW_STATE])):
        columns = [*STEPS.columns, *more]
        query = steps_query(f"{_DATABASE}.{TRANSACTIONS.name}{suffix}", columns)
        _create_view(spark, f"{STEPS.name}{suffix}", query)
        columns = [*OPERATIONS.columns, *more]
        states: tuple[RowState, ...] = ("live", "lost") if more else ("live",)
        own = _select(OPERATIONS, snapshot.get(OPERATIONS.name), columns, states)
        query = operations_query(f"{_DATABASE}.{DELIVERIES.name}{suffix}", columns)
        _create_view(spark, f"{OPERATIONS.name}{suffix}", f"{own} union all {query}")
    parts = [_empty(GAPS, GAPS.names)]
    stamp = [*STAMP.names]
    for schema in BASE:
        table = snapshot.get(schema.name)
        if table is not None and table.files(("gap",)):
            parts.append(gaps_query(_files_query(schema, table, stamp, ("gap",))))
        if table is not None and table.files(("lost",)):
            parts.append(lost_query(_files_query(schema, table, stamp, ("lost",))))
    for schema in (CHANNELS, POOLS):
        if schema.name in snapshot:
            parts.append(withheld_query(f"{_DATABASE}.{schema.name}"))
    _create_view(spark, "gaps", " union all ".join(parts))


def _create_view(spark: SparkSession, name: str, query: str) -> None:
    spark.sql(f"create or replace view {_DATABASE}.{name} as {query}")


def _select(
    schema: AnySchema,
    table: LakeTable | None,
    columns: Sequence[str],
    states: Sequence[RowState] = ("live",),
) -> str:
    """Return a query for the rows of a table in some states, without the rows of gaps."""
    if table is None or not table.files(states):
        return _empty(schema.schema, columns)
    query = _files_query(schema, table, columns, states)
    # A gap that a restored store does not have any more is lost, too.
    return f"{query} where gap_end is null" if "lost" in states else query


def _empty(schema: pa.Schema, columns: Sequence[str]) -> str:
    types = {each.name: each.dataType.simpleString() for each in from_arrow_schema(schema)}
    nulls = (f"cast(null as {types[name]}) `{name}`" for name in columns)
    return f"select {', '.join(nulls)} where false"


def _files_query(
    schema: AnySchema, table: LakeTable, columns: Sequence[str], states: Sequence[RowState]
) -> str:
    """Return a query for the rows of the files of some states.

    List the files of its version, because the folder also contains files of no version.
    """
    files = table.files(states)
    names = ", ".join(f"`{name}`" for name in columns)
    # Files that were written before a column was added do not have it.
    has_new_columns = any(path.startswith(f"{DAY}={DECLARED}/") for path in files)
    merged = ", mergeSchema 'true'" if has_new_columns else ""
    # Spark finds the columns of partitions in the paths only if it knows the base path.
    return (
        f"select {names} from parquet.`{table.folder}/{{{','.join(files)}}}`"  # noqa: S608 (ours)
        f" with (basePath '{table.folder}'{merged})"
    )
