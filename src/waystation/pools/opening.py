"""Opens the pools of a node: their verbs, and who looks after them."""

from __future__ import annotations

from dataclasses import dataclass

from waystation.catalogue import Catalogue
from waystation.config import PoolConfig
from waystation.logs.records import RecordLogs
from waystation.pools.pools import Pools
from waystation.pools.upkeep import PoolUpkeep
from waystation.runtime.clock import Clock
from waystation.store.opening import OpenStore


@dataclass(frozen=True)
class PoolDesk:
    """Pools in a node."""

    pools: Pools
    upkeep: PoolUpkeep

    async def close(self) -> None:
        """Ends what goes on by itself."""
        await self.upkeep.stop()
        await self.pools.close()


async def open_pools(
    settings: PoolConfig,
    opened: OpenStore,
    catalogue: Catalogue,
    *,
    clock: Clock,
    records: RecordLogs | None = None,
) -> PoolDesk:
    """Begins to look after pools, when it is this node's turn."""
    pools = Pools(
        catalogue,
        opened.store,
        opened.wakeups,
        clock=clock,
        settings=settings,
        records=records,
    )
    upkeep = PoolUpkeep(pools, clock=clock, sweep_seconds=settings.sweep_seconds)
    await upkeep.start()
    return PoolDesk(pools, upkeep)
