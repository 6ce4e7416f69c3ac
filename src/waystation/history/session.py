"""Making a Spark session that our source and our tables work in."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from waystation.config import Config
from waystation.history.connect import connect_session
from waystation.history.gateway import start_spark
from waystation.history.java import find_java
from waystation.history.sources.compat import enable_pushdown
from waystation.history.spark_errors import SPARK_ERRORS, spark_errors

#: Settings of every session that the history opens.
NEEDED = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.catalogImplementation": "in-memory",
}
_LOOPBACK = "127.0.0.1"
#: Masters on this machine: nobody else has to reach their driver.
_HERE = re.compile(r"local\b|spark://(127\.0\.0\.1|localhost|\[::1\])(:|$)")
_PARTITIONS_PER_CORE = 4
_LOCAL = re.compile(r"local(?:\[([0-9]+|\*)\])?")
#: How often a task is tried whose process was killed; a cluster has 4 by itself, `local` 1.
_TRIES = 4


class SessionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How a session is to be."""

    #: Where a Java may be written to, and where Spark keeps what it must write down.
    folder: Path
    master: str = "local[*]"
    #: Of the driver, and of each executor.
    memory: str = "2g"
    ui: bool = True
    #: Further settings of Spark, which win over ours.
    spark: dict[str, str] = msgspec.field(default_factory=dict)


def session_settings(plan: SessionPlan) -> dict[str, str]:
    """Spark's settings for a plan."""
    settings = {
        **NEEDED,
        "spark.app.name": "waystation",
        # Its warnings are about itself, and its log is kept.
        "spark.log.level": "ERROR",
        "spark.driver.memory": plan.memory,
        "spark.executor.memory": plan.memory,
        "spark.sql.warehouse.dir": str(plan.folder / "warehouse"),
        "spark.ui.enabled": str(plan.ui).lower(),
        "spark.ui.showConsoleProgress": "false",
    }
    if _HERE.match(plan.master):
        settings |= {
            "spark.driver.bindAddress": _LOOPBACK,
            "spark.driver.host": _LOOPBACK,
            # Spark's own 200 are for clusters: each costs some ms, however little there is in it.
            "spark.sql.shuffle.partitions": str(_PARTITIONS_PER_CORE * (os.cpu_count() or 1)),
        }
    return {**settings, **plan.spark}


def session_plan(settings: Config) -> SessionPlan:
    """The session that settings describe."""
    wanted = settings.history
    return SessionPlan(
        folder=settings.data_dir / "history",
        master=wanted.master,
        memory=wanted.memory,
        ui=wanted.ui,
        spark=wanted.spark,
    )


@contextmanager
def running_session(plan: SessionPlan) -> Iterator[SparkSession]:
    """A session for the length of the block, in which what goes wrong in Spark is told in short."""
    spark = open_session(plan)
    try:
        with spark_errors():
            yield spark
    finally:
        with suppress(*SPARK_ERRORS):
            spark.stop()


def ui_address(spark: SparkSession) -> str:
    """Where the pages of a session are; empty if it has none, or is somebody else's."""
    try:
        return spark.sparkContext.uiWebUrl or ""
    except PySparkException:
        return ""


def open_session(
    plan: SessionPlan, *, environment: Mapping[str, str] | None = None
) -> SparkSession:
    """Opens a session, or returns the one that this process has, with what we need set in it.

    NoJavaError or SparkStartError where it cannot start; a Connect URL (`sc://…`) needs no Java
    here, but packages (HistoryMissingError). What Spark says of itself is in `spark.log` of the
    folder.
    """
    if plan.master.startswith("sc://"):
        return prepared(connect_session(plan.master))
    if SparkSession.getActiveSession() is None:
        java = find_java(os.environ if environment is None else environment, plan.folder / "java")
        os.environ["JAVA_HOME"] = str(java.home)
        if _HERE.match(plan.master):
            # Of the pages: there is no setting for their address.
            os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
        start_spark(
            plan.folder, {"spark.master": session_master(plan.master), **session_settings(plan)}
        )
    builder = SparkSession.builder.master(session_master(plan.master))
    for name, value in session_settings(plan).items():
        builder = builder.config(name, value)
    return prepared(builder.getOrCreate())


def session_master(master: str) -> str:
    """The same master, where a task that was lost is tried again."""
    found = _LOCAL.fullmatch(master)
    return f"local[{found[1] or 1},{_TRIES}]" if found else master


def prepared(spark: SparkSession) -> SparkSession:
    """Sets what our source needs and a running session can be told."""
    enable_pushdown(spark)
    spark.conf.set("spark.sql.session.timeZone", NEEDED["spark.sql.session.timeZone"])
    return spark


def use_this_python(spark: SparkSession) -> None:
    """Let workers of a local session run the Python of this process, unless the user chose one.

    A session that was created before the import of `waystation.history` runs `python3` of PATH,
    which may lack our packages. Later registrations of sources and functions use the new one.
    """
    with suppress(PySparkException):  # A session of Spark Connect has no context.
        context = spark.sparkContext
        if context.pythonExec == "python3" and _LOCAL.match(context.master or ""):
            context.pythonExec = os.environ.get("PYSPARK_PYTHON", sys.executable)
