"""The line: a blocking connection that heals itself, for threads."""

from __future__ import annotations

import asyncio

import pytest

from tests.helpers.store_faults import Fate, proxy_to, store_at
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.line import Line
from waystation.store.scripts import script

_RENEW = script("waystation.store", "lease_renew")


async def test_commands_are_answered_in_order_and_scripts_run_whole_after_a_flush(
    store_server: EmbeddedServer,
) -> None:
    async with store_at(store_server.address) as store:
        await store.call("HSET", "{line}:lease", "epoch", 3, "until_ms", 1)
        await store.call("SCRIPT", "FLUSH")
        line = Line(store_server.address)
        calls = [(["{line}:lease"], [epoch, 1000]) for epoch in (3, 4, 3)]
        assert await asyncio.to_thread(line.run_all, _RENEW, calls) == [1, 0, 1]
        echoes = [("ECHO", str(n)) for n in range(3000)]
        replies = await asyncio.to_thread(line.exchange, echoes)
        assert replies == [str(n).encode() for n in range(3000)]
        line.close()
        await store.call("DEL", "{line}:lease")


async def test_an_error_ends_the_connection_and_the_next_exchange_has_another(
    store_server: EmbeddedServer,
) -> None:
    async with proxy_to(store_server.address) as proxy:
        line = Line(proxy.address)
        assert await asyncio.to_thread(line.exchange, [("PING",)]) == [b"PONG"]
        with pytest.raises(OSError, match="unknown command"):
            await asyncio.to_thread(line.exchange, [("PING",), ("NONSENSE",)])
        assert await asyncio.to_thread(line.exchange, [("PING",)]) == [b"PONG"]
        await proxy.set_fates(replies=Fate.CUT)
        with pytest.raises(OSError, match=r"hung up|reset"):
            await asyncio.to_thread(line.exchange, [("PING",)])
        await proxy.set_fates()
        assert await asyncio.to_thread(line.exchange, [("PING",)]) == [b"PONG"]
        assert proxy.connections == 3
        line.close()


async def test_a_silent_store_ends_an_exchange_in_bounded_time(
    store_server: EmbeddedServer,
) -> None:
    async with proxy_to(store_server.address) as proxy:
        line = Line(proxy.address)
        await proxy.set_fates(replies=Fate.SWALLOW)
        async with asyncio.timeout(5):
            with pytest.raises(OSError, match="timed out"):
                await asyncio.to_thread(line.exchange, [("PING",)])
