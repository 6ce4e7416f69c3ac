"""The session of a command of history: opened for it, told where its pages are, and ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from waystation.cli.output import problems
from waystation.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from waystation.history.lake import Lake


@contextmanager
def session(
    settings: Settings, *, ui: bool | None = None, quiet: bool
) -> Iterator[tuple[SparkSession, Lake]]:
    """A session and the lake of the settings; what goes wrong in Spark is told in short.

    Its pages are there if the settings say so; and where nobody has said anything, for a person at
    a terminal, as long as they are on this machine alone.
    """
    # Late: Spark takes seconds to import, and other commands do not need it.
    from waystation.history.lake import Lake  # noqa: PLC0415
    from waystation.history.session import (  # noqa: PLC0415
        running_session,
        session_plan,
        ui_address,
    )

    plan = session_plan(settings)
    if ui is None and not quiet and problems.is_terminal and plan.master.startswith("local"):
        plan = msgspec.structs.replace(plan, ui=True)
    with running_session(plan) as spark:
        if (address := ui_address(spark)) and not quiet:
            problems.print(f"Spark shows what it does at {address}", style="dim", soft_wrap=True)
        yield spark, Lake(lake_place(settings))


def lake_place(settings: Settings) -> str:
    """Where the lake is."""
    return settings.history.lake or str(settings.data_dir / "lake")
