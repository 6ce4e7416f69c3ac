"""HTTP as bytes: one connection that sends exactly what it is told, and can vanish.

    async with wire_to(port) as wire:
        answer = await wire.ask("PUT", "/channel/a/message/m", b"1")

Nothing is normalised on the way, so odd paths arrive as they are written.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

_ANSWER_SECONDS_MAX = 60.0


@dataclass(frozen=True)
class Answer:
    """A reply; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def media_type(self) -> str:
        """The content type without its parameters; empty when there is none."""
        return self.headers.get("content-type", "").partition(";")[0]


class Wire:
    """A keep-alive connection with one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        key: str = "",
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """Sends a request and waits for its reply."""
        self.send(method, path, body, key=key, headers=headers)
        return await self.answer(without_body=method == "HEAD")

    def send(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        key: str = "",
        headers: dict[str, str] | None = None,
    ) -> None:
        """Sends a request; `answer` reads the reply."""
        fields = {"host": "station", "content-length": str(len(body)), **(headers or {})}
        if key:
            fields["authorization"] = f"Bearer {key}"
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)

    def write(self, data: bytes) -> None:
        """Sends bytes as they are."""
        self._writer.write(data)

    async def answer(self, *, without_body: bool = False) -> Answer:
        """The next reply; ConnectionError when the server hangs up instead."""
        try:
            async with asyncio.timeout(_ANSWER_SECONDS_MAX):
                head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                lines = head.split("\r\n")
                pairs = (line.split(": ", 1) for line in lines[1:] if line)
                headers = {name.lower(): value for name, value in pairs}
                size = 0 if without_body else int(headers.get("content-length", 0))
                body = await self._reader.readexactly(size)
        except asyncio.IncompleteReadError as error:
            raise ConnectionResetError("the server hung up") from error
        return Answer(int(lines[0].split()[1]), headers, body)

    async def hung_up(self, *, seconds: float = 10.0) -> bool:
        """Waits for the server to close the connection; false when it does not."""
        try:
            async with asyncio.timeout(seconds):
                return await self._reader.read(1) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    def vanish(self) -> None:
        """Ends the connection with a reset, as a client that crashed."""
        raw = self._writer.get_extra_info("socket")
        if raw is not None and raw.fileno() >= 0:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    def close(self) -> None:
        """Ends the connection in order."""
        self._writer.close()


async def open_wire(port: int) -> Wire:
    """Connects over loopback."""
    return Wire(*await asyncio.open_connection("127.0.0.1", port, limit=2**24))


@asynccontextmanager
async def wire_to(port: int) -> AsyncIterator[Wire]:
    """A connection for the length of the block."""
    wire = await open_wire(port)
    try:
        yield wire
    finally:
        wire.close()


@asynccontextmanager
async def wires_to(port: int, count: int) -> AsyncIterator[list[Wire]]:
    """Many connections for the length of the block."""
    wires: list[Wire] = []
    try:
        for _ in range(count):
            wires.append(await open_wire(port))
        yield wires
    finally:
        for wire in wires:
            wire.close()


async def ask(port: int, method: str, path: str, body: bytes = b"", **options: Any) -> Answer:
    """One request on a connection of its own."""
    async with wire_to(port) as wire:
        return await wire.ask(method, path, body, **options)
