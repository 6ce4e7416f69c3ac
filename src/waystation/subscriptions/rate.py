"""Rates: messages a second, over all shards of a subscription and all nodes.

A rate has one bucket in the store, in the slot of the subscription. A shard that has messages to
send takes permits from it: as many as it can use at once, at most those of `_LEASE_SECONDS`, which
it has to use within `_LIFE_SECONDS`. So shards share a rate by demand, a shard that is alone gets
all of it, and one call to the store serves many messages where the rate is high.

The bucket holds the permits of `_BURST_SECONDS`, one at least. In any second at most
1.2 x rate + 1 messages begin, over a longer time rate x seconds + 1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from math import ceil, inf

from waystation.errors import WaystationError
from waystation.runtime.logging import logger
from waystation.store.client import Store
from waystation.store.scripts import script

_log = logger("subscriptions")
_TAKE = script(__package__, "rate_take")

_BURST_SECONDS = 0.1
_LEASE_SECONDS = 0.05
_LIFE_SECONDS = 0.1
#: A store that did not answer is asked again after this.
_AWAY_SECONDS = 0.2

#: Permits a second, most that are wanted: permits that were given, seconds until there are some.
TakePermits = Callable[[float, int], Awaitable[tuple[int, float]]]


async def take_permits(store: Store, key: str, per_second: float, most: int) -> tuple[int, float]:
    """Take permits from a bucket. Return their number, or 0 and the seconds until there is one."""
    burst = max(1.0, per_second * _BURST_SECONDS)
    granted, wait_ms = await store.run(_TAKE, [key], [repr(per_second), most, repr(burst)])
    return int(granted), int(wait_ms) / 1000


class SharedRate:
    """The permits that one shard has of a rate."""

    def __init__(
        self, take: TakePermits, per_second: float, *, on_permits: Callable[[], None]
    ) -> None:
        #: Can be changed at any time.
        self.per_second = per_second
        self._take = take
        self._on_permits = on_permits
        self._permits = 0
        self._until = 0.0
        #: Before then the bucket has nothing for us.
        self._not_before = 0.0
        self._asking: asyncio.Task[None] | None = None
        self._waits = False

    @property
    def waits(self) -> bool:
        """True if the bucket was empty when it was asked last."""
        return self._waits

    def permits(self, now: float) -> int:
        """Return how many messages may begin now."""
        return self._permits if now < self._until else 0

    def wait_seconds(self, now: float, wanted: int, clock: Callable[[], float]) -> float:
        """Return the seconds until it is worth looking again; 0 if there is a permit.

        Infinite while the store is asked: `on_permits` is called when it has answered.
        """
        if self.permits(now):
            return 0.0
        if self._asking is not None:
            return inf
        if now < self._not_before:
            return self._not_before - now
        most = max(1, min(wanted, ceil(self.per_second * _LEASE_SECONDS)))
        self._asking = asyncio.get_running_loop().create_task(self._ask(most, clock))
        return inf

    def spend(self, count: int) -> None:
        """Use permits."""
        self._permits -= count

    def close(self) -> None:
        """Ask for nothing more."""
        if self._asking is not None:
            self._asking.cancel()

    async def _ask(self, most: int, clock: Callable[[], float]) -> None:
        try:
            # By when they were asked for: a slow reply must not make them younger.
            asked = clock()
            granted, seconds = await self._take(self.per_second, most)
            self._permits, self._until = granted, asked + _LIFE_SECONDS
            self._waits = not granted
            if granted and clock() >= self._until:
                # The reply took longer than they live. One may go all the same, or none ever does.
                self._permits, self._until = 1, clock() + _LIFE_SECONDS
            self._not_before = clock() + seconds
        except WaystationError as error:
            _log.warning("rate permits not taken", error=str(error))
            self._not_before = clock() + _AWAY_SECONDS
        finally:
            self._asking = None
        self._on_permits()
