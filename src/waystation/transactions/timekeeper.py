"""The timekeeper: does what is due, at the millisecond, in bulk.

It wakes what has slept long enough, rescues what nobody renews, ends what is over its deadline, and
cancels children that nobody waits for. Every process has one, and all may do the same at once: each
pass is a script that finds what is due, or nothing. When the next is due the store says; what comes
earlier is told by a hint. The clock of this machine decides nothing.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable

from waystation.clock import Clock
from waystation.errors import BusyError, StoreError
from waystation.store import Wakeups
from waystation.store.wakeups import RECHECK_SECONDS, Waiter
from waystation.telemetry import metrics
from waystation.telemetry.counts import Count
from waystation.telemetry.logging import logger
from waystation.transactions import names
from waystation.transactions.cells import BATCH_MAX
from waystation.transactions.count_slots import CountSlots
from waystation.transactions.held import Due
from waystation.transactions.holding import Holding
from waystation.transactions.limits import Limits
from waystation.transactions.signals import Signals

_log = logger("timekeeper")

_PAUSE_SECONDS = 0.5
_SUM_PAUSE_SECONDS = 5.0
#: After a jump of the time machine every lease is over: those who live get so long to renew theirs.
_JUMP_SECONDS = 0.25
#: A store that is ahead of our own clock by so much more than before has jumped.
_JUMP_SECONDS_MIN = 1.0
_rescued, _woken, _expired, _swept = map(
    metrics.transaction_due.of, ("rescued", "woken", "expired", "swept")
)


class Timekeeper:
    """Keeps the time of all cells."""

    def __init__(
        self,
        signals: Signals,
        holding: Holding,
        counts: CountSlots,
        wakeups: Wakeups,
        *,
        clock: Clock,
        cells: int,
        limits: Limits,
    ) -> None:
        self._signals = signals
        self._holding = holding
        self._counts = counts
        self._wakeups = wakeups
        self._clock = clock
        self._cells = cells
        self._limits = limits
        self._tasks: list[asyncio.Task[None]] = []
        self._jumped_at = -math.inf
        #: By cell: the store's time at the last look, and ours.
        self._compared: dict[int, tuple[int, float]] = {}
        #: By cell: when to try again what found no room.
        self._sum_at: dict[int, float] = {}
        self._forget_jumps = clock.on_jump(self._jumped)

    def start(self) -> None:
        """Begins."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._keep(cell)) for cell in range(self._cells)]

    async def stop(self) -> None:
        """Ends; others go on."""
        self._forget_jumps()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _compare(self, cell: int, now_ms: int) -> None:
        """Notices a jump of the store's clock, also before anybody has told us of it."""
        at = self._clock.real_seconds()
        before_ms, before_at = self._compared.get(cell, (now_ms, at))
        self._compared[cell] = now_ms, at
        if now_ms - before_ms > (at - before_at + _JUMP_SECONDS_MIN) * 1000:
            self._jumped()

    def _jumped(self) -> None:
        self._jumped_at = self._clock.real_seconds()

    async def _keep(self, cell: int) -> None:
        waiter = Waiter()
        unlisten = self._wakeups.listen(names.due_topic(cell), lambda _: waiter.wake())
        forget = self._clock.on_jump(waiter.wake)
        try:
            while True:
                waiter.clear()
                await waiter.wait(await self._look(cell))
        finally:
            forget()
            unlisten()

    async def _look(self, cell: int) -> float:
        """Does what is due in a cell; returns the seconds until there is more."""
        try:
            look = await self._signals.look(cell)
            self._compare(cell, look.now_ms)
            lease_ms, settling = look.lease_ms, self._settling_ms()
            if lease_ms is not None and settling:
                lease_ms = max(lease_ms, look.now_ms + settling)
            next_ms = [
                await self._until_done(cell, due_ms, look.now_ms, act, count)
                for due_ms, act, count in (
                    (lease_ms, self._rescue, _rescued),
                    (look.sleeping_ms, self._wake, _woken),
                    (look.deadline_ms, self._expire, _expired),
                    (look.sweep_ms, self._sweep, _swept),
                )
            ]
        except (StoreError, BusyError) as error:
            _log.warning("what is due could not be done", cell=cell, problem=str(error))
            return _PAUSE_SECONDS
        except Exception as error:
            # Something in the store that is not ours. It must not stop the clock for good.
            _log.error("what is due could not be done", error=error, cell=cell)
            return _PAUSE_SECONDS
        await self._sum_up(cell, look.now_ms)
        return min((ms / 1000 for ms in next_ms if ms >= 0), default=RECHECK_SECONDS)

    async def _sum_up(self, cell: int, now_ms: int) -> None:
        """Counts are for people: what is due never waits for them, in a full store, say."""
        now = self._clock.real_seconds()
        if now < self._sum_at.get(cell, now):
            return
        try:
            await self._counts.roll_up(cell, now_ms)
        except Exception as error:
            self._sum_at[cell] = now + _SUM_PAUSE_SECONDS
            _log.warning("counts could not be summed up", cell=cell, problem=str(error))

    def _settling_ms(self) -> int:
        """How long no lease is taken yet, since time has jumped just now; 0 in ordinary life."""
        left = self._jumped_at + _JUMP_SECONDS - self._clock.real_seconds()
        return math.ceil(max(0.0, left) * 1000)

    async def _until_done(
        self,
        cell: int,
        due_ms: int | None,
        now_ms: int,
        act: Callable[[int], Awaitable[Due]],
        count: Count,
    ) -> int:
        """Acts while something is due; returns ms until the next, -1 for never."""
        if due_ms is None:
            return -1
        if due_ms > now_ms:
            return due_ms - now_ms
        metrics.transaction_due_lag.note((now_ms - due_ms) / 1000)
        while True:
            due = await act(cell)
            count.inc(due.done)
            if due.next_ms != 0:
                return due.next_ms
            if not due.done:
                return round(_PAUSE_SECONDS * 1000)  # It says that there is more, and does nothing.

    async def _rescue(self, cell: int) -> Due:
        return await self._holding.rescue(
            cell, most=BATCH_MAX, rescues_max=self._limits.rescues_max
        )

    async def _wake(self, cell: int) -> Due:
        return await self._signals.wake_due(cell)

    async def _expire(self, cell: int) -> Due:
        return await self._signals.expire(cell, grace_ms=self._limits.cancel_grace_ms)

    async def _sweep(self, cell: int) -> Due:
        return await self._signals.sweep(cell, grace_ms=self._limits.cancel_grace_ms)
