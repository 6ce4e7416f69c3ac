"""A client of server-sent events that hides nothing: what came, byte for byte, event by event."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.kit.wire import SECONDS_MAX, port_of, request_bytes


@dataclass(frozen=True)
class Event:
    """One event; a comment has only `comment`."""

    name: str = ""
    id: str = ""
    data: str = ""
    retry: str = ""
    comment: bool = False

    def json(self) -> Any:
        """The data as JSON."""
        return json.loads(self.data)


class EventReader:
    """Reads one stream. It stops reading when nobody asks for the next event."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self.status = 0
        self.headers: dict[str, str] = {}
        self._text = b""

    async def head(self) -> int:
        """Waits for the head of the reply."""
        async with asyncio.timeout(SECONDS_MAX):
            head = await self._reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").strip().split("\r\n")
        self.status = int(first.split(" ")[1])
        self.headers = {k.lower(): v.strip() for k, _, v in (each.partition(":") for each in lines)}
        return self.status

    async def body(self) -> bytes:
        """The body of a reply that is no stream."""
        async with asyncio.timeout(SECONDS_MAX):
            return await self._reader.readexactly(int(self.headers["content-length"]))

    async def event(self, *, seconds: float = SECONDS_MAX) -> Event | None:
        """The next event or comment; None at the end of the stream."""
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
        """The next message; heartbeats and `retry` are passed over, anything else is an error."""
        async with asyncio.timeout(seconds):
            while (event := await self.event(seconds=seconds)) is not None:
                if not event.comment and not event.retry:
                    assert event.name == "message", event
                    return event
        raise ConnectionResetError("the stream ended before a message came")

    async def ids(self, count: int) -> list[str]:
        """The ids of the next so many messages."""
        return [(await self.message()).json()["messageID"] for _ in range(count)]

    async def end(self, *, seconds: float = SECONDS_MAX) -> list[Event]:
        """Everything up to the end of the stream, except comments and `retry`."""
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
        assert name not in fields, f"{name} stands twice in {block!r}"
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
    """Opens a stream for the length of the block; its head has been read."""
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
    """Returns, once a server's connection stands still for good, what it could not send."""
    still, before = 0, -1
    async with asyncio.timeout(seconds):
        while still < 10:
            await asyncio.sleep(0.05)
            unsent = transport.get_write_buffer_size()
            still = still + 1 if blocked() and unsent == before else 0
            before = unsent
    return before
