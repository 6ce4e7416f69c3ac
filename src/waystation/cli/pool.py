"""`waystation pool`: messages for recipient keys, each with the worker that has the key."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.text import Text

from waystation.cli.lines import json_problem
from waystation.cli.option_words import read_options
from waystation.cli.options import JsonOption, KeyOption, PoolArgument, UrlOption
from waystation.cli.output import console, emit_json, emit_table, printable
from waystation.cli.pool_look import keys, show_workers, watch, why, workers
from waystation.cli.pool_operate import assign, dead, drain, evict, forget, purge, redrive
from waystation.cli.station import open_station
from waystation.cli.topic_messages import time_of
from waystation.errors import ConflictError, ExitCode, InvalidInputError

if TYPE_CHECKING:
    from waystation.client import Pool

app = typer.Typer(
    no_args_is_help=True,
    help="Pools: the messages of a recipient key reach one live worker, in order.",
)

_OPTIONS = "An option as name=value, such as assignment=least_loaded or attempts=3; repeatable."
OptionOption = Annotated[list[str] | None, typer.Option("--option", "-o", help=_OPTIONS)]


@app.command()
def create(
    name: PoolArgument,
    options: OptionOption = None,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Create a pool; workers can register at once."""
    chosen: Any = _options(options)
    with open_station(url, key, scope="admin") as station:
        try:
            made = station.pools.create(name, **chosen)
        except ConflictError as error:
            error.hint = f"See it with `waystation pool show {name}`, or take another name."
            raise
    _tell(made, f"{name} is there; keys go to workers by {made.options['assignment']}", as_json)


@app.command()
def change(
    name: PoolArgument,
    options: OptionOption = None,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Change options; what is not named stays. It holds from the next call of a worker on."""
    chosen: Any = _options(options)
    if not chosen:
        raise InvalidInputError("Nothing to change.", hint="Give options as -o name=value.")
    with open_station(url, key, scope="admin") as station:
        changed = station.pools.change(name, **chosen)
    _tell(changed, f"{name} is changed, version {changed.version}", as_json)


@app.command("list")
def list_(url: UrlOption = "", key: KeyOption = "", as_json: JsonOption = False) -> None:
    """List pools."""
    with open_station(url, key, scope="read") as station:
        found = list(station.pools.list())
    if as_json:
        emit_json({"pools": found})
        return
    emit_table(
        ("pool", "assignment", "version", "created"),
        [
            (each.name, each.options["assignment"], each.version, time_of(each.created_ms))
            for each in found
        ],
        empty="No pools. Make one with `waystation pool create NAME`.",
        numbers=("version",),
    )


@app.command()
def show(
    name: PoolArgument, url: UrlOption = "", key: KeyOption = "", as_json: JsonOption = False
) -> None:
    """Show a pool: its options, what waits in it, and its workers."""
    with open_station(url, key, scope="read") as station:
        found, standing = station.pools.get(name), station.pools.workers(name)
    if as_json:
        emit_json({"pool": found, "standing": standing})
        return
    console.print(Text(f"{name}, version {found.version}"), soft_wrap=True)
    for option, value in found.options.items():
        shown = printable(msgspec.json.encode(value).decode())
        console.print(Text(f"  {option} = {shown}", style="dim"), soft_wrap=True)
    show_workers(standing)


@app.command()
def delete(
    name: PoolArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Delete a pool with its workers, messages and dead letters, for good."""
    if not yes and not typer.confirm(f"Delete {name} with all that waits in it?"):
        raise typer.Exit(ExitCode.FAILED)
    with open_station(url, key, scope="admin") as station:
        station.pools.delete(name)
    if as_json:
        emit_json({})
    else:
        console.print(Text(f"{name} is deleted"))


@app.command()
def send(
    name: PoolArgument,
    recipient: Annotated[str, typer.Argument(help="Recipient key.", metavar="KEY")],
    content: Annotated[str, typer.Argument(help="JSON; - reads it from standard input.")],
    text: Annotated[bool, typer.Option("--text", help="The content is text, not JSON.")] = False,
    message_id: Annotated[str, typer.Option("--id", help="Message id.")] = "",
    wait: Annotated[
        str, typer.Option("--wait", help="Wait for an answer for so long, such as 15s.")
    ] = "",
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Send one message to a recipient key; with --wait print the answer of its worker."""
    given = sys.stdin.read() if content == "-" else content
    if not text and (problem := json_problem(given.encode())):
        raise InvalidInputError(
            f"The content is not JSON: {problem}.", hint="Quote it, or send it with --text."
        )
    data: Any = given if text else msgspec.Raw(given.encode())
    with open_station(url, key) as station:
        sent = station.pools.send(name, recipient, data, id=message_id, wait=wait or None)
    if as_json:
        emit_json(sent)
    else:
        where = "waits for a worker" if sent.owner == "-" else f"goes to {sent.owner}"
        again = " (it was there before)" if sent.outcome == "duplicate" else ""
        told = f"{sent.id} {where}, {sent.pending} pending of its key{again}"
        console.print(Text(printable(told)), soft_wrap=True)
        if sent.answer is not None:
            answer = sent.answer.content
            shown = answer if isinstance(answer, str) else msgspec.json.encode(answer).decode()
            console.print(Text(printable(shown)), soft_wrap=True)
    if wait and sent.answer is None:
        raise typer.Exit(ExitCode.UNAVAILABLE)


app.command("map")(keys)
app.command()(workers)
app.command()(watch)
app.command()(why)
app.command()(assign)
app.command()(forget)
app.command()(drain)
app.command()(evict)
app.command()(dead)
app.command()(redrive)
app.command()(purge)


def _options(texts: list[str] | None) -> dict[str, Any]:
    from waystation.client.pools import PoolOptions  # noqa: PLC0415 (help must not wait for HTTP)

    return read_options(texts, PoolOptions.__annotations__, {})


def _tell(pool: Pool, told: str, as_json: bool) -> None:
    if as_json:
        emit_json(pool)
    else:
        console.print(Text(printable(told)), soft_wrap=True)
