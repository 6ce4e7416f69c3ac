"""for_each: bounded concurrency, errors and cancellation."""

from __future__ import annotations

import asyncio

import pytest

from waystation.runtime.tasks import for_each


async def test_for_each_runs_all_items_within_limit() -> None:
    running, most, done = 0, 0, []

    async def work(item: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        done.append(item)

    await for_each(range(100), work, at_once=7)
    assert most == 7
    assert sorted(done) == list(range(100))


async def test_for_each_after_error_finishes_running_work_and_raises() -> None:
    begun, ended = [], []

    async def work(item: int) -> None:
        begun.append(item)
        if item == 3:
            raise ValueError("three")
        await asyncio.sleep(0.01)
        ended.append(item)

    with pytest.raises(ValueError, match="three"):
        await for_each(range(100), work, at_once=5)
    assert begun == [0, 1, 2, 3, 4]
    assert ended == [0, 1, 2, 4]


async def test_for_each_when_cancelled_cancels_running_work() -> None:
    cancelled = []

    async def work(item: int) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(item)
            raise

    task = asyncio.ensure_future(for_each(range(10), work, at_once=3))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(cancelled) == [0, 1, 2]
