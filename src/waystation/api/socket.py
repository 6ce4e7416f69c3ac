"""WebSocket: a subscriber's messages, its acknowledgements, and publishing, over one connection.

What was not acknowledged comes again on the next connection. When the server closes for a reason,
the code is 4000 + the status that HTTP would have; without one, because it stops or the time of the
connection is up, it is 1012: come again.
"""

from __future__ import annotations

import asyncio
import contextlib

from waystation.access import Scope
from waystation.api import channel_schemas as schemas
from waystation.api.conversation import BinaryFrameError, Conversation
from waystation.api.live_reply import SocketReply
from waystation.api.problems import problem, status_of
from waystation.api.reply import Receive, Reply, Send
from waystation.api.request import Request
from waystation.api.routes import Route
from waystation.api.socket_connection import hang_up_socket, is_blocked_socket
from waystation.api.stream_admission import SUBPROTOCOL, StreamAdmission
from waystation.api.stream_opening import PARAMETERS, PATH, REFUSALS, create_if_asked
from waystation.api.streams import Stream, Streams
from waystation.channels.service import ChannelService
from waystation.errors import InvalidInputError, WaystationError

_UNDER_WAY_DEFAULT = 64
_UNDER_WAY_MAX = 1000
#: What RFC 6455 calls data of a type that is not taken.
_UNSUPPORTED_DATA = 1003
_SERVICE_RESTART = 1012


class SocketRoutes:
    """The handler of `…/socket`."""

    def __init__(
        self,
        channels: ChannelService,
        streams: Streams,
        admission: StreamAdmission,
        *,
        content_bytes_max: int,
    ) -> None:
        self._channels = channels
        self._streams = streams
        self._admission = admission
        self._bytes_max = content_bytes_max

    async def open(self, request: Request) -> Reply:
        """GET /v1/channels/{channel}/subscribers/{subscriber}/socket"""
        if request.scope["type"] != "websocket":
            return _upgrade_required(request)
        under_way_max = _under_way_max(request.query("max"))
        channel, subscriber = request.params
        access = await create_if_asked(request, self._channels)
        stream = self._channels.stream(access.project, channel, subscriber)
        # Nothing is taken yet: only to know that the subscriber is there.
        await stream.read(0)

        async def run(receive: Receive, send: Send) -> None:
            talk = Conversation(
                self._channels,
                (access.project, channel, subscriber),
                access,
                stream,
                send,
                under_way_max=under_way_max,
                content_bytes_max=self._bytes_max,
            )
            await self._run(talk, request, receive, send)

        return SocketReply(run)

    async def _run(
        self, talk: Conversation, request: Request, receive: Receive, send: Send
    ) -> None:
        offered = request.scope["subprotocols"]
        accepted = SUBPROTOCOL if SUBPROTOCOL in offered else None
        await send({"type": "websocket.accept", "subprotocol": accepted})
        async with self._streams.running(
            "socket", lambda: self._admission.recheck(request)
        ) as running:
            listening = asyncio.create_task(talk.listen(receive, running))
            try:
                await talk.tell()
            except WaystationError as error:
                running.reason = error
            except OSError:
                # The client is gone. What it said before that is still heard.
                await listening
            finally:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)
        if not talk.gone:
            await _say_goodbye(send, running)

    def routes(self) -> list[Route]:
        """The row of the route table."""
        return [
            Route(
                method="GET",
                path=PATH + "/socket",
                handler=self.open,
                scope=Scope.READ,
                manner="own",
                socket=True,
                precheck=self._admission.check_names,
                admission=self._admission.admit,
                tag="channels",
                summary="Receive, acknowledge and publish over a WebSocket",
                description=(
                    "An upgrade by RFC 6455. The server sends `message`, `lost`, `published` and "
                    "`error`; the client sends `ack` and `publish`. A key or token may also come "
                    "as a subprotocol: offer `waystation` and `bearer.<token>`."
                ),
                parameters=(
                    *PARAMETERS,
                    schemas.parameter(
                        "max",
                        "Most messages under way that are not acknowledged.",
                        "query",
                        {
                            "type": "integer",
                            "minimum": 1,
                            "maximum": _UNDER_WAY_MAX,
                            "default": _UNDER_WAY_DEFAULT,
                        },
                    ),
                ),
                responses={
                    101: ("The WebSocket is open.", "", {}),
                    426: ("This is a WebSocket.", "application/problem+json", _PROBLEM),
                    **REFUSALS,
                },
            )
        ]


_PROBLEM: dict[str, object] = {"$ref": "#/components/schemas/Problem"}


def _under_way_max(text: str | None) -> int:
    if text is None:
        return _UNDER_WAY_DEFAULT
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:6]) <= _UNDER_WAY_MAX:
        raise InvalidInputError(f"max must be between 1 and {_UNDER_WAY_MAX}.", field="max")
    return int(text)


def _upgrade_required(request: Request) -> Reply:
    reply = problem(
        426,
        "upgrade-required",
        "This is a WebSocket: ask for an upgrade.",
        path=request.scope["path"],
        request_id=request.id.decode(),
    )
    reply.headers = (*reply.headers, (b"upgrade", b"websocket"), (b"connection", b"upgrade"))
    return reply


async def _say_goodbye(send: Send, running: Stream) -> None:
    """Closes the connection; a client that does not read is not waited for."""
    if is_blocked_socket(send):
        hang_up_socket(send)
        return
    code, text = _SERVICE_RESTART, ""
    if isinstance(running.reason, BinaryFrameError):
        code, text = _UNSUPPORTED_DATA, str(running.reason)
    elif running.reason is not None:
        status = status_of(running.reason)
        code, text = 4000 + status, "internal" if status == 500 else running.reason.code
    with contextlib.suppress(OSError):
        await send({"type": "websocket.close", "code": code, "reason": text})
