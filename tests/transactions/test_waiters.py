"""The waiting room: who waits for an end is told of it, and leaves nothing behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.transactions.service_helpers import Outside, open_outside
from waystation.store.embedded.server import EmbeddedServer
from waystation.transactions import names

FAR = 60.0
SOON = 5.0


async def waits(outside: Outside, count: int) -> None:
    """Returns when so many wait, and the store knows of it."""
    async with asyncio.timeout(SOON):
        while f"{count} waiters" not in repr(
            outside.engine.waiting
        ) or not await outside.store.call("ZCARD", names.sorted_set(0, "waitersZ")):
            await asyncio.sleep(0.001)


async def test_an_end_is_told_at_once_to_all_who_wait_for_it(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_outside(store_server.address, tmp_path) as outside:
        await outside.define()
        claimed = await outside.running()
        other = await outside.running()
        room = outside.engine.waiting
        waiting = [asyncio.ensure_future(room.ended(claimed.id, FAR)) for _ in range(20)]
        patient = asyncio.ensure_future(room.ended(other.id, FAR))
        await waits(outside, 21)
        await outside.finish(claimed)
        async with asyncio.timeout(SOON):
            assert all(await asyncio.gather(*waiting))
        assert not patient.done(), "what another waits for is still alive"
        await outside.finish(other)
        async with asyncio.timeout(SOON):
            assert await patient
        assert "0 waiters" in repr(room)


async def test_what_has_ended_before_is_not_waited_for(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_outside(store_server.address, tmp_path) as outside:
        await outside.define()
        claimed = await outside.running()
        await outside.finish(claimed)
        async with asyncio.timeout(SOON):
            assert await outside.engine.waiting.ended(claimed.id, FAR)
            assert await outside.engine.waiting.ended("tx-0000" + "f" * 36, FAR)


async def test_a_wait_ends_with_its_time(store_server: EmbeddedServer, tmp_path: Path) -> None:
    async with open_outside(store_server.address, tmp_path) as outside:
        await outside.define()
        claimed = await outside.running()
        assert not await outside.engine.waiting.ended(claimed.id, 0.02)
        assert "0 waiters" in repr(outside.engine.waiting)


async def test_a_client_that_hangs_up_is_not_waited_for(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """F-31."""
    async with open_outside(store_server.address, tmp_path) as outside:
        await outside.define()
        claimed = await outside.running()
        gone: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        waiting = asyncio.ensure_future(
            outside.engine.waiting.ended(claimed.id, FAR, abandonment=lambda: gone)
        )
        await waits(outside, 1)
        gone.set_result(None)
        async with asyncio.timeout(SOON):
            assert not await waiting
        assert "0 waiters" in repr(outside.engine.waiting)


async def test_a_stopping_process_ends_all_waits(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_outside(store_server.address, tmp_path) as outside:
        await outside.define()
        claimed = await outside.running()
        waiting = asyncio.ensure_future(outside.engine.waiting.ended(claimed.id, FAR))
        await waits(outside, 1)
        outside.engine.waiting.end_waits()
        async with asyncio.timeout(SOON):
            assert not await waiting
            assert not await outside.engine.waiting.ended(claimed.id, FAR), "nor does it begin one"


async def test_a_wait_on_a_full_store_still_sees_the_end(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """F-20: the note that somebody waits finds no room; who waits looks by itself."""
    async with open_outside(store_server.address, tmp_path) as outside:
        await outside.define()
        claimed = await outside.running()
        await outside.store.call("CONFIG", "SET", "maxmemory", 1)
        try:
            assert not await outside.engine.waiting.ended(claimed.id, 0.02)
            await outside.finish(claimed)
            assert await outside.engine.waiting.ended(claimed.id, FAR)
        finally:
            await outside.store.call("CONFIG", "SET", "maxmemory", 0)


async def test_a_cancelled_wait_leaves_nothing_behind(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_outside(store_server.address, tmp_path) as outside:
        await outside.define()
        claimed = await outside.running()
        waiting = asyncio.ensure_future(outside.engine.waiting.ended(claimed.id, FAR))
        await waits(outside, 1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert "0 waiters" in repr(outside.engine.waiting)
        await outside.finish(claimed)
        await outside.engine.waiting.ended(claimed.id, 0)
        await outside.machine.advance(120)
        await outside.signals.mark(["tx-0000" + "e" * 36], wait_ms=60_000)
        waited = await outside.store.call("ZRANGE", names.sorted_set(0, "waitersZ"), 0, -1)
        assert waited == [b"tx-0000" + b"e" * 36], "what is over goes"
