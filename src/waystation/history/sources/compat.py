"""Differences between the supported versions of PySpark, 4.0 to 4.3.

Only this module compares versions. A feature that a version lacks is off, and a warning names the
feature and the consequence once.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import msgspec
import pyspark
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    except ImportError:

        class SupportsTriggerAvailableNow:
            """Empty base class for Spark before 4.2, which itself ends such a query."""


#: Spark refuses a reader that can push filters down in a session without this setting.
_PUSHDOWN_SETTING = "spark.sql.python.filterPushdown.enabled"


class Feature(msgspec.Struct, frozen=True):
    """Feature of PySpark that not all supported versions have."""

    name: str
    #: First version with the feature.
    since: tuple[int, int]
    #: Consequence for a user of an older version.
    without: str


PUSHDOWN = Feature(
    "filters for Python data sources",
    (4, 1),
    "a query over a topic or the archive reads all rows, and Spark filters them",
)
READ_LIMITS = Feature(
    "read limits for Python streams",
    (4, 2),
    "the option rows_max has no effect: a micro-batch reads all entries that exist",
)

#: Features about which this process has warned.
_warned: set[str] = set()


def supports(feature: Feature, version: str = pyspark.__version__) -> bool:
    """Return whether a version of Spark has a feature. If not, warn once in this process."""
    major, minor = version.split(".")[:2]
    if (int(major), int(minor)) >= feature.since:
        return True
    if feature.name not in _warned:
        _warned.add(feature.name)
        needed = ".".join(map(str, feature.since))
        warnings.warn(
            f"Spark {version} has no {feature.name}, which need {needed}: {feature.without}.",
            stacklevel=2,
        )
    return False


def enable_pushdown(spark: SparkSession) -> bool:
    """Let Python data sources of a session push filters down, which Spark's default forbids.

    Return whether the Spark of the session can. With Spark Connect, this is the Spark of the
    server.
    """
    if not supports(PUSHDOWN, spark.version):
        return False
    spark.conf.set(_PUSHDOWN_SETTING, "true")
    return True


def register_source(spark: SparkSession, source: type[DataSource]) -> None:
    """Register a data source in a session, in place of one of the same name.

    Spark 4.0 refuses a name that it has discovered or registered. There, the discovered class stays
    in use, which differs from the other one only in filter push-down.
    """
    try:
        spark.dataSource.register(source)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def read_limit(rows_max: int | None) -> ReadLimit:
    """Return the limit of a micro-batch. Only versions with `READ_LIMITS` call for it."""
    from pyspark.sql.streaming.datasource import (  # noqa: PLC0415 (older versions lack it)
        ReadAllAvailable,
        ReadMaxRows,
    )

    return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)


def limit_rows(limit: Any) -> int | None:
    """Return the rows that a limit permits; None for all, or from a version without limits."""
    return getattr(limit, "max_rows", None)


__all__ = [
    "PUSHDOWN",
    "READ_LIMITS",
    "SupportsTriggerAvailableNow",
    "enable_pushdown",
    "limit_rows",
    "read_limit",
    "register_source",
    "supports",
]
