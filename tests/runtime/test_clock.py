"""Clock: wall time, its shift in test mode, and sleeps that end early when the clock jumps."""

from __future__ import annotations

import asyncio
import time

from waystation.runtime.clock import Clock


def test_clock_without_shift_is_wall_time() -> None:
    clock = Clock()
    assert abs(clock.now_ms() - time.time_ns() // 1_000_000) < 1000
    before = clock.monotonic()
    clock.shift_to(3_600_000)
    assert abs(clock.now_ms() - time.time_ns() // 1_000_000 - 3_600_000) < 1000
    assert 3600 <= clock.monotonic() - before < 3601


async def test_sleep_without_jump_ends_in_real_time() -> None:
    clock = Clock()
    began = clock.monotonic()
    await clock.sleep(0.02)
    assert clock.monotonic() - began >= 0.02
    await clock.sleep(0)
    await clock.sleep(-1)


async def test_sleep_ends_with_jump_that_reaches_its_time() -> None:
    clock = Clock()
    sleeping = asyncio.ensure_future(clock.sleep(60))
    await asyncio.sleep(0)
    clock.shift_to(59_000)
    await asyncio.sleep(0.01)
    assert not sleeping.done()
    clock.shift_to(60_000)
    await asyncio.wait_for(sleeping, 1)


async def test_sleep_when_cancelled_removes_its_watcher() -> None:
    clock = Clock()
    sleeping = asyncio.ensure_future(clock.sleep(60))
    await asyncio.sleep(0)
    sleeping.cancel()
    await asyncio.wait([sleeping])
    assert clock._watchers == set()


def test_on_jump_calls_watcher_until_it_is_removed() -> None:
    clock = Clock()
    heard: list[int] = []
    forget = clock.on_jump(lambda: heard.append(clock.shift_ms))
    clock.shift_to(1)
    clock.shift_to(2)
    forget()
    clock.shift_to(3)
    assert heard == [1, 2]
