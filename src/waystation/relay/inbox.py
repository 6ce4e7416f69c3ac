"""The pool that a relay hands its messages to, as its definition is at the moment."""

from __future__ import annotations

from collections.abc import Callable

from waystation.errors import BusyError, PoolClosedError, PoolFullError, PoolNotFoundError
from waystation.pools import Pools
from waystation.pools.held import Enqueued, Letter
from waystation.pools.names import Place


class Inbox:
    """Enqueues in one pool."""

    def __init__(
        self,
        pools: Pools,
        place: Place,
        *,
        on_enqueued: Callable[[str, Enqueued], None] | None = None,
    ) -> None:
        self.place = place
        self._pools = pools
        self._on_enqueued = on_enqueued

    def __repr__(self) -> str:
        return f"<Inbox {self.place.project}.{self.place.pool}>"

    async def enqueue(self, letter: Letter) -> None:
        """Returns when the message is durable in the pool; BusyError: not now, nothing was."""
        project, pool = self.place.project, self.place.pool
        try:
            (enqueued,) = await self._pools.enqueue(project, pool, [letter])
        except (PoolNotFoundError, PoolClosedError) as error:
            # A sender takes 404 for the end of its agent, and this is the relay's trouble.
            raise BusyError(str(error)) from error
        if enqueued.outcome == "full":
            raise PoolFullError(f"Pool {pool} has no room.")
        if self._on_enqueued is not None:
            self._on_enqueued(letter.key, enqueued)

    async def can_answer(self) -> bool:
        """Return True if the workers of the pool can answer a message."""
        try:
            pool = await self._pools.use(self.place.project, self.place.pool)
        except PoolNotFoundError as error:
            raise BusyError(str(error)) from error
        return pool.can_answer

    async def close(self) -> None:
        """Lets go of what is being moved."""
        await self._pools.close()
