"""A bar for jobs of history: how far, how fast, how long yet. On a terminal alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from waystation.cli.output import problems

#: What is done of how much (0: nobody knows yet), and what it is about.
Tell = Callable[[int, int, str], None]


@contextmanager
def job_bar(*, hidden: bool) -> Iterator[Tell]:
    """Shows a bar for the length of the block; it goes when all is done."""
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

        about = ""

        def tell(done: int, total: int, text: str) -> None:
            nonlocal about
            if text != about:
                # What took how long before says nothing about this.
                about = text
                bar.reset(task, total=total or None, completed=done, description=text, rate="")
                return
            bar.update(task, completed=done, total=total)
            if (speed := bar.tasks[task].speed or 0) >= 1:
                bar.update(task, rate=f"{speed:,.0f}/s")

        yield tell
