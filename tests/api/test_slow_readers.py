"""Clients that ask for large replies and read them slowly: bounded bytes, bounded time."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.helpers.http import Wire, ask, async_ask, port_of, request_bytes
from tests.helpers.processes import station_process
from tests.helpers.waiting import eventually
from waystation.api import connection, reply
from waystation.config import Config
from waystation.errors import BusyError
from waystation.testing import serving
from waystation.testing.station import Serving

MEGABYTE = b'"%b"' % (b"x" * 999_998)
POLLING = "/channel/large/subscription/polling/s"
SECONDS_MAX = 30.0


@contextlib.contextmanager
def slow_reader(port: int, target: str = POLLING) -> Iterator[Wire]:
    """A client that has asked for a reply and reads none of it."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(SECONDS_MAX)
    client.connect(("127.0.0.1", port))
    with client:
        client.sendall(request_bytes("GET", target))
        yield Wire(client)


async def fill(server: Serving, messages: int = 8) -> None:
    """Let a subscriber have unread messages of a megabyte each."""
    await server.node.channels.subscribe("default", "large", "s")
    for number in range(messages):
        await server.node.channels.publish("default", "large", f"m{number}", MEGABYTE)


async def until_held(size: int) -> None:
    await eventually(lambda: reply._Budget.used_bytes.total() == size, timeout=SECONDS_MAX)


@contextlib.asynccontextmanager
async def two_slow_readers(
    settings: Config, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Serving]:
    """A server with room for two large replies, which two slow readers hold."""
    async with serving(settings) as server:
        await fill(server)
        whole = await async_ask(server.url, "GET", POLLING)
        size = len(whole.body)
        assert whole.body.count(MEGABYTE) == 8
        monkeypatch.setattr(reply, "REPLIES_BYTES_MAX", 2 * size)
        with slow_reader(server.port), slow_reader(server.port):
            await until_held(2 * size)
            yield server
        await until_held(0)


async def test_reply_beyond_the_bytes_that_slow_readers_hold_is_503(
    settings: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_slow_readers(settings, monkeypatch) as server:
        large = await async_ask(server.url, "GET", POLLING)
        small = await async_ask(server.url, "GET", f"{POLLING}?max=0")
        public = await async_ask(server.url, "GET", "/openapi.json")

    assert (large.status, large.header("retry-after")) == (503, "1")
    assert (small.status, public.status) == (200, 200)


async def test_reply_after_slow_readers_left_is_sent_whole(
    settings: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(settings) as server:
        await fill(server)
        size = len((await async_ask(server.url, "GET", POLLING)).body)
        monkeypatch.setattr(reply, "REPLIES_BYTES_MAX", size)
        with slow_reader(server.port):
            await until_held(size)
            assert (await async_ask(server.url, "GET", POLLING)).status == 503
        await until_held(0)

        answer = await async_ask(server.url, "GET", POLLING)

    assert (answer.status, len(answer.body)) == (200, size)


def test_hold_reply_over_the_bytes_of_a_project_leaves_room_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reply, "REPLIES_BYTES_MAX", 100)
    monkeypatch.setattr(reply, "REPLIES_BYTES_OF_PROJECT_MAX", 60)

    with reply.hold_reply("a", 60):
        with pytest.raises(BusyError), reply.hold_reply("a", 1):
            pass
        with reply.hold_reply("b", 40), pytest.raises(BusyError), reply.hold_reply("c", 1):
            pass

    assert not reply._Budget.used_bytes


async def test_reader_slower_than_the_least_rate_is_disconnected(
    settings: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "STALLED_SECONDS_MAX", 0.5)
    monkeypatch.setattr(connection, "READ_BYTES_PER_SECOND_MIN", 8_000_000)
    async with serving(settings) as server:
        await fill(server)

        enough = threading.Event()

        def drip(client: Wire) -> None:
            """Read a little, often enough that the connection never stands still."""
            with contextlib.suppress(ConnectionError):
                while not enough.wait(0.02) and client.socket.recv(2048):
                    pass

        with slow_reader(server.port) as client:
            async with asyncio.timeout(SECONDS_MAX):
                while not reply._Budget.used_bytes:
                    await asyncio.sleep(0.01)
            dripping = asyncio.create_task(asyncio.to_thread(drip, client))
            # The server gives the reply up although the client is there and reads.
            await until_held(0)
            enough.set()
            await dripping


async def test_connections_with_too_many_unsent_bytes_in_all_are_disconnected(
    settings: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "UNSENT_BYTES_MAX", 1_000)
    async with serving(settings) as server:
        await fill(server)
        with slow_reader(server.port) as first, slow_reader(server.port) as second:
            for client in (first, second):
                # The end comes as a reset, behind what the socket's buffer has.
                async with asyncio.timeout(SECONDS_MAX):
                    while not await asyncio.to_thread(ended, client):
                        pass
        await until_held(0)


def ended(client: Wire) -> bool:
    try:
        client.socket.sendall(b"\r\n")
        time.sleep(0.05)
    except ConnectionError:
        return True
    return False


@pytest.mark.slow
def test_many_slow_readers_of_large_replies_take_bounded_memory(tmp_path: Path) -> None:
    options = ("--insecure", "--durability", "memory")
    with station_process(tmp_path / "data", *options) as process:
        ask(process.url, "PUT", POLLING)
        for number in range(8):
            ask(process.url, "PUT", f"/channel/large/message/m{number}", MEGABYTE)
        assert len(ask(process.url, "GET", POLLING).body) > 8_000_000
        before = process.resident_bytes()
        with contextlib.ExitStack() as readers:
            for _ in range(60):
                readers.enter_context(slow_reader(port_of(process.url)))
            until = time.monotonic() + 15
            while ask(process.url, "GET", POLLING).status != 503:
                assert time.monotonic() < until
            growth = process.resident_bytes() - before
            assert ask(process.url, "GET", "/livez").status == 200
    # The bytes of one project, and as many again for what is read and refused meanwhile.
    assert growth < 2 * reply.REPLIES_BYTES_OF_PROJECT_MAX
