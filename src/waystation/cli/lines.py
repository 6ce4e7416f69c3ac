"""Lines of standard input, many at a time, and the bar that tells how far they are."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from waystation.cli.output import problems
from waystation.runtime.json_text import shield

if TYPE_CHECKING:
    from rich.progress import Progress

_READ_BYTES = 256 * 1024
#: Lines that are sent at once; the progress bar moves after each time.
_LINES_AT_ONCE = 500


class Line(NamedTuple):
    """A line that is not blank, with its number and where it ends in the input."""

    number: int
    text: bytes
    ends_at: int


def read_lines(descriptor: int) -> Iterator[list[Line]]:
    """Lists of lines, each as long as what has arrived, within a bound."""
    rest, number, position = b"", 0, 0
    while True:
        data = os.read(descriptor, _READ_BYTES)
        # The last line need not end.
        *whole, rest = (rest + data).split(b"\n") if data else (rest, b"")
        lines = []
        for text in whole:
            number, position = number + 1, position + len(text) + 1
            if text.strip():
                lines.append(Line(number, text.strip(), position))
        for start in range(0, len(lines), _LINES_AT_ONCE):
            yield lines[start : start + _LINES_AT_ONCE]
        if not data:
            return


def json_problem(text: bytes) -> str:
    """Return why a text is not JSON in UTF-8; an empty text if it is. Lone surrogates are fine."""
    try:
        text.decode()
        msgspec.json.decode(shield(text), type=msgspec.Raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return str(error)
    return ""


def input_bytes() -> int | None:
    """How much there is to read, if that can be known."""
    status = os.fstat(sys.stdin.fileno())
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def progress_bar(*, hidden: bool) -> Progress:
    """A bar on a terminal; it goes when all is done."""
    from rich.progress import (  # noqa: PLC0415 (only this command needs it)
        BarColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=problems,
        transient=True,
        # Who types the lines sees them already.
        disable=hidden or not problems.is_terminal or sys.stdin.isatty(),
    )
