"""Views of a lake snapshot in a Spark session, and SQL queries over them.

    spark = attach(SparkSession.builder.getOrCreate(), lake="data/lake")
    spark.sql("select topic, count(*) from waystation.messages group by 1").show()

Each table is the view `waystation.<table>`. Rows that a restored store lost are only in
`waystation.<table>_all`. `lake/projections.py` computes the views `steps`, `operations` and `gaps`
from the rows of tables. `lake/view_updates.py` replaces the views before a query if the lake has
new commits.

A view reads a table of the database `waystation_files`, which is one version of a table of the
lake: the folder of the table with the names of the files of this version as a filter, because the
folder also contains files of no version. Spark lists the folder once per session.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence, Set
from hashlib import sha256
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from waystation.errors import LakeRefusedError, QueryError
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
    DELIVERIES,
    OPERATIONS,
    POOLS,
    ROW_STATE,
    ROW_STATES,
    STAMP,
    STEPS,
    TRANSACTIONS,
    RowState,
)
from waystation.history.lake.table import AnySchema, Lake, LakeSnapshot, LakeTable
from waystation.history.lake.view_updates import (
    FollowedLake,
    follow_lake,
    plain_sql,
    stop_following,
)
from waystation.history.sources.topics import register
from waystation.history.spark_errors import spark_gone

_DATABASE = "waystation"
#: Database of the tables that the views read.
_FILES = "waystation_files"
#: Characters with a meaning in the path patterns of Spark.
_SPECIAL = frozenset("`'{}[]*?,\\")


def attach(spark: SparkSession, *, lake: str | LakeSnapshot, follow: bool = True) -> SparkSession:
    """Create or replace the views of a lake, register the data sources, and return the session.

    Each later call of `sql`, `table` and `read.table` of this session first updates the views if
    the lake has new commits, and reads one version of all tables. With `follow=False` or a
    snapshot, the views stay as they are until the next `attach`. A DataFrame never changes its
    version, except in a session of Spark Connect, which looks up the views when it runs a query.

    A table that does not exist yet is an empty view. Raise NoLakeError if there is no lake,
    LakeDamagedError if one of its files is missing or was changed.
    """
    stop_following(spark)
    snapshot = open_snapshot(lake) if isinstance(lake, str) else lake
    register(spark)
    for database in (_DATABASE, _FILES):
        spark.sql(f"create database if not exists {database}")
    show_snapshot(spark, snapshot, None)
    if follow and isinstance(lake, str):
        follow_lake(spark, FollowedLake(snapshot, show_snapshot))
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


# -- Views ---------------------------------------------------------------------------------------


def show_snapshot(spark: SparkSession, snapshot: LakeSnapshot, shown: LakeSnapshot | None) -> None:
    """Let the views show a snapshot. Leave views alone that already do, if they show `shown`."""
    changed = {
        schema.name
        for schema in (*BASE, *ROLLUPS)
        if shown is None or _identity(snapshot, schema) != _identity(shown, schema)
    }
    files = {
        schema.name: _create_file_table(spark, schema, snapshot[schema.name])
        for schema in (*BASE, *ROLLUPS)
        if schema.name in changed and schema.name in snapshot
    }
    for schema in BASE:
        # The views of `operations` have rows of `deliveries`, too.
        if schema.name in changed and schema is not OPERATIONS:
            table = snapshot.get(schema.name)
            _create_view(spark, schema.name, _rows(schema, table, schema.columns, ("live",)))
            columns = [*schema.columns, ROW_STATE]
            everything = _rows(schema, table, columns, ("live", "lost"))
            _create_view(spark, f"{schema.name}_all", everything)
    _create_derived_views(spark, snapshot, changed)
    for rollup in ROLLUPS:
        if rollup.name in changed:
            table = snapshot.get(rollup.name)
            _create_view(spark, rollup.name, _rows(rollup, table, rollup.schema.names, ()))
    _drop_file_tables(spark, files)


def _identity(snapshot: LakeSnapshot, schema: AnySchema) -> tuple[str, str, int] | None:
    table = snapshot.get(schema.name)
    return None if table is None else (table.folder, table.id, table.version)


def _create_derived_views(spark: SparkSession, snapshot: LakeSnapshot, changed: set[str]) -> None:
    """Create the views of rows that are computed from other tables."""
    for suffix, more in (("", []), ("_all", [ROW_STATE])):
        if TRANSACTIONS.name in changed:
            query = steps_query(f"{_DATABASE}.{TRANSACTIONS.name}{suffix}", [*STEPS.columns, *more])
            _create_view(spark, f"{STEPS.name}{suffix}", query)
        if {OPERATIONS.name, DELIVERIES.name} & changed:
            columns = [*OPERATIONS.columns, *more]
            states: tuple[RowState, ...] = ("live", "lost") if more else ("live",)
            own = _rows(OPERATIONS, snapshot.get(OPERATIONS.name), columns, states)
            query = operations_query(f"{_DATABASE}.{DELIVERIES.name}{suffix}", columns)
            _create_view(spark, f"{OPERATIONS.name}{suffix}", f"{own} union all {query}")
    if {schema.name for schema in BASE} & changed:
        _create_view(spark, "gaps", _gaps(snapshot))


def _gaps(snapshot: LakeSnapshot) -> str:
    parts = [_empty(GAPS, GAPS.names)]
    for schema in BASE:
        table = snapshot.get(schema.name)
        # Leave out tables without gaps, because each part of the view costs planning.
        if table is not None and table.files(("gap",)):
            parts.append(gaps_query(_file_rows(table, STAMP.names, ("gap",))))
        if table is not None and table.files(("lost",)):
            parts.append(lost_query(_file_rows(table, STAMP.names, ("lost",))))
    for schema in (CHANNELS, POOLS):
        if schema.name in snapshot:
            parts.append(withheld_query(f"{_DATABASE}.{schema.name}"))
    return " union all ".join(parts)


def _create_view(spark: SparkSession, name: str, query: str) -> None:
    plain_sql(spark, f"create or replace view {_DATABASE}.{name} as {query}")


def _rows(
    schema: AnySchema, table: LakeTable | None, columns: Sequence[str], states: Sequence[RowState]
) -> str:
    """Return a query for the rows of a table in some states, without the rows of gaps.

    Return the rows of a rollup, which have no states.
    """
    if table is None:
        return _empty(schema.schema, columns)
    query = _file_rows(table, columns, states)
    # A restored store can lose gaps, too. Leave them out, because they have no rows.
    return f"{query} and gap_end is null" if "lost" in states else query


def _empty(schema: pa.Schema, columns: Sequence[str]) -> str:
    types = _column_types(schema)
    nulls = (f"cast(null as {types[name]}) `{name}`" for name in columns)
    return f"select {', '.join(nulls)} where false"


def _column_types(schema: pa.Schema) -> dict[str, str]:
    return {each.name: each.dataType.simpleString() for each in from_arrow_schema(schema)}


# -- Tables that the views read --------------------------------------------------------------------


def _file_rows(table: LakeTable, columns: Sequence[str], states: Sequence[RowState]) -> str:
    names = ", ".join(f"`{name}`" for name in columns)
    query = f"select {names} from {_FILES}.{_file_table(table)}"  # noqa: S608 (our names)
    listed = ", ".join(f"'{state}'" for state in states)
    # The state is in the path of a file: Spark reads only files of these states.
    return f"{query} where {ROW_STATE} in ({listed})" if states else query


def _file_table(table: LakeTable) -> str:
    """Return a name for this version of a table, other than that of any other version."""
    digest = sha256(f"{table.folder} {table.id}".encode()).hexdigest()[:12]
    return f"{table.schema.name}__{digest}_{table.version}"


def _create_file_table(spark: SparkSession, schema: AnySchema, table: LakeTable) -> str:
    """Create the table of the files of one version, and return its name.

    The columns are given, because files that were written before a column was added lack it, and
    because Spark would read a file to find them.
    """
    name = _file_table(table)
    types = _column_types(schema.schema)
    columns = ", ".join(f"`{column}` {kind}" for column, kind in types.items())
    names = {path.rpartition("/")[2] for path in table.files(ROW_STATES)}
    # A file system has no file with a name of nothing but blanks.
    pattern = name_pattern(names) or " "
    # With a location, the table is external: to drop it deletes no file.
    plain_sql(
        spark,
        f"create table if not exists {_FILES}.{name} ({columns}) using parquet"
        f" options (pathGlobFilter '{pattern}') location '{table.folder}'",
    )
    return name


def _drop_file_tables(spark: SparkSession, created: dict[str, str]) -> None:
    """Drop the tables of former versions.

    Of the tables that are not in use, keep the newest one of each, because another session of this
    application may be about to read it: it has read the text of a view already.
    """
    found = [row.tableName for row in plain_sql(spark, f"show tables in {_FILES}").collect()]
    for schema_name, name in created.items():
        others = [each for each in found if each.startswith(f"{schema_name}__") and each != name]
        for each in sorted(others, key=lambda other: int(other.rpartition("_")[2]))[:-1]:
            plain_sql(spark, f"drop table if exists {_FILES}.{each}")


def name_pattern(names: Set[str]) -> str:
    """Return a path pattern of Spark that matches exactly these names.

    Write a common beginning of names once, because Spark compares each name of the folder with the
    alternatives one by one.
    """
    if len(names) < 2:
        return next(iter(names), "")
    rest: dict[str, set[str]] = {}
    for name in sorted(names):
        rest.setdefault(name[:1], set()).add(name[1:])
    alternatives = [first + name_pattern(others) for first, others in rest.items()]
    return alternatives[0] if len(alternatives) == 1 else f"{{{','.join(alternatives)}}}"
