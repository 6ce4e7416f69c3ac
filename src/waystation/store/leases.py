"""Leases with epochs: what must be done by one process at a time.

    lease = await leases.acquire("{outbox.0}:lease")
    if lease is not None:
        ... every commit script gets lease.epoch and checks it with the include "epoch" ...
        await lease.release()

A lease has a deadline by the store's clock. Whoever takes it over after that gets a higher epoch,
and from then on every commit of the former holder is refused by its script, however late it comes.
Heartbeats come from a thread (`heartbeat.py`), so a busy event loop does not lose a lease.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from waystation.store.client import Store
from waystation.store.heartbeat import Heartbeat
from waystation.store.scripts import script

_ACQUIRE = script("waystation.store", "lease_acquire")
_RELEASE = script("waystation.store", "lease_release")

#: Long enough for a garbage collection or a slow disk, short enough for a take-over.
LEASE_MS = 10_000


@dataclass
class Lease:
    """A lease that was ours when we got it; `lost` says whether a heartbeat found otherwise."""

    key: str
    epoch: int
    leases: Leases = field(repr=False)

    @property
    def lost(self) -> bool:
        """Whether a heartbeat was told that another has taken over."""
        return self.leases.heartbeat.has_lost(self.key, self.epoch)

    @property
    def sure(self) -> bool:
        """Whether nobody else can hold it: false from its deadline on, until it is renewed.

        By this process's own clock, from when the renewal was asked for: a process that stood
        still knows without asking that it may not be the holder any more.
        """
        return self.sure_seconds > 0

    @property
    def sure_seconds(self) -> float:
        """For how long that is sure without asking again; 0 where it is not."""
        return self.leases.heartbeat.sure_seconds(self.key, self.epoch)

    async def release(self) -> None:
        """Gives it back at once, so that nobody has to wait for its deadline."""
        await self.leases.release(self)


class Leases:
    """All leases of one process, under one owner name that no other process has."""

    def __init__(
        self, store: Store, heartbeat: Heartbeat, *, owner: str, lease_ms: int = LEASE_MS
    ) -> None:
        self._store = store
        self.heartbeat = heartbeat
        self.owner = owner
        self._lease_ms = lease_ms

    async def acquire(self, key: str) -> Lease | None:
        """Takes the lease, or None while another holds it. Never waits."""
        asked_at = self.heartbeat.now()
        reply = await self._store.run(_ACQUIRE, [key], [self.owner, self._lease_ms])
        if reply[0] == 0:
            return None
        lease = Lease(key, int(reply[0]), self)
        self.heartbeat.keep(key, lease.epoch, self._lease_ms, asked_at=asked_at)
        return lease

    async def release(self, lease: Lease) -> None:
        """Gives a lease back; one that was lost stays with its new holder."""
        self.heartbeat.forget(lease.key)
        await self._store.run(_RELEASE, [lease.key], [lease.epoch])
