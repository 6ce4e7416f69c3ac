"""A fake HTTP endpoint for tests: records what it gets, and fails by a seeded plan.

    async with FakeEndpoint(plan=[500, 503, 200]) as endpoint:
        ... deliver to endpoint.url ...
        assert [each.status for each in endpoint.received] == [500, 503, 200]

It is a plain socket server, so it can misbehave in ways that HTTP libraries do not allow: hang,
reset, answer slowly, never end. After the plan is used up it answers its last entry for ever.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, cast

import httptools


@dataclass(frozen=True)
class Answer:
    """What the endpoint does with one request."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b"ok"
    #: Wait before the answer.
    delay_seconds: float = 0.0
    #: Close the connection with a reset instead of answering.
    reset: bool = False
    #: Never answer at all.
    hang: bool = False
    #: Send the body for ever.
    endless: bool = False


@dataclass
class ReceivedRequest:
    """A request as it came in."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    at: float
    #: What it is answered with; 0: with nothing.
    status: int = 0
    #: Whether the answer was given; one who has left meanwhile gets none.
    answered: bool = False


@dataclass
class FakeEndpoint:
    """A server on a free loopback port. Entries of a plan are statuses or answers."""

    plan: Sequence[int | Answer] = (200,)
    #: With a seed, the plan is drawn from at random instead of in order.
    seed: int | None = None
    received: list[ReceivedRequest] = field(default_factory=list)
    #: Connections that were made to it.
    connections: int = 0

    async def __aenter__(self) -> Self:
        self._rng = random.Random(self.seed)
        self._arrived = asyncio.Condition()
        self._connections: set[_Connection] = set()
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _Connection(self), "127.0.0.1", 0
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        for connection in list(self._connections):
            connection.close()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        """Where to deliver."""
        return f"http://127.0.0.1:{self.port}/hook"

    async def until(self, count: int, *, seconds: float = 10.0) -> list[ReceivedRequest]:
        """Waits for so many requests in all, and returns them."""
        async with asyncio.timeout(seconds), self._arrived:
            await self._arrived.wait_for(lambda: len(self.received) >= count)
        return self.received

    def next_answer(self) -> Answer:
        """What the plan says about the request that has just come."""
        if self.seed is not None:
            entry = self._rng.choice(list(self.plan))
        else:
            entry = self.plan[min(len(self.received), len(self.plan)) - 1]
        return entry if isinstance(entry, Answer) else Answer(entry)

    async def note(self) -> None:
        """Wakes whoever waits in `until`."""
        async with self._arrived:
            self._arrived.notify_all()


class _Connection(asyncio.Protocol):
    def __init__(self, endpoint: FakeEndpoint) -> None:
        self._endpoint = endpoint
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpRequestParser(self)
        self._endpoint._connections.add(self)
        self._endpoint.connections += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self._endpoint._connections.discard(self)
        for task in self._tasks:
            task.cancel()

    def close(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body = b""

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode().lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        loop = asyncio.get_running_loop()
        request = ReceivedRequest(
            method=self._parser.get_method().decode(),
            path=self._url.decode(),
            headers=self._headers,
            body=self._body,
            at=loop.time(),
        )
        self._endpoint.received.append(request)
        answer = self._endpoint.next_answer()
        task = loop.create_task(self._reply(request, answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reply(self, request: ReceivedRequest, answer: Answer) -> None:
        request.status = 0 if answer.reset or answer.hang else answer.status
        await self._endpoint.note()
        if answer.hang:
            return
        await asyncio.sleep(answer.delay_seconds)
        if answer.reset:
            self._reset()
            return
        head = [f"HTTP/1.1 {answer.status} X", *(f"{k}: {v}" for k, v in answer.headers)]
        if answer.endless:
            self._transport.write("\r\n".join([*head, "connection: close", "", ""]).encode())
            while not self._transport.is_closing():
                self._transport.write(b"x" * 65_536)
                await asyncio.sleep(0.001)
            return
        if answer.status not in (204, 304):
            head.append(f"content-length: {len(answer.body)}")
        self._transport.write("\r\n".join([*head, "", ""]).encode() + answer.body)
        request.answered = True

    def _reset(self) -> None:
        # Lingering for no time at all turns the close into a reset.
        raw: socket.socket = self._transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()
