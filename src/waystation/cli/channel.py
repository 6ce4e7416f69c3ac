"""`waystation channel`: publish to channels of a running station, read them, look after them."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from waystation.cli.channel_publish import publish
from waystation.cli.channel_tail import tail
from waystation.cli.options import ChannelArgument, JsonOption, KeyOption, UrlOption
from waystation.cli.output import console, emit_json, emit_table, printable
from waystation.cli.positions import HELP, parse_position
from waystation.cli.station import open_station
from waystation.errors import InvalidInputError
from waystation.runtime.clock import Clock

if TYPE_CHECKING:
    from waystation.client import Batch

app = typer.Typer(no_args_is_help=True, help="Publish to channels and read them.")
app.command()(publish)
app.command()(tail)

SubscriberArgument = Annotated[str, typer.Argument(help="Name of the subscriber.")]
LimitOption = Annotated[int, typer.Option("--max", help="Most messages at a time.", min=1)]


@app.command()
def subscribe(
    channel: ChannelArgument,
    subscriber: SubscriberArgument,
    delete: Annotated[bool, typer.Option("--delete", help="Delete it instead.")] = False,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Create a subscriber; it sees what is published from now on."""
    if delete:
        unsubscribe(channel, subscriber, url=url, key=key, as_json=as_json)
        return
    with open_station(url, key) as station:
        station.channels.subscribe(channel, subscriber)
    _done(f"{subscriber} is subscribed to {channel}", channel, subscriber, as_json=as_json)


@app.command()
def unsubscribe(
    channel: ChannelArgument,
    subscriber: SubscriberArgument,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Delete a subscriber."""
    with open_station(url, key) as station:
        station.channels.unsubscribe(channel, subscriber)
    _done(f"{subscriber} is gone from {channel}", channel, subscriber, as_json=as_json)


@app.command()
def fetch(
    channel: ChannelArgument,
    subscriber: SubscriberArgument,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the first one.", min=0)] = 0,
    limit: LimitOption = 64,
    ack: Annotated[bool, typer.Option("--ack", help="Acknowledge what was fetched.")] = False,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Fetch unread messages; they come again until acknowledged."""
    with open_station(url, key) as station:
        batch = station.channels.fetch(channel, subscriber, timeout=timeout, limit=limit)
        _show(batch, as_json=as_json, acknowledged=ack)
        if ack:
            station.channels.ack(channel, subscriber, batch.handle)


@app.command()
def ack(
    channel: ChannelArgument,
    subscriber: SubscriberArgument,
    handle: Annotated[str, typer.Argument(help="Handle from a fetch.")],
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Acknowledge everything up to a handle."""
    if not handle:
        raise InvalidInputError("The handle is empty.", hint="A fetch with messages has one.")
    with open_station(url, key) as station:
        station.channels.ack(channel, subscriber, handle)
    _done("acknowledged", channel, subscriber, as_json=as_json)


@app.command()
def seek(
    channel: ChannelArgument,
    subscriber: SubscriberArgument,
    position: Annotated[str, typer.Argument(help=f"Where to go on reading: {HELP}")],
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Move a subscriber, forwards or backwards. A clock is that of the last message read."""
    wish = parse_position(position, clock=Clock())
    with open_station(url, key) as station:
        sought = station.channels.seek(channel, subscriber, **wish)
    if as_json:
        where = {"cursor": sought.cursor, "unread": sought.unread}
        emit_json({"channel": channel, "subscriber": subscriber, **where})
    else:
        told = f"{subscriber} goes on after clock {sought.cursor}, {sought.unread:,} unread"
        console.print(Text(told))


@app.command("list")
def list_(
    channel: Annotated[str, typer.Argument(help="List the subscribers of this channel.")] = "",
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """List channels, or the subscribers of one with how far behind they are."""
    if channel:
        _list_subscribers(channel, url, key, as_json=as_json)
        return
    with open_station(url, key) as station:
        channels = sorted(station.channels.channels(), key=lambda each: each.name)
    if as_json:
        emit_json({"channels": channels})
        return
    emit_table(
        ("channel", "clock", "expires in"),
        [(each.name, f"{each.clock:,}", _span(each.expires_s)) for each in channels],
        empty="No channels. Publishing to one, or subscribing, makes it.",
        numbers=("clock", "expires in"),
    )


def _list_subscribers(channel: str, url: str, key: str, *, as_json: bool) -> None:
    with open_station(url, key) as station:
        found = sorted(station.channels.subscribers(channel), key=lambda each: each.name)
    if as_json:
        emit_json({"channel": channel, "subscribers": found})
        return
    emit_table(
        ("subscriber", "lag", "cursor", "expires in"),
        [(each.name, f"{each.lag:,}", f"{each.cursor:,}", _span(each.expires_s)) for each in found],
        empty=f"{channel} has no subscribers.",
        numbers=("lag", "cursor", "expires in"),
    )


def _span(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def _show(batch: Batch, *, as_json: bool, acknowledged: bool) -> None:
    if as_json:
        emit_json(
            {
                "messages": [{"id": each.id, "content": each.raw} for each in batch.messages],
                "more": batch.more,
                "handle": batch.handle,
                "lost": batch.lost,
            }
        )
        return
    rows = [
        (each.id, printable(bytes(each.raw).decode(errors="backslashreplace")))
        for each in batch.messages
    ]
    emit_table(("id", "content"), rows, empty="Nothing unread.")
    if batch.lost:
        console.print(Text(f"{batch.lost} messages were gone before they were fetched", "yellow"))
    if batch.handle and not acknowledged:
        console.print(Text(f"handle {batch.handle}", style="dim"), soft_wrap=True)


def _done(text: str, channel: str, subscriber: str, *, as_json: bool) -> None:
    if as_json:
        emit_json({"channel": channel, "subscriber": subscriber})
    else:
        console.print(Text(text))
