"""Renewal of the leases of all transactions that this process runs or has prefetched.

`Renewal` is a source of the lease thread of the store, with one script call per cell, so that steps
that block the event loop lose no lease.

A step that has not ended long after its time limit is not renewed. If the event loop has not moved
since then either, no lease is renewed, and the process ends: a blocked process must not keep
transactions from other workers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from waystation.runtime.clock import Clock
from waystation.runtime.logging import logger
from waystation.store.connection import Reply
from waystation.store.leases import LeaseRenewer, RenewalCall
from waystation.transactions import names
from waystation.transactions.holding import RENEW, RENEW_MAX
from waystation.transactions.run import Run

_log = logger("renewal")


class Renewal:
    """Keeps leases from `hold` until `drop`; both are called in the event loop."""

    def __init__(
        self,
        renewer: LeaseRenewer,
        *,
        clock: Clock,
        lease_ms: int,
        hung_seconds: float,
        on_lost: Callable[[Run], None],
        on_cancelled: Callable[[Run], None],
        on_hung: Callable[[str], None],
    ) -> None:
        self.lease_ms = lease_ms
        self._renewer = renewer
        self._clock = clock
        self._hung_seconds = hung_seconds
        self._on_lost = on_lost
        self._on_cancelled = on_cancelled
        self._on_hung = on_hung
        self._loop = asyncio.get_running_loop()
        self._held: dict[str, Run] = {}
        self._moved_at = clock.uptime_s()
        self._closed = False
        #: Runs of the renewal in progress, in the order of its calls.
        self._asked: list[list[Run]] = []
        self._forget_jumps = clock.on_jump(renewer.renew_soon)

    def __len__(self) -> int:
        return len(self._held)

    def start(self) -> None:
        """Start renewing."""
        self._renewer.add(self)

    def use_lease(self, lease_ms: int) -> None:
        """Change the length of the leases, and renew them now, because they may be shorter."""
        if lease_ms != self.lease_ms:
            self.lease_ms = lease_ms
            self._renewer.renew_soon()

    def hold(self, run: Run) -> None:
        """Renew the lease of a run from now on."""
        self._held[run.id] = run

    def drop(self, run: Run) -> bool:
        """Stop renewing the lease of a run. Return False if it was not renewed."""
        # This process may have claimed the same transaction again meanwhile.
        if self._held.get(run.id) is not run:
            return False
        del self._held[run.id]
        return True

    @property
    def held(self) -> list[Run]:
        """All runs whose leases are renewed, in the order of their claims."""
        return list(self._held.values())

    def moved(self) -> None:
        """Record that the event loop is not blocked."""
        self._moved_at = self._clock.uptime_s()

    def close(self) -> None:
        """Stop renewing. Leases that were not released expire."""
        self._forget_jumps()
        self._closed = True
        self._renewer.remove(self)

    # -- In the renewal thread ---------------------------------------------------------------

    def calls(self) -> list[RenewalCall]:
        """Return one renewal call per cell and `RENEW_MAX` runs."""
        cells: dict[int, list[Run]] = {}
        for run in self._alive():
            cells.setdefault(run.cell, []).append(run)
        self._asked = [
            held[at : at + RENEW_MAX]
            for held in cells.values()
            for at in range(0, len(held), RENEW_MAX)
        ]
        return [
            (
                RENEW,
                [names.log(held[0].cell)],
                [self.lease_ms, *(word for run in held for word in (run.id, run.epoch))],
            )
            for held in self._asked
        ]

    def renewed(self, replies: Sequence[Reply | Exception], asked_at: float) -> None:
        """Report lost and cancelled runs to the event loop."""
        for held, reply in zip(self._asked, replies, strict=True):
            if isinstance(reply, Exception):
                continue
            _, lost, stopping = reply
            by_id = {run.id: run for run in held} if lost or stopping else {}
            for told, on_told in ((lost, self._on_lost), (stopping, self._on_cancelled)):
                for each in told:
                    self._tell(on_told, by_id[each.decode()])

    def _alive(self) -> list[Run]:
        """Return the runs to renew: all but those that hang; none if the event loop is blocked."""
        now = self._clock.uptime_s()
        # One call copies all of them, because the event loop changes the dictionary meanwhile.
        runs = list(self._held.values())
        hung = [run for run in runs if run.hung_at < now]
        if hung and now - self._moved_at > self._hung_seconds:
            _log.error("a step blocks the event loop", transaction=hung[0].id)
            self._on_hung("a step has blocked the event loop for longer than it may take")
            return []
        return [run for run in runs if run.hung_at >= now]

    def _tell(self, on_told: Callable[[Run], None], run: Run) -> None:
        if self._closed or self._held.get(run.id) is not run:
            return  # The run ended during the call.
        self._loop.call_soon_threadsafe(self._tell_if_held, on_told, run)

    def _tell_if_held(self, on_told: Callable[[Run], None], run: Run) -> None:
        if self._held.get(run.id) is run:
            on_told(run)
