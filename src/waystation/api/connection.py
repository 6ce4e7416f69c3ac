"""uvicorn's HTTP connection with bounds that it lacks: header bytes, time to send, connections.

A sweep over all connections, once a second, costs nothing per request; a timer per request would.
"""

from __future__ import annotations

import asyncio
import re
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from waystation.api.reply import Send, http_shed

#: A client that takes nothing of its reply for so long is not waited for (DSPS's write timeout).
STALLED_SECONDS_MAX = 60.0
#: A large reply is not waited for longer than this and its bytes at such a rate.
READ_BYTES_PER_SECOND_MIN = 65_536
#: Bytes in the write buffers of all connections. Beyond, those that took nothing for longest end.
UNSENT_BYTES_MAX = 128 * 1_048_576
#: A request may have so many times the bytes of a body, or twice those of the largest that any
#: route takes: for its chunks' framing, and for a body that was refused. Many clients read only
#: after they have sent all, so it is taken and thrown away; hanging up at once would often cost
#: them the answer.
_BODIES_MAX = 16
_HEAD_TOO_LARGE = b"431 Request Header Fields Too Large"
#: Headers of a request, and trailers of a chunked one. Each takes far more memory than its bytes.
HEADERS_MAX = 256
TRAILERS_MAX = 64
#: Requests that wait on one connection for the reply to an earlier one.
PIPELINED_MAX = 100
#: A body may come in so many pieces of any size; beyond, a piece must have so many bytes on
#: average. Each piece costs a call, however small it is.
_PIECES_MAX = 10_000
_PIECE_BYTES_MIN = 16
_upgrade = re.compile(rb"\r\n(upgrade):[ \t]*([^\r\n]*)", re.IGNORECASE)
#: How the paths of WebSockets end. Elsewhere an offer to become one is ignored like any other.
_is_socket = re.compile(rb"/socket(?:[? ]|$)").search

#: In the state of a request whose connection has no place.
SURPLUS = "surplus"


class Bounds:
    """Limits that all connections of a server share."""

    def __init__(
        self,
        *,
        body_bytes_max: int,
        largest_body_bytes: int,
        connections_max: int,
        header_bytes_max: int,
        read_seconds_max: float,
        sockets_anywhere: bool = False,
    ) -> None:
        self.connections_max = connections_max
        self.header_bytes_max = header_bytes_max
        self.read_seconds_max = read_seconds_max
        #: Whether every path may become a WebSocket, and not only those that end in `/socket`.
        self.sockets_anywhere = sockets_anywhere
        bodies_bytes_max = max(_BODIES_MAX * body_bytes_max, 2 * largest_body_bytes)
        self.request_bytes_max = header_bytes_max + bodies_bytes_max
        #: Beyond `connections_max` a connection has no place and its requests are answered 503;
        #: this far beyond, it is ended at once.
        self.connections_margin = max(16, connections_max // 10)
        #: Connections that have a place. They keep it: a flood must not cost others theirs.
        self.placed = 0


class BoundedConnection(HttpToolsProtocol):
    """Adds to uvicorn's connection when its request began, and how much of it came."""

    bounds: Bounds
    begun_at = 0.0
    #: Bytes of the present request so far, and whether that is more than a head may have.
    came = 0
    large = False
    head_done = False
    #: Trailers of the present request, and their bytes.
    trailers = 0
    trailer_bytes = 0
    #: Pieces of the present request's body, and their bytes.
    pieces = 0
    body_bytes = 0
    #: Whether bytes of a request are still owed by the client.
    owed = True
    placed = False
    #: Bytes of a reply that the client has not taken yet, and when it last took some.
    unsent = 0
    taken_at = 0.0
    #: When a large reply must have been taken; 0 without one. And whether all of it was written.
    reply_until = 0.0
    reply_written = False
    #: Since when nothing was asked; 0 while there is something to do.
    idle_since = 0.0
    #: The request that is being answered, or was the last one.
    running: RequestResponseCycle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.begun_at = self.loop.time()
        self._take_place()
        if len(self.connections) > self.bounds.connections_max + self.bounds.connections_margin:
            http_shed.inc()
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.running is not None and not self.running.response_complete:
            # uvicorn tells only the latest request of a pipeline, which may not have begun.
            self.running.disconnected = True
            self.running.message_event.set()
        self.bounds.placed -= self.placed
        self.placed = False

    def _take_place(self) -> None:
        self.placed = self.bounds.placed < self.bounds.connections_max
        self.bounds.placed += self.placed

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if not self.placed:
            self._take_place()
            if not self.placed:
                # The application's business: it knows in which shape to refuse.
                self.scope["state"][SURPLUS] = True
        self.begun_at = self.loop.time()
        self.head_done = False
        self.trailers = self.trailer_bytes = 0
        self.pieces = self.body_bytes = 0
        self.owed = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.head_done:
            self._drop_trailer(name, value)
            return
        if len(self.headers) >= HEADERS_MAX:
            self._refuse(_HEAD_TOO_LARGE)
            raise ValueError("too many headers")  # Ends the parser's work.
        super().on_header(name, value)

    def _drop_trailer(self, name: bytes, value: bytes) -> None:
        """Count a trailer and drop it, because uvicorn would add it to the request's headers."""
        self.trailers += 1
        self.trailer_bytes += len(name) + len(value) + 4
        if self.trailers > TRAILERS_MAX or self.trailer_bytes > self.bounds.header_bytes_max:
            self._refuse(_HEAD_TOO_LARGE)
            raise ValueError("too many trailers")

    def on_body(self, body: bytes) -> None:
        self.pieces += 1
        self.body_bytes += len(body)
        if self.pieces > _PIECES_MAX and self.body_bytes < self.pieces * _PIECE_BYTES_MIN:
            self._refuse(b"413 Content Too Large")
            raise ValueError("too many pieces of a body")
        super().on_body(body)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self.running = cycle
        self.tasks.add(self.loop.create_task(self._answer(cycle, app)))

    async def _answer(self, cycle: RequestResponseCycle, app: Any) -> None:
        # Taken off the list here: as a callback of the task it costs more than the task itself.
        try:
            await cycle.run_asgi(app)
        finally:
            self.tasks.discard(asyncio.current_task(self.loop))

    def on_headers_complete(self) -> None:
        if self.large:
            # Other bytes may have come along with the head: count before refusing.
            size = len(self.url) + sum(len(k) + len(v) + 4 for k, v in self.headers)
            if size > self.bounds.header_bytes_max:
                self._refuse(_HEAD_TOO_LARGE)
                raise ValueError("the head is too large")  # Ends the parser's work.
        if problem := self._head_problem():
            self._refuse(b"400 Bad Request")
            raise ValueError(problem)
        upgrade = self.parser.should_upgrade()
        if upgrade and self._has_body():
            # Hiding the header failed, since it came in two pieces; its body would be lost.
            self._refuse(b"400 Bad Request")
            raise ValueError("an upgrade with a body")
        self.head_done = True
        if upgrade or not self.url.startswith(b"/") or b"#" in self.url:
            # These are rare, and uvicorn would queue them without a bound.
            if self.pipeline:
                self.transport.close()
                raise ValueError("an unusual request in a pipeline")
            super().on_headers_complete()
        else:
            self._begin_request()

    def _head_problem(self) -> str:
        """Return why the headers are refused: hosts and credentials must leave no choice."""
        names = [name for name, _ in self.headers]
        hosts = names.count(b"host")
        if hosts > 1 or (not hosts and self.parser.get_http_version() == "1.1"):
            return "a request has one Host header"
        if names.count(b"authorization") > 1:
            return "a request has one Authorization header at most"
        return ""

    def _begin_request(self) -> None:
        """What uvicorn does for a plain request, without what only others need."""
        parser, scope = self.parser, self.scope
        version = parser.get_http_version()
        raw_path, _, query = self.url.partition(b"?")
        path = raw_path.decode("ascii")
        scope["method"] = parser.get_method().decode("ascii")
        scope["http_version"] = version
        scope["path"] = urllib.parse.unquote(path) if "%" in path else path
        scope["raw_path"] = raw_path
        scope["query_string"] = query
        before = self.cycle
        self.cycle = cycle = RequestResponseCycle(
            scope,
            self.transport,
            self.flow,
            self.logger,
            self.access_logger,
            self.access_log,
            self.server_state.default_headers,
            asyncio.Event(),
            self.expect_100_continue,
            version != "1.0" and parser.should_keep_alive(),
            self.on_response_complete,
        )
        if before is None or before.response_complete:
            self._start_asgi_task(cycle, self.app)
        elif len(self.pipeline) < PIPELINED_MAX:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))
        else:
            # Without a word, which would be taken for the reply to an earlier request.
            http_shed.inc()
            self.transport.close()
            raise ValueError("too many pipelined requests")

    def _has_body(self) -> bool:
        return any(
            name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
            for name, value in self.headers
        )

    def handle_websocket_upgrade(self) -> None:
        busy = self.running is not None and not self.running.response_complete
        if busy or not self.placed:
            # Another reply is under way on this connection, or it has no place at all.
            http_shed.inc()
            self._refuse(b"400 Bad Request" if busy else b"503 Service Unavailable")
            return
        super().handle_websocket_upgrade()
        # The place goes along: the other class gives it back at the end.
        self.transport.get_protocol().placed = True  # type: ignore[attr-defined]
        self.placed = False

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self.owed = False
        self.came = 0

    def on_response_complete(self) -> None:
        # As uvicorn does it, without a timer that the next request would cancel: the sweep ends
        # connections that stay idle.
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        else:
            self.idle_since = self.loop.time()

    def data_received(self, data: bytes) -> None:
        self.idle_since = 0.0
        self.came += len(data)
        self.large = self.came > self.bounds.header_bytes_max
        if b"pgrade:" in data and not (self.head_done and self.owed):
            begins = self.came == len(data)
            first_line = data.partition(b"\r\n")[0] if begins else self.url
            here = self.bounds.sockets_anywhere or _is_socket(first_line) is not None
            data = _without_upgrade(data, socket=here)
        super().data_received(data)
        if self.large and not self.transport.is_closing():
            self._check_size()

    def _check_size(self) -> None:
        if not self.owed:
            self.came = 0  # Blank lines between requests.
        elif not self.head_done and self.came > self.bounds.header_bytes_max:
            self._refuse(_HEAD_TOO_LARGE)
        elif self.came > self.bounds.request_bytes_max:
            self._refuse(b"413 Content Too Large")

    def send_400_response(self, msg: str) -> None:
        if not self.transport.is_closing():
            super().send_400_response(msg)

    def expire(self, now: float) -> None:
        """Ends a connection whose client takes too long to send its request, or our reply."""
        if self.owed and now - self.begun_at > self.bounds.read_seconds_max:
            self._give_up_waiting()
        if self.idle_since and now - self.idle_since > self.timeout_keep_alive:
            self.transport.close()
        unsent = self.transport.get_write_buffer_size()
        if unsent == 0 or unsent != self.unsent:
            self.unsent, self.taken_at = unsent, now
        elif now - self.taken_at > STALLED_SECONDS_MAX:
            self.transport.abort()
        if unsent == 0 and self.reply_written:
            self.reply_until = 0.0
        if self.reply_until and now > self.reply_until:
            http_shed.inc()
            self.transport.abort()

    def _give_up_waiting(self) -> None:
        if self.cycle is None and self.came == 0:
            self.transport.close()  # Never a byte: there is nothing to answer.
        elif self.running is None or self.running.response_complete or self.head_done:
            self._refuse(b"408 Request Timeout")
        # Else a request before it is still being answered: its client is right to wait.

    def _refuse(self, status: bytes) -> None:
        if self.transport.is_closing():
            return
        # A head that has ended belongs to the latest cycle; another answer than its own, or in
        # the middle of an earlier one, would only confuse.
        started = self.cycle is not None and self.cycle.response_started
        if not started or (self.cycle.response_complete and not self.head_done):
            self.transport.write(
                b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            )
        self.transport.close()


def bounded_connection(bounds: Bounds) -> type[BoundedConnection]:
    """The connection class for uvicorn, which makes its connections itself, with `bounds` in it."""
    return type("BoundedConnection", (BoundedConnection,), {"bounds": bounds})


def _without_upgrade(data: bytes, *, socket: bool) -> bytes:
    """Hides the header from the parser, which would otherwise take the body for another protocol.

    A server may ignore an upgrade, and clients that offer HTTP/2 with each request count on that.
    """

    def hidden(found: re.Match[bytes]) -> bytes:
        # The value may have come in part; a part of another word is no part of this one.
        wanted = socket and b"websocket".startswith(found[2].strip().lower())
        return found[0] if wanted else b"\r\nx-ignored: " + found[2]

    head, end, rest = data.partition(b"\r\n\r\n")
    return _upgrade.sub(hidden, head) + end + rest


def is_blocked(send: Send) -> bool:
    """Whether the client has not taken what was sent of its reply so far."""
    cycle = getattr(send, "__self__", None)
    return isinstance(cycle, RequestResponseCycle) and cycle.flow.write_paused


def hang_up(send: Send) -> None:
    """Ends the connection of an unfinished reply at once, whatever was not taken."""
    cycle = getattr(send, "__self__", None)
    assert isinstance(cycle, RequestResponseCycle)
    cycle.disconnected = True
    cycle.transport.abort()


@contextmanager
def reading(send: Send, size: int) -> Iterator[None]:
    """Give a client a deadline to take a large reply, which the block sends."""
    cycle = getattr(send, "__self__", None)
    transport = cycle.transport if isinstance(cycle, RequestResponseCycle) else None
    connection = transport.get_protocol() if transport is not None else None
    if not isinstance(connection, BoundedConnection):
        yield
        return
    allowed = STALLED_SECONDS_MAX + size / READ_BYTES_PER_SECOND_MIN
    connection.reply_until = connection.loop.time() + allowed
    connection.reply_written = False
    try:
        yield
    finally:
        connection.reply_written = True


def expire_slow(connections: set[Any], now: float) -> None:
    """End connections whose clients are too slow; run this once a second."""
    for connection in list(connections):
        connection.expire(now)
    unsent = sum(connection.unsent for connection in connections)
    if unsent <= UNSENT_BYTES_MAX:
        return
    for connection in sorted(connections, key=lambda each: float(each.taken_at)):
        if connection.unsent:
            http_shed.inc()
            connection.transport.abort()
            unsent -= connection.unsent
            if unsent <= UNSENT_BYTES_MAX:
                return
