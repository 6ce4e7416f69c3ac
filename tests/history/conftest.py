"""Fixtures of history: one Spark session for the run, started by the first test that needs it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.history.log_writer import LogWriter
from tests.history.quick_spark import QUICK_SPARK
from waystation.history import role
from waystation.history.session import SessionPlan, open_session
from waystation.history.sources.topics import register
from waystation.store.embedded.server import EmbeddedServer


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that need Spark, so that `make test` can run them in one process."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")


@pytest.fixture(scope="session")
def spark_store_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """File with the URL of the store for sources of the shared session without an option."""
    return tmp_path_factory.mktemp("spark-store") / "url"


@pytest.fixture(scope="session")
def spark(
    tmp_path_factory: pytest.TempPathFactory, spark_store_file: Path
) -> Iterator[SparkSession]:
    """Return the Spark session that all tests share."""
    quick = {**QUICK_SPARK, "spark.sql.shuffle.partitions": "2"}
    plan = SessionPlan(
        folder=tmp_path_factory.mktemp("spark"),
        master="local[2]",
        memory="1g",
        ui=False,
        spark=quick,
    )
    with pytest.MonkeyPatch.context() as patch:
        # Spark's processes inherit the environment of this moment.
        patch.setenv("WAYSTATION_STORE_URL_FILE", str(spark_store_file))
        session = open_session(plan)
    register(session)
    yield session
    session.stop()


@pytest.fixture
def store_url(store_server: EmbeddedServer) -> str:
    """Return the URL of the store of this run, which is a socket and so has no password."""
    return f"unix://{store_server.address.path}"


@pytest.fixture
def writer(store_url: str) -> Iterator[LogWriter]:
    """Yield a writer of logs in an empty store."""
    with LogWriter(store_url) as writer:
        writer.flush()
        yield writer


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Return a folder for a lake."""
    return tmp_path / "lake"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make all pauses of the role short."""
    monkeypatch.setattr(role, "LOOK_S", 0.02)
    monkeypatch.setattr(role, "_LOOK_SHARE", 1.0)
    monkeypatch.setattr(role, "_RETRY_S_FIRST", 0.01)
