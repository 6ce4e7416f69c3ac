"""What commands print: tables for people, JSON for machines, errors on standard error."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from waystation.errors import WaystationError

console = Console(highlight=False)
problems = Console(stderr=True, highlight=False)

#: Characters that terminals may obey; JSON allows those from 7f on inside of strings.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """The same text, with what a terminal would obey written as JSON escapes."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def emit_json(value: Any) -> None:
    """One JSON document on one line."""
    sys.stdout.write(msgspec.json.encode(value, enc_hook=str).decode() + "\n")
    sys.stdout.flush()


def emit_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    empty: str,
    numbers: Collection[str] = (),
) -> None:
    """A table, or a sentence when there is nothing to show; columns of `numbers` end flush."""
    if not rows:
        console.print(Text(empty, style="dim"))
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        justify = "right" if column in numbers else "left"
        table.add_column(column, overflow="fold", justify=justify)  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    console.print(table)


def emit_error(error: WaystationError, *, as_json: bool = False) -> None:
    """What went wrong and what to do next."""
    if as_json:
        told = {"error": error.message, "code": error.code, "hint": error.hint}
        sys.stderr.write(msgspec.json.encode(told).decode() + "\n")
        return
    text = Text.assemble(("error ", "bold red"), error.message)
    if error.hint:
        text.append(f"\n      {error.hint}", style="dim")
    problems.print(text)
