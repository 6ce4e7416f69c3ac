"""All live streams of the process, and the reasons for which one ends before its client wants it.

A stream ends when its credential does (looked at every two seconds, all streams by one task), when
its time is up, and when the server stops. It is interrupted wherever it is, also while it waits for
a client that does not read.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from prometheus_client import Gauge

from waystation.errors import (
    CatalogueError,
    ForbiddenError,
    UnauthenticatedError,
    WaystationError,
)
from waystation.runtime.logging import logger
from waystation.runtime.metrics import registry

_log = logger("http")

channel_streams = Gauge(
    "waystation_channel_streams",
    "Live streams that are open, by kind (events, socket).",
    ["kind"],
    registry=registry,
)

#: With the gate's own two seconds it makes less than five: a revoked key is out by then.
_RECHECK_SECONDS = 2.0
_RECHECKED_AT_ONCE = 500


class Stream:
    """One running stream."""

    def __init__(self, recheck: Callable[[], Awaitable[None]], timeout: asyncio.Timeout) -> None:
        self._recheck = recheck
        self._timeout = timeout
        self._ended = False
        #: What the client should be told; None for an end that needs no word.
        self.reason: WaystationError | None = None

    def end(self, reason: WaystationError | None = None) -> None:
        """Interrupts the block of `Streams.running`; the first reason counts."""
        if not self._ended and not self._timeout.expired():
            self.reason = reason
            self._timeout.reschedule(0)
        self._ended = True

    def close(self) -> None:
        """The block was left; nothing is to be interrupted any more."""
        self._ended = True

    async def recheck(self) -> None:
        """Ends the stream if its credential has ended."""
        try:
            await self._recheck()
        except (CatalogueError, ForbiddenError, UnauthenticatedError) as error:
            self.end(error)
        except WaystationError:
            # The store is away: nothing can be read from it either, so nothing is given away.
            return
        except Exception as error:
            # Whoever cannot be checked is not let on, and the others are still looked at.
            _log.error("a stream cannot be checked", error=error)
            self.end(CatalogueError("The credential cannot be checked."))


class Streams:
    """Begins streams, and ends them."""

    def __init__(self, *, seconds_max: float) -> None:
        self._seconds_max = seconds_max
        self._open: set[Stream] = set()
        self._stopping = False

    @asynccontextmanager
    async def running(
        self, kind: str, recheck: Callable[[], Awaitable[None]]
    ) -> AsyncIterator[Stream]:
        """Runs the block as a stream; it is left early, without an error, when that has to end."""
        # Not all of those that came together leave together.
        timeout = asyncio.timeout(self._seconds_max * random.uniform(0.9, 1.0))
        stream = Stream(recheck, timeout)
        gauge = channel_streams.labels(kind)
        gauge.inc()
        self._open.add(stream)
        try:
            async with timeout:
                if self._stopping:
                    stream.end()
                try:
                    yield stream
                finally:
                    stream.close()
        except TimeoutError:
            if not timeout.expired():
                raise
        finally:
            self._open.discard(stream)
            gauge.dec()

    async def keep_checking(self) -> None:
        """Looks at the credentials of all streams, again and again."""
        while True:
            await asyncio.sleep(_RECHECK_SECONDS)
            streams = tuple(self._open)
            for start in range(0, len(streams), _RECHECKED_AT_ONCE):
                some = streams[start : start + _RECHECKED_AT_ONCE]
                await asyncio.gather(*(stream.recheck() for stream in some))

    def end_all(self) -> None:
        """Ends every stream, and lets none begin any more; for shutdown."""
        self._stopping = True
        for stream in tuple(self._open):
            stream.end()
