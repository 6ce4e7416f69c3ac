"""A reply on its way out: status, headers, body, ready to be sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, ClassVar

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from waystation.errors import BusyError
from waystation.runtime.metrics import count_family

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Header = tuple[bytes, bytes]

JSON = (b"content-type", b"application/json")
PROBLEM = (b"content-type", b"application/problem+json")
TEXT = (b"content-type", b"text/plain; charset=utf-8")
CLOSE = (b"connection", b"close")

#: Different heads that are kept; a reply may have a header with a value of its own.
_HEADS_MAX = 200

#: A larger body is sent in parts of this size, each when the client has taken most of the last.
PART_BYTES = 65_536 * 4
#: Bodies of large replies that clients have not taken yet: of all together, and of one project.
REPLIES_BYTES_MAX = 256 * 1_048_576
REPLIES_BYTES_OF_PROJECT_MAX = 128 * 1_048_576

encode = msgspec.json.Encoder().encode

http_shed = count_family(
    "waystation_http_requests_shed", "Requests refused because a bound was reached."
).of()


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


class _Budget:
    """Bytes of large replies on their way, by project."""

    used_bytes: ClassVar[Counter[str]] = Counter()


@contextmanager
def hold_reply(project: str, size: int) -> Iterator[None]:
    """Count the bytes of a large reply for the length of the block, which sends it.

    Raise BusyError if all replies, or those of the project, would have too many bytes.
    """
    used = _Budget.used_bytes
    if (
        used.total() + size > REPLIES_BYTES_MAX
        or used[project] + size > REPLIES_BYTES_OF_PROJECT_MAX
    ):
        http_shed.inc()
        raise BusyError("Slow readers hold as many bytes of replies as the server can keep.")
    used[project] += size
    try:
        yield
    finally:
        used[project] -= size
        if not used[project]:
            del used[project]


async def send_body(send: Send, body: bytes) -> None:
    """Send a body and end the reply. A large one goes in parts, as fast as the client reads."""
    start = 0
    while len(body) - start > PART_BYTES:
        part = body[start : start + PART_BYTES]
        await send({"type": "http.response.body", "body": part, "more_body": True})
        start += PART_BYTES
    await send({"type": "http.response.body", "body": body[start:] if start else body})


def expects_continue(send: Send) -> bool:
    """Whether the client waits to be told to go on before it sends its body."""
    return bool(getattr(getattr(send, "__self__", None), "waiting_for_100_continue", False))


class Heads:
    """The heads of replies up to what differs from one to the next, each put together once."""

    def __init__(self, common: Iterable[Header]) -> None:
        self._common = tuple(common)
        self._heads: dict[tuple[int, tuple[Header, ...]], bytes] = {}

    def of(self, status: int, headers: tuple[Header, ...]) -> bytes:
        """Status line and headers. They must be our own text, never the client's."""
        head = self._heads.get((status, headers))
        if head is None:
            lines = [b"%b: %b\r\n" % header for header in (*self._common, *headers)]
            head = STATUS_LINE[status] + b"".join(lines)
            if len(self._heads) >= _HEADS_MAX:
                # Those with values of their own must not keep the common ones out for good.
                self._heads.clear()
            self._heads[status, headers] = head
        return head


def write_whole(send: Send, reply: Reply, heads: Heads, request_id: bytes) -> bool:
    """Writes head and body with one system call; false when the reply has to go the long way.

    uvicorn writes them one after the other and looks at every header anew, which is a fifth of a
    small request. Its `send` is a method of the request's cycle: what is done here is what it does
    for a plain reply on a connection that stays open.
    """
    cycle = getattr(send, "__self__", None)
    if type(cycle) is not RequestResponseCycle or CLOSE in reply.headers:
        return False
    if len(reply.body) > PART_BYTES:
        return False
    if (
        cycle.response_started
        or cycle.disconnected
        or cycle.flow.write_paused
        or cycle.waiting_for_100_continue
        or not cycle.keep_alive
        or cycle.scope["method"] == "HEAD"
    ):
        return False
    changing = b"".join([b"%b: %b\r\n" % header for header in cycle.default_headers])
    head = heads.of(reply.status, reply.headers)
    cycle.response_started = cycle.response_complete = True
    if reply.status == 204:
        cycle.transport.write(b"%b%bx-request-id: %b\r\n\r\n" % (head, changing, request_id))
    else:
        body = reply.body
        cycle.transport.write(
            b"%b%bx-request-id: %b\r\ncontent-length: %d\r\n\r\n%b"
            % (head, changing, request_id, len(body), body)
        )
    cycle.message_event.set()
    cycle.on_response()
    return True
