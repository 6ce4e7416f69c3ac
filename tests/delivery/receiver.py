"""A fake endpoint in a thread of its own, for tests that are not asynchronous or that fork."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType

from waystation.testing.endpoint import FakeEndpoint, ReceivedRequest


class Receiver:
    """Runs a FakeEndpoint until the end of its block."""

    def __init__(self, endpoint: FakeEndpoint) -> None:
        self.endpoint = endpoint
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    @property
    def received(self) -> list[ReceivedRequest]:
        """What has come so far."""
        return self.endpoint.received

    def __enter__(self) -> Receiver:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        async with self.endpoint:
            self.url = self.endpoint.url
            self._ready.set()
            await self._end.wait()
