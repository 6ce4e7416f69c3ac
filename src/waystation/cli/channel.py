"""`waystation channel`: publish and read channels of a running station."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.text import Text

from waystation.cli.options import JsonOption, KeyOption, UrlOption
from waystation.cli.output import console, emit_json, emit_table
from waystation.errors import InvalidInputError

if TYPE_CHECKING:
    from waystation.client import Batch, Received, Waystation

app = typer.Typer(no_args_is_help=True, help="Publish to channels and read them.")

ChannelArgument = Annotated[str, typer.Argument(help="Name of the channel.")]
SubscriberArgument = Annotated[str, typer.Argument(help="Name of the subscriber.")]
LimitOption = Annotated[int, typer.Option("--max", help="Most messages at a time.", min=1)]


@app.command()
def publish(
    channel: ChannelArgument,
    content: Annotated[str, typer.Argument(help="JSON; - reads standard input.")],
    message_id: Annotated[
        str, typer.Option("--id", help="Message id; the same id is published just once.")
    ] = "",
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Publish one message."""
    text = sys.stdin.read() if content == "-" else content
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidInputError(
            f"The content is not JSON: {error}.", hint="Quote it: '{\"total\": 7}' or '\"text\"'."
        ) from error
    with _station(url, key) as station:
        published = station.channels.publish(channel, text.encode(), message_id=message_id)
    if as_json:
        emit_json({"channel": channel, "id": published})
    else:
        console.print(Text(f"published {published}"))


@app.command()
def subscribe(
    channel: ChannelArgument,
    subscriber: SubscriberArgument,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Create a subscriber; it sees what is published from now on."""
    with _station(url, key) as station:
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
    with _station(url, key) as station:
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
    with _station(url, key) as station:
        batch = station.channels.fetch(channel, subscriber, timeout=timeout, limit=limit)
        _show(batch, as_json=as_json)
        if ack and batch.handle:
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
    with _station(url, key) as station:
        station.channels.ack(channel, subscriber, handle)
    _done("acknowledged", channel, subscriber, as_json=as_json)


@app.command()
def tail(
    channel: ChannelArgument,
    subscriber: Annotated[
        str, typer.Option("--as", help="Subscriber to read as; default: a temporary one.")
    ] = "",
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Print messages as they come, until Ctrl-C."""
    with _station(url, key) as station:
        name = subscriber or f"tail-{station.channels.new_id()}"
        try:
            for message in station.channels.listen(channel, name):
                _show_line(message, as_json=as_json)
        finally:
            if not subscriber:
                station.channels.unsubscribe(channel, name)


def _station(url: str, key: str) -> Waystation:
    from waystation.client import Waystation  # noqa: PLC0415 (help must not wait for HTTP libraries)

    return Waystation(url, key=key)


def _show(batch: Batch, *, as_json: bool) -> None:
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
    rows = [(each.id, bytes(each.raw).decode()) for each in batch.messages]
    emit_table(("id", "content"), rows, empty="Nothing unread.")
    if batch.lost:
        console.print(Text(f"{batch.lost} messages expired before they were fetched", "yellow"))
    if batch.handle:
        console.print(Text(f"handle {batch.handle}", style="dim"), soft_wrap=True)


def _show_line(message: Received, *, as_json: bool) -> None:
    if as_json:
        emit_json({"id": message.id, "content": message.raw})
        return
    line = Text.assemble((message.id, "cyan"), "  ", bytes(message.raw).decode())
    console.print(line, soft_wrap=True)


def _done(text: str, channel: str, subscriber: str, *, as_json: bool) -> None:
    if as_json:
        emit_json({"channel": channel, "subscriber": subscriber})
    else:
        console.print(Text(text))
