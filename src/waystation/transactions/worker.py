"""A worker: runs the transactions of one node group, in one process.

It ties together who claims, who calls steps, who commits, who keeps leases and who keeps time. It
is healthy while claims are answered. One that is deaf for three leases has lost all that it held:
it ends its process, with an exit code that says so, and whoever watches it starts another.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable

from waystation.errors import BusyError, StoreError
from waystation.runtime.clock import Clock
from waystation.runtime.logging import logger
from waystation.store.client import Store
from waystation.store.leases import LeaseRenewer
from waystation.store.memory import StoreMemory
from waystation.store.pubsub import PubSub
from waystation.telemetry import metrics
from waystation.transactions import names
from waystation.transactions.cells import BATCH_MAX, Terms
from waystation.transactions.claimer import Claimer
from waystation.transactions.committer import Committer
from waystation.transactions.count_slots import CountSlots
from waystation.transactions.entry import Entry
from waystation.transactions.holding import Holding
from waystation.transactions.limits import Limits
from waystation.transactions.loader import Loader
from waystation.transactions.nodes import Nodes
from waystation.transactions.pipelines import Pipelines
from waystation.transactions.progress import Progress
from waystation.transactions.renewal import Renewal
from waystation.transactions.run import Run
from waystation.transactions.services import Services
from waystation.transactions.signals import Signals
from waystation.transactions.slots import WATCH_SECONDS, Slots
from waystation.transactions.steps import StepBook
from waystation.transactions.store_time import StoreTime
from waystation.transactions.timekeeper import Timekeeper
from waystation.transactions.turns import Turns

_log = logger("worker")

#: What a deaf worker ends its process with: EX_SOFTWARE.
DEAF_EXIT_CODE = 70
#: Leases without an answered claim after which a worker is not ready, and after which it is deaf.
_UNHEALTHY_LEASES = 2
_DEAF_LEASES = 3
#: Share of the store's memory limit up to which transactions begin one at a time in a full store.
#: The store refuses starts at its limit, so that queued transactions alone never fill it further,
#: and those that end make room.
_DRAIN_SHARE = 1.02
#: What the store gets to answer while we stop.
_STORE_SECONDS_MAX = 2.0


def end_process(reason: str) -> None:
    """Ends the process at once: nothing in it can be relied on, not even its event loop."""
    _log.error("the worker is deaf", reason=reason)
    os._exit(DEAF_EXIT_CODE)


class Worker:
    """Runs transactions from `start` to `stop`."""

    def __init__(
        self,
        store: Store,
        wakeups: PubSub,
        pipelines: Pipelines,
        book: StepBook,
        *,
        renewer: LeaseRenewer,
        clock: Clock,
        terms: Terms,
        cells: int,
        group: str,
        node: str,
        limits: Limits | None = None,
        services: Services | None = None,
        loader: Loader | None = None,
        memory: StoreMemory | None = None,
        on_deaf: Callable[[str], None] = end_process,
    ) -> None:
        self._limits = limits = limits or Limits()
        self._clock = clock
        self._group = group
        self._wakeups = wakeups
        self._memory = memory
        self._nodes = Nodes(store, clock=clock)
        self._holding = Holding(store, terms)
        self._on_deaf = on_deaf
        self._stopping = False
        self._watched_at = clock.uptime_s()
        self._unheard = 0.0
        self._prefetch = limits.prefetch
        self._workers = limits.workers
        self._tasks: set[asyncio.Task[None]] = set()
        self._unlisten: list[Callable[[], None]] = []
        time = StoreTime(clock)
        progress = Progress(store, terms)
        self._turns = Turns(
            book,
            pipelines,
            progress,
            Entry(store, terms),
            self._holding,
            node=node,
            limits=limits,
            time=time,
            services=services,
        )
        self._committer = Committer(progress, self._turns.on_verdict)
        self._slots = Slots(
            self._turns.take,
            clock=clock,
            count=limits.workers,
            hung_seconds=limits.hung_seconds,
        )
        self._turns.committer = self._committer
        self._turns.again, self._turns.let_go = self._again, self._let_go
        self._renewal = self._open_renewal(renewer)
        self._claimer = self._open_claimer(cells, node, time)
        self._timekeeper = Timekeeper(
            Signals(store, terms, loader),
            self._holding,
            CountSlots(store),
            wakeups,
            clock=clock,
            cells=cells,
            limits=limits,
            loader=loader,
        )

    def _open_renewal(self, renewer: LeaseRenewer) -> Renewal:
        return Renewal(
            renewer,
            clock=self._clock,
            lease_ms=self._limits.lease_ms,
            hung_seconds=self._limits.hung_seconds,
            on_lost=self._lost,
            on_cancelled=self._cancelled,
            on_hung=self._on_deaf,
        )

    def _open_claimer(self, cells: int, node: str, time: StoreTime) -> Claimer:
        return Claimer(
            self._holding,
            self._wakeups,
            clock=self._clock,
            time=time,
            group=self._group,
            node=node,
            cells=cells,
            lease_ms=self._limits.lease_ms,
            room=self._room,
            room_new=self._room_new,
            take=self._take,
            on_admin=self._follow,
        )

    def __repr__(self) -> str:
        return f"<Worker of {self._group} [{len(self._renewal)} held, {self._slots!r}]>"

    @property
    def held(self) -> int:
        """Transactions that this process holds."""
        return len(self._renewal)

    @property
    def silent_seconds(self) -> float:
        """How long ago the last claim was answered."""
        return self._clock.uptime_s() - self._claimer.answered_at

    @property
    def healthy(self) -> bool:
        """Whether claims were answered lately."""
        return self.silent_seconds < _UNHEALTHY_LEASES * self._renewal.lease_ms / 1000

    def use(self, book: StepBook) -> None:
        """Calls other steps from now on; those that run end with the code that they began with."""
        self._turns.book = book

    async def start(self) -> None:
        """Begins to work."""
        self._renewal.start()
        self._slots.on_watch(self._watch)
        self._slots.start()
        self._unlisten.append(self._wakeups.listen(names.NODES.encode(), lambda _: self._follow()))
        self._follow()
        self._timekeeper.start()
        self._claimer.start()

    async def stop(self, *, grace_seconds: float | None = None) -> None:
        """Claims nothing more, lets steps end, and gives back the rest. None of it counts."""
        self._stopping = True
        for unlisten in self._unlisten:
            unlisten()
        self._slots.pause()
        await self._timekeeper.stop()
        await self._claimer.stop()
        await self._give_back(self._slots.take_back())
        grace = self._limits.grace_seconds if grace_seconds is None else grace_seconds
        await self._slots.stop(grace_seconds=grace)
        await self._committer.stop(seconds=_STORE_SECONDS_MAX)
        await self._slots.close()
        await self._give_back(self._renewal.held)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._renewal.close()
        metrics.transactions_held.set(self.held)
        self._turns.threads.shutdown(wait=False)

    # -- Runs come and go --------------------------------------------------------------------

    def _room(self) -> int:
        return self._workers + self._prefetch - len(self._renewal)

    def _room_new(self) -> int:
        """Return how many transactions may begin.

        In a full store: one if this worker has none, so that a store full of queued transactions
        drains; none well above the limit, because scripts of workers write into a full store.
        """
        share = self._memory.usage.share if self._memory is not None else 0.0
        if share < 1:
            return max(0, self._room())
        return 1 if share < _DRAIN_SHARE and not self._renewal else 0

    def _take(self, run: Run) -> None:
        self._renewal.hold(run)
        self._slots.add(run)

    def _again(self, run: Run) -> None:
        if run.lost:
            self._let_go(run)
        elif not self._stopping:
            self._slots.add(run)

    def _let_go(self, run: Run) -> None:
        self._slots.settled(run)
        if self._renewal.drop(run):
            self._claimer.freed()

    def _lost(self, run: Run) -> None:
        if run.moving:
            return
        _log.warning("a lease is lost", transaction=run.id, epoch=run.epoch)
        run.lost = True
        self._slots.give_up(run, "lost")
        self._let_go(run)

    def _cancelled(self, run: Run) -> None:
        run.stopping = True

    async def _give_back(self, runs: Iterable[Run]) -> None:
        """To the heads of their queues, at once; what cannot be given back is rescued later."""
        cells: dict[int, list[Run]] = {}
        for run in runs:
            self._renewal.drop(run)
            if not run.lost:
                cells.setdefault(run.cell, []).append(run)
        for cell, held in cells.items():
            # The last first: each call puts its own before all others.
            for until in range(len(held), 0, -BATCH_MAX):
                chunk = held[max(0, until - BATCH_MAX) : until]
                try:
                    async with asyncio.timeout(_STORE_SECONDS_MAX):
                        await self._holding.release(cell, [run.held for run in chunk])
                except (StoreError, BusyError, TimeoutError) as error:
                    _log.warning("runs were not given back", problem=str(error), count=len(chunk))

    # -- Following ---------------------------------------------------------------------------

    def _watch(self) -> None:
        self._renewal.moved()
        metrics.transactions_held.set(self.held)
        now, before = self._clock.uptime_s(), self._watched_at
        self._watched_at = now
        if self._stopping or self._claimer.answered_at >= before:
            self._unheard = 0.0
            return
        # Only time in which we could have heard: not while the process was stopped, or blocked.
        self._unheard += min(now - before, 2 * WATCH_SECONDS)
        if self._unheard > _DEAF_LEASES * self._renewal.lease_ms / 1000:
            self._on_deaf("no claim was answered for three leases")

    def _follow(self) -> None:
        if not self._stopping:
            task = asyncio.get_running_loop().create_task(self._read_settings())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _read_settings(self) -> None:
        try:
            told = await self._nodes.settings(self._group)
        except (StoreError, BusyError) as error:
            _log.warning("settings could not be read", problem=str(error))
            return
        limits = self._limits
        self._workers = told.workers or limits.workers
        self._prefetch = limits.prefetch if told.prefetch is None else told.prefetch
        self._slots.resize(self._workers)
        self._claimer.lease_ms = told.lease_ms or limits.lease_ms
        self._renewal.use_lease(self._claimer.lease_ms)
        self._claimer.paused = told.paused
        self._claimer.look()
