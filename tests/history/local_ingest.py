"""Ingest without Spark: the tasks of the product, run one after the other in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from waystation.history.ingest.job import IngestJob
from waystation.history.ingest.planner import IngestOptions
from waystation.history.ingest.task import IngestTask, TaskResult, run_task
from waystation.history.lake.table import Lake
from waystation.history.sources.options import Location


def local_ingest(lake: Path, store_url: str, **options: Any) -> IngestJob:
    """Return a new ingest, as another process would begin it."""
    return IngestJob(Lake(str(lake)), Location(store_url), run_tasks, IngestOptions(**options))


def run_tasks(tasks: Sequence[IngestTask], on_ended: Callable[[int], None]) -> Iterator[TaskResult]:
    """Run tasks in this process."""
    for ended, task in enumerate(tasks, 1):
        yield run_task(task)
        on_ended(ended)
