"""Runs the reconciler of a mirrored pool, in one process of all that would.

It works under a lease: every second, and soon after somebody said that the map has changed. Whoever
has the lease forgets what it knew when it got it.
"""

from __future__ import annotations

import asyncio

from waystation.acapy.reconciler import Reconciler
from waystation.errors import WaystationError
from waystation.runtime.logging import logger
from waystation.runtime.service import Wakeup
from waystation.store.client import Store
from waystation.store.leases import Lease, Leases
from waystation.store.pubsub import RECHECK_S, PubSub

_log = logger("mirror")

LEASE = "{waystation.mirror}:lease"
#: Pub/sub: somebody has changed the map.
CHANGED = "{waystation.mirror}:changed"
_STEP_SECONDS = 1.0
#: Between two steps, however often the map changes.
_REST_SECONDS = 0.05


class MirrorKeeper:
    """Keeps pool and mirror in agreement until it is stopped."""

    def __init__(
        self, reconciler: Reconciler, store: Store, wakeups: PubSub, leases: Leases
    ) -> None:
        self._reconciler = reconciler
        self._store = store
        self._wakeups = wakeups
        self._leases = leases
        self._lease: Lease | None = None
        self._waiter = Wakeup(recheck_s=RECHECK_S)
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<MirrorKeeper [{'at work' if self._lease else 'waiting'}]>"

    def tell_changed(self) -> None:
        """The map has changed: whoever keeps the mirror is to look soon. A hint, no more."""
        if self._lease is not None:
            self._waiter.set()
            return
        hint = self._store.call("PUBLISH", CHANGED, "", repeatable=True)
        hint.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def start(self) -> None:
        """Begins."""
        self._task = asyncio.get_running_loop().create_task(self._work())

    async def stop(self) -> None:
        """Finishes the step that is under way, and lets another take over at once."""
        self._stopping = True
        self._waiter.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=5.0)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _work(self) -> None:
        end = self._wakeups.listen(CHANGED.encode(), self._hear)
        try:
            while not self._stopping:
                self._waiter.clear()
                pause = await self._turn()
                if not self._stopping:
                    await asyncio.sleep(_REST_SECONDS)
                    await self._waiter.wait(max(0.0, pause - _REST_SECONDS))
            await self._release()
        finally:
            end()

    def _hear(self, _: bytes | None) -> None:
        if self._lease is not None:
            self._waiter.set()

    async def _turn(self) -> float:
        """One step, if it is ours to do; how long to wait before the next."""
        try:
            if self._lease is None or self._lease.lost:
                self._lease = await self._leases.acquire(LEASE)
                self._reconciler.forget()
            if self._lease is None or not self._lease.sure:
                return _STEP_SECONDS
            done = await self._reconciler.step()
            if not done.current:
                self._reconciler.forget()
            again = done.again_seconds
            return _STEP_SECONDS if again is None else min(again, _STEP_SECONDS)
        except WaystationError as error:
            _log.warning("the mirror could not be kept", problem=str(error))
        except Exception as error:
            _log.error("keeping the mirror broke", error=error)
        self._reconciler.forget()
        return _STEP_SECONDS

    async def _release(self) -> None:
        if self._lease is not None:
            try:
                await self._lease.release()
            except WaystationError as error:
                _log.warning("the mirror's lease runs out by itself", problem=str(error))
