"""`waystation store`: what an operator decides about the store itself."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer
from rich.text import Text

from waystation.cli.options import ConfigOption, DataOption, JsonOption, StoreOption, read_settings
from waystation.cli.output import console, emit_json
from waystation.node import accept_loss

app = typer.Typer(no_args_is_help=True, help="The store and its data set.")


@app.callback()
def group() -> None:
    """Keep `accept-loss` a command of its own, although it is the only one."""


@app.command("accept-loss")
def accept(
    lost: Annotated[
        str,
        typer.Option("--lost", help="Id of the lost data set; default: that of the catalogue."),
    ] = "",
    data: DataOption = None,
    store: StoreOption = None,
    config: ConfigOption = "",
    as_json: JsonOption = False,
) -> None:
    """Accept that the store lost its data: give it a new data set, and let nodes continue."""
    loaded = read_settings(config, data=data, store_url=store)
    old, new, changed = asyncio.run(accept_loss(loaded.config, lost=lost))
    if as_json:
        emit_json({"lost": old if changed else None, "dataset": new})
    elif changed:
        console.print(Text(f"Data set {old} is given up. The store has data set {new} now."))
        console.print(Text("Running nodes continue with it within seconds.", style="dim"))
    else:
        console.print(Text(f"The store has data set {new}; there is no loss to accept."))
