"""The standings of endpoints in this process: one for each target, as the store knows it, too.

Subscriptions to one URL share a standing. What the store says of a target, that it is disabled or
wants to be left alone, is heard within moments, whichever process has found it out. Breakers that
are open are reported to the store, so that every node can show them.
"""

from __future__ import annotations

from math import isfinite
from weakref import WeakValueDictionary

from waystation.delivery.layout import REGISTER
from waystation.delivery.standing import Standing
from waystation.delivery.states import EndpointStates, Survey
from waystation.runtime.backoff import log_failure
from waystation.runtime.clock import Clock
from waystation.runtime.service import Service
from waystation.store.pubsub import PubSub

#: Period of reading the states, because the hint of a change can be lost.
_READ_S = 1.0
#: Shortest time between two reads, so that hints in quick succession share one.
_READ_S_MIN = 0.02


class Standings(Service):
    """The health of all endpoints that this process delivers to, between `start` and `stop`."""

    #: A read may be cancelled anywhere.
    grace_s = 0.0

    def __init__(
        self, states: EndpointStates, wakeups: PubSub, *, clock: Clock, node: str = ""
    ) -> None:
        super().__init__("delivery", clock=clock)
        self._states = states
        self._wakeups = wakeups
        #: The node whose breakers these are; empty for a process that does not deliver.
        self._node = node
        #: Whether the store has a report of open breakers.
        self._is_reported = False
        #: Each for as long as a shard uses it.
        self._standings: WeakValueDictionary[str, Standing] = WeakValueDictionary()
        self._survey = Survey({}, {})

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
        now = self.clock.monotonic()
        return {
            target: max(0.0, each.breaker.next_at() - now)
            for target, each in list(self._standings.items())
            if not each.breaker.is_closed
        }

    async def on_start(self) -> None:
        """Read the states, as far as the store answers, before the first request is sent."""
        try:
            await self._read_states()
        except Exception as error:
            # A foreign value in the store must not prevent all deliveries.
            log_failure(self._log, "endpoint states", error)

    async def run(self) -> None:
        """Read the states on each change and once a second, until the service stops."""
        with self._wakeups.listening(REGISTER.encode()) as wakeup:
            await self.repeat(self._read_states, every_s=_READ_S, wakeup=wakeup, rest_s=_READ_S_MIN)

    async def _read_states(self) -> None:
        self._survey = await self._states.survey()
        for standing in list(self._standings.values()):
            self._update(standing)
        await self._report_breakers()

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
            held_until=self.clock.monotonic() + left / 1000 if left else 0.0,
            repaired_ms=self._survey.repaired_ms.get(standing.target, 0),
        )
