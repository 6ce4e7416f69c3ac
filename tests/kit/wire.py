"""HTTP/1.1 by hand: sends exactly the bytes it is given, and reads replies one by one.

Client libraries repair what they send and hide what they get; tests of a server must do neither.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

SECONDS_MAX = 20.0


@dataclass(frozen=True)
class Answer:
    """One reply, as it came."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        """The only value of a header; None without it."""
        values = [value for key, value in self.headers if key == name.lower()]
        assert len(values) <= 1, f"{name} stands {len(values)} times in {self.headers}"
        return values[0] if values else None

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


def request_bytes(
    method: str,
    target: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    key: str = "",
) -> bytes:
    """A request of an ordinary client. A body gets its length; a Host is added if there is none."""
    lines = [f"{method} {target} HTTP/1.1"]
    if "host" not in {name.lower() for name in headers or {}}:
        lines.append("Host: 127.0.0.1")
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    if key:
        lines.append(f"Authorization: Bearer {key}")
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


class ReplyReader:
    """Cuts a stream of bytes into replies."""

    def __init__(self) -> None:
        self._buffer = b""
        self.ended = False

    def feed(self, data: bytes) -> None:
        """Takes what came; nothing means that the connection ended."""
        self._buffer += data
        self.ended = not data

    def next(self, method: str = "GET") -> Answer | None:
        """The next reply if it is complete. The answer to HEAD has no body."""
        head, separator, rest = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            return None
        first, *lines = head.decode("latin-1").split("\r\n")
        status = int(first.split(" ")[1])
        headers = [(k.lower(), v.strip()) for k, _, v in (line.partition(":") for line in lines)]
        if method == "HEAD" or status in (204, 304) or status < 200:
            body, left = b"", rest
        elif ("transfer-encoding", "chunked") in headers:
            return self._next_chunked(status, headers, rest)
        else:
            size = int(dict(headers)["content-length"])
            if len(rest) < size:
                return None
            body, left = rest[:size], rest[size:]
        self._buffer = left
        return Answer(status, headers, body)

    def _next_chunked(
        self, status: int, headers: list[tuple[str, str]], rest: bytes
    ) -> Answer | None:
        parts = []
        while True:
            line, separator, rest = rest.partition(b"\r\n")
            size = int(line, 16) if separator else -1
            if size < 0 or len(rest) < size + 2:
                return None
            parts.append(rest[:size])
            rest = rest[size + 2 :]
            if size == 0:
                self._buffer = rest
                return Answer(status, headers, b"".join(parts))


class Wire:
    """A connection of a test that runs beside the server's event loop."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._reader = ReplyReader()

    def send(self, data: bytes) -> None:
        """Sends bytes."""
        self.socket.sendall(data)

    def answer(self, method: str = "GET") -> Answer:
        """Waits for the next reply."""
        while (found := self._reader.next(method)) is None:
            assert not self._reader.ended, "the connection ended before the reply did"
            self._reader.feed(self.socket.recv(65536))
        return found

    def ask(self, *request: Any, **options: Any) -> Answer:
        """Sends one request and waits for its reply; see `request_bytes`."""
        self.send(request_bytes(*request, **options))
        return self.answer(request[0])

    def closed(self) -> bool:
        """Waits for the end of the connection; false when something else came."""
        try:
            return not self.socket.recv(65536)
        except ConnectionError:
            return True


class AsyncWire:
    """The same for a test that runs in the server's own event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._stream = reader
        self.writer = writer
        self._reader = ReplyReader()

    def send(self, data: bytes) -> None:
        """Sends bytes."""
        self.writer.write(data)

    async def answer(self, method: str = "GET", *, seconds: float = SECONDS_MAX) -> Answer:
        """Waits for the next reply; ConnectionError when the server hangs up instead."""
        async with asyncio.timeout(seconds):
            while (found := self._reader.next(method)) is None:
                if self._reader.ended:
                    raise ConnectionResetError("the connection ended before the reply did")
                self._reader.feed(await self._stream.read(65536))
        return found

    async def ask(self, *request: Any, **options: Any) -> Answer:
        """Sends one request and waits for its reply; see `request_bytes`."""
        self.send(request_bytes(*request, **options))
        return await self.answer(request[0])

    async def closed(self, *, seconds: float = SECONDS_MAX) -> bool:
        """Waits for the end of the connection; false when something else came, or nothing."""
        try:
            async with asyncio.timeout(seconds):
                return not await self._stream.read(65536)
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    def close(self) -> None:
        """Hangs up in order."""
        self.writer.close()

    def vanish(self) -> None:
        """Hangs up with a reset, as a client that crashed."""
        connection: socket.socket = self.writer.get_extra_info("socket")
        if connection.fileno() >= 0:
            at_once = struct.pack("ii", 1, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
        self.writer.transport.abort()


def port_of(url: str) -> int:
    """The port of a station."""
    return int(url.rpartition(":")[2])


@contextmanager
def wire(url: str) -> Iterator[Wire]:
    """Connects to a station for the length of the block."""
    with socket.create_connection(("127.0.0.1", port_of(url)), timeout=SECONDS_MAX) as connection:
        yield Wire(connection)


async def open_async_wire(url: str) -> AsyncWire:
    """Connects to a station; the caller hangs up."""
    return AsyncWire(*await asyncio.open_connection("127.0.0.1", port_of(url)))


@asynccontextmanager
async def async_wire(url: str) -> AsyncIterator[AsyncWire]:
    """Connects to a station for the length of the block."""
    async with async_wires(url, 1) as (opened,):
        yield opened


@asynccontextmanager
async def async_wires(url: str, count: int) -> AsyncIterator[list[AsyncWire]]:
    """Connects to a station many times for the length of the block."""
    opened: list[AsyncWire] = []
    try:
        for _ in range(count):
            opened.append(await open_async_wire(url))
        yield opened
    finally:
        for each in opened:
            each.writer.transport.abort()


def ask(url: str, *request: Any, **options: Any) -> Answer:
    """One request on a connection of its own; see `request_bytes`."""
    with wire(url) as connection:
        return connection.ask(*request, **options)


async def async_ask(url: str, *request: Any, **options: Any) -> Answer:
    """The same for a test that runs in the server's own event loop."""
    async with async_wire(url) as connection:
        return await connection.ask(*request, **options)
