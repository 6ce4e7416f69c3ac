"""`waystation why`: why a transaction is where it is."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from waystation.cli.options import JsonOption, KeyOption, UrlOption
from waystation.cli.output import console, emit_json, one_line
from waystation.cli.station import open_station
from waystation.errors import ExitCode


def why(
    transaction_id: Annotated[str, typer.Argument(help="Id of a transaction.", metavar="ID")],
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Tell what a transaction waits for, or has ended with; exit code 3 if there is none."""
    with open_station(url, key, scope="read") as station:
        reason = station.transactions.why(transaction_id)
    if as_json:
        emit_json(reason)
    else:
        console.print(Text(f"{reason.code}  {one_line(reason.text)}"), soft_wrap=True)
    if reason.code == "unknown":
        raise typer.Exit(ExitCode.NOT_FOUND)
