"""A peer of the store's wire protocol that answers what a test tells it to.

It is for what a real server cannot be made to say on demand: LOADING, a lost primary, an old
version. Handshakes are answered with OK unless the test's own answers say otherwise.

    async with peer_that(lambda command: b"-OOM command not allowed" if ... else None) as address:
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import hiredis

from waystation.store.address import Address

#: The answer to one command: a line of the protocol without its end, or None for a plain OK.
Answer = Callable[[list[bytes]], bytes | None]

#: At the end of an answer: the connection is closed after what stands before it.
HANG_UP = b"hang up"


def _usual(command: list[bytes]) -> bytes:
    """The reply of a store that has no script."""
    if command[:2] == [b"SCRIPT", b"EXISTS"]:
        return b"*%d\r\n" % len(command[2:]) + b"\r\n".join([b":0"] * len(command[2:]))
    return b"+OK"


@asynccontextmanager
async def peer_that(answer: Answer) -> AsyncIterator[Address]:
    """Listens on a free loopback port for the length of the block."""
    writers: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        parser = hiredis.Reader()
        while data := await reader.read(65536):
            parser.feed(data)
            while (command := parser.gets()) is not False:
                said = answer(command)
                if said is not None and said.endswith(HANG_UP):
                    writer.write(said.removesuffix(HANG_UP))
                    writer.close()
                    return
                writer.write((said if said is not None else _usual(command)) + b"\r\n")

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield Address(host="127.0.0.1", port=listener.sockets[0].getsockname()[1])
    finally:
        listener.close()
        for writer in writers:
            writer.transport.abort()
