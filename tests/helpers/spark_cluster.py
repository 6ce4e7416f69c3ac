"""Standalone Spark cluster on loopback, from the installed package: a master and workers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyspark

from tests.history.quick_spark import QUICK_JVM
from waystation.history.java import find_java

_HOME = Path(pyspark.__file__).parent
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"
_READY_SECONDS_MAX = 90.0


class Daemon:
    """Spark process whose log a test reads."""

    def __init__(self, name: str, command: list[str], folder: Path, **environment: str) -> None:
        self._name = name
        self._lines: list[str] = []
        self._told = threading.Condition()
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def wait_for(self, pattern: str, *, times: int = 1) -> str:
        """Wait until `pattern` matches `times` log lines.

        Return the last group of the newest match.
        """

        def found() -> list[str]:
            matches = (re.search(pattern, line) for line in self._lines)
            return [match.group(match.re.groups) for match in matches if match]

        with self._told:
            self._told.wait_for(
                lambda: len(found()) >= times or self._process.poll() is not None,
                timeout=_READY_SECONDS_MAX,
            )
            seen = found()
        assert len(seen) >= times, f"{self._name} did not get ready:\n" + "\n".join(self._lines)
        return seen[-1]

    def end(self) -> None:
        """Stop the process and wait for its exit."""
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                with self._told:
                    self._lines.append(line.rstrip())
                    self._told.notify_all()
        with self._told:
            self._told.notify_all()


class SparkCluster:
    """Running master with its workers."""

    def __init__(self, url: str, page: str, worker_pages: list[str]) -> None:
        #: Value of `--master`.
        self.url = url
        #: URLs of the workers' pages.
        self.worker_pages = worker_pages
        self._page = page

    def status(self) -> dict[str, Any]:
        """Return the master's status: itself, its workers and applications."""
        return page_of(f"{self._page}/json/")

    def executors_of(self, worker_page: str) -> list[dict[str, Any]]:
        """Return running and finished executors of a worker."""
        told = page_of(f"{worker_page}/json/")
        return [*told["executors"], *told["finishedexecutors"]]


@contextmanager
def spark_cluster(folder: Path, *, workers: int = 2) -> Iterator[SparkCluster]:
    """Run a cluster of workers with one core each for the length of the block."""
    environment = daemon_environment(folder)
    launch = [str(_HOME / "bin" / "spark-class")]
    here = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    with ExitStack() as stack:
        master = Daemon("The master", [*launch, _MASTER, *here], folder, **environment)
        stack.callback(master.end)
        url = master.wait_for(r"Starting Spark master at (spark://\S+)")
        page = master.wait_for(r"MasterWebUI to .* started at (http://\S+)")
        master.wait_for(r"(New state: ALIVE)")
        started = []
        for number in range(workers):
            place = ["--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"work-{number}")]
            command = [*launch, _WORKER, *here, *place, url]
            worker = Daemon(f"Worker {number}", command, folder, **environment)
            stack.callback(worker.end)
            started.append(worker)
        pages = [each.wait_for(r"WorkerWebUI to .* started at (http://\S+)") for each in started]
        for worker in started:
            worker.wait_for(r"(Successfully registered with master)")
        yield SparkCluster(url, page, pages)


@contextmanager
def connect_server(folder: Path, port: int) -> Iterator[str]:
    """Run a Spark Connect server with two cores for the length of the block. Yield its URL."""
    command = [
        str(_HOME / "bin" / "spark-submit"),
        *("--class", _CONNECT, "--master", "local[2]", "--driver-memory", "1g"),
        *("--conf", f"spark.connect.grpc.binding.port={port}"),
        *("--conf", "spark.connect.grpc.binding.address=127.0.0.1"),
        *("--conf", "spark.ui.enabled=false", "--driver-java-options", QUICK_JVM),
        "spark-internal",
    ]
    server = Daemon("The server", command, folder, **daemon_environment(folder))
    try:
        server.wait_for(r"(Spark Connect server started)")
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.end()


def daemon_environment(folder: Path) -> dict[str, str]:
    """Return the environment in which Spark processes use loopback and this Python."""
    return {
        "JAVA_HOME": str(find_java(os.environ, folder / "java").home),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_JAVA_OPTS": QUICK_JVM,
        "SPARK_HOME": str(_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_NO_DAEMONIZE": "1",
    }


def page_of(url: str) -> Any:
    """Return a JSON page of Spark."""
    with urllib.request.urlopen(url, timeout=30) as reply:
        return json.load(reply)
