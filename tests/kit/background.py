"""A station beside the test, in a thread of its own, with any settings."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import uvloop

from waystation.config import Config
from waystation.testing.station import Serving, serving
from waystation.transactions.app import App


@contextmanager
def background_station(settings: Config, *, app: App | None = None) -> Iterator[Serving]:
    """Runs a station, and perhaps an app in it, for the length of the block."""
    started: Future[tuple[Serving, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def main() -> None:
        stop = asyncio.Event()
        async with serving(settings, app=app) as running:
            started.set_result((running, asyncio.get_running_loop(), stop))
            await stop.wait()

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(main())
        except BaseException as problem:
            if started.done():
                raise
            started.set_exception(problem)

    thread = threading.Thread(target=run)
    thread.start()
    running, loop, stop = started.result(timeout=30)
    try:
        yield running
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
