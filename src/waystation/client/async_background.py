"""What a producer needs of asyncio; its twin for threads is sync_background."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, TypeAlias

AsyncFuture: TypeAlias = asyncio.Future


class AsyncCondition:
    """A lock, and signals to those who wait for something under it."""

    def __init__(self) -> None:
        self._condition = asyncio.Condition()

    async def __aenter__(self) -> None:
        await self._condition.acquire()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._condition.release()

    def notify_all(self) -> None:
        """Lets all who wait look again."""
        self._condition.notify_all()

    async def wait_for(
        self, predicate: Callable[[], object], *, seconds: float | None = None
    ) -> None:
        """Waits until it is true, or so long at most."""
        try:
            async with asyncio.timeout(seconds):
                await self._condition.wait_for(predicate)
        except TimeoutError:
            pass


class AsyncWorker:
    """Something that runs beside its user."""

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self._task = asyncio.ensure_future(work())

    async def join(self) -> None:
        """Waits for its end."""
        await asyncio.wait({self._task})

    def stop(self) -> None:
        """Ends it, whatever it does."""
        self._task.cancel()


def new_future() -> AsyncFuture[Any]:
    """A result that is to come."""
    return asyncio.get_running_loop().create_future()


def begin(future: AsyncFuture[Any]) -> bool:
    """Whether somebody still wants it."""
    return not future.done()
