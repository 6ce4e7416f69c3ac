"""Bounded concurrency: runs work for many items without delaying other callers of the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")

#: Default number of items in progress. The store answers this many small calls within a
#: millisecond.
AT_ONCE = 64


async def for_each(
    items: Iterable[T], work: Callable[[T], Awaitable[None]], *, at_once: int = AT_ONCE
) -> None:
    """Run `work` for all items, `at_once` at a time.

    After the first error, start no further work, wait for the work in progress, then raise it.
    """
    rest = iter(items)
    errors: list[BaseException] = []

    async def worker() -> None:
        for item in rest:
            try:
                await work(item)
            except BaseException as error:
                errors.append(error)
                raise
            if errors:
                return

    await asyncio.gather(*(worker() for _ in range(at_once)), return_exceptions=True)
    if errors:
        raise errors[0]
