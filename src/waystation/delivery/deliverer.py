"""The deliverer: finds lanes and has each of them worked on, until it is stopped.

Any number of processes can deliver from the same lanes: an item is claimed by one at a time. Each
lane has a task of its own; lanes of one endpoint share its standing. A lane whose endpoint is not
in the settings of this process is left alone: another process may know it, and if none does, its
items wait.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from math import isfinite
from typing import Any

from waystation.delivery.claims import AWAY, CLAIM_SECONDS, Claims
from waystation.delivery.endpoint import Endpoint
from waystation.delivery.lane import Lane
from waystation.delivery.layout import REGISTER
from waystation.delivery.notices import Notices
from waystation.delivery.outbox import Outbox
from waystation.delivery.sender import Sender
from waystation.delivery.share import TOTAL_MAX
from waystation.delivery.standing import Standing
from waystation.delivery.states import EndpointStates, Survey
from waystation.delivery.workshop import IDLE_SECONDS, Pauses, Workshop
from waystation.runtime.clock import Clock
from waystation.runtime.ids import IdSource, RandomIds
from waystation.runtime.logging import logger
from waystation.runtime.service import Wakeup
from waystation.store.pubsub import RECHECK_S, PubSub

_log = logger("delivery")

#: How often the register is read; a new lane calls, so this is for calls that were lost.
_LOOK_SECONDS = 0.5
#: Calls that come closer together than this share a look.
_LOOK_SECONDS_MIN = 0.02
#: Between looks at the whole register only the newest registrations are read, once more those of
#: a while back: work on a lane may just have been ending when it was registered again.
_WHOLE_SECONDS = 30.0
_AGAIN_MS = 10_000
#: A claim or a settlement that is under way when we stop gets this long.
_STORE_SECONDS_MAX = 2.0

#: Finds the endpoint of a lane; None when it is not configured (any more).
EndpointBook = Callable[[str], Endpoint | None]


class Deliverer:
    """Delivers from all lanes, until it is stopped."""

    def __init__(
        self,
        outbox: Outbox,
        wakeups: PubSub,
        sender: Sender,
        book: EndpointBook,
        *,
        clock: Clock,
        notice_url: str = "",
        claim_seconds: float = CLAIM_SECONDS,
        attempts_max: int | None = None,
        idle_seconds: float = IDLE_SECONDS,
        pauses: Pauses | None = None,
        identity: IdSource | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._outbox = outbox
        self._wakeups = wakeups
        self._book = book
        self._clock = clock
        prefix, counter = (identity or RandomIds()).token(8), itertools.count(1)
        #: Name under which open breakers are reported to the store, and whether it has a report.
        self._name, self._is_reported = f"deliverer.{prefix}", False
        self._states = EndpointStates(outbox.store)
        self._shop = Workshop(
            outbox=outbox,
            claims=Claims(outbox, clock, claim_seconds=claim_seconds),
            sender=sender,
            states=self._states,
            notices=Notices(outbox.store, sender, begin=self._begin, url=notice_url),
            clock=clock,
            rng=rng or random.Random(),
            new_token=lambda: f"{prefix}-{next(counter)}",
            attempts_max=TOTAL_MAX if attempts_max is None else attempts_max,
            idle_seconds=idle_seconds,
            pauses=pauses or Pauses(),
            begin=self._begin,
            follow=self._follow,
        )
        self._lanes: dict[str, asyncio.Task[None]] = {}
        self._standings: dict[str, Standing] = {}
        #: Work, and what is being written: ends before we do.
        self._tasks: set[asyncio.Future[Any]] = set()
        self._looker: asyncio.Task[None] | None = None
        self._renewer: asyncio.Task[None] | None = None
        self._survey = Survey({}, {})
        self._newest_ms = 0
        self._whole_at = float("-inf")

    def __repr__(self) -> str:
        return f"<Deliverer [{len(self._lanes)} lanes, {self._shop.under_way} under way]>"

    async def start(self) -> None:
        """Begins to deliver."""
        loop = asyncio.get_running_loop()
        self._looker = loop.create_task(self._look_for_lanes())
        self._renewer = loop.create_task(self._shop.claims.keep())

    async def stop(self, *, grace_seconds: float = 5.0) -> None:
        """Claims nothing more, lets attempts finish, and gives the rest back uncounted."""
        if self._looker is not None:
            self._looker.cancel()
            await asyncio.gather(self._looker, return_exceptions=True)
        await self._stop_lanes()
        await self._shop.sending.end(grace_seconds)
        until = self._clock.uptime_s() + _STORE_SECONDS_MAX
        while self._tasks and (left := until - self._clock.uptime_s()) > 0:
            # Some begin others: what could not be written at once is written again.
            await asyncio.wait(self._tasks, timeout=left)
        rest = [*self._tasks, *([self._renewer] if self._renewer else [])]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    async def _stop_lanes(self) -> None:
        # Not cut off: what one is just claiming would be nobody's until the claim runs out.
        self._shop.stopping = True
        for standing in self._standings.values():
            standing.wake_all()
        lanes = list(self._lanes.values())
        if lanes:
            await asyncio.wait(lanes, timeout=_STORE_SECONDS_MAX)
        for task in lanes:
            task.cancel()
        await asyncio.gather(*lanes, return_exceptions=True)

    def pace(self, *, attempts_max: int, pauses: Pauses) -> None:
        """Changes how many attempts are under way at most, and how long lanes pause; from now on.

        0 attempts: nothing more is claimed.
        """
        self._shop.attempts_max, self._shop.pauses = attempts_max, pauses
        for standing in self._standings.values():
            standing.wake_all()

    def standing(self, target: str) -> Standing | None:
        """How an endpoint stands in this process; None when nothing was sent to it lately."""
        return self._standings.get(target)

    @property
    def open_breakers(self) -> dict[str, int]:
        """Targets whose breaker is not closed in this process, with ms until the next probe."""
        now = self._clock.monotonic()
        probes_at = {
            target: each.breaker.next_at()
            for target, each in self._standings.items()
            if not each.breaker.is_closed
        }
        # All probes may be in flight; then the next one has no time.
        return {
            target: round(1000 * max(0.0, at - now)) if isfinite(at) else 0
            for target, at in probes_at.items()
        }

    async def _report_breakers(self) -> None:
        """Report open breakers; delete the report after all have closed."""
        breakers = self.open_breakers
        if breakers or self._is_reported:
            await self._states.report_breakers(self._name, breakers)
            self._is_reported = bool(breakers)

    # -- Lanes -------------------------------------------------------------------------------

    async def _look_for_lanes(self) -> None:
        with ExitStack() as listening:
            waiter = Wakeup(recheck_s=RECHECK_S)
            for register in {REGISTER, *self._outbox.layout.registers}:
                end = self._wakeups.listen(register.encode(), lambda _: waiter.set())
                listening.callback(end)
            while True:
                waiter.clear()
                try:
                    await self._look()
                except AWAY as error:
                    _log.warning("lanes cannot be read", problem=str(error))
                except Exception as error:
                    # Something in the store that is not ours. It must not end all deliveries.
                    _log.error("looking for lanes broke", error=error)
                await asyncio.sleep(_LOOK_SECONDS_MIN)
                await waiter.wait(_LOOK_SECONDS)

    async def _look(self) -> None:
        now = self._clock.monotonic()
        self._survey = await self._states.survey()
        for standing in self._standings.values():
            self._update(standing)
        await self._report_breakers()
        whole = now - self._whole_at >= _WHOLE_SECONDS
        since = 0 if whole else max(0, self._newest_ms - _AGAIN_MS)
        registered = await self._outbox.lanes(since_ms=since)
        self._whole_at = now if whole else self._whole_at
        for name, stamp in registered.items():
            self._newest_ms = max(self._newest_ms, int(float(stamp)))
            if name not in self._lanes:
                self._begin_lane(name)

    def _update(self, standing: Standing) -> None:
        left = self._survey.held_ms.get(standing.target, 0)
        standing.update(
            disabled=standing.target in self._survey.disabled,
            repaired_ms=self._survey.repaired_ms.get(standing.target, 0),
            held_until=self._clock.monotonic() + left / 1000 if left else 0.0,
        )

    def _begin_lane(self, name: str) -> None:
        endpoint = self._book(name)
        target = endpoint.target(name) if endpoint is not None else None
        if endpoint is None or target is None:
            return
        standing = self._standings.get(target)
        if standing is None:
            standing = self._standings[target] = Standing(target, endpoint.breaker)
            self._update(standing)
        lane = Lane(name, endpoint, standing, self._shop)
        task = asyncio.get_running_loop().create_task(self._work(lane))
        self._lanes[name] = task
        task.add_done_callback(lambda _: self._end_lane(name, standing))

    def _end_lane(self, name: str, standing: Standing) -> None:
        self._lanes.pop(name, None)
        if not standing.lanes and not standing.share.in_use:
            self._standings.pop(standing.target, None)

    async def _work(self, lane: Lane) -> None:
        with self._wakeups.waiting(f"{lane.name}.wake".encode()) as waiter:
            try:
                await lane.work(waiter)
            except Exception as error:
                # A defect of ours. The next look at the whole register begins the lane again.
                _log.error("work on a lane broke", error=error, lane=lane.name)

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _follow(self, writing: asyncio.Future[Any]) -> None:
        self._tasks.add(writing)
        writing.add_done_callback(self._tasks.discard)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, AWAY):
            _log.warning("the store is away", problem=str(error))
        elif error is not None:
            _log.error("a delivery broke", error=error)
