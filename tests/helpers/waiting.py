"""Waits for results of other tasks, threads and processes."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

_T = TypeVar("_T")
#: Pause between two checks.
_PAUSE_SECONDS = 0.005


@overload
async def eventually(check: Callable[[], Awaitable[_T]], *, timeout: float = ...) -> _T: ...
@overload
async def eventually(check: Callable[[], _T], *, timeout: float = ...) -> _T: ...
async def eventually(check: Callable[[], Any], *, timeout: float = 20.0) -> Any:
    """Wait until `check` returns a true value, and return that; fail with its last value."""
    value = None
    try:
        async with asyncio.timeout(timeout) as limit:
            while True:
                value = check()
                if inspect.isawaitable(value):
                    value = await value
                if value:
                    return value
                await asyncio.sleep(_PAUSE_SECONDS)
    except TimeoutError:
        assert not limit.expired(), f"The check returned {value!r} for {timeout:g} s."
        raise


def eventually_sync(check: Callable[[], _T], *, timeout: float = 60.0) -> _T:
    """Wait until `check` returns a true value, and return that; fail with its last value."""
    end = time.monotonic() + timeout
    while not (value := check()):
        assert time.monotonic() < end, f"The check returned {value!r} for {timeout:g} s."
        time.sleep(_PAUSE_SECONDS)
    return value
