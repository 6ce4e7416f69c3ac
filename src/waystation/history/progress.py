"""Progress of Spark jobs: report the ended tasks of the jobs that a thread runs."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from pyspark import SparkContext, StatusTracker
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from waystation.history.spark_errors import SPARK_ERRORS

_POLL_SECONDS = 0.5
#: Numbers that make the job groups unique.
_group_numbers = itertools.count()
_GROUP, _DESCRIPTION = "spark.jobGroup.id", "spark.job.description"


@contextmanager
def task_watch(spark: SparkSession, name: str, report: Callable[[int, int], None]) -> Iterator[str]:
    """Report how many tasks have ended, and of how many, of the jobs that this thread runs.

    Yield the group of these jobs, with which Spark cancels them. The Spark UI shows them by the
    name. A session of Spark Connect reports nothing and has no group.
    """
    try:
        context = spark.sparkContext
    except PySparkException:
        yield ""
        return
    group = f"{name}-{next(_group_numbers)}"
    # Settings of an enclosing watch, which continues after this block.
    outer = {setting: context.getLocalProperty(setting) for setting in (_GROUP, _DESCRIPTION)}
    context.setJobGroup(group, name)
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(context, group, report, ended), daemon=True)
    watcher.start()
    try:
        yield group
    finally:
        ended.set()
        watcher.join()
        for setting, value in outer.items():
            with suppress(*SPARK_ERRORS):
                context.setLocalProperty(setting, value)  # type: ignore[arg-type]


@contextmanager
def phase_watch(
    spark: SparkSession, report: Callable[[int, int, str], None]
) -> Iterator[Callable[[str], None]]:
    """Yield a function that starts the next phase of a job, and reports the tasks of that phase.

    The counts of each phase start at 0, because the numbers of tasks of two phases are unrelated.
    """
    with ExitStack() as watched:

        def start_phase(phase: str) -> None:
            watched.close()
            report(0, 0, phase)
            watch = task_watch(spark, phase, lambda ended, known: report(ended, known, phase))
            watched.enter_context(watch)

        yield start_phase


def _watch(
    context: SparkContext, group: str, report: Callable[[int, int], None], ended: threading.Event
) -> None:
    reported = 0
    while not ended.wait(_POLL_SECONDS):
        try:
            done, known = _tasks(context.statusTracker(), group)
        except SPARK_ERRORS:
            return  # The thread that runs the job gets the same error.
        if done > reported:
            reported = done
            report(done, known)


def _tasks(tracker: StatusTracker, group: str) -> tuple[int, int]:
    """Return the number of ended tasks, and of the tasks that Spark has planned so far."""
    jobs = [tracker.getJobInfo(each) for each in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(each) for job in jobs if job for each in job.stageIds]
    known = [stage for stage in stages if stage]
    return sum(each.numCompletedTasks for each in known), sum(each.numTasks for each in known)
