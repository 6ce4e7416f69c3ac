"""The tempo of a shard: how much its subscription lets it send, and how much may fail."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from waystation.delivery.request import Outcome
from waystation.runtime.clock import Clock
from waystation.subscriptions import names
from waystation.subscriptions.definition import Subscription
from waystation.subscriptions.rate import SharedRate
from waystation.subscriptions.throttle import ErrorThrottle


class Tempo:
    """The rates and the error throttle, where the subscription has them."""

    def __init__(
        self,
        subscription: Subscription,
        clock: Clock,
        *,
        take: Callable[[str, float, int], Awaitable[tuple[int, float]]],
        on_permits: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._take = take
        self._on_permits = on_permits
        #: None: as much as there are slots for.
        self.rate: SharedRate | None = None
        #: The redrive whose rate holds for dead letters, and the rate.
        self._redrive: tuple[str, SharedRate] | None = None
        #: None: failures need not be let through.
        self.throttle: ErrorThrottle | None = None
        #: Failures that wait to be let through.
        self._waiting = 0
        self.use(subscription)

    def use(self, subscription: Subscription) -> None:
        """A newer version; what was counted so far still counts."""
        options = subscription.options
        self._named = subscription.project, subscription.name
        if options.rate is None:
            self._end(self.rate)
            self.rate = None
        else:
            self.rate = self.rate or self._shared(names.rate(*self._named), options.rate)
            self.rate.per_second = options.rate
        if options.error_percent is None:
            self.throttle = None
        else:
            self.throttle = self.throttle or ErrorThrottle(options.error_percent)
            self.throttle.error_percent = options.error_percent

    def redrive(self, operation: str, per_second: float) -> SharedRate:
        """Return the rate of a redrive. One is kept at a time."""
        if self._redrive is None or self._redrive[0] != operation:
            self._end(self._redrive[1] if self._redrive else None)
            key = names.rate(*self._named, operation)
            self._redrive = operation, self._shared(key, per_second)
        return self._redrive[1]

    def _shared(self, key: str, per_second: float) -> SharedRate:
        return SharedRate(partial(self._take, key), per_second, on_permits=self._on_permits)

    def _end(self, rate: SharedRate | None) -> None:
        if rate is not None:
            rate.close()

    def close(self) -> None:
        """Ask for no more permits."""
        self._end(self.rate)
        self._end(self._redrive[1] if self._redrive else None)

    @property
    def slows(self) -> bool:
        """True if messages wait for the rate or the throttle."""
        return (self.rate is not None and self.rate.waits) or self._waiting > 0

    async def let_through(self, outcomes: Sequence[Outcome]) -> None:
        """Waits until what has failed is let through; meanwhile it keeps its slot."""
        for outcome in outcomes:
            if self.throttle is None:
                return
            self.throttle.delivered(self._clock.monotonic())
            if outcome.succeeded:
                continue
            self._waiting += 1
            try:
                await self._admitted()
            finally:
                self._waiting -= 1

    async def _admitted(self) -> None:
        while (throttle := self.throttle) is not None:
            now = self._clock.monotonic()
            if throttle.admits(now):
                break
            await self._clock.sleep(throttle.wait_seconds(now))
