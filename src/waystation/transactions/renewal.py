"""Renewal: a thread that keeps the leases of all that this process holds.

It has a line of its own to the store, so that steps which block the event loop cost nobody a lease:
one call for each cell, three times within a lease. What is prefetched is held, too.

It does not keep a dead process alive. A step that has not ended long after its time is not renewed;
and if the event loop has not moved since then either, nothing is, and the process is told to end.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, cast

from waystation.runtime.clock import Clock
from waystation.runtime.logging import logger
from waystation.store.address import Address
from waystation.store.line import Line
from waystation.transactions import names
from waystation.transactions.holding import RENEW, RENEW_MAX
from waystation.transactions.run import Run

_log = logger("renewal")

_BEATS_PER_LEASE = 3
_RETRY_SECONDS = 0.2
_IDLE_SECONDS = 3600.0


class Renewal:
    """Keeps leases from `hold` until `drop`; both are called in the event loop."""

    def __init__(
        self,
        address: Address,
        *,
        clock: Clock,
        lease_ms: int,
        hung_seconds: float,
        on_lost: Callable[[Run], None],
        on_cancelled: Callable[[Run], None],
        on_hung: Callable[[str], None],
        test_mode: bool = False,
    ) -> None:
        self.lease_ms = lease_ms
        self._line = Line(address, test_mode=test_mode)
        self._clock = clock
        self._hung_seconds = hung_seconds
        self._on_lost = on_lost
        self._on_cancelled = on_cancelled
        self._on_hung = on_hung
        self._loop = asyncio.get_running_loop()
        self._held: dict[str, Run] = {}
        self._moved_at = clock.uptime_s()
        self._wake = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._beat, daemon=True, name="renewal")
        self._forget_jumps = clock.on_jump(self._wake.set)

    def __len__(self) -> int:
        return len(self._held)

    def start(self) -> None:
        """Begins to keep."""
        self._thread.start()

    def use_lease(self, lease_ms: int) -> None:
        """Leases of another length from now on, which may be over before the next beat was due."""
        if lease_ms != self.lease_ms:
            self.lease_ms = lease_ms
            self._wake.set()

    def hold(self, run: Run) -> None:
        """Keeps the lease of a run from now on."""
        if not self._held:
            self._wake.set()
        self._held[run.id] = run

    def drop(self, run: Run) -> bool:
        """Lets the lease of a run be; whether it was kept until now."""
        # The same transaction may have come to us again meanwhile.
        if self._held.get(run.id) is not run:
            return False
        del self._held[run.id]
        return True

    @property
    def held(self) -> list[Run]:
        """All that is kept, in the order in which it came."""
        return list(self._held.values())

    def moved(self) -> None:
        """The event loop is alive."""
        self._moved_at = self._clock.uptime_s()

    async def close(self) -> None:
        """Ends the thread; leases run out by themselves."""
        self._forget_jumps()
        self._closed = True
        self._wake.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)

    # -- In the thread -----------------------------------------------------------------------

    def _beat(self) -> None:
        while not self._closed:
            runs = self._alive()
            seconds = self.lease_ms / 1000 / _BEATS_PER_LEASE if self._held else _IDLE_SECONDS
            if runs:
                try:
                    self._renew(runs)
                except OSError as error:
                    _log.warning("leases could not be renewed", problem=str(error), count=len(runs))
                    seconds = min(_RETRY_SECONDS, seconds)
            self._wake.wait(seconds)
            self._wake.clear()
        self._line.close()

    def _alive(self) -> list[Run]:
        """What is to be renewed: all but what hangs, or nothing at all."""
        now = self._clock.uptime_s()
        # A copy in one go: the event loop goes on meanwhile.
        runs = list(self._held.values())
        hung = [run for run in runs if run.hung_at < now]
        if hung and now - self._moved_at > self._hung_seconds:
            _log.error("a step blocks the event loop", transaction=hung[0].id)
            self._on_hung("a step has blocked the event loop for longer than it may take")
            return []
        return [run for run in runs if run.hung_at >= now]

    def _renew(self, runs: list[Run]) -> None:
        cells: dict[int, list[Run]] = {}
        for run in runs:
            cells.setdefault(run.cell, []).append(run)
        chunks = [
            (cell, held[at : at + RENEW_MAX])
            for cell, held in cells.items()
            for at in range(0, len(held), RENEW_MAX)
        ]
        calls = [
            (
                [names.log(cell)],
                [self.lease_ms, *(word for run in held for word in (run.id, run.epoch))],
            )
            for cell, held in chunks
        ]
        replies = self._line.run_all(RENEW, calls)
        for (_, held), reply in zip(chunks, replies, strict=True):
            _, lost, stopping = cast(list[Any], reply)
            by_id = {run.id: run for run in held} if lost or stopping else {}
            for told, on_told in ((lost, self._on_lost), (stopping, self._on_cancelled)):
                for each in told:
                    self._tell(on_told, by_id[each.decode()])

    def _tell(self, on_told: Callable[[Run], None], run: Run) -> None:
        if self._closed or self._held.get(run.id) is not run:
            return  # It was moved on while we asked: nobody's loss.
        self._loop.call_soon_threadsafe(self._tell_if_held, on_told, run)

    def _tell_if_held(self, on_told: Callable[[Run], None], run: Run) -> None:
        if self._held.get(run.id) is run:
            on_told(run)
