"""`waystation channel tail`: prints messages as they come, until Ctrl-C.

A message is acknowledged after it was printed, so a tail with a name that is ended and begun again
goes on where it was, and repeats at most what it printed last. It outlives a station that restarts.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from waystation import errors
from waystation.cli.options import ChannelArgument, JsonOption, KeyOption, UrlOption
from waystation.cli.output import console, emit_json, one_line
from waystation.cli.patience import note, patiently
from waystation.cli.positions import HELP, parse_position
from waystation.cli.station import open_station
from waystation.errors import ExitCode
from waystation.runtime.clock import Clock

if TYPE_CHECKING:
    from waystation.client import Received
    from waystation.client.sync_channels import Channels

_POLL_SECONDS = 30.0
_BATCH_MAX = 64


def tail(
    channel: ChannelArgument,
    subscriber: Annotated[
        str, typer.Option("--as", help="Subscriber to read as; default: a temporary one.")
    ] = "",
    start: Annotated[
        str, typer.Option("--from", help=f"Where to begin: {HELP}", metavar="POSITION")
    ] = "",
    count: Annotated[
        int, typer.Option("--count", help="End after so many messages; 0 = never.", min=0)
    ] = 0,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Print messages as they come, until Ctrl-C."""
    position = parse_position(start, clock=Clock()) if start else {}
    with open_station(url, key) as station:
        channels = station.channels
        name = subscriber or f"tail-{channels.new_id()}"
        try:
            channels.subscribe(channel, name)
            if position:
                channels.seek(channel, name, **position)
            _follow(channels, channel, name, count=count, as_json=as_json)
        except KeyboardInterrupt:
            raise typer.Exit(ExitCode.INTERRUPTED) from None
        finally:
            if not subscriber:
                # It expires by itself if the station is away.
                with suppress(errors.WaystationError):
                    channels.unsubscribe(channel, name)


def _follow(channels: Channels, channel: str, name: str, *, count: int, as_json: bool) -> None:
    left = count
    while not count or left:
        most = min(_BATCH_MAX, left) if count else _BATCH_MAX
        try:
            batch = patiently(
                lambda most=most: channels.fetch(  # type: ignore[misc]
                    channel, name, timeout=_POLL_SECONDS, limit=most
                )
            )
            if batch.lost:
                note(f"{batch.lost:,} messages were gone before they could be printed")
            for message in batch.messages:
                _show(message, as_json=as_json)
            left -= len(batch.messages)
            if batch.handle:
                handle = batch.handle
                patiently(lambda handle=handle: channels.ack(channel, name, handle))  # type: ignore[misc]
        except errors.SubscriberNotFoundError:
            note("the subscriber was gone; messages published meanwhile may be missing")
            patiently(lambda: channels.subscribe(channel, name))


def _show(message: Received, *, as_json: bool) -> None:
    if as_json:
        emit_json({"id": message.id, "content": message.raw})
        return
    content = one_line(bytes(message.raw).decode(errors="backslashreplace"))
    console.print(Text.assemble((message.id, "cyan"), "  ", content), soft_wrap=True)
