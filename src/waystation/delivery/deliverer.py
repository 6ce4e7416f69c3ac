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
from typing import Any

from waystation.clock import Clock
from waystation.delivery.claims import AWAY, CLAIM_SECONDS, Claims
from waystation.delivery.endpoint import Endpoint
from waystation.delivery.lane import Lane, Workshop
from waystation.delivery.notices import Notices
from waystation.delivery.outbox import REGISTER, Outbox, endpoint_of
from waystation.delivery.sender import Sender
from waystation.delivery.share import TOTAL_MAX
from waystation.delivery.standing import Standing
from waystation.delivery.states import EndpointStates, Survey
from waystation.ids import Identity, RandomIdentity
from waystation.store import Wakeups
from waystation.telemetry.logging import logger

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

#: Finds an endpoint by the name that lanes carry; None when it is not configured (any more).
EndpointBook = Callable[[str], Endpoint | None]


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
        notice_url: str = "",
        claim_seconds: float = CLAIM_SECONDS,
        identity: Identity | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._outbox = outbox
        self._wakeups = wakeups
        self._book = book
        self._clock = clock
        prefix, counter = (identity or RandomIdentity()).token(8), itertools.count(1)
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
            attempts_max=TOTAL_MAX,
            begin=self._begin,
        )
        self._lanes: dict[str, asyncio.Task[None]] = {}
        self._standings: dict[str, Standing] = {}
        self._tasks: set[asyncio.Task[None]] = set()
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
        if self._shop.sending:
            await asyncio.wait(self._shop.sending, timeout=grace_seconds)
        for attempt in list(self._shop.sending):
            attempt.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_STORE_SECONDS_MAX)
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

    def standing(self, target: str) -> Standing | None:
        """How an endpoint stands in this process; None when nothing was sent to it lately."""
        return self._standings.get(target)

    # -- Lanes -------------------------------------------------------------------------------

    async def _look_for_lanes(self) -> None:
        with self._wakeups.waiting(REGISTER.encode()) as waiter:
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
            held_until=self._clock.monotonic() + left / 1000 if left else 0.0,
        )

    def _begin_lane(self, name: str) -> None:
        endpoint = self._book(endpoint_of(name))
        target = endpoint.target(name) if endpoint is not None else None
        if endpoint is None or target is None:
            return
        standing = self._standings.get(target)
        if standing is None:
            standing = self._standings[target] = Standing(target)
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

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except AWAY as error:
            _log.warning("the store is away", problem=str(error))
        except Exception as error:
            _log.error("a delivery broke", error=error)
