"""Many calls, a few at a time: all at once would make other callers of the store wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

_T = TypeVar("_T")

#: Calls of one piece of work that are on their way together; a turn of the store takes well below
#: a millisecond for so many small ones.
AT_ONCE = 64


async def for_each(
    items: Iterable[_T], work: Callable[[_T], Awaitable[None]], *, at_once: int = AT_ONCE
) -> None:
    """Does work for all items, some at a time.

    After an error nothing new is begun; the first one is raised when what was under way has ended.
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
