"""Threads for steps that are plain functions.

A step that is given up cannot be stopped in its thread: it goes on, and is counted as left behind.
So threads are as many as are needed, and none of them keeps the process from ending.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import Any, TypeVar

_T = TypeVar("_T")
_Work = Callable[[], None]


class StepThreads(Executor):
    """Runs each call in a thread at once; threads that are done wait for the next call."""

    def __init__(self) -> None:
        self._idle: list[SimpleQueue[_Work | None]] = []
        self._lock = threading.Lock()
        self._closed = False
        #: Calls so far that were given up while they ran.
        self.left_behind = 0

    def submit(self, fn: Callable[..., _T], /, *args: Any, **kwargs: Any) -> Future[_T]:
        """Calls `fn` in a thread."""
        future: Future[_T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        with self._lock:
            if self._closed:
                raise RuntimeError("no thread is begun while the process ends")
            box = self._idle.pop() if self._idle else None
        if box is None:
            box = SimpleQueue()
            threading.Thread(target=self._work, args=(box,), daemon=True, name="step").start()
        box.put(work)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the threads that have nothing to do; the others end by themselves, or never."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for box in idle:
            box.put(None)

    def _work(self, box: SimpleQueue[_Work | None]) -> None:
        while (work := box.get()) is not None:
            work()
            del work  # Nothing of a step stays here while the thread waits.
            with self._lock:
                if self._closed:
                    return
                self._idle.append(box)
