"""What a producer needs of threads; its twin for asyncio is async_background."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any

__all__ = ["Condition", "Future", "Worker", "begin", "new_future"]


class Condition:
    """A lock, and signals to those who wait for something under it."""

    def __init__(self) -> None:
        self._condition = threading.Condition()

    def __enter__(self) -> None:
        self._condition.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._condition.release()

    def notify_all(self) -> None:
        """Lets all who wait look again."""
        self._condition.notify_all()

    def wait_for(self, predicate: Callable[[], object], *, seconds: float | None = None) -> None:
        """Waits until it is true, or so long at most."""
        self._condition.wait_for(predicate, seconds)


class Worker:
    """Something that runs beside its user, and does not keep the process alive."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=work, name="waystation-producer", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Waits for its end."""
        self._thread.join()

    def stop(self) -> None:
        """A thread cannot be ended from outside: it ends after the request that is under way."""


def new_future() -> Future[Any]:
    """A result that is to come."""
    return Future()


def begin(future: Future[Any]) -> bool:
    """Whether somebody still wants it; from here on it cannot be cancelled."""
    return future.set_running_or_notify_cancel()
