"""Leader: runs maintenance steps on the one node that holds a lease.

    steps = [TopicMaintenance(...), PoolMaintenance(...)]
    async with Leader(leases, MAINTENANCE_LEASE, steps, every_s=10.0, clock=clock):
        ...

Every node runs a `Leader` with the same key; the node that acquires the lease leads. The lease
saves work, and no promise depends on it: each step must stay correct if two nodes run it at the
same time, because a lease can expire while a step waits for the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from waystation.errors import StoreUnavailableError
from waystation.runtime.backoff import Backoff, log_failure
from waystation.runtime.clock import Clock
from waystation.runtime.service import Service
from waystation.store.leases import Lease, Leases


class MaintenanceStep(Protocol):
    """Periodic work of one part, done by the leader."""

    def run(self) -> Awaitable[float | None]:
        """Do one bounded pass. Return the seconds until the next, or None for the usual period."""

    def stand_down(self) -> None:
        """Reset the gauges that only the leader reports. Called when this node stops leading."""


@dataclass(frozen=True)
class MaintenanceFunctions:
    """A maintenance step made of functions."""

    run: Callable[[], Awaitable[float | None]]
    stand_down: Callable[[], None] = lambda: None


class _ScheduledStep:
    """A step with the time of its next pass and the errors since its last success."""

    def __init__(self, step: MaintenanceStep) -> None:
        self.step = step
        self.due_s = 0.0
        self.backoff = Backoff()
        run = step.run
        self.name: str = getattr(run, "__qualname__", type(step).__qualname__)


class Leader(Service):
    """Acquires a lease and runs the steps that are due while this node holds it.

    A failed step is logged once per class of error and repeated after the usual period. It does not
    keep the leader from the other steps, except if the store is unavailable: then the pass ends,
    because the other steps would only wait for the store as well. The state is the lease and the
    time of the next pass of each step.
    """

    #: A step may be cancelled at any point, because each of its changes is one script. Only the
    #: call that acquires the lease is awaited: see `_acquire`.
    grace_s = 0.0

    def __init__(
        self,
        leases: Leases,
        key: str,
        steps: Sequence[MaintenanceStep],
        *,
        every_s: float,
        clock: Clock,
    ) -> None:
        super().__init__("maintenance", clock=clock)
        self._leases = leases
        self._key = key
        self._every_s = every_s
        self._steps = [_ScheduledStep(step) for step in steps]
        self._lease: Lease | None = None
        #: The call in progress that acquires the lease.
        self._acquiring: asyncio.Future[Lease | None] | None = None

    def __repr__(self) -> str:
        return f"<Leader {self._key} [{'leading' if self.leads else 'not leading'}]>"

    @property
    def leads(self) -> bool:
        """Whether this node holds the lease, as far as its own clock can tell."""
        return self._lease is not None and self._lease.sure

    async def run(self) -> None:
        """Lead whenever the lease is free, until the service stops."""
        await self.repeat(self._lead, every_s=self._every_s)

    async def on_stop(self) -> None:
        """Reset the gauges and release the lease, so that another node leads immediately."""
        self._stand_down()
        if self._acquiring is not None:
            # The store may have granted the lease to the call that the stop interrupted.
            self._lease = await self._acquiring or self._lease
        lease, self._lease = self._lease, None
        if lease is not None:
            await lease.release()

    async def _lead(self) -> float | None:
        """Acquire the lease if necessary and run the steps that are due."""
        if not self.leads:
            # A lease that this node still owns is returned with the same epoch.
            led, self._lease = self._lease is not None, await self._acquire()
            if self._lease is None:
                if led:
                    self._log.info("leadership lost", lease=self._key)
                    self._stand_down()
                return None
            if not led:
                self._log.info("leadership acquired", lease=self._key, epoch=self._lease.epoch)
        for scheduled in self._steps:
            if scheduled.due_s > self.clock.monotonic():
                continue
            if not self.leads:
                # The next call acquires the lease again, or finds that another node leads.
                return 0.0
            await self._run(scheduled)
        next_s = min((each.due_s for each in self._steps), default=0.0) - self.clock.monotonic()
        return min(max(next_s, 0.0), self._every_s)

    async def _acquire(self) -> Lease | None:
        """Acquire the lease in a task that a stop does not cancel, for `on_stop` to release it."""
        self._acquiring = asyncio.ensure_future(self._leases.acquire(self._key))
        try:
            lease = await asyncio.shield(self._acquiring)
        except Exception:
            self._acquiring = None
            raise
        self._acquiring = None
        return lease

    async def _run(self, scheduled: _ScheduledStep) -> None:
        pause_s = None
        try:
            pause_s = await scheduled.step.run()
        except StoreUnavailableError:
            raise
        except Exception as error:
            if scheduled.backoff.is_new(error):
                log_failure(self._log, scheduled.name, error)
            scheduled.backoff.failures += 1
        else:
            if scheduled.backoff.failures:
                self._log.info("task resumed", task=scheduled.name)
                scheduled.backoff.reset()
        pause_s = self._every_s if pause_s is None else pause_s
        scheduled.due_s = self.clock.monotonic() + pause_s

    def _stand_down(self) -> None:
        for scheduled in self._steps:
            scheduled.due_s = 0.0
            scheduled.step.stand_down()
