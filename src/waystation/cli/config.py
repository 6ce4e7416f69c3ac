"""`waystation config`: what is set, and where it came from."""

from __future__ import annotations

import typer

from waystation.cli.options import ConfigOption, JsonOption, read_settings
from waystation.cli.output import emit_json, emit_table

app = typer.Typer(no_args_is_help=True, help="Look at the settings.")


@app.callback()
def _group() -> None:
    """Keeps `config show` a subcommand while it is the only one."""


@app.command()
def show(config: ConfigOption = "", as_json: JsonOption = False) -> None:
    """Print the effective settings with the origin of each; secrets are hidden."""
    rows = list(read_settings(config).rows())
    if as_json:
        emit_json({name: {"value": value, "origin": origin} for name, value, origin in rows})
    else:
        emit_table(("setting", "value", "from"), rows, empty="")
