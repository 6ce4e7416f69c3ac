"""Transactions as people are shown them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from rich.text import Text

from waystation.cli.output import console, emit_json, emit_table, one_line, printable
from waystation.cli.topic_messages import time_of

if TYPE_CHECKING:
    from waystation.client import Journal, TransactionSummary


def show(summary: TransactionSummary) -> None:
    """How a transaction stands, and its output."""
    known = summary.metadata
    told = f"{summary.id} is {summary.status}, {known.transaction_type}"
    console.print(Text(f"{told}, since {time_of(known.last_updated)}"), soft_wrap=True)
    if known.external_id:
        console.print(Text(f"  external id {one_line(known.external_id)}", style="dim"))
    if bytes(summary.progress_report) != b"null":
        console.print(Text(f"  progress {_text(summary.progress_report)}", style="dim"))
    if bytes(summary.data) != b"null":
        console.print(Text(_text(summary.data)), soft_wrap=True)
    if summary.status == "internal-error":
        hint = f"  where it broke: waystation tx journal {summary.id}"
        console.print(Text(hint, style="dim"), soft_wrap=True)


def show_progress(report: Any, *, as_json: bool) -> None:
    """A progress report, on a line of its own."""
    if as_json:
        emit_json({"progress": report})
        return
    text = msgspec.json.encode(report).decode()
    console.print(Text(f"  progress {one_line(text)}", style="dim"), soft_wrap=True)


def show_journal(found: Journal) -> None:
    """What happened, step by step; what steps logged, and where they broke."""
    ended = f", {found.status}" if found.status else ""
    console.print(Text(f"{found.id} of {found.type} is {found.state}{ended}"), soft_wrap=True)
    for text in (found.cause, found.note):
        if text:
            console.print(Text(f"  {one_line(text)}", style="dim"), soft_wrap=True)
    rows = [
        (
            step.place,
            step.type,
            each.number,
            each.outcome,
            time_of(each.begun_ms),
            f"{each.ended_ms - each.begun_ms:,}",
            one_line(each.note),
        )
        for step in found.steps
        for each in step.last
    ]
    columns = ("place", "step", "attempt", "outcome", "begun", "ms", "note")
    emit_table(columns, rows, empty="No step was called yet.", numbers=("attempt", "ms"))
    for step in found.steps:
        for line in step.logs:
            console.print(
                Text(f"{step.place} {time_of(line.time_ms)} {line.level} {one_line(line.text)}"),
                soft_wrap=True,
            )
        for each in step.last:
            if each.trace:
                console.print(Text(printable(each.trace), style="dim"), soft_wrap=True)


def _text(raw: msgspec.Raw) -> str:
    return printable(bytes(raw).decode(errors="replace"))
