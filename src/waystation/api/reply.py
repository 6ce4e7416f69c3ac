"""A reply on its way out: status, headers, body, ready to be sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Header = tuple[bytes, bytes]

JSON = (b"content-type", b"application/json")
PROBLEM = (b"content-type", b"application/problem+json")
TEXT = (b"content-type", b"text/plain; charset=utf-8")
CLOSE = (b"connection", b"close")

encode = msgspec.json.Encoder().encode


class Reply:
    """What a handler returns."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, body: bytes = b"", headers: tuple[Header, ...] = ()) -> None:
        self.status = status
        self.body = body
        self.headers = headers


def json_reply(value: object, status: int = 200, headers: tuple[Header, ...] = ()) -> Reply:
    """A JSON reply, ended by a newline as curl users like it."""
    return Reply(status, encode(value) + b"\n", (JSON, *headers))


def header_block(headers: Iterable[Header]) -> bytes:
    """Headers as they go over the wire; for those that are the same in every reply."""
    return b"".join(b"%b: %b\r\n" % header for header in headers)


def write_whole(send: Send, reply: Reply, block: bytes) -> bool:
    """Writes head and body with one system call; false when the reply has to go the long way.

    uvicorn writes them one after the other and looks at every header anew, which is a fifth of a
    small request. Its `send` is a method of the request's cycle: what is done here is what it does
    for a plain reply on a connection that stays open. `block` and the headers must be our own
    text, never the client's.
    """
    cycle = getattr(send, "__self__", None)
    if type(cycle) is not RequestResponseCycle or CLOSE in reply.headers:
        return False
    if cycle.response_started or cycle.disconnected or cycle.flow.write_paused:
        return False
    if not cycle.keep_alive or cycle.scope["method"] == "HEAD":
        return False
    parts = [STATUS_LINE[reply.status], block]
    for name, value in (*cycle.default_headers, *reply.headers):
        parts += (name, b": ", value, b"\r\n")
    if reply.status != 204:
        parts.append(b"content-length: %d\r\n" % len(reply.body))
    parts += (b"\r\n", reply.body)
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    cycle.transport.write(b"".join(parts))
    cycle.message_event.set()
    cycle.on_response()
    return True
