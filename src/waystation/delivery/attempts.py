"""The attempts of one lane: each is made, judged and settled; the endpoint's standing hears of it.

Most are a request that begins at once and a success that is written with others of its lane: such
a one has no task of its own. What has to be made in another way, fails, or cannot be settled at
once gets one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from waystation.delivery.claims import AWAY, Held
from waystation.delivery.endpoint import Endpoint
from waystation.delivery.items import Claimed, Settled
from waystation.delivery.request import Failure, Outcome, Outgoing
from waystation.delivery.schedule import Decision, Verdict
from waystation.delivery.standing import Standing
from waystation.delivery.teller import Teller
from waystation.delivery.workshop import Workshop
from waystation.runtime.logging import logger
from waystation.telemetry import metrics

_log = logger("delivery")

#: A store that is away is asked again after this; and for so long, when an attempt is settled.
_STORE_PAUSE_SECONDS = 0.5
_STORE_SECONDS_MAX = 60.0
_UNREADABLE = Outcome(failure=Failure.FORBIDDEN, detail="the item cannot be read")
#: A defect of ours, or an item that makes no request: it must not come for ever.
_BROKEN = Outcome(failure=Failure.BROKEN, detail="the request could not be made")
_GIVEN_UP = Outcome(failure=Failure.CANCELLED)
Written = TypeVar("Written")


class Attempt:
    """One attempt: the claim that it stands on, and how it is broken off while it is under way."""

    __slots__ = ("break_off", "ended_ms", "held", "hold_seconds", "probe")

    def __init__(self, held: Held, *, probe: bool) -> None:
        self.held = held
        #: Whether it shows if the endpoint is well again.
        self.probe = probe
        self.break_off: Callable[[], object] = lambda: None
        #: Taken once: however often it is written down, it is the same record.
        self.ended_ms = 0
        #: For so long no process should send to the endpoint.
        self.hold_seconds = 0.0

    def __repr__(self) -> str:
        return f"<Attempt {self.held!r}>"


class Attempts:
    """Makes the attempts of one lane."""

    def __init__(
        self,
        lane: str,
        endpoint: Endpoint,
        standing: Standing,
        workshop: Workshop,
        teller: Teller,
        *,
        ended: Callable[[], None],
        due_again: Callable[[], None],
    ) -> None:
        self._lane = lane
        self._endpoint = endpoint
        self._standing = standing
        self._shop = workshop
        self._teller = teller
        self._heard_end = ended
        self._due_again = due_again
        #: Those under way.
        self.count = 0

    def __repr__(self) -> str:
        return f"<Attempts of {self._lane} [{self.count} under way]>"

    def begin(self, held: Held, *, probe: bool) -> None:
        """Begins one; its slot is free when the request has ended."""
        self.count += 1
        attempt = Attempt(held, probe=probe)
        self._shop.sending.add(attempt)
        if not self._begin_at_once(attempt):
            attempt.break_off = self._shop.begin(self._make(attempt)).cancel

    # -- Making ------------------------------------------------------------------------------

    def _begin_at_once(self, attempt: Attempt) -> bool:
        """Whether it is a request that is on its way."""
        if self._endpoint.deliver is not None:
            return False
        give_up = None
        try:
            request = self._request(attempt.held.claimed)
            if request is not None:
                give_up = self._shop.sender.begin(request, partial(self._arrived, attempt))
        except Exception:
            return False  # What broke breaks once more, where that is told.
        if give_up is None:
            return False
        attempt.break_off = partial(self._break_off, attempt, give_up)
        return True

    def _request(self, claimed: Claimed) -> Outgoing | None:
        item = self._endpoint.read(self._lane, claimed.packed)
        if item is None:
            return None
        now_ms = self._shop.clock.now_ms()
        return self._endpoint.request(self._lane, claimed.id, item, now_ms=now_ms)

    async def _make(self, attempt: Attempt) -> None:
        """Makes one that could not begin at once."""
        claimed, outcome = attempt.held.claimed, _GIVEN_UP
        try:
            if self._endpoint.deliver is not None:
                outcome = await self._endpoint.deliver(self._lane, claimed)
            else:
                request = self._request(claimed)
                outcome = await self._shop.sender.send(request) if request else _UNREADABLE
        except asyncio.CancelledError:
            pass
        except Exception as error:
            _log.error("an attempt broke", error=error, lane=self._lane, id=claimed.id)
            outcome = _BROKEN
        try:
            decision = self._end(attempt, outcome)
        except Exception:
            self._shop.claims.drop(attempt.held)
            raise
        await self._conclude(attempt, outcome, decision)

    def _break_off(self, attempt: Attempt, give_up: Callable[[], None]) -> None:
        try:
            give_up()
        except Exception as error:
            _log.error("an attempt could not be broken off", error=error, lane=self._lane)
        self._arrived(attempt, _GIVEN_UP)

    def _arrived(self, attempt: Attempt, outcome: Outcome) -> None:
        """A request has ended; called by who made it, whom no defect of ours may reach."""
        try:
            decision = self._end(attempt, outcome)
            if decision.verdict is Verdict.DONE:
                self._settle_success(attempt, outcome, decision)
            else:
                self._shop.begin(self._conclude(attempt, outcome, decision))
        except Exception as error:
            # Its claim is renewed no more: the item comes again.
            _log.error("an attempt was not concluded", error=error, lane=self._lane)
            self._shop.claims.drop(attempt.held)

    def _end(self, attempt: Attempt, outcome: Outcome) -> Decision:
        """Gives the slot back. First what holds for the next attempt: it may begin at once."""
        self._shop.sending.discard(attempt)
        self.count -= 1
        self._shop.under_way -= 1
        attempt.ended_ms, now = self._shop.clock.now_ms(), self._shop.clock.monotonic()
        number = attempt.held.claimed.attempt
        decision = self._endpoint.schedule.decide(outcome, attempt=number, rng=self._shop.rng)
        if outcome.failure is not Failure.CANCELLED:
            metrics.delivery_attempts.of(decision.verdict.value).inc()
        if decision.verdict is Verdict.DISABLE:
            self._standing.disable(known=False)
        elif outcome.failure is Failure.CANCELLED and outcome.retry_after:
            # What we need ourselves is away: the others of the lane would fare no better.
            self._standing.hold(now + outcome.retry_after)
        # Items of a lane do not wait for each other, so each is a source of its own.
        source = f"{self._lane} {attempt.held.claimed.id}"
        was_told = self._standing.breaker.is_at_longest_pause
        attempt.hold_seconds = self._standing.report(
            outcome, now=now, probe=attempt.probe, source=source
        )
        limits = self._endpoint.breaker
        if limits and not was_told and self._standing.breaker.is_at_longest_pause:
            self._shop.begin(self._teller.tell_paused(limits, attempt.ended_ms))
        self._heard_end()
        return decision

    # -- Settling ----------------------------------------------------------------------------

    def _settle_success(self, attempt: Attempt, outcome: Outcome, decision: Decision) -> None:
        """Settles what needs nothing else; the lane's successes of this moment share a call."""
        claimed = attempt.held.claimed
        writing = self._settle(attempt, claimed, outcome, decision)
        self._shop.follow(writing)
        heard = partial(self._success_settled, attempt, claimed, outcome, decision)
        writing.add_done_callback(heard)

    def _success_settled(
        self,
        attempt: Attempt,
        claimed: Claimed,
        outcome: Outcome,
        decision: Decision,
        writing: asyncio.Future[Settled],
    ) -> None:
        error = None if writing.cancelled() else writing.exception()
        settled = None if error or writing.cancelled() else writing.result()
        moved = settled is Settled.NOT_OURS and attempt.held.claimed is not claimed
        if isinstance(error, AWAY) or moved:
            self._shop.begin(self._conclude(attempt, outcome, decision))
            return
        if error is not None:
            _log.error("an attempt was not settled", error=error, lane=self._lane)
        self._shop.claims.drop(attempt.held)
        if settled is Settled.NEWER:
            self._due_again()

    async def _conclude(self, attempt: Attempt, outcome: Outcome, decision: Decision) -> None:
        """Writes down what came of an attempt, or that there was none."""
        try:
            if outcome.failure is Failure.CANCELLED:
                wait = outcome.retry_after or 0.0
                release = partial(self._shop.outbox.release, self._lane, wait_seconds=wait)
                settled = await self._settled(attempt.held, release)
            else:
                settled = await self._conclude_made(attempt, outcome, decision)
        finally:
            self._shop.claims.drop(attempt.held)
        if not outcome.succeeded or settled is Settled.NEWER:
            self._due_again()

    async def _conclude_made(
        self, attempt: Attempt, outcome: Outcome, decision: Decision
    ) -> Settled:
        """The settlement comes last: if we die in between, it is made again, not forgotten."""
        shop, held, at_ms = self._shop, attempt.held, attempt.ended_ms
        if decision.verdict is Verdict.DISABLE:
            if await self._written(lambda: self._teller.disable(decision.cause, at_ms)):
                self._standing.disable(known=True)
            else:
                self._standing.disabled = False
        elif seconds := attempt.hold_seconds:
            await self._written(lambda: shop.states.hold(self._standing.target, seconds))
        settled = await self._settled(
            held, lambda claimed: self._settle(attempt, claimed, outcome, decision)
        )
        if settled is Settled.SETTLED and decision.verdict is Verdict.FAILED:
            metrics.delivery_given_up.inc()
            shop.begin(self._teller.tell(held.claimed.id))
        return settled

    def _settle(
        self, attempt: Attempt, claimed: Claimed, outcome: Outcome, decision: Decision
    ) -> asyncio.Future[Settled]:
        hears = self._endpoint.concluded
        return self._shop.outbox.settle(
            self._lane, claimed, decision, outcome, at_ms=attempt.ended_ms, hears=hears
        )

    async def _settled(
        self, held: Held, settle: Callable[[Claimed], Awaitable[Settled]]
    ) -> Settled:
        """Settles a claim that is ours; also if it ran out and came to us again meanwhile."""
        while True:
            claimed = held.claimed
            try:
                settled: Settled | None = await settle(claimed)
            except AWAY:
                settled = await self._written(partial(settle, claimed))
            if settled or held.claimed is claimed:
                return settled or Settled.NOT_OURS

    async def _written(self, write: Callable[[], Awaitable[Written]]) -> Written | None:
        """Writes what came of an attempt, again and again while the store is away.

        The claim is renewed meanwhile. If it cannot be written for long, the item comes again.
        """
        until = self._shop.clock.monotonic() + _STORE_SECONDS_MAX
        while True:
            try:
                return await write()
            except AWAY as error:
                if self._shop.clock.monotonic() + _STORE_PAUSE_SECONDS >= until:
                    problem = str(error)
                    _log.warning("an attempt was not settled", lane=self._lane, problem=problem)
                    return None
            await asyncio.sleep(_STORE_PAUSE_SECONDS)
