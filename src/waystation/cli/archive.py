"""`waystation archive`: who archives, what waits for it, and what was refused."""

from __future__ import annotations

import typer
from rich.text import Text

from waystation.cli.options import JsonOption, KeyOption, UrlOption
from waystation.cli.output import console, emit_json, emit_table, one_line, printable
from waystation.cli.station import open_station
from waystation.cli.topic_messages import time_of

app = typer.Typer(
    no_args_is_help=True, help="Archiving: what leaves the store, and who sees to it."
)

#: Of what was set aside; the API has all.
_SHOWN_MOST = 20


@app.command()
def status(url: UrlOption = "", key: KeyOption = "", as_json: JsonOption = False) -> None:
    """Show who archives, what waits and since when, and what was set aside."""
    with open_station(url, key, scope="admin") as station:
        found = station.archive.status()
        aside = []
        if any(each.set_aside for each in found.cells):
            for each in station.archive.set_aside():
                aside.append(each)
                if len(aside) == _SHOWN_MOST and not as_json:
                    break
    if as_json:
        emit_json({"status": found, "set_aside": aside})
        return
    waiting = sum(each.waiting for each in found.cells)
    refused = sum(each.set_aside for each in found.cells)
    late = max(each.late_ms for each in found.cells)
    told = f"{waiting:,} wait to be archived, the first is {late / 1000:,.1f} s late"
    console.print(Text(f"{told}; {refused:,} were set aside"), soft_wrap=True)
    if found.problem:
        console.print(Text(f"  {one_line(found.problem)}", style="yellow"), soft_wrap=True)
    emit_table(
        ("cell", "waiting", "first due", "late s", "set aside", "archiver", "until"),
        [
            (
                each.cell,
                f"{each.waiting:,}",
                "" if each.oldest_ms is None else time_of(each.oldest_ms),
                f"{each.late_ms / 1000:,.1f}",
                each.set_aside,
                each.archiver or "nobody",
                time_of(each.until_ms) if each.until_ms else "",
            )
            for each in found.cells
        ],
        empty="There are no cells.",
        numbers=("cell", "waiting", "late s", "set aside"),
    )
    if aside:
        rows = [
            (each.id, time_of(each.since_ms), each.tries, printable(each.cause)) for each in aside
        ]
        emit_table(
            ("set aside", "since", "tries", "cause"),
            rows,
            empty="",
            numbers=("tries",),
            whole=("set aside",),
        )


@app.command()
def retry(url: UrlOption = "", key: KeyOption = "", as_json: JsonOption = False) -> None:
    """Have all that was set aside archived at once, instead of within the hour."""
    with open_station(url, key, scope="admin") as station:
        count = station.archive.retry()
    if as_json:
        emit_json({"count": count})
    else:
        console.print(Text(f"{count:,} are due now that were not"))
