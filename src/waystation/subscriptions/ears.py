"""Ears: hear that a partition has got something, so that nobody has to look all the time.

Logs tell it once, to whoever has come to the end of a partition and said so. A hint can be lost:
who listens still looks now and then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from waystation.logs import keys
from waystation.store.pubsub import PubSub


class Ears:
    """Listens for one reader."""

    def __init__(self, wakeups: PubSub, wake: Callable[[], None]) -> None:
        self._wakeups = wakeups
        self._wake = wake
        self._open = contextlib.ExitStack()

    def listen(self, log: str, partitions: Iterable[int]) -> None:
        """Hears of these from now on, and of no others."""
        self._open.close()
        for partition in partitions:
            topic = keys.more(log, partition).encode()
            self._open.callback(self._wakeups.listen(topic, self._hear))

    def close(self) -> None:
        """Hears nothing any more."""
        self._open.close()

    def _hear(self, _: bytes | None) -> None:
        self._wake()
