"""Time machine: a jump moves the store's time, every TTL and the clock of every process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from tests.helpers.store_faults import Fate, proxy_to
from waystation.config import Config
from waystation.errors import InvalidInputError
from waystation.runtime.clock import Clock
from waystation.store import connection, keys
from waystation.store.client import Store
from waystation.store.opening import OpenStore, open_store
from waystation.store.pubsub import PubSub
from waystation.store.scripts import script
from waystation.store.time_machine import TimeMachine
from waystation.testing import private_server

ADVANCE_TIME = script("waystation.store", "advance_time")
WHEN = script("tests.store", "when")

_FOLLOWER = """
import asyncio, sys, time, msgspec
from waystation.runtime.clock import Clock
from waystation.store.opening import open_store
from waystation.testing.station import quick_settings

async def main():
    settings = msgspec.structs.replace(quick_settings(sys.argv[1]), time_machine=True)
    clock = Clock()
    clock.on_jump(lambda: print(clock.shift_ms, time.monotonic_ns(), flush=True))
    opened = await open_store(settings, clock=clock)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await opened.close()

asyncio.run(main())
"""


class Follower:
    """A second process with its own clock, which reports each jump."""

    def __init__(self, data: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _FOLLOWER, data],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._said() == "ready"

    def jump(self) -> tuple[int, int]:
        """Return the shift in ms, and the time of the jump on the shared monotonic clock."""
        shift, at = self._said().split()
        return int(shift), int(at)

    def _said(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@asynccontextmanager
async def machine_of(
    settings: Config, clock: Clock
) -> AsyncIterator[tuple[OpenStore, TimeMachine]]:
    opened = await open_store(msgspec.structs.replace(settings, time_machine=True), clock=clock)
    assert opened.time_machine is not None
    try:
        yield opened, opened.time_machine
    finally:
        await opened.close()


async def test_advance_moves_now_and_every_ttl_once(settings: Config) -> None:
    async with machine_of(settings, Clock()) as (opened, machine):
        store = opened.store
        # So many keys that the store resizes its hash tables while half of them expire.
        await store.pipeline([("SET", f"short-{n}", 1, "EX", 50) for n in range(10_000)])
        await store.pipeline([("SET", f"long-{n}", 1, "EX", 1000) for n in range(10_000)])
        await store.call("SET", "for-good", 1)
        before, _ = await store.run(WHEN, ["for-good"], [])

        assert await machine.advance(100) == 100_000

        after, _ = await store.run(WHEN, ["for-good"], [])
        assert 100_000 <= int(after) - int(before) < 130_000
        left = await store.pipeline([("EXISTS", f"short-{n}") for n in range(10_000)])
        assert set(left) == {0}
        left = await store.pipeline([("TTL", f"long-{n}") for n in range(10_000)])
        assert {870 < seconds <= 900 for seconds in left} == {True}
        assert await store.call("TTL", "for-good") == -1


async def test_advance_is_atomic_for_readers(settings: Config) -> None:
    async with machine_of(settings, Clock()) as (opened, machine):
        store = opened.store
        await store.call("SET", "k", 1, "EX", 1_000_000)
        ends: set[int] = set()

        async def look() -> None:
            while True:
                now, left = await store.run(WHEN, ["k"], [])
                # The time at which the key expires, which no jump may change.
                ends.add((int(now) + int(left)) // 1000)

        looking = asyncio.ensure_future(look())
        for _ in range(50):
            await machine.advance(1000)
        looking.cancel()
        # The results are rounded to seconds, so two adjacent values may appear.
        assert max(ends) - min(ends) <= 1


async def test_advance_returns_after_every_process_followed(settings: Config) -> None:
    clock = Clock()
    async with machine_of(settings, clock) as (_, machine):
        follower = await asyncio.to_thread(Follower, settings.data)
        for hours in (1, 2, 3):
            await machine.advance(3600)
            returned_at = time.monotonic_ns()
            shift, jumped_at = await asyncio.to_thread(follower.jump)
            assert shift == clock.shift_ms == hours * 3_600_000
            assert jumped_at < returned_at
        assert abs(clock.now_ms() - time.time_ns() // 1_000_000 - 3 * 3_600_000) < 1000
        follower.process.communicate()
        assert follower.process.returncode == 0


async def test_time_machine_started_later_adopts_current_shift(
    settings: Config,
) -> None:
    async with machine_of(settings, Clock()) as (_, machine):
        await machine.advance(60)
        late = Clock()
        async with machine_of(settings, late):
            assert late.shift_ms == 60_000


@pytest.mark.slow
async def test_advance_does_not_wait_for_crashed_process(settings: Config) -> None:
    async with machine_of(settings, Clock()) as (opened, machine):
        follower = await asyncio.to_thread(Follower, settings.data)
        follower.process.kill()
        follower.process.communicate()
        assert await opened.store.call("HLEN", keys.TIME_FOLLOWERS) == 2

        async with asyncio.timeout(8):
            assert await machine.advance(60) == 60_000


async def test_advance_wakes_sleepers_when_due(settings: Config) -> None:
    clock = Clock()
    async with machine_of(settings, clock) as (_, machine):
        an_hour = asyncio.ensure_future(clock.sleep(3600))
        a_day = asyncio.ensure_future(clock.sleep(86400))
        await asyncio.sleep(0)
        await machine.advance(1800)
        assert not an_hour.done()
        await machine.advance(1801)
        await asyncio.wait_for(an_hour, 20)
        assert not a_day.done()
        a_day.cancel()


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 3661 * 86400])
async def test_advance_by_invalid_time_is_rejected(settings: Config, seconds: float) -> None:
    clock = Clock()
    async with machine_of(settings, clock) as (opened, machine):
        with pytest.raises(InvalidInputError) as caught:
            await machine.advance(seconds)
        assert caught.value.field == "seconds"
        assert await opened.store.call("EXISTS", keys.TIME) == 0
        assert clock.shift_ms == 0


async def test_time_machine_follows_jumps_after_flush(settings: Config) -> None:
    clock = Clock()
    # The clients of other stores refuse all calls after a flush.
    store = msgspec.structs.replace(settings.store, ephemeral=True)
    settings = msgspec.structs.replace(settings, store=store)
    async with machine_of(settings, clock) as (opened, machine):
        other = Clock()
        async with machine_of(settings, other):
            await machine.advance(60)
            await opened.store.call("FLUSHALL")
            # Both clocks notice the flush within a second, and follow the next jump.
            while (clock.shift_ms, other.shift_ms) != (0, 0):
                await asyncio.sleep(0.01)
            await machine.advance(30)
            assert (clock.shift_ms, other.shift_ms) == (30_000, 30_000)


async def test_follower_of_busy_client_follows_later_jumps(
    settings: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with machine_of(settings, clock := Clock()) as (opened, _):
        with monkeypatch.context() as patch:
            # Every call is refused with BusyError, while the follower beats once a second.
            patch.setattr(connection, "CALLS_MAX", 0)
            await asyncio.sleep(1.5)

        await opened.store.run(ADVANCE_TIME, [keys.TIME], [60_000])

        async with asyncio.timeout(10):
            while clock.shift_ms != 60_000:
                await asyncio.sleep(0.01)


async def test_time_machine_on_silent_store_stops_within_its_limit() -> None:
    with private_server() as server:
        async with proxy_to(server.address) as proxy:
            store, pubsub = Store(proxy.address, test_mode=True), PubSub(proxy.address)
            machine = TimeMachine(store, pubsub, Clock())
            await machine.start()
            await proxy.set_fates(requests=Fate.HOLD)
            async with asyncio.timeout(1.5):
                await machine.stop()
            await store.close()


async def test_store_without_time_machine_uses_its_own_time(settings: Config) -> None:
    opened = await open_store(settings, clock=Clock())
    try:
        assert opened.time_machine is None
        # A shift that an earlier test left in the store.
        await opened.store.call("HSET", keys.TIME, "shift_ms", 10**9)
        now, _ = await opened.store.run(WHEN, ["k"], [])
        assert abs(int(now) - time.time_ns() // 1_000_000) < 60_000
    finally:
        await opened.close()
