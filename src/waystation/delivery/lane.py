"""A lane at work: claims what is due, sends it, settles it, and tells of what was given up.

Its endpoint's standing says when and how much; a lane whose endpoint hangs, is disabled or asked to
be left alone sleeps, and costs the others nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from waystation.clock import Clock
from waystation.delivery.claims import AWAY, Claims, Held
from waystation.delivery.endpoint import Endpoint
from waystation.delivery.notices import Notices
from waystation.delivery.outbox import Claim, Claimed, Outbox
from waystation.delivery.request import Failure, Outcome
from waystation.delivery.schedule import (
    RETRY_AFTER_SECONDS_MAX,
    Decision,
    Verdict,
)
from waystation.delivery.sender import Sender
from waystation.delivery.standing import Reservation, Standing
from waystation.delivery.states import EndpointStates
from waystation.delivery.teller import Teller
from waystation.store.wakeups import Waiter
from waystation.telemetry import metrics
from waystation.telemetry.logging import logger

_log = logger("delivery")

#: Items of one claim; more would sit claimed while others wait.
_CLAIM_MOST = 64
#: A store that is away is asked again after this; and for so long, when an attempt is settled.
_STORE_PAUSE_SECONDS = 0.5
_STORE_SECONDS_MAX = 60.0
#: A lane that may not send is looked at this often, to know what waits in it.
_COUNT_SECONDS = 10.0
#: A lane that has been empty for this long is retired, by whoever notices first.
_IDLE_SECONDS = 60.0
#: Statuses whose Retry-After is about the endpoint, not about one message.
_HOLDING = frozenset({429, 503})


@dataclass
class Workshop:
    """What all lanes of a process work with."""

    outbox: Outbox
    claims: Claims
    sender: Sender
    states: EndpointStates
    notices: Notices
    clock: Clock
    rng: random.Random
    new_token: Callable[[], str]
    #: Beyond it, and up to as many again, an endpoint without any may have one.
    attempts_max: int
    #: Begins a task that `Deliverer.stop` waits for.
    begin: Callable[[Coroutine[Any, Any, None]], None]
    #: Attempts under way or about to begin, and those of them that may be broken off.
    under_way: int = 0
    sending: set[asyncio.Task[Any]] = field(default_factory=set)
    #: Nothing more is claimed.
    stopping: bool = False


class Lane:
    """The work of one process on one lane."""

    def __init__(
        self, name: str, endpoint: Endpoint, standing: Standing, workshop: Workshop
    ) -> None:
        self.name = name
        self._endpoint = endpoint
        self._standing = standing
        self._shop = workshop
        self._teller = Teller(
            name,
            standing.target,
            outbox=workshop.outbox,
            states=workshop.states,
            notices=workshop.notices,
        )
        self._wake: Callable[[], None] = lambda: None
        self._in_use = 0
        #: Whether the process had no room for us at the last look.
        self._crowded = False
        self._idle_since: float | None = None
        self._looked_at = float("-inf")
        self._seen = Claim([], -1, 0, 0, 0, [])
        self._dropped_told: int | None = None

    async def work(self, waiter: Waiter) -> None:
        """Delivers until the lane has been empty for long and is retired, or the process stops."""
        self._wake = waiter.wake
        self._standing.join(self.name, waiter.wake)
        try:
            while not self._shop.stopping:
                waiter.clear()
                try:
                    seconds = await self._look()
                    if self._seen.next_ms < 0 and await self._retire():
                        return
                except AWAY as error:
                    _log.warning("a lane cannot be read", lane=self.name, problem=str(error))
                    seconds = _STORE_PAUSE_SECONDS
                if not self._shop.stopping:
                    await waiter.wait(seconds)
        finally:
            self._standing.leave(self.name)
            self._count(Claim([], -1, 0, 0, 0, []))

    async def _look(self) -> float:
        """Begins what may begin now; returns how long to sleep unless woken."""
        now = self._shop.clock.monotonic()
        room = min(_CLAIM_MOST, self._room())
        self._crowded = room <= 0
        reserved = None if self._crowded else self._standing.reserve(self.name, now, room)
        if reserved is None or not reserved.slots:
            if now - self._looked_at >= _COUNT_SECONDS:
                self._note(await self._claim(0, now), now)
            asleep = self._standing.wait_seconds(now) if reserved else 1.0
            return min(asleep, _COUNT_SECONDS)
        self._shop.under_way += reserved.slots
        begun: list[Held] = []
        try:
            claim = await self._claim(reserved.slots, now)
            for each in claim.items:
                if held := self._shop.claims.hold(self.name, each, now):
                    begun.append(held)
        finally:
            unused = reserved.slots - len(begun)
            self._shop.under_way -= unused
            self._standing.give_back(reserved, unused)
        for held in begun:
            self._in_use += 1
            self._shop.begin(self._attempt(held, reserved))
        self._note(claim, now)
        if len(claim.items) == reserved.slots:
            return 0.0  # There may be more: look again at once, or get in line.
        return claim.next_ms / 1000 if claim.next_ms >= 0 else _COUNT_SECONDS

    def _room(self) -> int:
        """How many attempts may begin: an endpoint with none gets one, whatever others hold."""
        left = self._shop.attempts_max - self._shop.under_way
        if left > 0 or self._standing.share.in_use or left <= -self._shop.attempts_max:
            return left
        return 1

    async def _claim(self, most: int, now: float) -> Claim:
        self._looked_at = now
        return await self._shop.outbox.claim(
            self.name,
            most=most,
            claim_ms=self._shop.claims.claim_ms,
            token=self._shop.new_token(),
        )

    def _note(self, claim: Claim, now: float) -> None:
        """Takes notice of what a look showed."""
        self._count(claim)
        if claim.next_ms >= 0:
            self._idle_since = None
        for item_id in claim.untold:
            self._shop.begin(self._teller.tell(item_id))
        if self._dropped_told is not None and claim.dropped > self._dropped_told:
            more = claim.dropped - self._dropped_told
            metrics.delivery_dropped.inc(more)
            self._shop.begin(self._teller.tell_dropped(more, self._shop.clock.now_ms()))
        self._dropped_told = claim.dropped

    def _count(self, claim: Claim) -> None:
        metrics.delivery_waiting.inc(claim.waiting - self._seen.waiting)
        metrics.delivery_failed.inc(claim.failed - self._seen.failed)
        self._seen = claim

    async def _retire(self) -> bool:
        """Ends the work on a lane that has been empty for long, here or by another process."""
        now = self._shop.clock.monotonic()
        self._idle_since = now if self._idle_since is None else self._idle_since
        if now - self._idle_since < _IDLE_SECONDS or self._in_use or self._seen.failed:
            return False
        self._idle_since = now
        # Read before the gate is closed: who registers after this keeps the lane.
        registered = await self._shop.outbox.registration(self.name)
        return not registered or await self._shop.outbox.retire(self.name, registered)

    # -- Attempts ----------------------------------------------------------------------------

    async def _attempt(self, held: Held, reserved: Reservation) -> None:
        outcome, shop, claimed = Outcome(failure=Failure.CANCELLED), self._shop, held.claimed
        try:
            outcome = await self._send(claimed)
        except asyncio.CancelledError:
            pass
        except Exception as error:
            # A defect of ours, or an item that makes no request: it must not come for ever.
            _log.error("an attempt broke", error=error, lane=self.name, id=claimed.id)
            outcome = Outcome(failure=Failure.BROKEN, detail="the request could not be made")
        schedule = self._endpoint.schedule
        decision = schedule.decide(outcome, attempt=claimed.attempt, rng=shop.rng)
        self._end(outcome, decision, probe=reserved.probe)
        try:
            if outcome.failure is Failure.CANCELLED:
                await self._settled(held, lambda claim: shop.outbox.release(self.name, claim))
            else:
                await self._conclude(held, outcome, decision)
        finally:
            shop.claims.drop(held)
        if not outcome.succeeded:
            self._wake()  # It is due again, at a time that the lane does not know yet.

    def _end(self, outcome: Outcome, decision: Decision, *, probe: bool) -> None:
        """Gives the slot back. First what holds for the next attempt: it may begin at once."""
        self._in_use -= 1
        self._shop.under_way -= 1
        now = self._shop.clock.monotonic()
        if decision.verdict is Verdict.DISABLE:
            self._standing.disable(known=False)
        elif seconds := _hold_seconds(outcome):
            self._standing.hold(now + seconds)
        self._standing.report(outcome, now=now, probe=probe)
        if self._crowded:
            self._wake()

    async def _send(self, claimed: Claimed) -> Outcome:
        item = self._endpoint.read(self.name, claimed.packed)
        if item is None:
            return Outcome(failure=Failure.FORBIDDEN, detail="the item cannot be read")
        now_ms = self._shop.clock.now_ms()
        request = self._endpoint.request(self.name, claimed.id, item, now_ms=now_ms)
        task = asyncio.current_task()
        assert task is not None
        self._shop.sending.add(task)
        try:
            return await self._shop.sender.send(request)
        finally:
            self._shop.sending.discard(task)

    async def _conclude(self, held: Held, outcome: Outcome, decision: Decision) -> None:
        shop = self._shop
        metrics.delivery_attempts.of(decision.verdict.value).inc()
        at_ms = shop.clock.now_ms()
        if decision.verdict is Verdict.DISABLE:
            # Before the attempt is settled: if we die in between, it is made again, not forgotten.
            if await self._written(lambda: self._teller.disable(decision.cause, at_ms)):
                self._standing.disable(known=True)
            else:
                self._standing.disabled = False
        elif seconds := _hold_seconds(outcome):
            await self._written(lambda: shop.states.hold(self._standing.target, seconds))
        settled = await self._settled(
            held,
            lambda claimed: shop.outbox.settle(self.name, claimed, decision, outcome, at_ms=at_ms),
        )
        if settled and decision.verdict is Verdict.FAILED:
            metrics.delivery_given_up.inc()
            shop.begin(self._teller.tell(held.claimed.id))

    async def _settled(
        self, held: Held, write: Callable[[Claimed], Coroutine[Any, Any, bool]]
    ) -> bool:
        """Settles a claim that is ours; also if it ran out and came to us again meanwhile."""
        while True:
            claimed = held.claimed
            if await self._written(lambda claimed=claimed: write(claimed)):  # type: ignore[misc]
                return True
            if held.claimed is claimed:
                return False

    async def _written(self, write: Callable[[], Coroutine[Any, Any, Any]]) -> bool:
        """Writes what came of an attempt, again and again while the store is away.

        The claim is renewed meanwhile. If it cannot be written for long, the item comes again.
        """
        until = self._shop.clock.monotonic() + _STORE_SECONDS_MAX
        while True:
            try:
                return bool(await write())
            except AWAY as error:
                if self._shop.clock.monotonic() + _STORE_PAUSE_SECONDS >= until:
                    problem = str(error)
                    _log.warning("an attempt was not settled", lane=self.name, problem=problem)
                    return False
            await asyncio.sleep(_STORE_PAUSE_SECONDS)


def _hold_seconds(outcome: Outcome) -> float:
    """For how long a reply asks to leave the endpoint alone; 0 when it does not."""
    if outcome.status not in _HOLDING or outcome.retry_after is None:
        return 0.0
    return min(outcome.retry_after, RETRY_AFTER_SECONDS_MAX)
