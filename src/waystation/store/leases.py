"""Leases with epochs: exclusive rights of one process, renewed by a thread.

    lease = await leases.acquire("{outbox.0}:lease")
    if lease is not None:
        ...  # Every commit script gets `lease.epoch` and refuses an older one.
        await lease.release()

A lease has a deadline by the clock of the store. A process that acquires it after the deadline gets
a higher epoch, and from then on scripts refuse every commit of the former owner, however late the
commit arrives.

`LeaseRenewer` renews leases three times per lease length. It is a thread with its own event loop
and its own connection, so that a step that blocks the event loop of the node loses no lease.
Other parts renew their own kinds of leases with the same thread: see `RenewalSource`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from waystation.runtime.backoff import Backoff, log_failure
from waystation.runtime.clock import Clock
from waystation.runtime.logging import logger
from waystation.store.address import Address
from waystation.store.client import Store
from waystation.store.connection import Reply
from waystation.store.scripts import Script, script

_log = logger("leases")

_ACQUIRE = script("waystation.store", "lease_acquire")
_RELEASE = script("waystation.store", "lease_release")
_RENEW = script("waystation.store", "lease_renew")

#: Long enough for a garbage collection or a slow disk, short enough for another node to take over.
LEASE_MS = 10_000
_RENEWALS_PER_LEASE = 3
#: Pause after a renewal that failed.
_RETRY_S = 0.2
#: Time limit of one renewal call. Leases are short, so waiting longer would not save them.
_CALL_S_MAX = 2.0
#: Longest time for which `close` waits for the thread.
_CLOSE_S_MAX = 0.5

#: One script call: script, keys, arguments.
RenewalCall = tuple[Script, Sequence[str], Sequence[str | bytes | int]]


class RenewalSource(Protocol):
    """Leases that the renewal thread renews. The thread calls both methods, in turn."""

    @property
    def lease_ms(self) -> int:
        """Length of the leases. The thread renews them three times in this time."""

    def calls(self) -> list[RenewalCall]:
        """Return the script calls that renew the leases; empty without leases."""

    def renewed(self, replies: Sequence[Reply | Exception], asked_at: float) -> None:
        """Process the replies to the last `calls`. A failed call has its exception as reply.

        `asked_at` is `LeaseRenewer.now` before the calls were submitted.
        """


class LeaseRenewer:
    """A thread that renews the leases of all its sources from `add` until `remove`.

    All methods may be called from any thread. The thread starts with the first source. The state
    is the list of sources and the event loop of the thread, guarded by a lock.
    """

    def __init__(
        self, address: Address, *, test_mode: bool = False, clock: Clock | None = None
    ) -> None:
        self._address = address
        self._test_mode = test_mode
        self._clock = clock or Clock()
        self._lock = threading.Lock()
        self._sources: list[RenewalSource] = []
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        # The three below belong to the thread.
        self._changed = asyncio.Event()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._wakeups: dict[int, asyncio.Event] = {}

    def now(self) -> float:
        """Return seconds that never decrease and that the test time never moves."""
        return self._clock.uptime_s()

    def add(self, source: RenewalSource) -> None:
        """Renew the leases of `source`, now and until it is removed."""
        with self._lock:
            if self._closed:
                return
            self._sources.append(source)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True, name="lease-renewer")
                self._thread.start()
        self._call_in_thread(self._on_change)

    def remove(self, source: RenewalSource) -> None:
        """Stop renewing the leases of `source`; they expire unless they are released."""
        with self._lock, contextlib.suppress(ValueError):
            self._sources.remove(source)
        self._call_in_thread(self._on_change)

    def renew_soon(self) -> None:
        """Renew all leases now, for example because the test time has jumped."""
        self._call_in_thread(self._wake_all)

    def close(self) -> None:
        """End the thread without waiting for the store. Leases that are not released expire.

        A thread that resolves the name of the store's host cannot be interrupted. It renews nothing
        after this call, and it ends with the process, because it is a daemon.
        """
        with self._lock:
            self._closed = True
        self._call_in_thread(self._on_change)
        if self._thread is not None:
            self._thread.join(_CLOSE_S_MAX)
            if self._thread.is_alive():
                _log.warning("lease renewer still busy", seconds=_CLOSE_S_MAX)

    def _call_in_thread(self, callback: Callable[[], None]) -> None:
        with self._lock:
            # Without a loop the thread has not started yet, or has ended. It reads the state at
            # its start.
            if self._loop is not None:
                self._loop.call_soon_threadsafe(callback)

    # -- In the thread -----------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        # The node has loaded the scripts, and the client sends the source of one that is missing.
        store = Store(
            self._address,
            call_seconds_max=_CALL_S_MAX,
            test_mode=self._test_mode,
            preload_scripts=False,
        )
        with self._lock:
            self._loop = asyncio.get_running_loop()
        try:
            while True:
                self._changed.clear()
                with self._lock:
                    if self._closed:
                        return
                    sources = {id(source): source for source in self._sources}
                self._follow_sources(store, sources)
                await self._changed.wait()
        finally:
            with self._lock:
                self._loop = None
            self._follow_sources(store, {})
            await store.close()

    def _follow_sources(self, store: Store, sources: dict[int, RenewalSource]) -> None:
        for number in self._tasks.keys() - sources.keys():
            self._tasks.pop(number).cancel()
            del self._wakeups[number]
        for number in sources.keys() - self._tasks.keys():
            wakeup = self._wakeups[number] = asyncio.Event()
            work = self._renew_repeatedly(store, sources[number], wakeup)
            self._tasks[number] = asyncio.create_task(work)

    def _on_change(self) -> None:
        self._changed.set()

    def _wake_all(self) -> None:
        for wakeup in self._wakeups.values():
            wakeup.set()

    async def _renew_repeatedly(
        self, store: Store, source: RenewalSource, wakeup: asyncio.Event
    ) -> None:
        backoff = Backoff()
        while True:
            wakeup.clear()
            pause_s = source.lease_ms / 1000 / _RENEWALS_PER_LEASE
            try:
                await self._renew(store, source)
            except Exception as error:
                # Handle also errors of the source itself, because the node would lose all leases
                # without this loop.
                if backoff.is_new(error):
                    log_failure(_log, "lease renewal", error)
                backoff.failures += 1
                pause_s = min(pause_s, _RETRY_S)
            else:
                if backoff.failures:
                    _log.info("task resumed", task="lease renewal")
                    backoff.reset()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await wakeup.wait()

    async def _renew(self, store: Store, source: RenewalSource) -> None:
        """Renew the leases of one source. Raise the first error after all calls have ended."""
        calls = source.calls()
        if not calls:
            return
        asked_at = self.now()
        replies = await asyncio.gather(
            *(store.run(*call) for call in calls), return_exceptions=True
        )
        for reply in replies:
            if isinstance(reply, BaseException) and not isinstance(reply, Exception):
                raise reply
        source.renewed(replies, asked_at)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply


class Lease:
    """A lease that this process acquired. It may be lost meanwhile: see `lost` and `sure`."""

    def __init__(self, leases: Leases, key: str, epoch: int, asked_at: float) -> None:
        self.key = key
        self.epoch = epoch
        #: Whether a renewal was refused because another process acquired the lease, or whether
        #: this process released it.
        self.lost = False
        #: When the call was made that acquired or renewed the lease last, in seconds of
        #: `LeaseRenewer.now`. The store granted the lease at that time or later.
        self.asked_at = asked_at
        self._leases = leases

    def __repr__(self) -> str:
        return f"<Lease {self.key} [epoch {self.epoch}{', lost' if self.lost else ''}]>"

    @property
    def sure(self) -> bool:
        """Whether no other process can own the lease, by this process's own clock.

        A process that was suspended for longer than its lease sees False before it asks the store.
        """
        return self.sure_seconds > 0

    @property
    def sure_seconds(self) -> float:
        """Seconds for which `sure` stays True without a renewal; 0 if it is False."""
        if self.lost:
            return 0.0
        return max(0.0, self.asked_at + self._leases.lease_ms / 1000 - self._leases.now())

    async def release(self) -> None:
        """Release the lease, so that another process can acquire it before its deadline."""
        await self._leases.release(self)


class Leases:
    """All leases of one process under one owner name, which no other process has."""

    def __init__(
        self, store: Store, renewer: LeaseRenewer, *, owner: str, lease_ms: int = LEASE_MS
    ) -> None:
        self._store = store
        self.renewer = renewer
        self.owner = owner
        self.lease_ms = lease_ms
        self._lock = threading.Lock()
        self._leased: dict[str, Lease] = {}
        #: Leases of the renewal in progress, in the order of its calls.
        self._asked: list[Lease] = []
        renewer.add(self)

    def now(self) -> float:
        """Return the time by which leases are sure."""
        return self.renewer.now()

    async def acquire(self, key: str) -> Lease | None:
        """Acquire the lease and renew it until its release. Return None if another owns it."""
        asked_at = self.now()
        reply = await self._store.run(_ACQUIRE, [key], [self.owner, self.lease_ms])
        epoch = int(reply[0])
        if epoch == 0:
            return None
        with self._lock:
            lease = self._leased.get(key)
            if lease is not None and lease.epoch == epoch:
                # The process owned the lease already, for example because a reply was lost.
                lease.asked_at = max(lease.asked_at, asked_at)
                return lease
            if lease is not None:
                lease.lost = True
            lease = self._leased[key] = Lease(self, key, epoch, asked_at)
            return lease

    async def release(self, lease: Lease) -> None:
        """Release a lease. Do nothing in the store if another process owns it now."""
        with self._lock:
            lease.lost = True
            if self._leased.get(lease.key) is lease:
                del self._leased[lease.key]
        await self._store.run(_RELEASE, [lease.key], [lease.epoch])

    def close(self) -> None:
        """Stop renewing. Leases that were not released expire."""
        self.renewer.remove(self)

    # -- In the renewal thread ---------------------------------------------------------------

    def calls(self) -> list[RenewalCall]:
        """Return one renewal call per lease."""
        with self._lock:
            self._asked = list(self._leased.values())
        return [(_RENEW, [each.key], [each.epoch, self.lease_ms]) for each in self._asked]

    def renewed(self, replies: Sequence[Reply | Exception], asked_at: float) -> None:
        """Extend the leases that were renewed, and mark those that another process owns."""
        with self._lock:
            for lease, reply in zip(self._asked, replies, strict=True):
                if reply == 1:
                    lease.asked_at = max(lease.asked_at, asked_at)
                # A lease that this process released meanwhile was not lost.
                elif reply == 0 and self._leased.get(lease.key) is lease:
                    lease.lost = True
                    del self._leased[lease.key]
                    _log.warning("lease lost", lease=lease.key, epoch=lease.epoch)
