"""What commands print: tables for people, JSON for machines, errors on standard error."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from waystation.errors import WaystationError

console = Console(highlight=False)
problems = Console(stderr=True, highlight=False)


def emit_json(value: Any) -> None:
    """One JSON document on one line."""
    sys.stdout.write(msgspec.json.encode(value, enc_hook=str).decode() + "\n")
    sys.stdout.flush()


def emit_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, empty: str) -> None:
    """A table, or a sentence when there is nothing to show."""
    if not rows:
        console.print(Text(empty, style="dim"))
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
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
