"""A lean HTTP client connection: keep-alive, one request in flight, a call back per reply.

The driver shares two cores with the server that it measures, so it must cost a fraction of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import cast

import httptools

from waystation_bench.benchmark import BenchmarkError

OnReply = Callable[[bytes], None]


class HttpConnection(asyncio.Protocol):
    """Sends requests that were packed by the caller; any status but 2xx is a failure."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.problem: BenchmarkError | None = None
        self._on_reply: OnReply = _ignore
        self._on_problem: Callable[[BenchmarkError], None] = _ignore_problem
        self._parser = httptools.HttpResponseParser(self)
        self._body = b""
        self._closing = False

    @classmethod
    async def open(cls, port: int) -> HttpConnection:
        """Connects over loopback."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(cls, "127.0.0.1", port)
        return connection

    def send(self, request: bytes, on_reply: OnReply) -> None:
        """Sends now; `on_reply` gets the body."""
        assert self.transport is not None, "send on a connection that is closed"
        self._on_reply = on_reply
        self._body = b""
        self.transport.write(request)

    async def ask(self, request: bytes) -> bytes:
        """Sends and waits for the body."""
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def on_reply(body: bytes) -> None:
            if not future.done():
                future.set_result(body)

        def on_problem(problem: BenchmarkError) -> None:
            if not future.done():
                future.set_exception(problem)

        self._on_problem = on_problem
        self.send(request, on_reply)
        return await future

    def close(self) -> None:
        """Hangs up; replies under way are not waited for."""
        self._closing = True
        if self.transport is not None:
            self.transport.abort()

    # -- asyncio.Protocol and httptools ------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status // 100 != 2:
            self._fail(f"The server answered {status}: {self._body[:200].decode()}")
        else:
            self._on_reply(self._body)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if not self._closing:
            self._fail("The server hung up.")

    def _fail(self, text: str) -> None:
        self.problem = BenchmarkError(text)
        self._on_problem(self.problem)


def raise_problems(connections: Iterable[HttpConnection]) -> None:
    """Raises what went wrong on any of these connections."""
    for connection in connections:
        if connection.problem is not None:
            raise connection.problem


def packed_request(
    method: str, path: str, key: str, body: bytes = b"", *, headers: str = ""
) -> bytes:
    """A request as it goes over the wire."""
    head = f"{method} {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {key}\r\n{headers}"
    if body:
        head += f"content-length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


def _ignore(body: bytes) -> None:
    pass


def _ignore_problem(problem: BenchmarkError) -> None:
    pass
