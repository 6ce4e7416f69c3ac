"""The courier: decides what goes to the endpoint, and when; carriers bring it there.

How much is under way is decided by the standing of the endpoint, by the bounds of the process and
of the subscription, and by what there is to do. Nothing is begun while it is not sure that the
shard is ours.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from math import isfinite

from waystation.delivery.request import Outcome
from waystation.delivery.standing import Standing
from waystation.subscriptions.carriers import Carriers
from waystation.subscriptions.endpoints.protocol import DirectEndpoint, Endpoint
from waystation.subscriptions.errand import Errand
from waystation.subscriptions.ledger import Ledger
from waystation.subscriptions.load import Load
from waystation.subscriptions.means import RedriveLimit, ShardMeans
from waystation.subscriptions.rate import SharedRate
from waystation.subscriptions.tempo import Tempo
from waystation.subscriptions.tenure import Tenure
from waystation.subscriptions.turns import Turns, is_redriven
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
        on_hold: Callable[[Standing, float], None],
    ) -> None:
        self._tenure = tenure
        self._means = means
        self._turns = turns
        self._ledger = ledger
        self._on_hold = on_hold
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
        self._tempo = Tempo(
            tenure.subscription,
            means.clock,
            take=means.store.take_permits,
            on_permits=self.pump_soon,
        )
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
        if len(self._turns.held) >= _HEADS_MAX:
            return 0
        batch = self._endpoint.batch_max if self._endpoint is not None else 1
        if not self._standing.breaker.is_closed:
            return batch  # One attempt, in case there is nothing better to probe with.
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
        idle = tenure.is_paused or not self._may_begin(now)
        slots, most = self._means.slots, tenure.subscription.options.concurrency_max
        if idle and not self._called:
            slots.leave(self._lane)
            return None
        if self._loads and not standing.share.free and standing.breaker.is_closed:
            return None  # One of ours looks again when it has ended.
        if not slots.take(self._lane, self._name, most=most, alone=not standing.share.in_use):
            slots.wait(self._lane, self._name, self.pump_soon)
            return None
        self._called = False
        is_fresh = self._turns.has_messages
        reserved = standing.reserve(self._lane, now, 1, is_fresh=is_fresh)
        if not reserved.slots:
            slots.give_back(self._name)
            self._later(standing.wait_seconds(now, is_fresh=is_fresh))
            return None
        half = max(1, int(standing.share.slots) // 2)
        errands = []
        if not idle:
            # A probe with a message that has failed before would tell more of that message than
            # of the endpoint.
            heads_max = 0 if reserved.probe else half - self._heads_under_way
            if reserved.probe:
                self._turns.shuffle(self._means.rng)
            errands = self._take(endpoint.batch_max, heads_max)
        if not errands:
            standing.give_back(reserved, 1)
            slots.give_back(self._name)
            return None
        load = Load(errands, endpoint, self._direct, standing, reserved)
        self._heads_under_way += load.heads
        return load

    def _take(self, most: int, heads_max: int) -> list[Errand]:
        """Take messages, as many as the rates permit."""
        now, rate = self._means.clock.monotonic(), self._tempo.rate
        redrive, permits = None, None
        if self._turns.has_heads and self._redrive_limit is not None:
            redrive = self._redrive_rate()
            permits = redrive.permits(now) if redrive is not None else 0
        if rate is not None:
            most = min(most, rate.permits(now))
        errands = self._turns.take(most, heads_max=heads_max, redriven_max=permits)
        if rate is not None:
            rate.spend(len(errands))
        if redrive is not None:
            redrive.spend(sum(is_redriven(each.head) for each in errands if each.head))
        if not errands and (self._turns.held or not most):
            # All messages wait for the rate of their redrive, or the permits expired: ask again.
            self.pump_soon()
        return errands

    @property
    def _redrive_limit(self) -> RedriveLimit | None:
        operations, tenure = self._means.operations, self._tenure
        if operations is None:
            return None
        return operations.redrive_limit(tenure.place, tenure.terms.epoch)

    def _redrive_rate(self) -> SharedRate | None:
        """Return the rate of dead letters that are redriven; None if there is none, or not yet."""
        limit = self._redrive_limit
        if limit is None or limit.rate is None:
            return None
        return self._tempo.redrive(limit.operation, limit.rate)

    def _has_work(self, now: float) -> bool:
        """Return whether `Turns.take` may find a message that the rate of its redrive permits."""
        held = len(self._turns.held)
        if not held or (limit := self._redrive_limit) is None:
            return bool(self._turns or held)
        rate = self._redrive_rate()
        if rate is None:
            # The first step of operations has not told yet which redrives there are.
            self._later(_UNSURE_SECONDS)
            return bool(self._turns)
        assert limit.rate is not None
        seconds = rate.wait_seconds(now, held, self._means.clock.monotonic)
        if seconds > 0:
            self._later(seconds)
        return bool(self._turns) or seconds == 0

    def _may_begin(self, now: float) -> bool:
        """Whether there is work, the shard is ours for sure, and its rate has permits."""
        if not self._has_work(now):
            return False
        if now >= self._sure_until:
            seconds = self._tenure.lease.sure_seconds
            if seconds <= 0:
                self._later(_UNSURE_SECONDS)
                return False
            # Not asked for each message. One that stood still meanwhile asks again at once.
            self._sure_until = now + min(seconds, _SURE_SECONDS)
        rate = self._tempo.rate
        if rate is not None:
            seconds = rate.wait_seconds(now, self._turns.count, self._means.clock.monotonic)
            if seconds > 0:
                self._later(seconds)
                return False
        return True

    def _end(self, load: Load, outcomes: Sequence[Outcome]) -> None:
        """Release the slot and report the outcomes, one per message, or one if none was sent."""
        self._heads_under_way -= load.heads
        self._means.slots.give_back(self._name)
        now, errands = self._means.clock.monotonic(), load.errands
        if len(outcomes) > 1:
            sources = [self._source(each) for each in errands]
            pairs = list(zip(sources, outcomes, strict=True))
            load.standing.report_batch(pairs, now=now, probe=load.probe)
            return
        (outcome,) = outcomes
        source = "" if outcome.succeeded or not errands else self._source(errands[0])
        hold = load.standing.report(outcome, now=now, probe=load.probe, source=source)
        if hold:
            self._on_hold(load.standing, hold)

    def _source(self, errand: Errand) -> str:
        """Name the group of a message, or the message itself if it has no group.

        Two subscriptions may share an endpoint and have groups of the same name.
        """
        if errand.group:
            return f"{self._name} {errand.group}"
        return f"{self._lane} {errand.member}"

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
        self._tempo.close()
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
