"""Server-sent events: a subscriber's messages as a stream that a browser's EventSource understands.

The id of an event is the handle that acknowledges its message. A browser that lost its connection
sends the last id that it has seen; everything up to there is acknowledged then, and the stream goes
on after it. A stream that begins without an id begins at the cursor.

While the store is away a stream stays open and waits: to a browser, an error status would be final.
"""

from __future__ import annotations

import asyncio
import random

from waystation.access import Scope
from waystation.api import channel_schemas as schemas
from waystation.api.connection import hang_up, is_blocked
from waystation.api.live_reply import LiveReply
from waystation.api.problems import status_of
from waystation.api.reply import Reply, Send, encode
from waystation.api.request import Request
from waystation.api.routes import Route
from waystation.api.stream_admission import StreamAdmission
from waystation.api.stream_opening import (
    AWAY_SECONDS,
    PARAMETERS,
    PATH,
    REFUSALS,
    STORE_AWAY,
    create_if_asked,
)
from waystation.api.streams import Stream, Streams
from waystation.channels.model import StreamRead, decode_handle, encode_handle
from waystation.channels.reader import ChannelStream
from waystation.channels.service import ChannelService
from waystation.errors import WaystationError

#: Proxies and browsers give up on connections that are silent for a minute, some for half of one.
_HEARTBEAT_SECONDS = 15.0
_HEARTBEAT = b":\n\n"
#: Messages of one read; bytes bound it too.
_READ_MESSAGES_MAX = 64
#: After how many milliseconds a browser comes back; not all of them at once.
_RETRY_MS = (500, 2500)
_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    # nginx would keep events back until its buffer is full.
    (b"x-accel-buffering", b"no"),
)


class EventStreamRoutes:
    """The handler of `…/events`."""

    def __init__(
        self, channels: ChannelService, streams: Streams, admission: StreamAdmission
    ) -> None:
        self._channels = channels
        self._streams = streams
        self._admission = admission

    async def open(self, request: Request) -> Reply:
        """GET /v1/channels/{channel}/subscribers/{subscriber}/events"""
        if request.scope["method"] == "HEAD":
            return Reply(200, b"", _HEADERS)
        channel, subscriber = request.params
        handle = _last_event_id(request)
        place = decode_handle(channel, subscriber, handle) if handle else None
        access = await create_if_asked(request, self._channels, after=place)
        if place is not None and Scope.WRITE in access.scopes:
            await self._channels.ack(access.project, channel, subscriber, handle)
        stream = self._channels.stream(access.project, channel, subscriber, after=place)
        first = await stream.read(_READ_MESSAGES_MAX)

        async def run(send: Send) -> None:
            await self._run(request, send, stream, first)

        return LiveReply(_HEADERS, run)

    async def _run(
        self, request: Request, send: Send, stream: ChannelStream, first: StreamRead
    ) -> None:
        abandonment = request.abandonment()
        try:
            async with self._streams.running(
                "events", lambda: self._admission.recheck(request)
            ) as running:
                abandonment.add_done_callback(lambda _: running.end())
                await self._send_all(request.params, send, stream, first)
        except WaystationError as error:
            running.reason = error
        finally:
            gone = abandonment.done()
            abandonment.cancel()
        if not gone:
            await _say_goodbye(send, running)

    async def _send_all(
        self, names: list[str], send: Send, stream: ChannelStream, found: StreamRead
    ) -> None:
        channel, subscriber = names
        loop = asyncio.get_running_loop()
        text = b"retry: %d\n\n" % random.randint(*_RETRY_MS)
        silent_until = 0.0
        with stream:
            while True:
                text += _events(channel, subscriber, found)
                if not text and loop.time() >= silent_until:
                    text = _HEARTBEAT
                if text:
                    await send({"type": "http.response.body", "body": text, "more_body": True})
                    text, silent_until = b"", loop.time() + _HEARTBEAT_SECONDS
                found = await _next(stream, max(0.0, silent_until - loop.time()))

    def routes(self) -> list[Route]:
        """The row of the route table."""
        return [
            Route(
                method="GET",
                path=PATH + "/events",
                handler=self.open,
                scope=Scope.READ,
                manner="own",
                precheck=self._admission.check_names,
                admission=self._admission.admit,
                tag="channels",
                summary="Receive messages as server-sent events",
                description=(
                    "Events `message` have `{messageID, content}` as data, and as id the handle "
                    "that acknowledges up to there; a reconnect with `Last-Event-ID` does so. An "
                    "event `lost` counts messages that expired unread, `end` tells why the stream "
                    "ends for good."
                ),
                parameters=(
                    *PARAMETERS,
                    schemas.parameter(
                        "lastEventId",
                        "Where to go on; for what cannot send the header `Last-Event-ID`.",
                        "query",
                        {"type": "string"},
                    ),
                ),
                responses={
                    200: ("The stream.", "text/event-stream", {"type": "string"}),
                    **REFUSALS,
                },
            )
        ]


def _last_event_id(request: Request) -> str:
    """The header first: it is newer than an address that a browser keeps using."""
    for name, value in request.scope["headers"]:
        if name == b"last-event-id" and value:
            return bytes(value).decode("latin-1")
    return request.query("lastEventId") or ""


async def _next(stream: ChannelStream, seconds: float) -> StreamRead:
    try:
        return await stream.next(_READ_MESSAGES_MAX, wait_s=seconds)
    except STORE_AWAY:
        await asyncio.sleep(min(seconds, AWAY_SECONDS))
        return StreamRead(messages=[], lost=0, more=True)


def _events(channel: str, subscriber: str, found: StreamRead) -> bytes:
    parts = []
    if found.lost:
        parts.append(b'event: lost\ndata: {"lostMessages":%d}\n\n' % found.lost)
    for clock, message in found.messages:
        # A line break ends a field. JSON has them between its tokens only: a blank says the same.
        content = bytes(message.content).translate(_ONE_LINE)
        handle = encode_handle(channel, subscriber, clock).encode()
        parts.append(
            b'id: %b\nevent: message\ndata: {"messageID":%b,"content":%b}\n\n'
            % (handle, encode(message.id), content)
        )
    return b"".join(parts)


_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")


async def _say_goodbye(send: Send, running: Stream) -> None:
    """Ends the reply; a client that does not read is not waited for."""
    if is_blocked(send):
        hang_up(send)
        return
    text = b""
    if running.reason is not None:
        code = running.reason.code if status_of(running.reason) != 500 else "internal"
        text = b"event: end\ndata: %b\n\n" % encode({"code": code})
    await send({"type": "http.response.body", "body": text})
