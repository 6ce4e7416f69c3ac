"""A tenure: what all parts of a shard's owner know of their ownership, from opening to its end.

It ends when a script of ours is refused, when the shard is frozen, or when another has taken the
lease: from then on nothing is begun, and what is under way is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from waystation.errors import BusyError, ShardFrozenError, ShardLostError, StoreError
from waystation.runtime.clock import Clock
from waystation.runtime.logging import logger
from waystation.store.leases import Lease
from waystation.subscriptions.definition import Subscription
from waystation.subscriptions.held import Committed, Due, Opened
from waystation.subscriptions.names import Place
from waystation.subscriptions.terms import Terms

_log = logger("subscriptions")

#: A store that cannot be asked now; it is asked again after this.
AWAY = (BusyError, StoreError)
AWAY_SECONDS = 0.2

_T = TypeVar("_T")


class Tenure:
    """An ownership of a shard."""

    def __init__(
        self, subscription: Subscription, place: Place, lease: Lease, *, dataset: str, clock: Clock
    ) -> None:
        self.place = place
        self.lease = lease
        self._dataset = dataset
        self._clock = clock
        self._calls = 0
        self._store_ms = 0.0
        self._told_at = 0.0
        self._incarnation = subscription.incarnation
        self.use(subscription)
        #: The newest end of the record log that has come back.
        self.log_end = 0
        self.retry_bytes = 0
        self.dead_bytes = 0
        #: Whether its record log is full of what history has not read, and may drop nothing.
        self.records_full = False
        #: Whether the store is above its memory limit; and the bytes of retries and dead letters
        #: that the shard had when that was first seen, None while the store has room.
        self.store_is_full: Callable[[], bool] = lambda: False
        self._bytes_when_full: int | None = None
        #: Why it has ended; empty while it lasts.
        self.lost = ""
        self.on_lost: Callable[[], None] = lambda: None

    def use(self, subscription: Subscription) -> None:
        """A newer version: it holds from the next call on.

        But for its incarnation: what is read before the shard was reset is of the former one.
        """
        if subscription.incarnation != self._incarnation:
            subscription = msgspec.structs.replace(subscription, incarnation=self._incarnation)
        self.subscription = subscription
        self.terms: Terms = subscription.terms(self._dataset, self.lease.epoch)

    def next_call(self) -> int:
        """A number that no other call of this ownership has."""
        self._calls += 1
        return self._calls

    def lose(self, why: str) -> None:
        """The shard is not ours any more; the first reason stays."""
        if not self.lost:
            self.lost = why
            self.on_lost()

    @property
    def is_sure(self) -> bool:
        """Whether a request may begin: nobody else can own the shard yet."""
        return not self.lost and self.lease.sure

    async def tried(self, ask: Callable[[], Awaitable[_T]]) -> _T | None:
        """Asks the store once; None, after a moment, if it is away. A refusal ends the tenure."""
        try:
            return await ask()
        except (ShardLostError, ShardFrozenError) as refusal:
            self.lose(refusal.code)
            raise asyncio.CancelledError from refusal
        except AWAY as error:
            self._warn(error)
            await asyncio.sleep(AWAY_SECONDS)
            return None

    async def patiently(self, ask: Callable[[], Awaitable[_T]]) -> _T:
        """Asks the store, again and again while it is away."""
        while True:
            try:
                return await ask()
            except AWAY as error:
                self._warn(error)
            await asyncio.sleep(AWAY_SECONDS)

    def _warn(self, error: Exception) -> None:
        _log.warning("the store is away", place=self.place.tag, problem=str(error))

    # -- What replies tell -------------------------------------------------------------------

    def opened(self, opened: Opened) -> None:
        """The shard as we found it."""
        self.log_end = opened.log_end
        self.retry_bytes, self.dead_bytes = opened.retry_bytes, opened.dead_bytes
        self._tell_time(opened.now_ms)

    def committed(self, committed: Committed) -> None:
        """What a commit left."""
        self.log_end = max(self.log_end, committed.log_end)
        self.retry_bytes, self.dead_bytes = committed.retry_bytes, committed.dead_bytes

    def told_due(self, due: Due) -> None:
        """What a look at what is due told."""
        self.log_end = max(self.log_end, due.log_end)
        self._tell_time(due.now_ms)

    def store_ms(self) -> float:
        """The store's time by now, about."""
        return self._store_ms + (self._clock.monotonic() - self._told_at) * 1000

    def _tell_time(self, now_ms: int) -> None:
        self._store_ms, self._told_at = float(now_ms), self._clock.monotonic()

    # -- What follows from it ----------------------------------------------------------------

    @property
    def full(self) -> str:
        """What has no room any more, so that nothing more is read; empty while there is room."""
        options = self.subscription.options
        if options.retry_max_bytes is not None and self.retry_bytes >= options.retry_max_bytes:
            return "retry"
        if self.records_full:
            return "record"
        if self._fills_full_store():
            return "store"
        most = options.dead_max_bytes
        if most is None or self.dead_bytes < most:
            return ""
        # What may be dropped was dropped down to the maximum; what is above it is of groups.
        drops = options.dead_full_policy == "drop_and_count"
        return "" if drops and self.dead_bytes == most else "dead"

    def _fills_full_store(self) -> bool:
        """Return whether the shard put retries or dead letters into a store that is full.

        A shard whose messages succeed needs no room and goes on, because only that lets topics
        shrink; the first message that fails stops its reading until the store has room again, or
        until retries have been settled.
        """
        if not self.store_is_full():
            self._bytes_when_full = None
            return False
        held = self.retry_bytes + self.dead_bytes
        if self._bytes_when_full is None:
            self._bytes_when_full = held
        return held > self._bytes_when_full

    @property
    def is_paused(self) -> bool:
        """Whether the definition says that nothing is to be read or sent."""
        # Asked for each message: the time matters only to one that is paused at all.
        subscription = self.subscription
        return subscription.paused and subscription.is_paused(int(self.store_ms()))

    @property
    def pause_seconds(self) -> float:
        """Until a pause is over by itself."""
        until = self.subscription.paused_until_ms
        return max(0.0, (until - self.store_ms()) / 1000) if until else float("inf")
