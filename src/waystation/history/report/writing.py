"""Writing a report: figures into a page, and the page into a file, whole or not at all."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

from waystation.errors import LakeRefusedError
from waystation.history.lake.table import Lake
from waystation.history.lake.views import attach
from waystation.history.report.figures import read_figures
from waystation.history.report.page import page


class Reported(msgspec.Struct, frozen=True):
    """A page that was written."""

    file: str
    bytes: int
    begin: datetime
    end: datetime


def write_report(
    spark: SparkSession, lake: Lake, file: Path, *, now_ms: int, days: float = 7, title: str = ""
) -> Reported:
    """Writes the page of the last days; LakeRefusedError if there is nothing to tell yet."""
    attach(spark, lake=lake.root)
    figures = read_figures(spark, days=days)
    if figures is None:
        raise LakeRefusedError(
            "There are no figures yet.", hint="`waystation history refresh` makes them."
        )
    made = datetime.fromtimestamp(now_ms / 1000, UTC)
    text = page(figures, title=title or "What passed through Waystation", made=made).encode()
    put(file, text)
    return Reported(str(file), len(text), figures.begin, figures.end)


def put(file: Path, text: bytes) -> None:
    """Beside it, then over it: who opens the page meanwhile has the old one or the new one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        partial.write_bytes(text)
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
