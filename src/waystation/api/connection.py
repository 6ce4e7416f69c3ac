"""uvicorn's HTTP connection with bounds that it lacks: header bytes, time to send, connections.

A sweep over all connections, once a second, costs nothing per request; a timer per request would.
"""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from waystation.telemetry import metrics

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

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.begun_at = self.loop.time()
            self._take_place()
            if len(self.connections) > bounds.connections_max + bounds.connections_margin:
                metrics.http_shed.inc()
                transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
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

        def on_headers_complete(self) -> None:
            self.head_done = True
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            super().on_message_complete()
            self.head_bytes = 0
            self.owed = False

        def data_received(self, data: bytes) -> None:
            if not self.head_done or not self.owed:
                self.head_bytes += len(data)
            super().data_received(data)
            if self.head_bytes > bounds.header_bytes_max and not self.transport.is_closing():
                self._check_head()

        def _check_head(self) -> None:
            # Bytes of the body may have come along with the head: count exactly before refusing.
            if self.owed and not self.head_done:
                size = self.head_bytes
            else:
                size = len(self.url) + sum(len(k) + len(v) + 4 for k, v in self.headers)
                self.head_bytes = 0
            if size > bounds.header_bytes_max:
                self._refuse(b"431 Request Header Fields Too Large")

        def expire(self, now: float) -> None:
            """Ends a connection whose client takes too long to send its request."""
            if self.owed and now - self.begun_at > bounds.read_seconds_max:
                self._refuse(b"408 Request Timeout")

        def _refuse(self, status: bytes) -> None:
            if self.transport.is_closing():
                return
            if (
                self.cycle is None
                or self.cycle.response_complete
                or not self.cycle.response_started
            ):
                self.transport.write(
                    b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                )
            self.transport.close()

    return BoundedConnection


def expire_slow(connections: set[Any], now: float) -> None:
    """The sweep."""
    for connection in list(connections):
        connection.expire(now)
