"""Features that versions of Spark lack: off, with one line that says so."""

from __future__ import annotations

import inspect
import warnings

import pyspark
import pytest
from pyspark.sql import SparkSession

from waystation.history.sources import compat
from waystation.history.sources.compat import PUSHDOWN, READ_LIMITS, supports
from waystation.history.sources.options import TopicSourceOptions
from waystation.history.sources.topics import TopicSource, TopicStreamReader, register

IS_OLDEST = pyspark.__version__.startswith("4.0.")


@pytest.fixture(autouse=True)
def nothing_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the warnings of other tests."""
    monkeypatch.setattr(compat, "_warned", set())


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("4.0.5", (False, False)),
        ("4.1.4", (True, False)),
        ("4.2.1", (True, True)),
        ("4.3.0", (True, True)),
        ("4.10.0.dev1", (True, True)),
    ],
)
def test_features_are_those_of_the_version_of_spark(
    version: str, expected: tuple[bool, bool]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert (supports(PUSHDOWN, version), supports(READ_LIMITS, version)) == expected


def test_missing_feature_is_warned_about_once_with_version_and_consequence() -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert [supports(READ_LIMITS, "4.1.4") for _ in range(3)] == [False] * 3
    (line,) = told
    assert str(line.message) == (
        "Spark 4.1.4 has no read limits for Python streams, which need 4.2: the option rows_max has"
        " no effect: a micro-batch reads all entries that exist."
    )


def test_stream_reader_accepts_calls_of_spark_before_4_2() -> None:
    # Spark 4.2 and later choose the call by the number of parameters
    assert len(inspect.signature(TopicStreamReader.latestOffset).parameters) == 3
    source = TopicSource({"topic": "orders", "rows_max": "10"})
    assert TopicSourceOptions.parse(source.options).rows_max == 10


@pytest.mark.spark_oldest
@pytest.mark.timeout(240)
def test_session_registers_sources_with_the_features_that_its_spark_has(
    spark: SparkSession,
) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        register(spark)
        register(spark)
    lines = [str(each.message) for each in told if issubclass(each.category, UserWarning)]
    setting = spark.conf.get("spark.sql.python.filterPushdown.enabled", "false")
    if IS_OLDEST:
        assert setting == "false"
        assert [line.split(",")[0] for line in lines] == [
            f"Spark {pyspark.__version__} has no filters for Python data sources"
        ]
    else:
        assert (setting, lines) == ("true", [])
