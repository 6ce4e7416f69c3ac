"""The receivers of deliveries: a process that answers on many ports, or hangs on some.

    python -m waystation_bench.receivers COUNT

A question `{"hanging": n}` begins a round in which the last `n` ports accept and never answer; the
answer is all ports. With `"every": k, "status": s` in it each k-th request is answered so; with
`"first_fails": k` the first attempt of each message of the groups `order-0` to `order-<k - 1>` is.
With `"delay_ms": d` each reply takes so long.
Bodies that are a time (`stamp()`) are noted with how long they took to come; `{"delays_of": n}`
asks for those of the first `n` ports. Beyond that it does as little as a server can, because it
shares two cores with the sender that is measured.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from waystation.runtime.clock import Clock
from waystation_bench.children import Answer, answer_questions

_OK = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\nok"
_OTHER = b"HTTP/1.1 %d Other\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\nno"
_END = b"\r\n\r\n"
_LENGTH = b"content-length:"
_FIRST = b"\r\nwaystation-attempt: 1\r\n"
_GROUP = re.compile(rb"\r\nwaystation-group: order-(\d+)\r\n")
#: Stamps begin with this; other bodies are not looked at.
_STAMP = b"sent "

_clock = Clock()


def stamp() -> bytes:
    """A body that tells when it was sent; the clock is the same in all processes of a machine."""
    return b"%b%.6f" % (_STAMP, _clock.monotonic())


class Receivers:
    """All ports: which of them hang, and how long deliveries took to the others."""

    def __init__(self) -> None:
        self.ports: list[int] = []
        self.hanging: set[int] = set()
        self.delays_ms: dict[int, list[float]] = {}
        #: Requests so far; each n-th is answered with the other reply, none while it is 0.
        self.requests = self.every = 0
        self.other = b""
        #: Number of groups whose messages fail at their first attempt.
        self.first_fails = 0
        self.delay_seconds = 0.0

    async def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """Begins a round, or tells about it."""
        if "hanging" in question:
            self.hanging = set(self.ports[len(self.ports) - question["hanging"] :])
            self.delays_ms = {port: [] for port in self.ports}
            self.requests, self.every = 0, question.get("every", 0)
            self.other = _OTHER % question.get("status", 500)
            self.first_fails = question.get("first_fails", 0)
            self.delay_seconds = question.get("delay_ms", 0) / 1000
            return {"ports": self.ports}
        ports = self.ports[: question["delays_of"]]
        return {"delays_ms": [delay for port in ports for delay in self.delays_ms[port]]}

    def reply(self, head: bytes) -> bytes:
        """Return the reply to the next request, which has these header lines."""
        self.requests += 1
        if self.first_fails:
            group = _GROUP.search(head)
            fails = group is not None and int(group[1]) < self.first_fails and _FIRST in head
            return self.other if fails else _OK
        return self.other if self.every and not self.requests % self.every else _OK


class _Connection(asyncio.Protocol):
    def __init__(self, receivers: Receivers) -> None:
        self._receivers = receivers
        self._got = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._port = transport.get_extra_info("sockname")[1]

    def data_received(self, data: bytes) -> None:
        got = self._got + data if self._got else data
        head, end, body = got.partition(_END)
        if not end or len(body) < _length(head):
            self._got = got
            return
        self._got = b""
        if self._port in self._receivers.hanging:
            return
        reply, delay_seconds = self._receivers.reply(head), self._receivers.delay_seconds
        if delay_seconds:
            asyncio.get_running_loop().call_later(delay_seconds, self._transport.write, reply)
        else:
            self._transport.write(reply)
        if body.startswith(_STAMP):
            delay = _clock.monotonic() - float(body[len(_STAMP) :])
            self._receivers.delays_ms[self._port].append(delay * 1000)


def _length(head: bytes) -> int:
    _, found, rest = head.lower().partition(_LENGTH)
    return int(rest.partition(b"\r")[0]) if found else 0


@asynccontextmanager
async def listening(count: int) -> AsyncIterator[Answer]:
    """Listens on so many free ports."""
    receivers = Receivers()
    loop = asyncio.get_running_loop()
    servers = [
        await loop.create_server(lambda: _Connection(receivers), "127.0.0.1", 0)
        for _ in range(count)
    ]
    receivers.ports = [server.sockets[0].getsockname()[1] for server in servers]
    try:
        yield receivers.answer
    finally:
        for server in servers:
            server.close()


def main() -> None:
    """Receives until standard input ends."""
    answer_questions(listening(int(sys.argv[1])))


if __name__ == "__main__":
    main()
