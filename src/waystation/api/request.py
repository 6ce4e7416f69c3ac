"""A request as handlers see it: parameters, query, body; everything checked on the way in."""

from __future__ import annotations

import asyncio
from urllib.parse import unquote_plus

from waystation.access import Access
from waystation.api.reply import Receive, Scope
from waystation.errors import BusyError, TooLargeError, WaystationError


class ClientGoneError(WaystationError):
    """The client hung up before its request was complete; nobody is there to be answered."""

    code = "client.gone"


#: Bodies that come in parts, of all requests together; thousands of slow ones must not fill memory.
BODIES_BYTES_MAX = 256 * 1_048_576


class _Budget:
    used_bytes = 0


def hold_bytes(change: int) -> bool:
    """Counts more or fewer bytes of what is unfinished; false when all together is too much."""
    _Budget.used_bytes += change
    return _Budget.used_bytes <= BODIES_BYTES_MAX


class Request:
    """One request. Handlers read; only the dispatcher writes."""

    __slots__ = (
        "_query",
        "_receive",
        "access",
        "authorization",
        "body_bytes_max",
        "content_length",
        "held_bytes",
        "host",
        "id",
        "origin",
        "params",
        "scope",
    )

    def __init__(self, scope: Scope, receive: Receive, *, body_bytes_max: int) -> None:
        self.scope = scope
        self.params: list[str] = []
        self.access: Access | None = None
        headers: dict[bytes, bytes] = dict(scope["headers"])
        self.id = headers.get(b"x-request-id", b"")
        self.authorization = headers.get(b"authorization")
        self.origin = headers.get(b"origin")
        self.host = headers.get(b"host")
        #: Bytes of a body that came in parts, as long as they count for the budget.
        self.held_bytes = 0
        self.content_length = int(headers.get(b"content-length", 0))
        self._query: dict[bytes, bytes] | None = None
        self._receive = receive
        self.body_bytes_max = body_bytes_max

    def query(self, name: str) -> str | None:
        """The first value of a query parameter, decoded; None when it is not there."""
        if self._query is None:
            self._query = {}
            for pair in self.scope["query_string"].split(b"&"):
                key, _, raw = pair.partition(b"=")
                self._query.setdefault(key, raw)
        value = self._query.get(name.encode())
        if value is None:
            return None
        text = value.decode("latin-1")
        if "%" not in text and "+" not in text and text.isascii():
            return text
        return unquote_plus(text, encoding="utf-8", errors="replace")

    async def body(self) -> bytes:
        """The whole body, or TooLargeError as soon as it is known to be over the limit."""
        if self.content_length > self.body_bytes_max:
            raise self._too_large()
        message = await self._receive()
        if message["type"] == "http.request" and not message.get("more_body"):
            whole = bytes(message["body"])
            if len(whole) > self.body_bytes_max:
                raise self._too_large()
            return whole
        # Not a list of parts: a part of one byte would take fifty.
        parts = bytearray()
        while message["type"] == "http.request":
            parts += message["body"]
            self._hold(len(message["body"]))
            if len(parts) > self.body_bytes_max:
                raise self._too_large()
            if not message.get("more_body"):
                return bytes(parts)
            message = await self._receive()
        raise ClientGoneError

    def let_go(self) -> None:
        """Gives what was held of the budget back; at the end of the request."""
        hold_bytes(-self.held_bytes)
        self.held_bytes = 0

    def _hold(self, size: int) -> None:
        self.held_bytes += size
        if not hold_bytes(size):
            raise BusyError("The server holds as many unfinished requests as it can.")

    def abandonment(self) -> asyncio.Future[object]:
        """A future that is done when the client hangs up. The body must have been read or empty."""
        return asyncio.ensure_future(self._until_gone())

    async def _until_gone(self) -> object:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        return None

    def _too_large(self) -> TooLargeError:
        return TooLargeError(f"The body is larger than {self.body_bytes_max} bytes.", field="body")
