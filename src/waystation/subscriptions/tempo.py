"""The tempo of a shard: how much its subscription lets it send, and how much may fail."""

from __future__ import annotations

from collections.abc import Sequence

from waystation.clock import Clock
from waystation.delivery.request import Outcome
from waystation.subscriptions.definition import Subscription
from waystation.subscriptions.rate import Rate
from waystation.subscriptions.throttle import ErrorThrottle


class Tempo:
    """The rate and the error throttle, where the subscription has them."""

    def __init__(self, subscription: Subscription, clock: Clock) -> None:
        self._clock = clock
        #: None: as much as there are slots for.
        self.rate: Rate | None = None
        #: None: failures need not be let through.
        self.throttle: ErrorThrottle | None = None
        #: Failures that wait to be let through.
        self._waiting = 0
        self.use(subscription)

    def use(self, subscription: Subscription) -> None:
        """A newer version; what was counted so far still counts."""
        options = subscription.options
        if options.rate is None:
            self.rate = None
        else:
            each = options.rate / subscription.shards
            self.rate = self.rate or Rate(each, self._clock.monotonic())
            self.rate.per_second = each
        if options.error_percent is None:
            self.throttle = None
        else:
            self.throttle = self.throttle or ErrorThrottle(options.error_percent)
            self.throttle.error_percent = options.error_percent

    @property
    def slows(self) -> bool:
        """Whether the rate or the throttle is what is waited for now."""
        rate = self.rate
        spent = rate is not None and rate.wait_seconds(self._clock.monotonic()) > 0
        return spent or self._waiting > 0

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
