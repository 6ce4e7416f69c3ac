"""`waystation deliveries`: what waits, what failed and why, and how to set it going again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from waystation.cli.options import JsonOption, KeyOption, UrlOption
from waystation.cli.output import console, emit_json, emit_table, printable
from waystation.cli.station import open_station
from waystation.errors import InvalidInputError, NotFoundError

if TYPE_CHECKING:
    from waystation.client import Waystation

app = typer.Typer(no_args_is_help=True, help="Outgoing deliveries: webhooks and their endpoints.")

EndpointArgument = Annotated[str, typer.Argument(help="Name of the endpoint, from `list`.")]
EndpointOption = Annotated[str, typer.Option("--endpoint", help="Only of this endpoint.")]
ChannelOption = Annotated[str, typer.Option("--channel", help="Only of this channel.")]
IdOption = Annotated[str, typer.Option("--id", help="Only this one; needs --channel.")]


@app.command("list")
def list_endpoints(url: UrlOption = "", key: KeyOption = "", as_json: JsonOption = False) -> None:
    """List endpoints with their state, and how much waits and failed."""
    with _station(url, key) as station:
        found = station.deliveries.endpoints()
    if as_json:
        emit_json(found)
        return
    numbers = ("waiting", "failed", "dropped")
    columns = ("endpoint", "state", "breaker", *numbers, "cause")
    rows = [
        (*(getattr(each, column) for column in columns[:-1]), printable(each.cause))
        for each in found
    ]
    emit_table(columns, rows, empty="No endpoints, and nothing waits.", numbers=numbers)


@app.command()
def failed(
    endpoint: EndpointOption = "",
    channel: ChannelOption = "",
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """List deliveries that were given up, with the cause."""
    with _station(url, key) as station:
        found = list(station.deliveries.failed(endpoint=endpoint, channel=channel))
    if as_json:
        emit_json(found)
        return
    columns = ("failed at", "endpoint", "channel", "id", "attempts", "cause")
    rows = [
        (
            _time(each.failed_ms),
            *(getattr(each, column) for column in columns[1:-1]),
            printable(each.cause),
        )
        for each in found
    ]
    emit_table(
        columns,
        rows,
        empty="Nothing has failed.",
        numbers=("attempts",),
        whole=("failed at", "endpoint"),
    )


@app.command()
def attempts(
    endpoint: EndpointArgument,
    channel: Annotated[str, typer.Argument(help="Name of the channel.")],
    item_id: Annotated[str, typer.Option("--id", help="Only of this delivery.")] = "",
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """List the newest attempts of a channel to an endpoint."""
    with _station(url, key) as station:
        found = station.deliveries.attempts(endpoint, channel, item_id=item_id)
    if as_json:
        emit_json(found)
        return
    columns = ("at", "id", "attempt", "verdict", "answer", "seconds", "reply")
    rows = [
        (
            _time(each.at_ms),
            each.id,
            each.attempt,
            each.verdict,
            each.status or each.failure,
            f"{each.seconds:.3f}",
            printable(each.reply[:60]),
        )
        for each in found
    ]
    emit_table(
        columns,
        rows,
        empty="No attempts are kept.",
        numbers=("attempt", "seconds"),
        whole=("at",),
    )


@app.command()
def redrive(
    endpoint: EndpointArgument,
    channel: ChannelOption = "",
    item_id: IdOption = "",
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Send failed deliveries of an endpoint again, now, with as many attempts as new ones."""
    _check(channel, item_id)
    with _station(url, key) as station:
        count = station.deliveries.redrive(endpoint, channel=channel, item_id=item_id)
    _tell("redriven", count, f"No failed deliveries of {endpoint}.", as_json=as_json)


@app.command()
def discard(
    endpoint: EndpointArgument,
    channel: ChannelOption = "",
    item_id: IdOption = "",
    waiting: Annotated[
        bool, typer.Option("--waiting", help="Those that wait, not those that failed.")
    ] = False,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Forget failed, or waiting, deliveries of an endpoint for good."""
    _check(channel, item_id)
    with _station(url, key) as station:
        count = station.deliveries.discard(
            endpoint, channel=channel, item_id=item_id, waiting=waiting
        )
    kind = "waiting" if waiting else "failed"
    _tell("discarded", count, f"No {kind} deliveries of {endpoint}.", as_json=as_json)


@app.command()
def enable(
    endpoint: EndpointArgument,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Send to a disabled endpoint again, what waits first."""
    with _station(url, key) as station:
        try:
            row = station.deliveries.enable(endpoint)
        except NotFoundError as error:
            error.hint = "`waystation deliveries list` shows them, with their whole names."
            raise
    if as_json:
        emit_json(row)
    else:
        console.print(Text(f"{row.endpoint} is {row.state}, {row.waiting} deliveries wait"))


@contextmanager
def _station(url: str, key: str) -> Iterator[Waystation]:
    with open_station(url, key, scope="admin") as station:
        yield station


def _check(channel: str, item_id: str) -> None:
    if item_id and not channel:
        raise InvalidInputError("--id needs --channel.")


def _tell(verb: str, count: int, none: str, *, as_json: bool) -> None:
    if as_json:
        emit_json({"count": count})
    elif count:
        console.print(Text(f"{verb} {count:,}"))
    else:
        console.print(Text(none, style="dim"))


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
