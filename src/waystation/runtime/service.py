"""Services: parts of a node that work in the background, with one way to start and to stop.

    class RateShare(Service):
        async def run(self) -> None:
            await self.repeat(self._count_nodes, every_s=2.0)

    async with RateShare("rate_share", clock=clock):
        ...

A service has one main task with a task group. `run` is the first child of the group; `spawn` adds
others. `stop` asks all of them to finish, waits `grace_s`, cancels the rest and calls `on_stop`,
which releases leases and registrations that other nodes wait for. The mutable state is the main
task, its group and the wake-ups of the loops.

Waits are in real time. A jump of the test clock ends every wait of `repeat`, because work may have
become due.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Self

from waystation.runtime.backoff import Backoff, log_failure
from waystation.runtime.clock import Clock
from waystation.runtime.logging import logger

#: Pauses of a loop whose step fails.
_RETRY_S_FIRST = 0.2
_RETRY_S_MAX = 10.0
#: Seconds that a stop waits after its grace time: for code that ignores its cancellation, and for
#: `on_stop`, because the store may not answer.
_CANCEL_S_MAX = 5.0
_ON_STOP_S_MAX = 1.0


class Wakeup:
    """A flag that one task waits for.

    Clear the flag, read the state, then wait. A wake-up that arrives in between ends the wait.
    """

    __slots__ = ("_future", "_recheck_s", "_set")

    def __init__(self, *, recheck_s: float = math.inf) -> None:
        self._set = False
        self._future: asyncio.Future[None] | None = None
        #: Limit of one wait. It is finite if wake-ups can be lost, as those of pub/sub.
        self._recheck_s = recheck_s

    def set(self) -> None:
        """End the current wait, or the next one."""
        self._set = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def clear(self) -> None:
        """Forget earlier calls of `set`."""
        self._set = False

    async def wait(self, timeout_s: float) -> None:
        """Return when the flag is set, or after `timeout_s`."""
        timeout_s = min(timeout_s, self._recheck_s)
        if self._set or timeout_s <= 0:
            return
        loop = asyncio.get_running_loop()
        self._future = loop.create_future()
        # uvloop has no timer for an infinite time.
        timer = loop.call_later(timeout_s, self.set) if timeout_s < math.inf else None
        try:
            await self._future
        finally:
            self._future = None
            if timer is not None:
                timer.cancel()


class Service:
    """Base of all parts that run in the background. A service is started once and stopped once."""

    #: Time for which `stop` waits for work in progress before it cancels the work. Set 0 if a step
    #: may be cancelled at any point. A node stops its services one after the other, and each takes
    #: all of its grace time while the store does not answer.
    grace_s = 1.0

    def __init__(self, name: str, *, clock: Clock) -> None:
        self.name = name
        self.clock = clock
        self._log = logger(name)
        self._stop_asked = asyncio.Event()
        self._main_task: asyncio.Task[None] | None = None
        self._task_group = asyncio.TaskGroup()
        self._loop_wakeups: set[Wakeup] = set()

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called. Work then finishes its step and starts no other."""
        return self._stop_asked.is_set()

    # -- Methods that a service overrides ----------------------------------------------------

    async def on_start(self) -> None:
        """Prepare the service. An error prevents the start and reaches the caller of `start`."""

    async def run(self) -> None:
        """Work until `stopping`. An exception that leaves `run` crashes the service."""
        await self._stop_asked.wait()

    async def on_stop(self) -> None:
        """Release leases and registrations. It may take one second; its errors are logged."""

    def on_crash(self, error: BaseException) -> None:
        """React to a crash, for example by starting a new service or ending the process."""

    # -- Life cycle --------------------------------------------------------------------------

    async def start(self) -> None:
        """Prepare the service, then start its background work."""
        assert self._main_task is None, f"service {self.name} started twice"
        await self.on_start()
        entered = asyncio.Event()
        self._main_task = asyncio.create_task(self._supervise(entered), name=self.name)
        await entered.wait()

    async def stop(self, *, grace_s: float | None = None) -> None:
        """Finish or cancel all work, then release leases and registrations. Never raise an error.

        `grace_s` replaces the grace time of the class, for example by 0 after a lost lease.
        Do nothing before a start and on a second call. The service's own work must not call it.
        """
        if self._main_task is None or self.stopping:
            return
        self._stop_asked.set()
        for wakeup in self._loop_wakeups:
            wakeup.set()
        grace_s = self.grace_s if grace_s is None else grace_s
        await asyncio.wait({self._main_task}, timeout=grace_s)
        if not self._main_task.done():
            self._main_task.cancel()
            await asyncio.wait({self._main_task}, timeout=_CANCEL_S_MAX)
            if not self._main_task.done():
                self._log.warning("service ignored cancellation", service=self.name)
        try:
            async with asyncio.timeout(_ON_STOP_S_MAX):
                await self.on_stop()
        except Exception as error:
            # Other nodes wait until the lease or the registration expires.
            self._log.warning("service failed in on_stop", service=self.name, reason=repr(error))

    async def ended(self) -> None:
        """Wait until the background work has finished, crashed or been stopped."""
        assert self._main_task is not None, f"service {self.name} not started"
        await asyncio.wait({self._main_task})

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    # -- Work --------------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, None], *, critical: bool = False) -> None:
        """Run `work` in parallel with `run`.

        A crash of the work is logged. If the work is critical, its crash ends the service. Work
        that is spawned after the service has ended is dropped.
        """
        assert self._main_task is not None, f"service {self.name} not started"
        contained = work if critical else self._contain(work)
        try:
            self._task_group.create_task(contained)
        except RuntimeError:
            # The group has ended. Close both coroutines, or else Python warns that they never ran.
            contained.close()
            work.close()

    async def repeat(
        self,
        step: Callable[[], Awaitable[float | None]],
        *,
        every_s: float,
        wakeup: Wakeup | None = None,
        rest_s: float = 0.0,
    ) -> None:
        """Call `step` now, then on each wake-up or after `every_s`, until the service stops.

        `step` may return the seconds until its next call instead. A failed step is logged and
        called again after a growing pause, so that no error ends the loop. `rest_s` is the
        shortest time from one call to the next; a wake-up that comes earlier waits for it.
        """
        wakeup = wakeup or Wakeup()
        self._loop_wakeups.add(wakeup)
        forget = self.clock.on_jump(wakeup.set)
        max_s = min(max(every_s, _RETRY_S_FIRST), _RETRY_S_MAX)
        backoff = Backoff(first_s=_RETRY_S_FIRST, max_s=max_s)
        try:
            while not self.stopping:
                wakeup.clear()
                try:
                    pause_s = await step()
                except (Exception, asyncio.CancelledError) as error:
                    if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                        raise
                    # Repeat the step too if another task cancelled a future that it awaited.
                    if backoff.is_new(error):
                        log_failure(self._log, _name_of(step), error)
                    await self.pause(backoff.next_pause_s())
                    continue
                if backoff.failures:
                    self._log.info("task resumed", task=_name_of(step))
                    backoff.reset()
                await self.pause(rest_s)
                # Yield to the event loop, because a step that never waits would block all tasks.
                await asyncio.sleep(0)
                if not self.stopping:
                    await wakeup.wait((every_s if pause_s is None else pause_s) - rest_s)
        finally:
            forget()
            self._loop_wakeups.discard(wakeup)

    async def pause(self, seconds: float) -> None:
        """Wait, and return immediately when the service stops."""
        if seconds > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._stop_asked.wait()

    # -- Supervision -------------------------------------------------------------------------

    async def _supervise(self, entered: asyncio.Event) -> None:
        try:
            async with self._task_group as group:
                group.create_task(self.run())
                entered.set()
        except BaseExceptionGroup as crashes:
            self._log.error("service crashed", service=self.name, error=crashes)
            self.on_crash(crashes.exceptions[0])

    async def _contain(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            log_failure(self._log, _name_of(work), error)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _name_of(work: object) -> str:
    return getattr(work, "__qualname__", type(work).__name__)
