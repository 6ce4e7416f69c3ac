"""Upkeep in a node: its chores, of all parts that have any."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from waystation.logs.streams import StreamLogs
from waystation.pools.opening import PoolDesk
from waystation.runtime.clock import Clock
from waystation.store.heartbeat import Heartbeat
from waystation.store.leases import Leases
from waystation.store.opening import OpenStore
from waystation.topics.maintenance import Upkeep
from waystation.topics.service import TopicService
from waystation.transactions.engine import Engine
from waystation.transactions.watch import Watch


class NodeUpkeep:
    """Upkeep in a node, with the chores of other parts: whichever node has the lease does it."""

    def __init__(
        self,
        topics: TopicService,
        logs: StreamLogs,
        engine: Engine,
        watch: Watch,
        pools: PoolDesk,
        opened: OpenStore,
        chores: Sequence[Callable[[], Awaitable[None]]],
        *,
        clock: Clock,
        owner: str,
    ) -> None:
        store = opened.store
        self._engine, self._watch, self._pools = engine, watch, pools
        #: What other parts of the process have to tell.
        self.others: list[Callable[[], list[str]]] = []
        self._heartbeat = Heartbeat(store.address, test_mode=store.test_mode)
        leases = Leases(store, self._heartbeat, owner=owner)
        self._upkeep = Upkeep(
            topics,
            logs,
            leases,
            opened.memory,
            clock=clock,
            chores=[
                engine.mend,
                engine.count,
                watch.count,
                engine.forget,
                pools.upkeep.mend,
                *chores,
            ],
            on_rest=self._rest,
        )

    def _rest(self) -> None:
        self._engine.stop_counting()
        self._watch.stop_counting()
        self._pools.upkeep.rest()

    @property
    def notes(self) -> list[str]:
        """What a person should know: of the archive, and, if this node does it, of upkeep."""
        others = (note for notes in self.others for note in notes())
        return [*self._upkeep.notes, *self._watch.notes, *others]

    async def start(self) -> None:
        """Begins."""
        await self._upkeep.start()

    async def close(self) -> None:
        """Lets another node take over at once."""
        await self._upkeep.stop()
        # In a thread: it waits for one, which may be waiting for a store that is away.
        await asyncio.to_thread(self._heartbeat.close)
