"""What commands print: tables for people, JSON for machines, errors on standard error."""

from __future__ import annotations

import re
import shlex
import sys
import textwrap
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from waystation.errors import WaystationError

_INDENT = " " * len("error ")
#: Columns for output that is not a terminal's: cells are not broken into lines.
_UNBROKEN = 100_000
#: Characters that terminals obey or that change the order or the lines of a text: controls but tab
#: and newline, marks of direction, line separators, and surrogates, which cannot be written.
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def quoted(text: str) -> str:
    """A name as a shell takes it, for a command that is printed."""
    return shlex.quote(printable(text))


def printable(text: str) -> str:
    """Return the text with the characters that a terminal would obey written as JSON escapes."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def one_line(text: str) -> str:
    """Return the text as `printable` does, with tabs and newlines escaped too.

    For values that users wrote, because a newline would let a value pass for a line of ours.
    """
    return printable(text).replace("\t", "\\t").replace("\n", "\\n")


class SafeConsole(Console):
    """A console that escapes what a terminal would obey in everything that it prints.

    Styles are no part of the text here, so only characters that somebody wrote are escaped.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield segments that are safe to print."""
        for segment in super().render(renderable, options):
            if segment.control or not _CONTROL.search(segment.text):
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)


console = SafeConsole(highlight=False)
problems = SafeConsole(stderr=True, highlight=False)


def emit_json(value: Any) -> None:
    """Write one JSON document on one line.

    A pipe gets every byte of a message as it is stored. A terminal gets the same JSON with the
    characters that it would obey written as escapes.
    """
    document = msgspec.json.encode(value, enc_hook=str) + b"\n"
    if sys.stdout.isatty():
        document = printable(document.decode(errors="replace")).encode()
    sys.stdout.flush()
    sys.stdout.buffer.write(document)
    sys.stdout.flush()


def make_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    numbers: Collection[str] = (),
    whole: Collection[str] = (),
) -> Table:
    """A table; see `emit_table`."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        justify = "right" if column in numbers else "left"
        table.add_column(
            column,
            overflow="fold",
            justify=justify,  # type: ignore[arg-type]
            no_wrap=column in whole,
        )
    for row in rows:
        # Before the widths of columns are known, or escapes would shift them.
        table.add_row(*(Text(one_line(str(cell))) for cell in row))
    return table


def emit_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    empty: str,
    numbers: Collection[str] = (),
    whole: Collection[str] = (),
) -> None:
    """A table, or a sentence when there is nothing to show.

    Columns of `numbers` end flush; those of `whole` are not broken into lines while others can be.
    """
    if not rows:
        console.print(Text(empty, style="dim"))
        return
    table = make_table(columns, rows, numbers=numbers, whole=whole)
    if console.is_terminal:
        console.print(table)
        return
    wide = SafeConsole(file=console.file, highlight=False, width=_UNBROKEN)
    with wide.capture() as captured:
        wide.print(table)
    for line in captured.get().rstrip("\n").split("\n"):
        console.out(line.rstrip(" "), highlight=False)


def emit_error(error: WaystationError, *, as_json: bool = False) -> None:
    """What went wrong and what to do next."""
    if as_json:
        told = {"error": error.message, "code": error.code, "hint": error.hint}
        sys.stderr.write(printable(msgspec.json.encode(told).decode()) + "\n")
        return
    text = Text.assemble(("error ", "bold red"), _indented(error.message))
    if error.hint:
        text.append(f"\n{_INDENT}{_indented(error.hint)}", style="dim")
    problems.print(text, soft_wrap=True)


def _indented(text: str) -> str:
    """Broken into lines that stand under each other, where a person reads them."""
    if not problems.is_terminal:
        return text
    room = max(problems.width - len(_INDENT), 20)
    return f"\n{_INDENT}".join(textwrap.wrap(text, room, break_on_hyphens=False))
