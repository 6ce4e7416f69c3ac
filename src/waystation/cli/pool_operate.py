"""`waystation pool assign | forget | drain | evict | dead | redrive | purge`."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import typer
from rich.text import Text

from waystation.cli.options import JsonOption, KeyOption, PoolArgument, UrlOption
from waystation.cli.output import console, emit_json, emit_table, printable
from waystation.cli.pool_look import RecipientArgument
from waystation.cli.station import open_station
from waystation.cli.topic_messages import time_of
from waystation.errors import ExitCode, InvalidInputError

WorkerArgument = Annotated[str, typer.Argument(help="Name of the worker.")]
NumbersArgument = Annotated[
    list[int] | None, typer.Argument(help="Numbers of dead letters, as `dead` shows them.")
]
AllOption = Annotated[bool, typer.Option("--all", help="All that there are now.")]


def assign(
    name: PoolArgument,
    recipient: RecipientArgument,
    worker: Annotated[
        str, typer.Option("--worker", help="To this one; else by the rule, if it has none.")
    ] = "",
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Give a key a worker, or move it to another; not while one of its messages is taken."""
    with open_station(url, key) as station:
        owner = station.pools.assign(name, recipient, worker=worker)
    told = "nobody is live" if owner == "-" else f"{owner} has it"
    _tell({"key": recipient, "owner": owner}, told, as_json=as_json)


def forget(
    name: PoolArgument,
    recipient: RecipientArgument,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Forget a key without messages; its next message gives it a worker anew."""
    with open_station(url, key) as station:
        station.pools.forget(name, recipient)
    _tell({}, f"{recipient} is forgotten", as_json=as_json)


def drain(
    name: PoolArgument,
    worker: WorkerArgument,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Let a worker finish what it has taken, and give its keys to others, in order."""
    with open_station(url, key, scope="admin") as station:
        taken = station.pools.drain(name, worker)
    rest = f", {taken} messages are still with it" if taken else "; it has nothing left"
    _tell({"taken": taken}, f"{worker} drains{rest}", as_json=as_json)


def evict(
    name: PoolArgument,
    worker: WorkerArgument,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Give the keys of a worker to others at once; what it has taken is done again."""
    with open_station(url, key, scope="admin") as station:
        count = station.pools.evict(name, worker)
    _tell({"count": count}, f"{count} keys of {worker} went to others", as_json=as_json)


def dead(
    name: PoolArgument,
    limit: Annotated[int, typer.Option("--max", help="Most of them.", min=1)] = 100,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """List dead letters, the oldest failure first."""
    with open_station(url, key, scope="read") as station:
        found = list(islice(station.pools.dead_letters(name), limit))
    if as_json:
        emit_json({"dead_letters": found})
        return
    emit_table(
        ("number", "key", "message", "tries", "crashes", "failed", "cause"),
        [
            (
                each.number,
                printable(each.key),
                printable(each.message.id),
                each.tries,
                each.crashes,
                time_of(each.failed_ms),
                printable(each.cause),
            )
            for each in found
        ],
        empty="No dead letters.",
        numbers=("number", "tries", "crashes"),
    )


def redrive(
    name: PoolArgument,
    numbers: NumbersArgument = None,
    everything: AllOption = False,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Send dead letters again, behind what their keys have: those that are named, or --all."""
    chosen = _chosen(numbers, everything=everything)
    with open_station(url, key, scope="admin") as station:
        count = station.pools.redrive(name, chosen)
    _tell({"count": count}, f"{count} are sent again", as_json=as_json)


def purge(
    name: PoolArgument,
    numbers: NumbersArgument = None,
    everything: AllOption = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Delete dead letters for good: those that are named, or --all."""
    chosen = _chosen(numbers, everything=everything)
    if not yes and not typer.confirm(f"Delete dead letters of {name}?"):
        raise typer.Exit(ExitCode.FAILED)
    with open_station(url, key, scope="admin") as station:
        count = station.pools.purge(name, chosen)
    _tell({"count": count}, f"{count} are deleted", as_json=as_json)


def _chosen(numbers: list[int] | None, *, everything: bool) -> list[int] | None:
    if everything == bool(numbers):
        raise InvalidInputError(
            "Which dead letters?", hint="Give numbers from `waystation pool dead`, or --all."
        )
    return numbers or None


def _tell(value: object, told: str, *, as_json: bool) -> None:
    if as_json:
        emit_json(value)
    else:
        console.print(Text(printable(told)), soft_wrap=True)
