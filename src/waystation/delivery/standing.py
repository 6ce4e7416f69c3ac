"""The standing of an endpoint in one process: its breaker, its slots, and whose turn it is.

An endpoint may have many lanes, one per channel. They share one breaker and one share of slots, and
take turns: a lane that finds no slot waits in line, and is woken when there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from waystation.delivery.breaker import Breaker, BreakerLimits, BreakerState
from waystation.delivery.request import Failure, Outcome
from waystation.delivery.schedule import hold_seconds, is_told_to_wait
from waystation.delivery.share import Share

#: Statuses of a receiver that is ill or overloaded, beside all from 500 on. Any other reply shows
#: that it is up: one message that it does not like must not stop the others.
_ILL = frozenset({408, 429})
#: Nobody was asked: that tells nothing about the endpoint.
UNASKED = frozenset({Failure.BROKEN, Failure.CANCELLED, Failure.FORBIDDEN})
#: The endpoint has sent no reply.
_UNANSWERED = frozenset({Failure.NAME, Failure.CONNECTION, Failure.TIMEOUT})

#: After so long without a success, a 429 with Retry-After is taken for one to all requests.
_WELL_SECONDS = 10.0

Wake = Callable[[], None]


@dataclass(frozen=True)
class Reservation:
    """Slots that a lane may use now; none while it has to wait."""

    slots: int = 0
    #: Whether the one slot is for a probe.
    probe: bool = False


#: What is given most often, and needs not be made anew.
_NONE = Reservation()
_ONE = Reservation(1)


class Standing:
    """One endpoint as this process knows it."""

    def __init__(self, target: str, limits: BreakerLimits | None = None) -> None:
        self.target = target
        self.breaker = Breaker(limits)
        self.share = Share()
        #: And whether the store knows it.
        self.disabled = False
        self._disabled_by_store = False
        #: Seconds of the caller's monotonic clock; and whether the store has told us.
        self.held_until = 0.0
        self._held_by_store = False
        #: When the endpoint last did its part, on the same clock.
        self._well_at = float("-inf")
        #: When an operator last declared it repaired, in ms of the store; None: not read yet.
        self._repaired_ms: int | None = None
        #: All lanes of the endpoint, those that wait for a slot in their order, those called up.
        self.lanes: dict[str, Wake] = {}
        self._line: dict[str, Wake] = {}
        self._called: set[str] = set()

    def __repr__(self) -> str:
        return f"<Standing {self.target} {self.share} {self.breaker}, {len(self._line)} in line>"

    def join(self, lane: str, wake: Wake) -> None:
        """A lane of this endpoint begins."""
        self.lanes[lane] = wake

    def leave(self, lane: str) -> None:
        """A lane ends; whoever is behind it in line moves up."""
        self.lanes.pop(lane, None)
        self._line.pop(lane, None)
        self._called.discard(lane)
        self._call_next()

    def reserve(self, lane: str, now: float, most: int, *, is_fresh: bool = True) -> Reservation:
        """Take up to `most` slots for a lane; one, as a probe, while the breaker is not closed.

        `is_fresh`: the lane has a message that has not failed before.
        """
        called = lane in self._called
        if called:
            self._called.discard(lane)
        if self.disabled or now < self.held_until:
            return _NONE
        if not self.breaker.is_closed:
            return self._reserve_probe(lane, now, is_fresh=is_fresh)
        # Those who were called and have not come yet have a slot each.
        free = self.share.free - len(self._called)
        if free <= 0 or (self._line and not called):
            self._wait(lane)
            return _NONE
        slots = min(free, most)
        self.share.take(slots)
        return Reservation(slots) if slots > 1 else _ONE

    def _reserve_probe(self, lane: str, now: float, *, is_fresh: bool) -> Reservation:
        """Take a slot for a probe, even if requests that hang use all slots of the endpoint."""
        if self.breaker.admits(now, is_fresh=is_fresh):
            self.share.take(1)
            return Reservation(1, probe=True)
        if self.breaker.is_probing:
            self._wait(lane)
        return _NONE

    def wait_seconds(self, now: float, *, is_fresh: bool = True) -> float:
        """Return how long a lane that got no slot should sleep unless it is woken."""
        if self.disabled:
            return float("inf")
        if now < self.held_until:
            return self.held_until - now
        if self.breaker.is_closed:
            return float("inf")
        return max(0.0, self.breaker.next_at(is_fresh=is_fresh) - now)

    def give_back(self, reserved: Reservation, unused: int) -> None:
        """Slots that were reserved and not used: there was nothing to send."""
        self.share.give_back_unused(unused)
        if reserved.probe and unused:
            self.breaker.withdraw()
        self._call_next()

    def report(self, outcome: Outcome, *, now: float, probe: bool, source: str) -> float:
        """Note the outcome of an attempt and free its slot.

        `source` names the group of the message, or the message itself if it has no group. Return
        for how many seconds no process should send to the endpoint; 0: nobody has to wait.
        """
        # While others succeed, a 429 is a limit of one group.
        told = is_told_to_wait(outcome) and now - self._well_at > _WELL_SECONDS
        was_open = self.breaker.state is BreakerState.OPEN
        self.share.give_back(outcome)
        if outcome.failure not in UNASKED:
            self._report(outcome, now=now, probe=probe, source=source, told_to_wait=told)
        elif probe:
            self.breaker.withdraw()
        if was_open and self.breaker.is_closed:
            # Lanes sleep until the pause is over, which a late success has ended.
            self.wake_all()
        if self._line:
            self._call_next()
        if not told or was_open or self.breaker.state is not BreakerState.OPEN:
            return 0.0
        return self.breaker.pause_left(now)

    def report_batch(
        self, outcomes: Sequence[tuple[str, Outcome]], *, now: float, probe: bool
    ) -> None:
        """Note the outcomes of one attempt with many messages, each with its source."""
        asked = [each for each in outcomes if each[1].failure not in UNASKED]
        self.share.give_back(_typical([one for _, one in outcomes]))
        # One message that is delivered shows that the endpoint is up, whatever happens to others.
        if well := [each for each in asked if is_well(each[1])]:
            asked = well[:1]
        for source, outcome in asked:
            self._report(outcome, now=now, probe=probe, source=source)
            probe = False
        if probe:
            self.breaker.withdraw()
        if self._line:
            self._call_next()

    def _report(
        self,
        outcome: Outcome,
        *,
        now: float,
        probe: bool,
        source: str,
        told_to_wait: bool = False,
    ) -> None:
        success = is_well(outcome)
        if success:
            self._well_at = now
        self.breaker.report(
            success=success,
            now=now,
            source=source,
            answered=outcome.failure not in _UNANSWERED,
            probe=probe,
            pause_seconds=hold_seconds(outcome),
            told_to_wait=told_to_wait,
        )

    def disable(self, *, known: bool) -> None:
        """It wants nothing more; `known` once the store knows that."""
        self.disabled, self._disabled_by_store = True, known

    def hold(self, until: float) -> None:
        """It said when to come again."""
        self.held_until = max(self.held_until, until)

    def update(self, *, disabled: bool, held_until: float, repaired_ms: int = 0) -> None:
        """Adopt the state that the store has of the endpoint.

        An endpoint that was enabled, or declared repaired, starts with a closed breaker.
        """
        # State that only this process knows stays, because the store may not have it yet.
        freed = self._disabled_by_store and not disabled
        if disabled or freed:
            self.disabled = self._disabled_by_store = disabled
        repaired = self._repaired_ms is not None and repaired_ms > self._repaired_ms
        self._repaired_ms = max(self._repaired_ms or 0, repaired_ms)
        if freed or repaired:
            self.breaker.reset()
            freed = True
        if held_until or self._held_by_store:
            freed = freed or held_until == 0
            self.held_until, self._held_by_store = held_until, bool(held_until)
        if freed:
            self.wake_all()

    def wake_all(self) -> None:
        """Makes every lane look at once."""
        for wake in list(self.lanes.values()):
            wake()

    def _wait(self, lane: str) -> None:
        if lane in self.lanes:
            self._line[lane] = self.lanes[lane]
            self._call_next()

    def _call_next(self) -> None:
        """Calls up lanes, one per free slot; none while a probe is under way."""
        while self._line and not self.breaker.is_probing and len(self._called) < self.share.free:
            lane = next(iter(self._line))
            wake = self._line.pop(lane)
            self._called.add(lane)
            wake()


def is_well(outcome: Outcome) -> bool:
    """Whether the endpoint did its part, liking the message or not."""
    if outcome.failure is not None:
        return outcome.failure is Failure.REFUSED
    return outcome.status < 500 and outcome.status not in _ILL


def _typical(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the outcome that stands for a batch: a failure if more than half of it failed.

    Prefer a failure of the endpoint to one of a message that was not sent.
    """
    failed = [one for one in outcomes if not is_well(one)]
    if len(failed) * 2 <= len(outcomes):
        return next(one for one in outcomes if is_well(one))
    return next((one for one in failed if one.failure not in UNASKED), failed[0])
