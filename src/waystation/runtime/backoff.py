"""Retries of calls that failed because a backend is unavailable or overloaded."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from waystation.errors import TransientError
from waystation.runtime.logging import Logger

T = TypeVar("T")

#: Doublings after which a pause no longer grows, because 2.0**1100 is not a float.
_DOUBLINGS_MAX = 20


class Backoff:
    """Pauses between attempts: each twice as long as the one before, up to a maximum.

    Each pause is varied at random by up to 50 %, so that processes that lost the same store do not
    reconnect in the same moment. The state is the failures and their kinds since the last success.
    """

    def __init__(self, first_s: float = 0.05, max_s: float = 1.0) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self._kinds: set[type[BaseException]] = set()
        self.failures = 0

    def is_new(self, error: BaseException) -> bool:
        """Return True if this is the first error of its class since the last success.

        Callers log only then, because one line per attempt would bury the cause.
        """
        new = type(error) not in self._kinds
        self._kinds.add(type(error))
        return new

    def next_pause_s(self) -> float:
        """Count a failure and return the pause before the next attempt."""
        pause_s = min(self._max_s, self._first_s * 2.0 ** min(self.failures, _DOUBLINGS_MAX))
        self.failures += 1
        return pause_s * (0.5 + random.random())

    def reset(self) -> None:
        """Forget the failures after a success."""
        self.failures = 0
        self._kinds.clear()


async def retry_transient(
    call: Callable[[], Awaitable[T]],
    *,
    what: str,
    log: Logger,
    also: tuple[type[Exception], ...] = (),
) -> T:
    """Repeat an idempotent call until the backend answers it, and return the answer.

    Only a TransientError and the errors in `also` are repeated. Every other error reaches the
    caller. Each class of error is logged once, and so is the success after a failure.
    """
    backoff = Backoff()
    repeated: tuple[type[Exception], ...] = (TransientError, *also)
    while True:
        try:
            result = await call()
        except repeated as error:
            if backoff.is_new(error):
                log_failure(log, what, error)
            await asyncio.sleep(backoff.next_pause_s())
        else:
            if backoff.failures:
                log.info("task resumed", task=what)
            return result


def log_failure(log: Logger, task: str, error: BaseException) -> None:
    """Log a TransientError as a warning, and every other error with its trace."""
    if isinstance(error, TransientError):
        log.warning("task attempt failed", task=task, reason=str(error))
    else:
        log.error("task failed", task=task, error=error)
