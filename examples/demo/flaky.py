"""An endpoint of the demo that is not well: it puts off some events, and cannot take others yet.

The first attempt at one event of seven finds it overloaded. Events of some orders are refused until
somebody has mended it. What it answers depends on the attempt alone, not on what came before: one
that is made again after a kill gets the same answer, so what is recorded can be foretold.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from http.server import BaseHTTPRequestHandler
from types import TracebackType
from zlib import crc32

from standardwebhooks import Webhook, WebhookVerificationError

from demo.receiver import QuietServer

#: "Not now": the subscription of the demo tries again after it.
NOT_NOW = 409
OVERLOADED = 503


def is_put_off(order: int, number: int) -> bool:
    """Whether the first attempt at an event of an order fails: one of seven, as if by chance.

    Not each seventh: orders that failed together would come back together, fail together again
    seven events later, and look to a breaker like an endpoint that is down.
    """
    return crc32(f"event-{order}-{number}".encode()) % 7 == 0


class FlakyEndpoint:
    """Listens on a free port of this machine; knows events by group and number."""

    def __init__(self, *, broken_orders: int) -> None:
        #: Orders below this number are refused.
        self._broken_orders = broken_orders
        self.secret = ""
        self.mended = False
        #: Numbers of the events that were taken, by order, as they came.
        self.taken: defaultdict[str, list[int]] = defaultdict(list)
        self.put_off = 0
        self.forged = 0
        self._lock = threading.Lock()
        self._server = QuietServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> FlakyEndpoint:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/events"

    @property
    def count(self) -> int:
        """Events that were taken, each counted once."""
        with self._lock:
            return sum(len(set(numbers)) for numbers in self.taken.values())

    def receive(self, body: bytes, headers: dict[str, str]) -> int:
        """The status for an event."""
        try:
            Webhook(self.secret).verify(body, headers)
        except WebhookVerificationError:
            self.forged += 1
            return 400
        event, group = headers["waystation-id"], headers["waystation-group"]
        order, number = int(group.rpartition("-")[2]), int(event.rpartition("-")[2])
        with self._lock:
            if order < self._broken_orders and number >= 2 and not self.mended:
                self.put_off += 1
                return NOT_NOW
            if headers["waystation-attempt"] == "1" and is_put_off(order, number):
                self.put_off += 1
                return OVERLOADED
            self.taken[group].append(number)
            return 204


def _handler(endpoint: FlakyEndpoint) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            self.send_response_only(endpoint.receive(body, headers))
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the same)
            pass

    return Handler
