"""What producers and workers need of asyncio; its twin for threads is sync_background."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeAlias

AsyncFuture: TypeAlias = asyncio.Future
#: What a worker calls with a message.
AsyncHandler: TypeAlias = Callable[[Any], Awaitable[Any]]


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


class AsyncFlag:
    """Set once, by whoever; others wait for it."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    @property
    def is_set(self) -> bool:
        """Whether it is."""
        return self._event.is_set()

    def set(self) -> None:
        """Sets it; also from a handler of signals."""
        self._event.set()

    async def wait(self, seconds: float | None = None) -> bool:
        """Waits until it is set, or so long at most; whether it is."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
        return self._event.is_set()


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


@contextmanager
def on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Calls `stop` on SIGTERM and SIGINT for the length of the block."""
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)
    # Only the main thread hears of signals, and not every loop knows of them.
    with contextlib.suppress(RuntimeError, ValueError):
        for number in numbers:
            loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        with contextlib.suppress(RuntimeError, ValueError):
            for number in numbers:
                loop.remove_signal_handler(number)
