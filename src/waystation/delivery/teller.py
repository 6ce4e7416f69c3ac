"""The teller of a lane: says to the operator what became of its deliveries.

Each failure is told of by whoever settled it, or, should that one die first, by the next to look at
the lane: so at least once.
"""

from __future__ import annotations

from waystation.delivery.breaker import BreakerLimits
from waystation.delivery.notices import Notice, Notices
from waystation.delivery.outbox import Outbox
from waystation.delivery.states import EndpointStates


class Teller:
    """Tells about one lane and its endpoint."""

    def __init__(
        self,
        lane: str,
        endpoint: str,
        *,
        outbox: Outbox,
        states: EndpointStates,
        notices: Notices,
    ) -> None:
        self._lane = lane
        self._endpoint = endpoint
        self._outbox = outbox
        self._states = states
        self._notices = notices

    async def tell(self, item_id: str) -> None:
        """A delivery was given up."""
        failure = await self._outbox.failure(self._lane, item_id)
        if failure is not None:
            notice = Notice(
                kind="failed",
                endpoint=self._endpoint,
                lane=self._lane,
                id=item_id,
                attempts=failure.attempts,
                cause=failure.cause,
                at_ms=failure.failed_ms,
            )
            await self._notices.tell(notice)
        await self._outbox.told(self._lane, item_id)

    async def tell_dropped(self, count: int, at_ms: int) -> None:
        """Deliveries found no room."""
        cause = f"{count} found no room"
        await self._notices.tell(
            Notice(
                kind="dropped",
                endpoint=self._endpoint,
                lane=self._lane,
                cause=cause,
                at_ms=at_ms,
            )
        )

    async def disable(self, cause: str, at_ms: int) -> bool:
        """Disables the endpoint for all processes, and tells of it, once; always true."""
        notice = Notice(
            kind="disabled", endpoint=self._endpoint, lane=self._lane, cause=cause, at_ms=at_ms
        )
        if await self._states.disable(self._endpoint, notice):
            self._notices.announce(notice)
        return True

    async def tell_paused(self, limits: BreakerLimits, at_ms: int) -> None:
        """Notify operators that the endpoint has failed for so long that its pauses are longest."""
        await self._notices.tell(
            Notice(
                kind="resting",
                endpoint=self._endpoint,
                lane=self._lane,
                cause=str(limits),
                at_ms=at_ms,
            )
        )
