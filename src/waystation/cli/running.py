"""Runs something until the process is told to stop; a second signal changes nothing."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from waystation.config import LogConfig
from waystation.runtime.logging import configure_logging, logger

_log = logger("station")

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_T = TypeVar("_T")


def run_until_stopped(
    opening: AbstractAsyncContextManager[_T], announce: Callable[[_T], None], log: LogConfig
) -> None:
    """Opens it, tells of it, and closes it in order when a signal comes."""
    import uvloop  # noqa: PLC0415 (with the server's libraries: other commands start without them)

    configure_logging(format=log.format, level=log.level)
    uvloop.run(_run(opening, announce))


async def _run(opening: AbstractAsyncContextManager[_T], announce: Callable[[_T], None]) -> None:
    from waystation.api.server import settle_memory  # noqa: PLC0415 (as above)

    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    # Not the loop's own handlers: they end with the loop, and a second signal would then kill the
    # process in its last moments, after everything was put in order.
    for number in _STOP_SIGNALS:
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop.set))
    stopping = asyncio.ensure_future(stop.wait())
    entering = asyncio.ensure_future(opening.__aenter__())
    try:
        # A store can take long to load.
        await asyncio.wait((entering, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not entering.done():
            entering.cancel()
            await asyncio.gather(entering, return_exceptions=True)
            return
        settle_memory()
        announce(entering.result())
        await stopping
        _log.info("stopping")
        await opening.__aexit__(None, None, None)
    finally:
        stopping.cancel()
        for number in _STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
