"""The timekeeper: handles what is due, at the millisecond, in batches.

It wakes sleepers whose time has come, rescues transactions whose lease nobody renews, ends those
over their deadline, and cancels children that nobody waits for; states that are in the archive are
loaded meanwhile. Every process has one, and all may work at once: each batch is a script that finds
what is due, or nothing. In each turn every verb handles one batch of a cell, so a flood of one kind
does not stop the others; every cell takes its turns in a task of its own. The store says when the
next is due; a hint tells what comes earlier. The clock of this machine decides nothing.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence

from waystation.errors import ArchiveError, BusyError, StoreError
from waystation.runtime.clock import Clock
from waystation.runtime.logging import logger
from waystation.runtime.metrics import Count
from waystation.runtime.service import Wakeup
from waystation.store.pubsub import RECHECK_S, PubSub
from waystation.telemetry import metrics
from waystation.transactions import names
from waystation.transactions.cells import BATCH_MAX
from waystation.transactions.count_slots import CountSlots
from waystation.transactions.held import Due
from waystation.transactions.holding import Holding
from waystation.transactions.limits import Limits
from waystation.transactions.loader import Loader
from waystation.transactions.restoring import GONE, LoadMode, Missing
from waystation.transactions.signals import Signals

_log = logger("timekeeper")

_PAUSE_SECONDS = 0.5
_SUM_PAUSE_SECONDS = 5.0
#: After a jump of the time machine every lease is over: those who live get so long to renew theirs.
_JUMP_SECONDS = 0.25
#: A store that is ahead of our own clock by so much more than before has jumped.
_JUMP_SECONDS_MIN = 1.0
#: How long, and of how many, it is remembered that nobody can find them.
_LOST_SECONDS = 60.0
_LOST_MAX = 1_000
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
        wakeups: PubSub,
        *,
        clock: Clock,
        cells: int,
        limits: Limits,
        loader: Loader | None = None,
    ) -> None:
        self._signals = signals
        self._loader = loader
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
        #: By cell and verb: who loads what that verb has found missing.
        self._loads: dict[tuple[int, str], asyncio.Task[None]] = {}
        #: By cell: children that nobody can find, and since when that is known.
        self._lost: dict[int, dict[str, float]] = {}
        self._waiters = [Wakeup(recheck_s=RECHECK_S) for _ in range(cells)]
        self._forget_jumps = clock.on_jump(self._jumped)

    def start(self) -> None:
        """Begins."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._keep(cell)) for cell in range(self._cells)]

    async def stop(self) -> None:
        """Ends; others go on."""
        self._forget_jumps()
        doing = [*self._tasks, *self._loads.values()]
        for task in doing:
            task.cancel()
        await asyncio.gather(*doing, return_exceptions=True)

    def _compare(self, cell: int, now_ms: int) -> None:
        """Notices a jump of the store's clock, also before anybody has told us of it."""
        at = self._clock.uptime_s()
        before_ms, before_at = self._compared.get(cell, (now_ms, at))
        self._compared[cell] = now_ms, at
        if now_ms - before_ms > (at - before_at + _JUMP_SECONDS_MIN) * 1000:
            self._jumped()

    def _jumped(self) -> None:
        self._jumped_at = self._clock.uptime_s()

    async def _keep(self, cell: int) -> None:
        waiter = self._waiters[cell]
        unlisten = self._wakeups.listen(names.due_topic(cell), lambda _: waiter.set())
        forget = self._clock.on_jump(waiter.set)
        try:
            while True:
                waiter.clear()
                await waiter.wait(await self._take_turn(cell))
        finally:
            forget()
            unlisten()

    async def _take_turn(self, cell: int) -> float:
        """Let each verb handle one batch of a cell; return the seconds until more is due.

        No verb gets a second batch before the others had their turn: a flood of one kind, such as
        the children of a cancelled tree, delays the other kinds by one batch of each at most. A
        verb that fails does not keep the others from theirs.
        """
        try:
            look = await self._signals.look(cell)
        except Exception as error:
            return self._failed(cell, "look", error)
        self._compare(cell, look.now_ms)
        lease_ms, settling = look.lease_ms, self._settling_ms()
        if lease_ms is not None and settling:
            lease_ms = max(lease_ms, look.now_ms + settling)
        waits = [
            await self._act(cell, due_ms, look.now_ms, act, count)
            for due_ms, act, count in (
                (lease_ms, self._rescue, _rescued),
                (look.sleeping_ms, self._wake, _woken),
                (look.deadline_ms, self._expire, _expired),
                (look.sweep_ms, self._sweep, _swept),
            )
        ]
        await self._sum_up(cell, look.now_ms)
        return min(waits)

    def _failed(self, cell: int, verb: str, error: Exception) -> float:
        """Log why a verb failed; return the seconds after which it is tried again."""
        if isinstance(error, StoreError | BusyError):
            _log.warning("due work failed", cell=cell, verb=verb, problem=str(error))
        else:
            # A key of the store that holds something else, or a defect: the clock goes on.
            _log.error("due work failed", error=error, cell=cell, verb=verb)
        return _PAUSE_SECONDS

    async def _sum_up(self, cell: int, now_ms: int) -> None:
        """Counts are for people: what is due never waits for them, in a full store, say."""
        now = self._clock.uptime_s()
        if now < self._sum_at.get(cell, now):
            return
        try:
            await self._counts.roll_up(cell, now_ms)
        except Exception as error:
            self._sum_at[cell] = now + _SUM_PAUSE_SECONDS
            _log.warning("counts could not be summed up", cell=cell, problem=str(error))

    def _settling_ms(self) -> int:
        """How long no lease is taken yet, since time has jumped just now; 0 in ordinary life."""
        left = self._jumped_at + _JUMP_SECONDS - self._clock.uptime_s()
        return math.ceil(max(0.0, left) * 1000)

    async def _act(
        self,
        cell: int,
        due_ms: int | None,
        now_ms: int,
        act: Callable[[int], Awaitable[Due]],
        count: Count,
    ) -> float:
        """Handle one batch of a verb if it has any due; return the seconds until more is due."""
        if due_ms is None:
            return RECHECK_S
        if due_ms > now_ms:
            return (due_ms - now_ms) / 1000
        metrics.transaction_due_lag.note((now_ms - due_ms) / 1000)
        try:
            due = await act(cell)
        except Exception as error:
            return self._failed(cell, act.__name__.removeprefix("_"), error)
        count.inc(max(0, due.done - len(due.missing)))
        if due.next_ms < 0:
            return RECHECK_S
        if due.next_ms == 0 and not due.done:
            # The script says that more is due and handled nothing: do not spin.
            return _PAUSE_SECONDS
        return due.next_ms / 1000

    async def _rescue(self, cell: int) -> Due:
        return await self._holding.rescue(
            cell, most=BATCH_MAX, rescues_max=self._limits.rescues_max
        )

    async def _wake(self, cell: int) -> Due:
        loads = self._loader.room if self._loader is not None else 0
        due = await self._signals.wake_due(cell, loads=loads)
        if self._loader is not None:
            self._loader.wake(cell, due.missing)
        return due

    async def _expire(self, cell: int) -> Due:
        loads = BATCH_MAX if self._may_load(cell, "expire") else 0
        due = await self._signals.expire(cell, grace_ms=self._limits.cancel_grace_ms, loads=loads)
        self._load(cell, "expire", due.missing)
        return due

    async def _sweep(self, cell: int) -> Due:
        lost = self._lost_of(cell)
        due = await self._signals.sweep(cell, grace_ms=self._limits.cancel_grace_ms, lost=lost)
        if self._may_load(cell, "sweep"):
            self._load(cell, "sweep", due.missing)
        return due

    # -- What is in the archive --------------------------------------------------------------

    def _may_load(self, cell: int, verb: str) -> bool:
        return self._loader is not None and (cell, verb) not in self._loads

    def _load(self, cell: int, verb: str, missing: Sequence[Missing]) -> None:
        """Has them loaded while the clock goes on: a slow archive holds nothing else up."""
        if missing:
            task = asyncio.get_running_loop().create_task(self._bring(cell, verb, missing))
            self._loads[cell, verb] = task
            task.add_done_callback(lambda _: self._loads.pop((cell, verb)))

    async def _bring(self, cell: int, verb: str, missing: Sequence[Missing]) -> None:
        assert self._loader is not None, "who may load has a loader"
        try:
            mode: LoadMode = "deadline" if verb == "expire" else ""
            loaded = await self._loader.bring("", missing, mode=mode)
        except (ArchiveError, StoreError, BusyError) as error:
            _log.warning("what is due could not be loaded", cell=cell, problem=str(error))
            return
        except Exception as error:
            _log.error("what is due could not be loaded", error=error, cell=cell)
            return
        if verb == "sweep":
            now = self._clock.uptime_s()
            gone = (key for key, each in loaded.items() if each.outcome in GONE)
            self._lost.setdefault(cell, {}).update(dict.fromkeys(gone, now))
        self._waiters[cell].set()

    def _lost_of(self, cell: int) -> list[str]:
        """Not for ever: what was lost may be found, or its parent swept."""
        now, known = self._clock.uptime_s(), self._lost.get(cell, {})
        fresh = {key: at for key, at in known.items() if now - at < _LOST_SECONDS}
        self._lost[cell] = dict(list(fresh.items())[-_LOST_MAX:])
        return list(self._lost[cell])
