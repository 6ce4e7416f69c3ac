"""A proxy in front of a store: it delays, holds, swallows or cuts what passes through it.

    async with proxy_to(server.address) as proxy:
        store = Store(proxy.address)
        proxy.replies = Fate.CUT          # the next reply is lost, and the connection with it

Each direction has a fate, which holds for every byte until it is changed. `met` is set whenever a
fate other than PASS was dealt out, so that a test can wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import Enum, auto

from waystation.store.address import Address


class Fate(Enum):
    """What happens to bytes on their way."""

    PASS = auto()
    #: Kept back until the fate is PASS again.
    HOLD = auto()
    #: Never arrives, and nobody is told: a half-open connection.
    SWALLOW = auto()
    #: Never arrives, and both ends of the connection are closed.
    CUT = auto()


class Proxy:
    """Listens on a free loopback port."""

    def __init__(self, target: Address) -> None:
        self._target = target
        self._listener: asyncio.Server | None = None
        self._links: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}
        self._changed = asyncio.Condition()
        self._fates = {"requests": Fate.PASS, "replies": Fate.PASS}
        self.delay_seconds = 0.0
        self.met = asyncio.Event()
        #: Connections that were ever made, chunks and bytes that ever came from clients.
        self.connections = 0
        self.chunks = 0
        self.received = b""

    @property
    def address(self) -> Address:
        """Where a client connects to."""
        assert self._listener is not None
        address = Address(host="127.0.0.1", port=self._listener.sockets[0].getsockname()[1])
        return address if self._target.cluster is None else address.clustered()

    @property
    def connections_open(self) -> int:
        """Connections that neither end has closed."""
        return len(self._links)

    async def set_fates(self, *, requests: Fate = Fate.PASS, replies: Fate = Fate.PASS) -> None:
        """Changes what happens from now on; what was held may go on."""
        async with self._changed:
            self._fates = {"requests": requests, "replies": replies}
            self.met.clear()
            self._changed.notify_all()

    def cut(self) -> None:
        """Ends all connections at once, as a reset."""
        for writers in self._links.values():
            for writer in writers:
                writer.transport.abort()

    async def start(self) -> None:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def close(self) -> None:
        assert self._listener is not None
        self._listener.close()
        await self.set_fates(requests=Fate.CUT, replies=Fate.CUT)
        self.cut()
        await asyncio.gather(*self._links)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._links[task] = [writer]
        try:
            if self._target.path:
                upstream = await asyncio.open_unix_connection(self._target.path)
            else:
                upstream = await asyncio.open_connection(self._target.host, self._target.port)
            self._links[task].append(upstream[1])
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(reader, upstream[1], "requests"))
                both.create_task(self._pump(upstream[0], writer, "replies"))
        except* (OSError, EOFError):
            pass
        finally:
            for each in self._links.pop(task):
                each.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: str
    ) -> None:
        while data := await reader.read(65536):
            if direction == "requests":
                self.chunks += 1
                self.received += data
            if self._fates[direction] is not Fate.PASS:
                self.met.set()
            async with self._changed:
                await self._changed.wait_for(lambda: self._fates[direction] is not Fate.HOLD)
            if self._fates[direction] is Fate.CUT:
                break
            if self._fates[direction] is Fate.PASS:
                await asyncio.sleep(self.delay_seconds)
                writer.write(data)
                await writer.drain()
        # One end is gone, so the other one goes too.
        raise EOFError


@asynccontextmanager
async def proxy_to(target: Address) -> AsyncIterator[Proxy]:
    """Runs a proxy for the length of the block."""
    proxy = Proxy(target)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.close()
