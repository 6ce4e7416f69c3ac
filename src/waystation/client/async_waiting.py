"""Waiting for something at a station with the asynchronous client, request after request."""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import urlencode

from waystation.client.async_caller import AsyncCaller
from waystation.client.async_transport import AsyncTransport
from waystation.client.messages import Answer
from waystation.errors import StationUnreachableError
from waystation.runtime.clock import Clock
from waystation.runtime.durations import Duration, duration_ms

#: What one request waits at most; longer waits take several.
_WAIT_SECONDS_MAX = 30.0
#: How long a station may be away while something is waited for.
_AWAY_SECONDS_MAX = 60.0
#: Before it is asked again, when a station had to end a wait early.
_PAUSE_SECONDS = 0.1


class AsyncWaiting:
    """Asks paths that take `wait`."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport
        self._caller = AsyncCaller(transport)
        self._clock = Clock()

    async def answers(
        self, path: str, query: dict[str, str], at_most: Duration | None
    ) -> AsyncIterator[Answer]:
        """What a path answers, asked until the time is over; at least once. None: no end."""
        heard = self._clock.monotonic()
        until = float("inf")
        if at_most is not None:
            until = heard + duration_ms(at_most, field="at_most") / 1000
        while True:
            begun = self._clock.monotonic()
            patience = min(max(0.0, until - begun), _WAIT_SECONDS_MAX)
            asked = urlencode({**query, "wait": f"{round(patience * 1000)}ms"})
            try:
                answer = await self._caller.call("GET", f"{path}?{asked}", patience=patience)
            except StationUnreachableError:
                now = self._clock.monotonic()
                if now >= until or now - heard >= _AWAY_SECONDS_MAX:
                    raise
            else:
                yield answer
                heard = self._clock.monotonic()
                if heard >= until:
                    return
            if self._clock.monotonic() - begun < _PAUSE_SECONDS:
                await self._transport.sleep(_PAUSE_SECONDS)
