"""uvicorn's HTTP connection with bounds that it lacks: header bytes, time to send, connections.

A sweep over all connections, once a second, costs nothing per request; a timer per request would.
"""

from __future__ import annotations

import re
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from waystation.telemetry import metrics

#: A client that takes nothing of its reply for so long is not waited for (DSPS's write timeout).
STALLED_SECONDS_MAX = 60.0
#: So much of a body that is not wanted is taken; then the connection is closed.
UNWANTED_BYTES_MAX = 16_777_216
_HEAD_TOO_LARGE = b"431 Request Header Fields Too Large"
_upgrade = re.compile(rb"\r\nupgrade:", re.IGNORECASE)

#: In the state of a request whose connection has no place.
SURPLUS = "surplus"


class Bounds:
    """Limits that all connections of a server share."""

    def __init__(
        self, *, connections_max: int, header_bytes_max: int, read_seconds_max: float
    ) -> None:
        self.connections_max = connections_max
        self.header_bytes_max = header_bytes_max
        self.read_seconds_max = read_seconds_max
        #: Beyond `connections_max` a connection has no place and its requests are answered 503;
        #: this far beyond, it is ended at once.
        self.connections_margin = max(16, connections_max // 10)
        #: Connections that have a place. They keep it: a flood must not cost others theirs.
        self.placed = 0


def bounded_connection(bounds: Bounds) -> type[HttpToolsProtocol]:
    """The connection class for uvicorn, with `bounds` built in."""

    class BoundedConnection(HttpToolsProtocol):
        """Adds to uvicorn's connection when its request began, and how long its head is."""

        begun_at = 0.0
        head_bytes = 0
        head_done = False
        #: Whether bytes of a request are still owed by the client.
        owed = True
        placed = False
        #: Bytes of this request's body that came after its answer.
        unwanted = 0
        #: Bytes of a reply that the client has not taken yet, and when it last took some.
        unsent = 0
        taken_at = 0.0
        #: The request that is being answered, or was the last one.
        running: RequestResponseCycle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.begun_at = self.loop.time()
            self._take_place()
            if len(self.connections) > bounds.connections_max + bounds.connections_margin:
                metrics.http_shed.inc()
                transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            if self.running is not None and not self.running.response_complete:
                # uvicorn tells only the latest request of a pipeline, which may not have begun.
                self.running.disconnected = True
                self.running.message_event.set()
            bounds.placed -= self.placed
            self.placed = False

        def _take_place(self) -> None:
            self.placed = bounds.placed < bounds.connections_max
            bounds.placed += self.placed

        def on_message_begin(self) -> None:
            super().on_message_begin()
            if not self.placed:
                self._take_place()
                if not self.placed:
                    # The application's business: it knows in which shape to refuse.
                    self.scope["state"][SURPLUS] = True
            self.begun_at = self.loop.time()
            self.head_done = False
            self.owed = True
            self.unwanted = 0

        def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
            self.running = cycle
            super()._start_asgi_task(cycle, app)

        def on_headers_complete(self) -> None:
            if self.head_bytes > bounds.header_bytes_max:
                # Bytes of the body may have come along with the head: count before refusing.
                size = len(self.url) + sum(len(k) + len(v) + 4 for k, v in self.headers)
                if size > bounds.header_bytes_max:
                    self._refuse(_HEAD_TOO_LARGE)
                    raise ValueError("the head is too large")  # Ends the parser's work.
            self.head_done = True
            self.head_bytes = 0
            super().on_headers_complete()

        def on_body(self, body: bytes) -> None:
            if not self.cycle.response_complete:
                super().on_body(body)
                return
            # Answered before it was sent. Many clients read only after they have sent all, so it is
            # taken and thrown away; hanging up at once would often cost them the answer.
            self.unwanted += len(body)
            if self.unwanted > UNWANTED_BYTES_MAX:
                self.transport.close()

        def on_message_complete(self) -> None:
            super().on_message_complete()
            self.owed = False

        def data_received(self, data: bytes) -> None:
            if not self.head_done or not self.owed:
                self.head_bytes += len(data)
                if b"pgrade:" in data:
                    data = _without_upgrade(data)
            super().data_received(data)
            if self.head_bytes > bounds.header_bytes_max and not self.transport.is_closing():
                if not self.head_done:
                    self._refuse(_HEAD_TOO_LARGE)
                self.head_bytes = 0  # Blank lines between requests are no head.

        def send_400_response(self, msg: str) -> None:
            if not self.transport.is_closing():
                super().send_400_response(msg)

        def expire(self, now: float) -> None:
            """Ends a connection whose client takes too long to send its request, or our reply."""
            if self.owed and now - self.begun_at > bounds.read_seconds_max:
                self._refuse(b"408 Request Timeout")
            unsent = self.transport.get_write_buffer_size()
            if unsent == 0 or unsent != self.unsent:
                self.unsent, self.taken_at = unsent, now
            elif now - self.taken_at > STALLED_SECONDS_MAX:
                self.transport.abort()

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

    return BoundedConnection


def _without_upgrade(data: bytes) -> bytes:
    """Hides the header from the parser, which would otherwise take the body for another protocol.

    A server may ignore an upgrade, and clients that offer HTTP/2 with each request count on that.
    """
    head, end, rest = data.partition(b"\r\n\r\n")
    return _upgrade.sub(b"\r\nx-ignored:", head) + end + rest


def expire_slow(connections: set[Any], now: float) -> None:
    """The sweep."""
    for connection in list(connections):
        connection.expire(now)
