"""The entry point: finds the command, runs it, turns errors into a sentence and an exit code."""

from __future__ import annotations

import importlib
import sys
from typing import Annotated

import typer

from waystation import __version__
from waystation.cli.output import emit_error
from waystation.errors import ExitCode, InvalidInputError, WaystationError


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"waystation {__version__}")
        raise typer.Exit


#: Command → its module, and what of it: a group of commands, or a function.
_COMMANDS = {
    "dev": ("serve", "dev"),
    "serve": ("serve", "serve"),
    "demo": ("demo", "demo"),
    "config": ("config", "app"),
    "keys": ("keys", "app"),
    "store": ("store", "app"),
    "bench": ("bench", "bench"),
    "channel": ("channel", "app"),
    "topic": ("topic", "app"),
    "subscription": ("subscription", "app"),
    "pool": ("pool", "app"),
    "deliveries": ("deliveries", "app"),
    "tx": ("tx", "app"),
    "pipeline": ("pipeline", "app"),
    "webhooks": ("webhooks", "app"),
    "archive": ("archive", "app"),
    "relay": ("relay", "relay"),
    "deliverer": ("deliverer", "app"),
    "why": ("why", "why"),
    "history": ("history_queries", "app"),
}


def build_app(command: str = "") -> typer.Typer:
    """All commands; or the named one alone, if there is one of that name.

    Modules are imported here and not above: what a command does not need costs it half a second.
    """
    app = typer.Typer(
        name="waystation",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=True,
        help="Durable messages and transactions on Valkey/Redis, with their history in Spark.",
    )

    @app.callback()
    def root(
        version: Annotated[
            bool,
            typer.Option(
                "--version", help="Print the version.", callback=_show_version, is_eager=True
            ),
        ] = False,
    ) -> None:
        """Takes the options that stand before a command."""

    for name in (command,) if command in _COMMANDS else _COMMANDS:
        module, part = _COMMANDS[name]
        found = getattr(importlib.import_module(f"waystation.cli.{module}"), part)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name)(found)
    return app


def main() -> None:
    """Runs the command line of this process."""
    as_json = "--json" in sys.argv[1:]
    try:
        _require_text(sys.argv[1:])
        build_app(sys.argv[1] if len(sys.argv) > 1 else "")()
    except WaystationError as error:
        emit_error(error, as_json=as_json)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)


def _require_text(arguments: list[str]) -> None:
    """Refuses bytes that are no text: nothing that is named by them could be sent or shown."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError as error:
            raise InvalidInputError(f"The argument {argument!a} is not UTF-8.") from error


if __name__ == "__main__":
    main()
