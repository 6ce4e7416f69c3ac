"""Program that runs an ingest and disturbs it at a stage: `URL LAKE STAGE`.

- A stage of `STAGES`: the process kills itself there.
- `spark`: it kills the process of Spark before the tasks run.
- `tasks`: the first tasks kill their processes, each at another stage of a task.
- `full-disk`: three ingests, one without room for the files of tasks, one without room for a
  commit, and one with enough.
- Any other word: no disturbance.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.history.quick_spark import QUICK_SPARK
from waystation.errors import HistoryError
from waystation.history.ingest import job as ingest
from waystation.history.ingest.job import IngestJob, spark_tasks
from waystation.history.ingest.planner import IngestOptions
from waystation.history.ingest.recovery import Recovery
from waystation.history.ingest.retention import RetentionHolds
from waystation.history.ingest.task import run_encoded
from waystation.history.lake import maintenance as tidying
from waystation.history.lake.table import Lake, LakeTable
from waystation.history.session import SessionPlan, running_session
from waystation.history.sources.options import Location

#: Stages of a micro-batch in order: the process kills itself after each.
STAGES: dict[str, tuple[Any, str]] = {
    "compared": (Recovery, "divergences"),
    "planned": (ingest, "plan_batch"),
    "written": (IngestJob, "_run_tasks"),
    "one table": (LakeTable, "commit"),
    "all tables": (ingest, "_commit"),
    "held": (RetentionHolds, "hold"),
    "compacted": (tidying, "_compact"),
}
#: Stages of a task in order: the process of the task kills itself at each.
TASK_STAGES = ("begun", "writing", "written")


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def after(owner: Any, name: str) -> None:
    original: Callable[..., Any] = getattr(owner, name)

    def wrapped(*given: Any, **named: Any) -> None:
        original(*given, **named)
        die()

    setattr(owner, name, wrapped)


def before_tasks(kill: Callable[[], None]) -> None:
    original = IngestJob._run_tasks

    def wrapped(*given: Any) -> Any:
        kill()
        return original(*given)

    IngestJob._run_tasks = wrapped  # type: ignore[method-assign]


def kill_spark() -> None:
    """Kill the Java process that PySpark has started."""
    from pyspark import SparkContext

    proc = SparkContext._gateway.proc  # type: ignore[union-attr]
    os.kill(proc.pid, signal.SIGKILL)
    proc.wait()


def lose_tasks(folder: Path) -> None:
    """Make the first tasks kill their processes.

    Spark sends this function to the executors by value, because it is of the main module.
    """

    def report(*given: Any) -> bytes:
        from waystation.history.lake.files import TableWriter

        def is_first(stage: str) -> bool:
            try:
                (folder / f"task-was-lost-{stage}").touch(exist_ok=False)
            except FileExistsError:
                return False
            return True

        if is_first("begun"):
            os.kill(os.getpid(), signal.SIGKILL)
        if is_first("writing"):
            write = TableWriter.write

            def wrapped(*of: Any) -> None:
                write(*of)
                os.kill(os.getpid(), signal.SIGKILL)

            TableWriter.write = wrapped  # type: ignore[method-assign]
        done = run_encoded(*given)
        if is_first("written"):
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    ingest.run_encoded = report


@contextmanager
def full_disk(*, bytes_max: int) -> Iterator[None]:
    """Limit the size of files of this process; Spark writes its own files in another one."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_max, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def without_room(*given: Any) -> bytes:
    with full_disk(bytes_max=1000):
        return run_encoded(*given)


def fill_the_disk(run: Callable[[], None]) -> None:
    ingest.run_encoded = without_room
    run()
    ingest.run_encoded = run_encoded
    with full_disk(bytes_max=100):
        run()


def main() -> None:
    url, lake, stage = sys.argv[1:]
    if stage in STAGES:
        after(*STAGES[stage])
    if stage == "compacted":
        tidying._NEWEST_FILES = 1
    elif stage == "tasks":
        lose_tasks(Path(lake).parent)
    elif stage == "spark":
        before_tasks(kill_spark)
    with tempfile.TemporaryDirectory() as folder:
        plan = SessionPlan(
            folder=Path(folder), master="local[2]", memory="1g", ui=False, spark=QUICK_SPARK
        )
        with running_session(plan) as spark:

            def run() -> None:
                try:
                    options = IngestOptions(batch_rows=400, task_rows=100)
                    work = IngestJob(Lake(lake), Location(url), spark_tasks(spark), options)
                    sys.stdout.write(f"rows={work.run().rows}\n")
                except HistoryError as error:
                    sys.stdout.write(f"{error.code}: {error}\n")

            if stage == "full-disk":
                fill_the_disk(run)
            run()


if __name__ == "__main__":
    main()
