"""Polls that look: a client waits for something, and the server looks now and then if it is so.

For what nobody is told of when it happens: a hint for each change would cost more than the looks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from waystation.errors import InvalidInputError
from waystation.runtime.durations import parse_duration

_T = TypeVar("_T")

#: Between two looks: the first one, and at most.
_LOOK_SECONDS_MIN = 0.1
_LOOK_SECONDS_MAX = 1.0


def wait_seconds(text: str | None, *, most: float) -> float | None:
    """How long a client wants to wait, cut to what it may; None: it does not."""
    if text is None:
        return None
    seconds = parse_duration(text)
    if seconds is None or seconds < 0:
        raise InvalidInputError(
            "wait is not a duration.", field="wait", hint="Write it as 500ms, 30s or 1m."
        )
    return min(seconds, most)


class Polls:
    """All polls of a server that look."""

    def __init__(self) -> None:
        self._ended = asyncio.Event()

    def end(self) -> None:
        """Answers everyone who waits, with what there is; the server stops."""
        self._ended.set()

    async def until(
        self,
        look: Callable[[], Awaitable[_T]],
        is_so: Callable[[_T], bool],
        *,
        seconds: float,
        abandonment: Callable[[], asyncio.Future[object]],
    ) -> _T:
        """What a look tells once it is so; or after so long, or when nobody waits any more."""
        loop = asyncio.get_running_loop()
        until, pause = loop.time() + seconds, _LOOK_SECONDS_MIN
        found = await look()
        if is_so(found) or seconds <= 0:
            return found
        ending: set[asyncio.Future[object]] = {
            abandonment(),
            asyncio.ensure_future(self._ended.wait()),
        }
        try:
            while (left := until - loop.time()) > 0:
                done, _ = await asyncio.wait(
                    ending, timeout=min(pause, left), return_when=asyncio.FIRST_COMPLETED
                )
                found = await look()
                if is_so(found) or done:
                    break
                pause = min(2 * pause, _LOOK_SECONDS_MAX)
        finally:
            for each in ending:
                each.cancel()
        return found
