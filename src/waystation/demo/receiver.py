"""A receiver of webhooks for the demo: checks every signature, and is out of order now and then."""

from __future__ import annotations

import base64
import secrets
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

import msgspec
from standardwebhooks import Webhook, WebhookVerificationError


class Receiver:
    """Listens on a free port of this machine. Refuses each fifth message at its first attempt."""

    def __init__(self) -> None:
        self.secret = f"whsec_{base64.b64encode(secrets.token_bytes(24)).decode()}"
        self.accepted: list[str] = []
        self.refused = 0
        self.forged = 0
        self._attempts: Counter[str] = Counter()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
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
        """The status for a request."""
        try:
            Webhook(self.secret).verify(body, headers)
        except WebhookVerificationError:
            self.forged += 1
            return 400
        message = msgspec.json.decode(body)["messageID"]
        self._attempts[message] += 1
        if self._attempts[message] == 1 and int(message.rpartition("-")[2]) % 5 == 0:
            self.refused += 1
            return 503
        self.accepted.append(message)
        return 204


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A station that is killed resets its connections; that is part of the show."""


def _handler(receiver: Receiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            self.send_response_only(receiver.receive(body, headers))
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the same)
            pass

    return Handler
