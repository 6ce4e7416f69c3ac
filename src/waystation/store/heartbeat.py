"""The heartbeat: a thread that renews leases, whatever the event loop is busy with.

It has a blocking connection of its own. All leases are renewed in one pipeline, three times within
a lease's length; when the store is away, it tries again and again until it is back, and a lease
that another has taken meanwhile is marked as lost.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from waystation.runtime.clock import Clock
from waystation.runtime.logging import logger
from waystation.store.address import Address
from waystation.store.line import Line
from waystation.store.scripts import script

_log = logger("heartbeat")

_RENEW = script("waystation.store", "lease_renew")
_BEATS_PER_LEASE = 3
_RETRY_SECONDS = 0.2


@dataclass
class _Kept:
    epoch: int
    lease_ms: int
    #: When the call was made that got or renewed it last; by then it began at the earliest.
    asked_at: float
    lost: bool = False


class Heartbeat:
    """Renews leases from `keep` until `forget`. Safe to call from any thread."""

    def __init__(
        self, address: Address, *, test_mode: bool = False, clock: Clock | None = None
    ) -> None:
        self._line = Line(address, test_mode=test_mode)
        self._clock = clock or Clock()
        self._kept: dict[str, _Kept] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None

    def now(self) -> float:
        """Seconds that only grow, however the time of tests is moved."""
        return self._clock.uptime_s()

    def keep(self, key: str, epoch: int, lease_ms: int, *, asked_at: float | None = None) -> None:
        """Renews the lease from now on; `asked_at` is when it was asked for."""
        with self._lock:
            began = self.now() if asked_at is None else asked_at
            self._kept[key] = _Kept(epoch, lease_ms, began)
            if self._thread is None:
                self._thread = threading.Thread(target=self._beat, daemon=True, name="heartbeat")
                self._thread.start()
        self._wake.set()

    def forget(self, key: str) -> None:
        """Stops renewing it."""
        with self._lock:
            self._kept.pop(key, None)

    def has_lost(self, key: str, epoch: int) -> bool:
        """Whether this holder of the lease was told that it is another's now."""
        with self._lock:
            kept = self._kept.get(key)
            return kept is None or kept.epoch != epoch or kept.lost

    def sure_seconds(self, key: str, epoch: int) -> float:
        """For how long nobody else can have the lease yet: until its last renewal is older than it.

        0 where another may have it already.
        """
        with self._lock:
            kept = self._kept.get(key)
            if kept is None or kept.epoch != epoch or kept.lost:
                return 0.0
            return max(0.0, kept.asked_at + kept.lease_ms / 1000 - self.now())

    def beat(self) -> None:
        """Renews all of them at once: time has jumped."""
        self._wake.set()

    def close(self) -> None:
        """Ends the thread; leases run out by themselves."""
        self._closed = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    # -- In the thread -----------------------------------------------------------------------

    def _beat(self) -> None:
        while not self._closed:
            with self._lock:
                due = {key: kept for key, kept in self._kept.items() if not kept.lost}
            pause = min((kept.lease_ms for kept in due.values()), default=60_000)
            seconds = pause / 1000 / _BEATS_PER_LEASE
            if due:
                try:
                    self._renew(due)
                except OSError as error:
                    _log.warning("leases could not be renewed", problem=str(error), count=len(due))
                    seconds = _RETRY_SECONDS
            self._wake.wait(seconds)
            self._wake.clear()
        self._line.close()

    def _renew(self, due: dict[str, _Kept]) -> None:
        calls = [([key], [kept.epoch, kept.lease_ms]) for key, kept in due.items()]
        asked_at = self.now()
        replies = self._line.run_all(_RENEW, calls)
        for (key, kept), reply in zip(due.items(), replies, strict=True):
            if reply == 1:
                kept.asked_at = asked_at
            # One that was given back meanwhile is nobody's loss.
            if reply == 0 and self._kept.get(key) is kept:
                kept.lost = True
                _log.warning("a lease was taken over", lease=key, epoch=kept.epoch)
