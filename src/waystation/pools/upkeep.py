"""Upkeep of pools: finishes what died half-way, and sweeps every pool once a second.

The chore `mend` comes with upkeep, so one node does it at a time; that node sweeps until another
takes over. Two that sweep at once do no harm: each sweep is a script that decides by itself. A pool
that cannot be looked after now is told, and keeps nobody from the others.
"""

from __future__ import annotations

from waystation.errors import PoolNotFoundError, StoreUnavailableError, WaystationError
from waystation.pools.definition import Pool
from waystation.pools.held import PoolLook
from waystation.pools.pools import Pools
from waystation.runtime.clock import Clock
from waystation.runtime.logging import logger
from waystation.runtime.service import Service
from waystation.runtime.tasks import for_each

_log = logger("pools")

#: Pools that are looked after together.
_AT_ONCE = 8
#: Steps for one pool in one sweep; a long one goes on in the next.
_STEPS_MAX = 200


class PoolUpkeep(Service):
    """Maintains all pools while this node holds the maintenance lease."""

    #: A sweep may be cancelled anywhere: each of its steps is one script.
    grace_s = 0.0

    def __init__(self, pools: Pools, *, clock: Clock, sweep_seconds: float) -> None:
        super().__init__("pools", clock=clock)
        self._pools = pools
        self._sweep_s = sweep_seconds
        #: What is swept, as the last chore found it; none where another node does it.
        self._swept: dict[tuple[str, str], Pool] = {}

    async def run(self) -> None:
        """Sweep the pools of the last maintenance pass until the service stops."""
        await self.repeat(self.sweep, every_s=self._sweep_s)

    async def on_stop(self) -> None:
        """Clear the gauges."""
        self.rest()

    async def mend(self) -> None:
        """The chore: one pass over all definitions; raises the first problem at its end."""
        problems: list[Exception] = []
        active: dict[tuple[str, str], Pool] = {}
        looks: dict[Pool, PoolLook] = {}

        async def tend(pool: Pool) -> None:
            try:
                await self._pools.mend(pool)
                if pool.state == "active":
                    active[pool.project, pool.name] = pool
                    terms = self._pools.terms(pool)
                    looks[pool] = await self._pools.assignments.look(pool.place, terms)
            except PoolNotFoundError:
                return  # Somebody deletes it at this moment.
            except StoreUnavailableError:
                raise
            except Exception as error:
                problems.append(error)

        async for page in self._pools.everything():
            await for_each(page, tend, at_once=_AT_ONCE)
        self._swept = active
        self._pools.tally.show(looks)
        if problems:
            raise problems[0]

    def rest(self) -> None:
        """It is another node's turn."""
        self._swept = {}
        self._pools.tally.show({})

    async def sweep(self) -> None:
        """Sweeps once what there was at the last chore."""

        async def tend(pool: Pool) -> None:
            try:
                await self._sweep(pool)
            except (StoreUnavailableError, PoolNotFoundError):
                return
            except Exception as error:
                _tell(pool, error)

        await for_each(list(self._swept.values()), tend, at_once=_AT_ONCE)

    async def _sweep(self, pool: Pool) -> None:
        pool = await self._pools.use(pool.project, pool.name)
        options, terms = pool.options, self._pools.terms(pool)
        retention = options.key_retention_seconds
        for _ in range(_STEPS_MAX):
            swept = await self._pools.assignments.sweep(
                pool.place,
                terms,
                forget_ms=round(options.worker_forget_seconds * 1000),
                retention_ms=None if retention is None else round(retention * 1000),
            )
            self._pools.tally.moved(pool, swept.moved)
            self._pools.tally.evicted(pool, len(swept.evicted))
            if swept.evicted:
                _log.warning(
                    "workers were stale, their keys go to others",
                    project=pool.project,
                    pool=pool.name,
                    workers=swept.evicted[:10],
                    count=len(swept.evicted),
                )
            if not swept.more:
                return


def _tell(pool: Pool, problem: Exception) -> None:
    named = {"project": pool.project, "pool": pool.name}
    if isinstance(problem, WaystationError):
        _log.warning("a pool could not be swept", problem=str(problem), **named)
    else:
        _log.error("a pool could not be swept", error=problem, **named)
