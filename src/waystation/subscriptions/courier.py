"""The courier: decides what goes to the endpoint, and when; carriers bring it there.

How much is under way is decided by the standing of the endpoint, by the bounds of the process and
of the subscription, and by what there is to do. Nothing is begun while it is not sure that the
shard is ours.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from math import isfinite

from waystation.delivery.request import Outcome
from waystation.delivery.standing import Standing
from waystation.subscriptions.carriers import Carriers
from waystation.subscriptions.endpoints.protocol import DirectEndpoint, Endpoint
from waystation.subscriptions.ledger import Ledger
from waystation.subscriptions.load import Load
from waystation.subscriptions.means import ShardMeans
from waystation.subscriptions.tempo import Tempo
from waystation.subscriptions.tenure import Tenure
from waystation.subscriptions.turns import Turns
from waystation.subscriptions.verdicts import Decided

#: How soon it is asked again whether the shard is still ours, where that is not sure; or is.
_UNSURE_SECONDS = 0.1
_SURE_SECONDS = 0.05
#: Heads that are taken ahead: what waits here can be skipped there, and is attempted all the same.
_HEADS_MAX = 200


class Courier:
    """The slots of one shard."""

    def __init__(
        self,
        tenure: Tenure,
        means: ShardMeans,
        turns: Turns,
        ledger: Ledger,
        *,
        on_asked: Callable[[Decided, Standing], None],
    ) -> None:
        self._tenure = tenure
        self._means = means
        self._turns = turns
        self._ledger = ledger
        self._lane = tenure.place.tag
        self._endpoint: Endpoint | None = None
        self._direct: DirectEndpoint | None = None
        self._standing: Standing | None = None
        self._called = False
        self._closed = False
        #: Until then nobody else can own the shard, whatever happens.
        self._sure_until = 0.0
        self._heads_under_way = 0
        self._soon: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._name = f"{tenure.place.project}.{tenure.place.subscription}"
        self._tempo = Tempo(tenure.subscription, means.clock)
        self._carriers = Carriers(
            tenure,
            means,
            turns,
            ledger,
            self._tempo,
            begin=self._begin,
            end=self._end,
            on_asked=on_asked,
        )
        #: What is under way.
        self._loads = self._carriers.loads

    def __repr__(self) -> str:
        return f"<Courier [{self.under_way} under way]>"

    @property
    def under_way(self) -> int:
        """Requests that have begun and not ended."""
        return len(self._loads)

    # -- What it works with ------------------------------------------------------------------

    def use(self) -> None:
        """A newer version of the subscription."""
        self._tempo.use(self._tenure.subscription)
        self.pump_soon()

    def go_to(self, endpoint: Endpoint, standing: Standing) -> None:
        """Where messages go from now on."""
        if self._standing is not None and self._standing is not standing:
            self._standing.leave(self._lane)
        self._endpoint, self._standing = endpoint, standing
        self._direct = endpoint if isinstance(endpoint, DirectEndpoint) else None
        standing.join(self._lane, self._call)
        self.pump_soon()

    @property
    def held(self) -> float:
        """For how long the endpoint is left alone: seconds, or infinity; 0 while it is not."""
        standing = self._standing
        if standing is None or standing.disabled:
            return float("inf")
        seconds = standing.wait_seconds(self._means.clock.monotonic())
        return seconds if isfinite(seconds) else 0.0

    @property
    def throttled(self) -> bool:
        """Whether it could send more, and its subscription does not let it."""
        return self._tempo.slows

    def carries(self, member: str) -> bool:
        """Whether a request for a message is under way, or its body is being read for one."""
        return any(errand.member == member for load in self._loads for errand in load.errands)

    @property
    def head_room(self) -> int:
        """How many heads could be used soon, those that are here included."""
        if self._closed or self._standing is None or self._tenure.is_paused or self.held:
            return 0
        batch = self._endpoint.batch_max if self._endpoint is not None else 1
        return min(_HEADS_MAX, max(1, int(self._standing.share.slots)) * batch)

    # -- Beginning ---------------------------------------------------------------------------

    def pump_soon(self) -> None:
        """Looks in a moment what can begin."""
        if self._soon is None and not self._closed:
            self._soon = asyncio.get_running_loop().call_soon(self.pump)

    def pump(self) -> None:
        """Begins all that can begin."""
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        while (load := self._begin()) is not None:
            self._carriers.carry(load)

    def _begin(self) -> Load | None:
        """Takes a slot and what to carry; None while there is neither."""
        tenure, standing, endpoint = self._tenure, self._standing, self._endpoint
        if self._closed or tenure.lost or standing is None or endpoint is None:
            return None
        now = self._means.clock.monotonic()
        idle = not self._turns or tenure.is_paused or not self._may_begin(now)
        slots, most = self._means.slots, tenure.subscription.options.concurrency_max
        if idle and not self._called:
            slots.leave(self._lane)
            return None
        if self._loads and not standing.share.free:
            return None  # One of ours looks again when it has ended.
        if not slots.take(self._lane, self._name, most=most, alone=not standing.share.in_use):
            slots.wait(self._lane, self._name, self.pump_soon)
            return None
        self._called = False
        reserved = standing.reserve(self._lane, now, 1)
        if not reserved.slots:
            slots.give_back(self._name)
            self._later(standing.wait_seconds(now))
            return None
        half = max(1, int(standing.share.slots) // 2)
        errands = (
            []
            if idle
            else self._turns.take(endpoint.batch_max, heads_max=half - self._heads_under_way)
        )
        if not errands:
            standing.give_back(reserved, 1)
            slots.give_back(self._name)
            return None
        if self._tempo.rate is not None:
            self._tempo.rate.spend(len(errands))
        load = Load(errands, endpoint, self._direct, standing, reserved)
        self._heads_under_way += load.heads
        return load

    def _may_begin(self, now: float) -> bool:
        """Whether the shard is ours for sure, and its rate has credit."""
        if now >= self._sure_until:
            seconds = self._tenure.lease.sure_seconds
            if seconds <= 0:
                self._later(_UNSURE_SECONDS)
                return False
            # Not asked for each message. One that stood still meanwhile asks again at once.
            self._sure_until = now + min(seconds, _SURE_SECONDS)
        rate = self._tempo.rate
        if rate is not None and (seconds := rate.wait_seconds(now)) > 0:
            self._later(seconds)
            return False
        return True

    def _end(self, load: Load, outcome: Outcome) -> None:
        """Gives the slot back."""
        self._heads_under_way -= load.heads
        self._means.slots.give_back(self._name)
        load.standing.report(outcome, now=self._means.clock.monotonic(), probe=load.probe)

    # -- Life --------------------------------------------------------------------------------

    def _call(self) -> None:
        """The standing has a slot for us."""
        self._called = True
        self.pump_soon()

    def _later(self, seconds: float) -> None:
        """Looks again after a while, unless somebody calls before."""
        if self._closed or not isfinite(seconds):
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + seconds
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        # Kept by us: what uvloop calls at once has no time.
        self._timer, self._timer_at = loop.call_at(at, self._on_time), at

    def _on_time(self) -> None:
        self._timer = None
        self.pump()

    async def drain(self, *, seconds: float) -> None:
        """Begins nothing more, lets requests end, and breaks off what takes longer."""
        self.close()
        if seconds > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._carriers.quiet()
        self.abort()
        await self._carriers.ended()

    def close(self) -> None:
        """Begins nothing more."""
        self._closed = True
        self._carriers.close()
        for handle in (self._soon, self._timer):
            if handle is not None:
                handle.cancel()
        self._means.slots.leave(self._lane)
        if self._standing is not None:
            self._standing.leave(self._lane)

    def abort(self) -> None:
        """Drops everything at once: the shard is another's."""
        self.close()
        self._carriers.abort()
