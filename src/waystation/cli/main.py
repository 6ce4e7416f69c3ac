"""The entry point: finds the command, runs it, turns errors into a sentence and an exit code."""

from __future__ import annotations

import importlib
import sys
from typing import Annotated, Any

import typer

from waystation import __version__
from waystation.cli import exits
from waystation.cli.output import emit_error
from waystation.errors import InvalidInputError, WaystationError


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"waystation {__version__}")
        raise typer.Exit


def build_app() -> typer.Typer:
    """All commands. Their modules are imported here and not above: a test may build it anew."""
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

    serve = _module("serve")
    app.command()(serve.dev)
    app.command()(serve.serve)
    app.command()(_module("demo").demo)
    app.add_typer(_module("config").app, name="config")
    app.add_typer(_module("keys").app, name="keys")
    app.command()(_module("bench").bench)
    app.add_typer(_module("channel").app, name="channel")
    app.add_typer(_module("topic").app, name="topic")
    app.add_typer(_module("deliveries").app, name="deliveries")
    app.add_typer(_module("tx").app, name="tx")
    app.add_typer(_module("pipeline").app, name="pipeline")
    app.command()(_module("why").why)
    return app


def main() -> None:
    """Runs the command line of this process."""
    as_json = "--json" in sys.argv[1:]
    try:
        _require_text(sys.argv[1:])
        build_app()()
    except WaystationError as error:
        emit_error(error, as_json=as_json)
        sys.exit(exits.exit_code(error))
    except KeyboardInterrupt:
        sys.exit(exits.INTERRUPTED)


def _require_text(arguments: list[str]) -> None:
    """Refuses bytes that are no text: nothing that is named by them could be sent or shown."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError as error:
            raise InvalidInputError(f"The argument {argument!a} is not UTF-8.") from error


def _module(name: str) -> Any:
    return importlib.import_module(f"waystation.cli.{name}")


if __name__ == "__main__":
    main()
