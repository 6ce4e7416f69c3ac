"""Views: the tables of a lake as `waystation.<table>` in a Spark session.

    spark = attach(SparkSession.builder.getOrCreate(), lake="data/lake")
    spark.sql("select topic, count(*) from waystation.messages group by 1").show()

They are a snapshot: the files that the tables consist of now. Attach again to see what came since.
Rows that a restored store has lost are in `waystation.<table>_all` alone.
"""

from __future__ import annotations

import os
from contextlib import suppress

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from waystation.errors import LakeRefusedError
from waystation.history.lake.files import DECLARED
from waystation.history.lake.rollup_schema import DERIVED, DerivedSpec
from waystation.history.lake.schema import BASE, DAY, TableSpec
from waystation.history.lake.table import Lake, no_lake

_SCHEMA = "waystation"
#: Mean something in the pattern of paths that a view is made of.
_SPECIAL = frozenset("`'{}[]*?,\\")


def attach(spark: SparkSession, *, lake: str) -> SparkSession:
    """Makes the views, over those that are there; returns the session.

    A table that nothing was brought into yet is empty. NoLakeError where there is no lake.
    """
    root = lake if "://" in lake else os.path.abspath(lake)
    if special := sorted(_SPECIAL & set(root)):
        raise LakeRefusedError(
            f"The path of the lake has {special[0]} in it, which Spark takes for a pattern.",
            hint="Move the lake, or name it by a link.",
        )
    where = Lake(root)
    files = {spec.name: where.files(spec) for spec in BASE}
    if not any(each is not None for each in files.values()):
        raise no_lake(root)
    _hush(spark)
    spark.sql(f"create database if not exists {_SCHEMA}")
    for spec in BASE:
        everything = f"{_SCHEMA}.{spec.name}_all"
        query = _query(spec, where.folder(spec), files[spec.name] or [])
        spark.sql(f"create or replace view {everything} as {query}")
        spark.sql(
            f"create or replace view {_SCHEMA}.{spec.name} as"  # noqa: S608 (names are ours)
            f" select * from {everything} where not lost"
        )
    for derived in DERIVED:
        query = _query(derived, where.folder(derived), where.files(derived) or [])
        spark.sql(f"create or replace view {_SCHEMA}.{derived.name} as {query}")
    return spark


def _hush(spark: SparkSession) -> None:
    """Keeps Spark from telling, in a hundred lines for each view, that a pattern is no folder."""
    # A session of Connect has no Java here; what it says is in the log of its server.
    with suppress(PySparkException, AttributeError):
        java = spark.sparkContext._jvm
        level = java.org.apache.logging.log4j.Level.ERROR  # type: ignore[union-attr]
        java.org.apache.logging.log4j.core.config.Configurator.setLevel(  # type: ignore[union-attr]
            "org.apache.spark.sql.execution.streaming.sinks.FileStreamSink", level
        )


def _query(spec: TableSpec | DerivedSpec, folder: str, files: list[str]) -> str:
    """All rows of a table, read by the files that it consists of: others may lie beside them."""
    columns = from_arrow_schema(spec.schema)
    if not files:
        empty = (f"cast(null as {each.dataType.simpleString()}) `{each.name}`" for each in columns)
        return f"select {', '.join(empty)} where false"
    names = ", ".join(f"`{each.name}`" for each in columns)
    paths = ",".join(files)
    # Columns that came later are not in older files.
    evolved = any(path.startswith(f"{DAY}={DECLARED}/") for path in files)
    merged = ", mergeSchema 'true'" if evolved else ""
    # With the base path the day is a column; without it, it would silently be missing.
    return (
        f"select {names} from parquet.`{folder}/{{{paths}}}`"  # noqa: S608 (no text of users)
        f" with (basePath '{folder}'{merged})"
    )
