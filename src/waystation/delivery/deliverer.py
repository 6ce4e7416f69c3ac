"""The deliverer: takes what is due out of lanes, sends it, and settles it.

Any number of processes can deliver from the same lanes: an item is claimed by one of them at a
time. Each lane has a task that claims as much as the endpoint's share of slots allows, and sleeps
until something is due or a wake-up comes. A lane whose endpoint hangs holds its own slots only.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from waystation.clock import Clock
from waystation.delivery.breaker import Breaker
from waystation.delivery.endpoint import Endpoint
from waystation.delivery.outbox import REGISTRATION_MS, Claimed, Outbox
from waystation.delivery.request import Failure, Outcome, Outgoing
from waystation.delivery.schedule import Decision, Verdict
from waystation.delivery.sender import Sender
from waystation.delivery.share import TOTAL_MAX, Share
from waystation.delivery.signing import signed_headers
from waystation.errors import StoreError
from waystation.ids import Identity, RandomIdentity
from waystation.store import Wakeups
from waystation.telemetry.logging import logger

_log = logger("delivery")

#: How often the register is read for new lanes; a new lane waits this long at most.
_LOOK_SECONDS = 0.5
#: Items of one claim; more would sit claimed while others wait.
_CLAIM_MOST = 64
#: A claim outlives the longest attempt by this, so that it never runs out under us.
_CLAIM_MARGIN_SECONDS = 15.0
#: A store that is away is asked again after this.
_STORE_PAUSE_SECONDS = 0.5

#: Finds an endpoint by the name that items carry; None when it is not configured any more.
EndpointBook = Callable[[str], Endpoint | None]
#: Told about everything that was given up, so that a person can be.
Notice = Callable[[str, Claimed, Decision], None]


@dataclass
class _Lane:
    name: str
    registered: str
    share: Share = field(default_factory=Share)
    breaker: Breaker = field(default_factory=Breaker)
    idle_since: float | None = None


class Deliverer:
    """Delivers from all lanes, until it is stopped."""

    def __init__(
        self,
        outbox: Outbox,
        wakeups: Wakeups,
        sender: Sender,
        book: EndpointBook,
        *,
        clock: Clock,
        notice: Notice | None = None,
        identity: Identity | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._outbox = outbox
        self._wakeups = wakeups
        self._sender = sender
        self._book = book
        self._clock = clock
        self._notice = notice or _log_notice
        self._rng = rng or random.Random()
        self._token_prefix = (identity or RandomIdentity()).token(8)
        self._token_counter = itertools.count(1)
        self._lanes: dict[str, asyncio.Task[None]] = {}
        self._attempts: set[asyncio.Task[None]] = set()
        self._looker: asyncio.Task[None] | None = None
        self._stopping = False

    async def start(self) -> None:
        """Begins to deliver."""
        self._looker = asyncio.get_running_loop().create_task(self._look_for_lanes())

    async def stop(self, *, grace_seconds: float = 5.0) -> None:
        """Claims nothing more, lets attempts finish, and gives the rest back uncounted."""
        self._stopping = True
        tasks = [*self._lanes.values(), *([self._looker] if self._looker else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._attempts:
            await asyncio.wait(self._attempts, timeout=grace_seconds)
        for attempt in list(self._attempts):
            attempt.cancel()
        await asyncio.gather(*self._attempts, return_exceptions=True)

    # -- Lanes -------------------------------------------------------------------------------

    async def _look_for_lanes(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                for name, registered in (await self._outbox.lanes()).items():
                    task = self._lanes.get(name)
                    if task is None or task.done():
                        lane = _Lane(name, registered)
                        self._lanes[name] = loop.create_task(self._work(lane))
            except StoreError as error:
                _log.warning("lanes cannot be read", problem=str(error))
            await asyncio.sleep(_LOOK_SECONDS)

    async def _work(self, lane: _Lane) -> None:
        with self._wakeups.waiting(f"{lane.name}.wake".encode()) as waiter:
            while True:
                waiter.clear()
                try:
                    seconds = await self._claim_and_begin(lane, waiter.wake)
                    if seconds is None and await self._retire(lane):
                        return
                except StoreError as error:
                    _log.warning("a lane cannot be read", lane=lane.name, problem=str(error))
                    seconds = _STORE_PAUSE_SECONDS
                await waiter.wait(5.0 if seconds is None else seconds)

    async def _claim_and_begin(self, lane: _Lane, wake: Callable[[], None]) -> float | None:
        """Begins what may begin now; returns how long to sleep, None when the lane is empty."""
        now = self._clock.monotonic()
        most = min(lane.share.free, _CLAIM_MOST, TOTAL_MAX - len(self._attempts))
        if most <= 0:
            return 1.0  # An attempt that ends wakes us.
        if not lane.breaker.admits(now):
            return max(0.01, min(1.0, lane.breaker.opens_at() - now))
        if lane.breaker.is_probing:
            most = 1
        token = f"{self._token_prefix}-{next(self._token_counter)}"
        claimed, next_ms = await self._outbox.claim(
            lane.name, most=most, claim_ms=self._claim_ms(), token=token
        )
        if not claimed:
            lane.breaker.withdraw()
            return next_ms / 1000 if next_ms >= 0 else None
        lane.idle_since = None
        loop = asyncio.get_running_loop()
        for each in claimed:
            lane.share.take()
            task = loop.create_task(self._attempt(lane, each, wake))
            self._attempts.add(task)
            task.add_done_callback(self._attempts.discard)
        return 0.0 if lane.share.free > 0 and len(claimed) == most else 1.0

    async def _retire(self, lane: _Lane) -> bool:
        """Ends the task of a lane that has been empty for longer than a registration is good."""
        now = self._clock.monotonic()
        lane.idle_since = lane.idle_since if lane.idle_since is not None else now
        if (now - lane.idle_since) * 1000 < REGISTRATION_MS or lane.share.in_use:
            return False
        lanes = await self._outbox.lanes()
        registered = lanes.get(lane.name)
        if registered == lane.registered:
            return await self._outbox.retire(lane.name, registered)
        # Registered again: the time of being idle begins anew.
        lane.registered, lane.idle_since = registered or lane.registered, now
        return registered is None

    def _claim_ms(self) -> int:
        return round((60.0 + _CLAIM_MARGIN_SECONDS) * 1000)

    # -- Attempts ----------------------------------------------------------------------------

    async def _attempt(self, lane: _Lane, claimed: Claimed, wake: Callable[[], None]) -> None:
        outcome = Outcome(failure=Failure.CANCELLED)
        try:
            endpoint = self._book(claimed.item.endpoint)
            if endpoint is None or not endpoint.enabled:
                outcome = Outcome(failure=Failure.FORBIDDEN, detail="the endpoint is disabled")
                await self._settle(lane, claimed, Decision(Verdict.FAILED, 0, outcome.detail), outcome)
                return
            outcome = await self._sender.send(self._outgoing(endpoint, claimed))
            if outcome.failure is Failure.CANCELLED:
                await self._outbox.release(lane.name, claimed)
                return
            lane.breaker.report(success=outcome.succeeded, now=self._clock.monotonic())
            decision = endpoint.schedule.decide(outcome, attempt=claimed.attempt, rng=self._rng)
            await self._settle(lane, claimed, decision, outcome)
        except asyncio.CancelledError:
            await asyncio.shield(self._outbox.release(lane.name, claimed))
            raise
        except StoreError as error:
            # Not settled: the claim runs out and the item comes again.
            _log.warning("an attempt could not be settled", lane=lane.name, problem=str(error))
        finally:
            lane.share.give_back(outcome)
            wake()

    async def _settle(
        self, lane: _Lane, claimed: Claimed, decision: Decision, outcome: Outcome
    ) -> None:
        at_ms = self._clock.now_ms()
        settled = await self._outbox.settle(lane.name, claimed, decision, outcome, at_ms=at_ms)
        if not settled:
            _log.warning("a claim ran out during its attempt", lane=lane.name)
        elif decision.verdict in (Verdict.FAILED, Verdict.DISABLE):
            self._notice(lane.name, claimed, decision)

    def _outgoing(self, endpoint: Endpoint, claimed: Claimed) -> Outgoing:
        item = claimed.item
        signature: tuple[tuple[str, str], ...] = ()
        if endpoint.secrets:
            signature = signed_headers(
                endpoint.secrets,
                message_id=claimed.id,
                body=item.body,
                now_ms=self._clock.now_ms(),
            )
        return Outgoing(
            url=item.url,
            method=item.method,
            headers=(*item.headers, *signature),
            body=item.body,
            connect_seconds_max=endpoint.connect_seconds_max,
            total_seconds_max=min(endpoint.total_seconds_max, 60.0),
        )


def _log_notice(lane: str, claimed: Claimed, decision: Decision) -> None:
    _log.error(
        "a delivery was given up", lane=lane, id=claimed.id, attempts=claimed.attempt, cause=decision.cause
    )
