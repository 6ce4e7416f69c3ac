"""Spark sessions: start Spark locally, on a cluster or over Connect, and report its failures.

Spark and its workers inherit standard output and standard error. Their output goes to `spark.log`
instead, so that a command prints only its own.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from waystation.config import Config
from waystation.errors import HistoryMissingError, SparkStartError
from waystation.history.cluster import require_executors
from waystation.history.java import find_java
from waystation.history.sources.compat import enable_pushdown
from waystation.history.spark_errors import SPARK_ERRORS, spark_errors, spark_message
from waystation.runtime.data_files import make_private, open_private, tighten

#: Settings of every session of the data pipeline.
NEEDED = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.catalogImplementation": "in-memory",
}
_LOOPBACK = "127.0.0.1"
#: Masters on this machine, whose driver needs no address that other machines reach.
_HERE = re.compile(r"local\b|spark://(127\.0\.0\.1|localhost|\[::1\])(:|$)")
_PARTITIONS_PER_CORE = 4
_LOCAL = re.compile(r"local(?:\[([0-9]+|\*)\])?")
#: Attempts of a task if its process crashes. A cluster has 4 by default, `local` has 1.
_ATTEMPTS = 4
LOG_NAME = "spark.log"
#: A longer log is deleted at the next start.
_LOG_BYTES_MAX = 10 * 1_048_576
_CONNECT_PORT = 15002
_CONNECT_S_MAX = 10.0
#: Packages of Spark Connect that PySpark does not install.
_CONNECT_PACKAGES = ("grpc", "grpc_status", "google.rpc", "zstandard")


class SessionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a session."""

    #: Folder for the log of Spark, its warehouse and the script of a Java from pip.
    folder: Path
    master: str = "local[*]"
    #: Memory of the driver, and of each executor.
    memory: str = "2g"
    ui: bool = True
    #: Further Spark settings, which override ours.
    spark: dict[str, str] = msgspec.field(default_factory=dict)


def session_plan(settings: Config) -> SessionPlan:
    """Return the plan that settings describe."""
    wanted = settings.history
    return SessionPlan(
        folder=settings.data_dir / "history",
        master=wanted.master,
        memory=wanted.memory,
        ui=wanted.ui,
        spark=wanted.spark,
    )


def session_settings(plan: SessionPlan) -> dict[str, str]:
    """Return the Spark settings of a plan."""
    settings = {
        **NEEDED,
        "spark.app.name": "waystation",
        # Omit warnings, because they concern Spark itself and not the data.
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
            # Spark's default of 200 suits clusters: each partition costs some milliseconds.
            "spark.sql.shuffle.partitions": str(_PARTITIONS_PER_CORE * (os.cpu_count() or 1)),
        }
    return {**settings, **plan.spark}


@contextmanager
def running_session(plan: SessionPlan) -> Iterator[SparkSession]:
    """Yield a session for the length of the block, and translate errors of Spark."""
    spark = open_session(plan)
    try:
        with spark_errors():
            yield spark
    finally:
        with suppress(*SPARK_ERRORS):
            spark.stop()


def open_session(
    plan: SessionPlan, *, environment: Mapping[str, str] | None = None
) -> SparkSession:
    """Open a session, or return the session of this process, with the settings that we need.

    A Connect URL (`sc://…`) needs no Java here. Raise NoJavaError or SparkStartError if Spark does
    not start, ClusterResourcesError if a standalone cluster cannot run an executor, and
    HistoryMissingError without the packages of Spark Connect.
    """
    if plan.master.startswith("sc://"):
        return prepared(connect_session(plan.master))
    is_new = SparkSession.getActiveSession() is None
    if is_new:
        java = find_java(os.environ if environment is None else environment, plan.folder / "java")
        os.environ["JAVA_HOME"] = str(java.home)
        if _HERE.match(plan.master):
            # For the Spark UI, because no setting has its address.
            os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
        start_spark(
            plan.folder, {"spark.master": session_master(plan.master), **session_settings(plan)}
        )
    builder = SparkSession.builder.master(session_master(plan.master))
    for name, value in session_settings(plan).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    if is_new:
        try:
            with spark_errors():
                require_executors(spark.sparkContext, plan.spark)
        except BaseException:
            spark.stop()
            raise
    return prepared(spark)


def session_master(master: str) -> str:
    """Return the master, with a retry of lost tasks where Spark has none by default."""
    found = _LOCAL.fullmatch(master)
    return f"local[{found[1] or 1},{_ATTEMPTS}]" if found else master


def start_spark(folder: Path, settings: Mapping[str, str]) -> None:
    """Start Spark unless this process has done so. Raise SparkStartError if it does not start."""
    if SparkContext._gateway is not None:
        return
    conf = SparkConf()
    for name, value in settings.items():
        conf.set(name, value)
    logging.getLogger().addFilter(_is_not_py4j)
    log = folder / LOG_NAME
    make_private(folder)
    tighten([folder, log])
    if log.exists() and log.stat().st_size > _LOG_BYTES_MAX:
        log.unlink()
    with open_private(log, "ab") as output:
        try:
            outputs = {"stdout": output, "stderr": output}
            gateway = launch_gateway(conf, outputs)  # type: ignore[no-untyped-call]
            SparkContext(conf=conf, gateway=gateway)
        except Exception as error:
            raise SparkStartError(
                f"Spark does not start: {spark_message(error)}", hint=f"See its log {log}."
            ) from error


def java_process() -> subprocess.Popen[bytes] | None:
    """Return the Java process that this process has started; None without one."""
    process = getattr(SparkContext._gateway, "proc", None)
    return process if isinstance(process, subprocess.Popen) else None


def connect_session(url: str) -> SparkSession:
    """Return a session of the Spark Connect server at a URL (`sc://host:port`).

    Raise HistoryMissingError without the packages for it, SparkStartError without a server.
    """
    if missing := [name for name in _CONNECT_PACKAGES if not _is_installed(name)]:
        raise HistoryMissingError(
            f"Spark Connect needs {' and '.join(missing)}.",
            hint="pip install 'waystation[connect]'",
        )
    place = urlsplit(url)
    try:
        # PySpark itself would try for ten minutes to reach a server that does not exist.
        address = (place.hostname, place.port or _CONNECT_PORT)
        socket.create_connection(address, _CONNECT_S_MAX).close()
        return SparkSession.builder.remote(url).getOrCreate()
    except (OSError, ValueError, PySparkException) as error:
        raise SparkStartError(
            f"No Spark Connect server answers at {place.netloc}: {error}.",
            hint="Start one (sbin/start-connect-server.sh of Spark), or name another master.",
        ) from error


def ui_address(spark: SparkSession) -> str:
    """Return the address of the Spark UI of a session; empty without one and over Connect."""
    try:
        return spark.sparkContext.uiWebUrl or ""
    except PySparkException:
        return ""


def prepared(spark: SparkSession) -> SparkSession:
    """Change the settings of a running session that our sources and views need; return it."""
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


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _is_not_py4j(record: logging.LogRecord) -> bool:
    """Return False for log records of Py4J, which print long traces when Java has ended."""
    return "py4j" not in record.pathname
