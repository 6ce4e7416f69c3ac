"""What producers and workers need of threads; its twin for asyncio is async_background."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, TypeAlias

__all__ = ["Condition", "Flag", "Future", "Handler", "Worker", "begin", "new_future", "on_signals"]

#: What a worker calls with a message.
Handler: TypeAlias = Callable[[Any], Any]


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


class Flag:
    """Set once, by whoever; others wait for it."""

    def __init__(self) -> None:
        self._event = threading.Event()

    @property
    def is_set(self) -> bool:
        """Whether it is."""
        return self._event.is_set()

    def set(self) -> None:
        """Sets it; also from a handler of signals."""
        self._event.set()

    def wait(self, seconds: float | None = None) -> bool:
        """Waits until it is set, or so long at most; whether it is."""
        return self._event.wait(seconds)


class Worker:
    """Something that runs beside its user, and does not keep the process alive."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=work, name="waystation-client", daemon=True)
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


@contextmanager
def on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Calls `stop` on SIGTERM and SIGINT for the length of the block."""

    def heard(number: int, frame: FrameType | None) -> None:
        stop()

    before = {}
    # Only the main thread hears of signals.
    with contextlib.suppress(ValueError):
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, heard)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
