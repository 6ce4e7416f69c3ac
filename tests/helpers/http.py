"""Raw HTTP for tests: requests byte by byte, event streams, a receiver in a thread."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from waystation.testing.endpoint import FakeEndpoint, ReceivedRequest

SECONDS_MAX = 20.0


@dataclass(frozen=True)
class Answer:
    """Reply with its headers in the order received."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        """Return the value of a header; None without it. Fail if the header is repeated."""
        values = [value for key, value in self.headers if key == name.lower()]
        assert len(values) <= 1, f"{len(values)} headers {name} in {self.headers}"
        return values[0] if values else None

    def json(self) -> Any:
        """Decode the body as JSON."""
        return json.loads(self.body)


def request_bytes(
    method: str,
    target: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    key: str = "",
) -> bytes:
    """Return a request as bytes.

    A body gets a Content-Length. A Host is added unless `headers` has one. `key` becomes a bearer
    token.
    """
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
    """Parser that cuts a stream of bytes into replies."""

    def __init__(self) -> None:
        self._buffer = b""
        self.ended = False

    def feed(self, data: bytes) -> None:
        """Add received bytes; empty bytes mean that the connection ended."""
        self._buffer += data
        self.ended = not data

    def next(self, method: str = "GET") -> Answer | None:
        """Return the next reply if it is complete, else None. A reply to HEAD has no body."""
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
    """Blocking connection, for tests outside of the server's event loop."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._reader = ReplyReader()

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self.socket.sendall(data)

    def answer(self, method: str = "GET") -> Answer:
        """Wait for the next reply and return it."""
        while (found := self._reader.next(method)) is None:
            assert not self._reader.ended, "the connection ended before the reply did"
            self._reader.feed(self.socket.recv(65536))
        return found

    def ask(self, *request: Any, **options: Any) -> Answer:
        """Send one request, see `request_bytes`, and return its reply."""
        self.send(request_bytes(*request, **options))
        return self.answer(request[0])

    def closed(self) -> bool:
        """Wait until the server closes the connection. Return False if it sends bytes instead."""
        try:
            return not self.socket.recv(65536)
        except ConnectionError:
            return True


class AsyncWire:
    """Connection of a test that runs in the server's own event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._stream = reader
        self.writer = writer
        self._reader = ReplyReader()

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self.writer.write(data)

    async def answer(self, method: str = "GET", *, seconds: float = SECONDS_MAX) -> Answer:
        """Wait for the next reply and return it.

        Raise ConnectionError if the server closes the connection instead.
        """
        async with asyncio.timeout(seconds):
            while (found := self._reader.next(method)) is None:
                if self._reader.ended:
                    raise ConnectionResetError("the connection ended before the reply did")
                self._reader.feed(await self._stream.read(65536))
        return found

    async def ask(self, *request: Any, **options: Any) -> Answer:
        """Send one request, see `request_bytes`, and return its reply."""
        self.send(request_bytes(*request, **options))
        return await self.answer(request[0])

    async def closed(self, *, seconds: float = SECONDS_MAX) -> bool:
        """Wait until the server closes the connection.

        Return False if it sends bytes instead, or does nothing for `seconds`.
        """
        try:
            async with asyncio.timeout(seconds):
                return not await self._stream.read(65536)
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    def close(self) -> None:
        """Close the connection cleanly."""
        self.writer.close()

    def vanish(self) -> None:
        """Reset the connection, as the system does for a client that crashed."""
        connection: socket.socket = self.writer.get_extra_info("socket")
        if connection.fileno() >= 0:
            at_once = struct.pack("ii", 1, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
        self.writer.transport.abort()


def port_of(url: str) -> int:
    """Return the port of a server's URL."""
    return int(url.rpartition(":")[2])


@contextmanager
def wire(url: str) -> Iterator[Wire]:
    """Connect to a server for the length of the block."""
    with socket.create_connection(("127.0.0.1", port_of(url)), timeout=SECONDS_MAX) as connection:
        yield Wire(connection)


async def open_async_wire(url: str) -> AsyncWire:
    """Connect to a server. The caller closes the connection."""
    return AsyncWire(*await asyncio.open_connection("127.0.0.1", port_of(url)))


@asynccontextmanager
async def async_wire(url: str) -> AsyncIterator[AsyncWire]:
    """Connect to a server for the length of the block."""
    async with async_wires(url, 1) as (opened,):
        yield opened


@asynccontextmanager
async def async_wires(url: str, count: int) -> AsyncIterator[list[AsyncWire]]:
    """Open `count` connections to a server for the length of the block."""
    opened: list[AsyncWire] = []
    try:
        for _ in range(count):
            opened.append(await open_async_wire(url))
        yield opened
    finally:
        for each in opened:
            each.writer.transport.abort()


def ask(url: str, *request: Any, **options: Any) -> Answer:
    """Send one request, see `request_bytes`, on a new connection and return its reply."""
    with wire(url) as connection:
        return connection.ask(*request, **options)


async def async_ask(url: str, *request: Any, **options: Any) -> Answer:
    """Send one request in the server's event loop, see `ask`."""
    async with async_wire(url) as connection:
        return await connection.ask(*request, **options)


@dataclass(frozen=True)
class Event:
    """Server-sent event. A comment has only `comment`."""

    name: str = ""
    id: str = ""
    data: str = ""
    retry: str = ""
    comment: bool = False

    def json(self) -> Any:
        """Decode the data as JSON."""
        return json.loads(self.data)


class EventReader:
    """Reader of one event stream. It reads only while a call waits for the next event."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self.status = 0
        self.headers: dict[str, str] = {}
        self._text = b""

    async def head(self) -> int:
        """Read the head of the reply and return the status."""
        async with asyncio.timeout(SECONDS_MAX):
            head = await self._reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").strip().split("\r\n")
        self.status = int(first.split(" ")[1])
        self.headers = {k.lower(): v.strip() for k, _, v in (each.partition(":") for each in lines)}
        return self.status

    async def body(self) -> bytes:
        """Return the body of a reply that is not a stream."""
        async with asyncio.timeout(SECONDS_MAX):
            return await self._reader.readexactly(int(self.headers["content-length"]))

    async def event(self, *, seconds: float = SECONDS_MAX) -> Event | None:
        """Return the next event or comment; None at the end of the stream."""
        async with asyncio.timeout(seconds):
            while b"\n\n" not in self._text:
                size = int(await self._reader.readuntil(b"\r\n"), 16)
                chunk = await self._reader.readexactly(size + 2)
                if size == 0:
                    assert not self._text, "the stream ended within an event"
                    return None
                self._text += chunk[:-2]
        block, _, self._text = self._text.partition(b"\n\n")
        return _event(block)

    async def message(self, *, seconds: float = SECONDS_MAX) -> Event:
        """Return the next message. Skip heartbeats and `retry`; fail on other events."""
        async with asyncio.timeout(seconds):
            while (event := await self.event(seconds=seconds)) is not None:
                if not event.comment and not event.retry:
                    assert event.name == "message", event
                    return event
        raise ConnectionResetError("the stream ended before a message came")

    async def ids(self, count: int) -> list[str]:
        """Return the ids of the next `count` messages."""
        return [(await self.message()).json()["messageID"] for _ in range(count)]

    async def end(self, *, seconds: float = SECONDS_MAX) -> list[Event]:
        """Read to the end of the stream. Return all events except comments and `retry`."""
        found = []
        async with asyncio.timeout(seconds):
            while (event := await self.event(seconds=seconds)) is not None:
                if not event.comment and not event.retry:
                    found.append(event)
        return found


def _event(block: bytes) -> Event:
    fields: dict[str, str] = {}
    if block.startswith(b":"):
        return Event(comment=True)
    for line in block.decode().split("\n"):
        name, _, value = line.partition(": ")
        assert name not in fields, f"{name} is repeated in {block!r}"
        fields[name] = value
    return Event(
        name=fields.pop("event", ""),
        id=fields.pop("id", ""),
        data=fields.pop("data", ""),
        retry=fields.pop("retry", ""),
    )


@asynccontextmanager
async def event_stream(
    url: str, target: str, *, key: str = "", buffer_bytes: int = 0, **headers: str
) -> AsyncIterator[EventReader]:
    """Open a stream for the length of the block, and read its head."""
    options: dict[str, Any] = {"limit": buffer_bytes} if buffer_bytes else {}
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(url), **options)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    writer.write(request_bytes("GET", target, None, sent, key=key))
    stream = EventReader(reader, writer)
    try:
        await stream.head()
        yield stream
    finally:
        writer.transport.abort()


async def until_blocked(
    transport: asyncio.Transport, blocked: Callable[[], bool], *, seconds: float
) -> int:
    """Wait until a server's connection sends nothing for half a second while `blocked`.

    Return the number of unsent bytes.
    """
    still, before = 0, -1
    async with asyncio.timeout(seconds):
        while still < 10:
            await asyncio.sleep(0.05)
            unsent = transport.get_write_buffer_size()
            still = still + 1 if blocked() and unsent == before else 0
            before = unsent
    return before


class Receiver:
    """FakeEndpoint that runs in a thread with its own event loop."""

    def __init__(self, endpoint: FakeEndpoint) -> None:
        self.endpoint = endpoint
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    @property
    def received(self) -> list[ReceivedRequest]:
        """Requests received so far."""
        return self.endpoint.received

    def __enter__(self) -> Receiver:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        async with self.endpoint:
            self.url = self.endpoint.url
            self._ready.set()
            await self._end.wait()
