"""Progress bar of history jobs, with rate and remaining time. Only a terminal shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from waystation.cli.output import problems

#: Report of progress: units done, total (0: unknown), and the unit or phase.
Tell = Callable[[int, int, str], None]


@contextmanager
def job_bar(*, hidden: bool) -> Iterator[Tell]:
    """Show a bar for the length of the block, and remove it at the end."""
    from rich.progress import (  # noqa: PLC0415 (only jobs need it)
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=problems,
        transient=True,
        disable=hidden or not problems.is_terminal,
    )
    with bar:
        task = bar.add_task("starting Spark", total=None, rate="")

        phase = ""

        def tell(done: int, total: int, text: str) -> None:
            nonlocal phase
            if text != phase:
                # Start a new estimate, because the speed of the phase before is unrelated.
                phase = text
                bar.reset(task, total=total or None, completed=done, description=text, rate="")
                return
            bar.update(task, completed=done, total=total)
            if (speed := bar.tasks[task].speed or 0) >= 1:
                bar.update(task, rate=f"{speed:,.0f}/s")

        yield tell
