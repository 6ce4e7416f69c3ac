"""The standings of endpoints in this process: one for each target, as the store knows it, too.

Subscriptions to one URL share a standing. What the store says of a target, that it is disabled or
wants to be left alone, is heard within moments, whichever process has found it out. Breakers that
are open are reported to the store, so that every node can show them.
"""

from __future__ import annotations

import asyncio
from math import isfinite
from weakref import WeakValueDictionary

from waystation.delivery.layout import REGISTER
from waystation.delivery.standing import Standing
from waystation.delivery.states import EndpointStates, Survey
from waystation.errors import BusyError, StoreError
from waystation.runtime.clock import Clock
from waystation.runtime.logging import logger
from waystation.store.pubsub import PubSub

_log = logger("delivery")

#: How often the states are read; who changes one calls, so this is for calls that were lost.
_LOOK_SECONDS = 1.0
#: Calls that come closer together than this share a look.
_LOOK_SECONDS_MIN = 0.02


class Standings:
    """Keeps them from `start` to `stop`."""

    def __init__(
        self, states: EndpointStates, wakeups: PubSub, *, clock: Clock, node: str = ""
    ) -> None:
        self._states = states
        self._wakeups = wakeups
        self._clock = clock
        #: The node whose breakers these are; empty for a process that does not deliver.
        self._node = node
        #: Whether the store has a report of open breakers.
        self._is_reported = False
        #: Each for as long as a shard uses it.
        self._standings: WeakValueDictionary[str, Standing] = WeakValueDictionary()
        self._survey = Survey({}, {})
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Standings [{len(self._standings)}]>"

    def of(self, target: str) -> Standing:
        """The standing of a target: the same one for all who ask."""
        standing = self._standings.get(target)
        if standing is None:
            standing = self._standings[target] = Standing(target)
            self._update(standing)
        return standing

    def known(self, target: str) -> Standing | None:
        """The same, for who only looks; None when nothing is sent to it here."""
        return self._standings.get(target)

    @property
    def open_breakers(self) -> dict[str, float]:
        """Targets whose breaker is not closed in this process, with seconds until a probe."""
        now = self._clock.monotonic()
        return {
            target: max(0.0, each.breaker.next_at() - now)
            for target, each in list(self._standings.items())
            if not each.breaker.is_closed
        }

    async def start(self) -> None:
        """Hears from now on what the store says; as far as it answers, before anything is sent."""
        await self._look()
        self._task = asyncio.get_running_loop().create_task(self._look_on())

    async def stop(self) -> None:
        """Hears nothing more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _look_on(self) -> None:
        with self._wakeups.following(REGISTER.encode()) as waiter:
            while True:
                waiter.clear()
                await self._look()
                await asyncio.sleep(_LOOK_SECONDS_MIN)
                await waiter.wait(_LOOK_SECONDS)

    async def _look(self) -> None:
        try:
            self._survey = await self._states.survey()
            for standing in list(self._standings.values()):
                self._update(standing)
            await self._report_breakers()
        except (BusyError, StoreError) as error:
            _log.warning("the states of endpoints cannot be read", problem=str(error))
        except Exception as error:
            # Something in the store that is not ours. It must not end all deliveries.
            _log.error("reading the states of endpoints broke", error=error)

    async def _report_breakers(self) -> None:
        """Report open breakers; delete the report after all have closed."""
        if not self._node:
            return
        breakers = self.open_breakers
        if breakers or self._is_reported:
            # All probes may be in flight; then the next one has no time.
            probes = {
                target: round(seconds * 1000) if isfinite(seconds) else 0
                for target, seconds in breakers.items()
            }
            await self._states.report_breakers(self._node, probes)
            self._is_reported = bool(breakers)

    def _update(self, standing: Standing) -> None:
        left = self._survey.held_ms.get(standing.target, 0)
        standing.update(
            disabled=standing.target in self._survey.disabled,
            held_until=self._clock.monotonic() + left / 1000 if left else 0.0,
            repaired_ms=self._survey.repaired_ms.get(standing.target, 0),
        )
