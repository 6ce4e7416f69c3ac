"""Watching the tasks of a job of Spark while somebody waits for it, to show how far it is."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from pyspark import SparkContext, StatusTracker
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from waystation.history.spark_errors import SPARK_ERRORS

_EVERY_SECONDS = 0.5
#: Tells one block from the others.
_numbers = itertools.count()
_GROUP, _TEXT = "spark.jobGroup.id", "spark.job.description"


@contextmanager
def task_watch(spark: SparkSession, name: str, tell: Callable[[int, int], None]) -> Iterator[str]:
    """Report how many tasks have ended, and of how many, of the jobs that this thread runs.

    Yield the group of these jobs, with which Spark cancels them. The Spark UI shows them by the
    name. A session of Spark Connect reports nothing and has no group.
    """
    try:
        context = spark.sparkContext
    except PySparkException:
        yield ""
        return
    group = f"{name}-{next(_numbers)}"
    # Of the block around this one, if there is one: its tasks go on to be told when this ends.
    around = {setting: context.getLocalProperty(setting) for setting in (_GROUP, _TEXT)}
    context.setJobGroup(group, name)
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(context, group, tell, ended), daemon=True)
    watcher.start()
    try:
        yield group
    finally:
        ended.set()
        watcher.join()
        for setting, value in around.items():
            with suppress(*SPARK_ERRORS):
                context.setLocalProperty(setting, value)  # type: ignore[arg-type]


@contextmanager
def part_watch(
    spark: SparkSession, tell: Callable[[int, int, str], None]
) -> Iterator[Callable[[str], None]]:
    """For jobs of several parts: gives a function that begins the next, which is watched.

    Tasks are counted anew for each part, since what one takes says nothing about another.
    """
    with ExitStack() as watched:

        def begin(part: str) -> None:
            watched.close()
            tell(0, 0, part)
            watch = task_watch(spark, part, lambda ended, known: tell(ended, known, part))
            watched.enter_context(watch)

        yield begin


def _watch(
    context: SparkContext, group: str, tell: Callable[[int, int], None], ended: threading.Event
) -> None:
    told = 0
    while not ended.wait(_EVERY_SECONDS):
        try:
            done, known = _tasks(context.statusTracker(), group)
        except SPARK_ERRORS:
            return  # Whoever waits for the job is told.
        if done > told:
            told = done
            tell(done, known)


def _tasks(tracker: StatusTracker, group: str) -> tuple[int, int]:
    """Those that have ended, and all that are known of by now."""
    jobs = [tracker.getJobInfo(each) for each in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(each) for job in jobs if job for each in job.stageIds]
    known = [stage for stage in stages if stage]
    return sum(each.numCompletedTasks for each in known), sum(each.numTasks for each in known)
