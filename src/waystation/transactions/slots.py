"""Slots: tasks that take runs from a line and work on them, and a watchdog over their steps.

There is no task per transaction: a step that does not wait costs no turn of the event loop. A
suspect, which may be what kills processes, is worked on while no other suspect is.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Literal

from waystation.runtime.clock import Clock
from waystation.transactions.run import Run

#: How often the watchdog looks.
WATCH_SECONDS = 0.25

#: Runs after which a slot lets the event loop send what has come of them.
_RUNS_PER_TURN = 32

#: What steps that were given up get to end, before they are left behind.
_END_SECONDS_MAX = 1.0

#: Why a step was given up.
GivenUp = Literal["", "timeout", "lost", "stopping"]


class Slot:
    """One task, and the step that it is calling."""

    def __init__(self, clock: Clock, *, hung_seconds: float = math.inf) -> None:
        self.run: Run | None = None
        self.task: asyncio.Task[None] | None = None
        self.ready: asyncio.Future[None] | None = None
        self._clock = clock
        self._hung_seconds = hung_seconds
        self._over_at = math.inf
        self._given_up: GivenUp = ""

    def begin(self, run: Run, timeout_seconds: float) -> None:
        """A step of a run is about to be called, and may take so long."""
        # By real time: a jump of the time machine is no time that a step has taken.
        self._over_at = self._clock.uptime_s() + timeout_seconds
        run.hung_at = self._over_at + self._hung_seconds
        self._given_up = ""
        self.run = run

    def end(self) -> GivenUp:
        """The step has ended, or was given up; then: why."""
        if self.run is not None:
            self.run.hung_at = math.inf
        self.run, self._over_at = None, math.inf
        given_up, self._given_up = self._given_up, ""
        task = self.task
        while given_up and task is not None and task.cancelling():
            task.uncancel()
        return given_up

    def watch(self, now: float) -> None:
        """Gives up a step that is over its time; again if it would not hear."""
        if self._given_up or now > self._over_at:
            self.give_up(self._given_up or "timeout")

    def give_up(self, why: GivenUp) -> None:
        """Ends the step that is being called."""
        if self.run is not None and self.task is not None:
            self._given_up = self._given_up or why
            self.task.cancel()


class Slots:
    """The line of runs, and those who work on it."""

    def __init__(
        self,
        work: Callable[[Run, Slot], Awaitable[None]],
        *,
        clock: Clock,
        count: int,
        hung_seconds: float,
    ) -> None:
        self._work = work
        self._clock = clock
        self._count = count
        self._hung_seconds = hung_seconds
        # The mutable state: who waits for whom.
        self._line: deque[Run] = deque()
        self._suspects: deque[Run] = deque()
        self._suspect: Run | None = None
        self._slots: set[Slot] = set()
        self._idle: list[Slot] = []
        self._waking = False
        self._paused = False
        self._watchdog: asyncio.Task[None] | None = None
        self._watchers: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<Slots [{self.busy} of {len(self._slots)} busy, {self.waiting} runs wait]>"

    @property
    def busy(self) -> int:
        """Slots that are calling a step."""
        return sum(slot.run is not None for slot in self._slots)

    @property
    def waiting(self) -> int:
        """Runs in the line."""
        return len(self._line) + len(self._suspects)

    def start(self) -> None:
        """Begins to work."""
        self.resize(self._count)
        self._watchdog = asyncio.get_running_loop().create_task(self._watch())

    def on_watch(self, watcher: Callable[[], None]) -> None:
        """Calls `watcher` as often as the watchdog looks."""
        self._watchers.append(watcher)

    def resize(self, count: int) -> None:
        """As many steps at once; slots that are too many end when they have nothing to do."""
        self._count = count
        for _ in range(count - len(self._slots)):
            slot = Slot(self._clock, hung_seconds=self._hung_seconds)
            slot.task = asyncio.get_running_loop().create_task(self._serve(slot))
            self._slots.add(slot)
        while len(self._slots) > count and self._idle:
            slot = self._idle.pop()
            self._slots.discard(slot)
            _wake(slot)

    def add(self, run: Run) -> None:
        """Has a run worked on, as soon as a slot is free."""
        if run is self._suspect:
            self._suspect = None
        (self._suspects if run.suspect else self._line).append(run)
        self._wake_one()

    def settled(self, run: Run) -> None:
        """A run is not ours any more; if it was the suspect, the next one can be worked on."""
        if run is self._suspect:
            self._suspect = None
            self._wake_one()

    def give_up(self, run: Run, why: GivenUp) -> None:
        """Gives up the step of a run, if one is being called."""
        for slot in self._slots:
            if slot.run is run:
                slot.give_up(why)

    def pause(self) -> None:
        """Begins nothing more."""
        self._paused = True

    def take_back(self) -> list[Run]:
        """Empties the line; what was not begun is returned, in its order."""
        waiting = [*self._line, *self._suspects]
        self._line.clear()
        self._suspects.clear()
        return waiting

    async def stop(self, *, grace_seconds: float) -> None:
        """Lets steps end that have begun, then gives them up."""
        until = self._clock.uptime_s() + grace_seconds
        while self.busy and self._clock.uptime_s() < until:
            await asyncio.sleep(0.01)
        for slot in list(self._slots):
            slot.give_up("stopping")
        until = self._clock.uptime_s() + _END_SECONDS_MAX
        while self.busy and self._clock.uptime_s() < until:
            await asyncio.sleep(0.01)

    async def close(self) -> None:
        """Ends all slots."""
        slots, self._slots = self._slots, set()
        tasks = [slot.task for slot in slots if slot.task is not None]
        tasks += [self._watchdog] if self._watchdog is not None else []
        for task in tasks:
            task.cancel()
        if tasks:
            # Not for ever: a step may take being cancelled for one more failure, and go on.
            await asyncio.wait(tasks, timeout=_END_SECONDS_MAX)

    # -- Working -----------------------------------------------------------------------------

    def _wake_one(self) -> None:
        # One at a time: it wakes the next before it begins, so that a line of runs that do not
        # wait is worked on by one slot, in one turn of the event loop.
        if self._idle and not self._waking and self._next_is_there():
            self._waking = True
            _wake(self._idle.pop())

    def _next_is_there(self) -> bool:
        if self._paused:
            return False
        return bool(self._line or (self._suspects and self._suspect is None))

    def _next(self) -> Run:
        if self._suspects and self._suspect is None:
            self._suspect = self._suspects.popleft()
            return self._suspect
        return self._line.popleft()

    async def _serve(self, slot: Slot) -> None:
        loop = asyncio.get_running_loop()
        while slot in self._slots:
            taken = 0
            while self._next_is_there():
                run = self._next()
                self._wake_one()
                await self._work(run, slot)
                taken += 1
                if taken % _RUNS_PER_TURN == 0:
                    await asyncio.sleep(0)
            if len(self._slots) > self._count:
                self._slots.discard(slot)
            if slot not in self._slots:
                return
            slot.ready = loop.create_future()
            self._idle.append(slot)
            await slot.ready
            self._waking = False

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            now = self._clock.uptime_s()
            for slot in self._slots:
                slot.watch(now)
            for watcher in self._watchers:
                watcher()


def _wake(slot: Slot) -> None:
    if slot.ready is not None and not slot.ready.done():
        slot.ready.set_result(None)
