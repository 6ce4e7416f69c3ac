"""A receiver of webhooks for the demo: checks every signature, and is out of order now and then.

Messages of channels come by PUT, ends of transactions by POST.
"""

from __future__ import annotations

import base64
import secrets
import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

import msgspec
from standardwebhooks import Webhook, WebhookVerificationError


class Receiver:
    """Listens on a free port of this machine.

    Refuses each fifth message at its first attempt, and each end of a transaction twice.
    """

    def __init__(self) -> None:
        self.secret = f"whsec_{base64.b64encode(secrets.token_bytes(24)).decode()}"
        self.accepted: list[str] = []
        self.refused = 0
        self.forged = 0
        #: Transactions whose end was told.
        self.heard: list[str] = []
        self.unheard = 0
        self._attempts: Counter[str] = Counter()
        self._server = QuietServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Receiver:
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
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def receive(self, body: bytes, headers: dict[str, str]) -> int:
        """The status for a message of a channel."""
        if not self._verify(body, headers):
            return 400
        message = msgspec.json.decode(body)["messageID"]
        self._attempts[message] += 1
        if self._attempts[message] == 1 and int(message.rpartition("-")[2]) % 5 == 0:
            self.refused += 1
            return 503
        self.accepted.append(message)
        return 204

    def hear(self, body: bytes, headers: dict[str, str]) -> int:
        """The status for the end of a transaction."""
        if not self._verify(body, headers):
            return 400
        transaction = msgspec.json.decode(body)["metadata"]["txId"]
        self._attempts[transaction] += 1
        if self._attempts[transaction] <= 2:
            self.unheard += 1
            return 503
        self.heard.append(transaction)
        return 204

    def _verify(self, body: bytes, headers: dict[str, str]) -> bool:
        try:
            Webhook(self.secret).verify(body, headers)
        except WebhookVerificationError:
            self.forged += 1
            return False
        return True


class QuietServer(ThreadingHTTPServer):
    """Serves each connection in a thread, and says nothing about those that break."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A station that is killed resets its connections; that is part of the show."""


def _handler(receiver: Receiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            self._answer(receiver.receive)

        def do_POST(self) -> None:
            self._answer(receiver.hear)

        def _answer(self, decide: Callable[[bytes, dict[str, str]], int]) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            self.send_response_only(decide(body, headers))
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the same)
            pass

    return Handler
