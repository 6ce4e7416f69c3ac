"""Load of history: topics read by Spark, the same rows as Parquet, ingest, and audits.

    python -m waystation_bench.spark_load FOLDER MEMORY

A process of its own with one Spark session. A question is `{"job", …}`; what is timed is the work
of one job, with the JVM warm.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from waystation.history.audit import Live, audit
from waystation.history.ingest.job import ingest_job
from waystation.history.lake.table import Lake
from waystation.history.lake.views import attach, open_snapshot
from waystation.history.session import SessionPlan, open_session
from waystation.history.sources.options import Location
from waystation.logs.protocol import Retention
from waystation.logs.streams import StreamLogs
from waystation.messages.envelope import pack
from waystation.runtime.clock import Clock
from waystation.store.address import parse_address
from waystation.store.client import Store
from waystation.store.keys import DEFAULT_PROJECT, FORMAT
from waystation_bench.benchmark import BenchmarkError
from waystation_bench.children import answer_questions
from waystation_bench.delivery_node import NAME, PARTITIONS, data, message
from waystation_bench.lake_load import DATASET, make_lake
from waystation_bench.processes import family_bytes, family_cpu_seconds

_BATCH = 500
_LOOK_SECONDS = 0.2
_LOG = f"t.{DEFAULT_PROJECT}.{NAME}.0"

Answer = dict[str, float]


class SparkLoad:
    """Answers questions with a session."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self._clock = Clock()
        self._lakes = 0

    async def answer(self, question: dict[str, Any]) -> Answer:
        """Does one job."""
        job: Callable[..., Any] = getattr(self, "do_" + question.pop("job"))
        if asyncio.iscoroutinefunction(job):
            told: Answer = await job(**question)
        else:
            # Readers of logs have event loops of their own.
            told = await asyncio.to_thread(job, **question)
        return told

    async def do_fill(self, store: str, count: int) -> Answer:
        """Makes a topic, without a station around it."""
        client = Store(parse_address(store), call_seconds_max=30.0)
        logs = StreamLogs(client)
        await client.call("HSET", FORMAT, "dataset", DATASET)
        await logs.create(_LOG, PARTITIONS, Retention())
        for first in range(0, count, _BATCH * PARTITIONS):
            await asyncio.gather(
                *(
                    logs.append(_LOG, n, [pack(message(i, data(i))) for i in _numbers(first, n)])
                    for n in range(PARTITIONS)
                )
            )
        await client.close()
        return {}

    def do_copy(self, store: str, size: str) -> Answer:
        """The same rows as Parquet, written by Spark as it does by itself."""
        self._topic(store).write.parquet(self._parquet(size))
        return {}

    def do_topic(self, store: str) -> Answer:
        """All columns of all rows of a topic."""
        return self._timed(lambda: _read(self._topic(store)))

    def do_parquet(self, size: str) -> Answer:
        """The same of its copy."""
        rows = self._spark.read.parquet(self._parquet(size))
        return self._timed(lambda: _read(rows))

    def do_make_view(self, store: str, size: str) -> Answer:
        """Ingest a store into a lake, and let Spark write the rows of its view as Parquet."""
        ingest_job(self._spark, self._view_lake(size), Location(store)).run()
        self._view(size).write.parquet(self._parquet(f"view-{size}"))
        return {}

    def do_view(self, size: str) -> Answer:
        """Read all columns of all rows through a view of a lake."""
        rows = self._view(size)
        return self._timed(lambda: _read(rows))

    def do_view_parquet(self, size: str) -> Answer:
        """Read the same rows from the Parquet files that Spark wrote."""
        rows = self._spark.read.parquet(self._parquet(f"view-{size}"))
        return self._timed(lambda: _read(rows))

    def do_ingest(self, store: str, count: int) -> Answer:
        """All logs of a store into an empty lake."""
        lake = Lake(str(self._new_lake()))
        work = ingest_job(self._spark, lake, Location(store))
        told: list[int] = []
        answer = self._timed(lambda: told.append(work.run().rows))
        if told != [count]:
            raise BenchmarkError(f"{told[0]} of {count} messages were ingested.")
        shutil.rmtree(lake.root)
        return answer

    def do_make_lake(self, name: str, messages: int) -> Answer:
        """A lake to audit."""
        return self._timed(lambda: make_lake(self._spark, Lake(str(self._folder / name)), messages))

    def do_audit(self, name: str, messages: int) -> Answer:
        """What there is in a lake: all is well."""
        return self._audited(str(self._folder / name), 2 * messages, None)

    def do_audit_live(self, store: str, messages: int) -> Answer:
        """Everything in a store is ingested, audited and looked up."""
        lake = str(self._new_lake())
        try:
            with Live(store) as live:
                return self._audited(lake, messages, live, store)
        finally:
            shutil.rmtree(lake, ignore_errors=True)

    def _audited(self, root: str, owed: int, live: Live | None, store: str = "") -> Answer:
        lake, seen = Lake(root), []
        ingest = ingest_job(self._spark, lake, Location(store)) if live else None

        def work() -> None:
            run = ingest.run if ingest else None
            seen.append(audit(self._spark, lake, live=live, ingest=run))

        with _peak() as peak:
            answer = self._timed(work)
        (findings,) = seen
        checked = findings.checked.get("messages of subscriptions", 0)
        if findings.total or checked != owed:
            raise BenchmarkError(
                f"The audit of {checked} of {owed} messages found {findings.counts}: "
                f"{findings.examples[:1]} {findings.notes[:3]}"
            )
        return {**answer, "peak_gib": peak[0] / 1024**3}

    def _topic(self, store: str) -> DataFrame:
        source = self._spark.read.format("waystation").option("topic", NAME)
        return source.option("store", store).load()

    def _parquet(self, size: str) -> str:
        return str(self._folder / f"copy-{size}")

    def _view(self, size: str) -> DataFrame:
        attach(self._spark, lake=open_snapshot(self._view_lake(size).root))
        return self._spark.table("waystation.messages")

    def _view_lake(self, size: str) -> Lake:
        return Lake(str(self._folder / f"view-lake-{size}"))

    def _new_lake(self) -> Path:
        self._lakes += 1
        return self._folder / f"lake-{self._lakes}"

    def _timed(self, work: Callable[[], object]) -> Answer:
        before = family_cpu_seconds(os.getpid())
        begun = self._clock.monotonic()
        work()
        seconds = self._clock.monotonic() - begun
        # Of those that are there at the end: Spark keeps its processes.
        after = family_cpu_seconds(os.getpid())
        used = sum(spent - before.get(each, 0.0) for each, spent in after.items())
        return {"seconds": seconds, "cpu_seconds": used}


def _numbers(first: int, partition: int) -> range:
    return range(first + partition * _BATCH, first + (partition + 1) * _BATCH)


def _read(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


@contextlib.contextmanager
def _peak() -> Iterator[list[int]]:
    """The most memory that this process and those below it have had in RAM together."""
    most, done = [0], threading.Event()

    def look() -> None:
        while not done.wait(_LOOK_SECONDS):
            most[0] = max(most[0], family_bytes(os.getpid()))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield most
    finally:
        done.set()
        watcher.join()


def main() -> None:
    """Works until standard input ends."""
    folder, memory = sys.argv[1:]
    # What Spark says is not for the one who asks us.
    plan = SessionPlan(folder=Path(folder), memory=memory, ui=False)
    spark = open_session(plan)
    try:
        answer_questions(contextlib.nullcontext(SparkLoad(spark, Path(folder)).answer))
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
