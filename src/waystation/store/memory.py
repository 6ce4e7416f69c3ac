"""Memory use of the store, read once a second, with a check that the store still has its data.

A server above `maxmemory` refuses writes, except scripts with `allow-oom`, which settle work or
free memory. Callers of such scripts check `is_full` and stop in time, because these scripts could
otherwise fill the store without limit. Readiness and metrics warn from `WARN_SHARE` on.

New connections check the data set of the store. FLUSHALL keeps the connections, so that the read
also checks it; without it a node would write into an emptied store until a request of `/readyz`.
"""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client import Gauge

from waystation.runtime.clock import Clock
from waystation.runtime.metrics import registry
from waystation.runtime.service import Service
from waystation.store.client import Store, parse_info

store_memory_used = Gauge(
    "waystation_store_memory_used_bytes",
    "Memory that the fullest server of the store uses.",
    registry=registry,
)
store_memory_limit = Gauge(
    "waystation_store_memory_limit_bytes",
    "Memory limit of the fullest server of the store; 0: unlimited.",
    registry=registry,
)

WARN_SHARE = 0.7
_READ_SECONDS = 1.0


@dataclass(frozen=True)
class MemoryUsage:
    """Memory of one server in bytes. Limit 0: unlimited."""

    used_bytes: int = 0
    limit_bytes: int = 0

    @property
    def share(self) -> float:
        """Used share of the limit; 0 without a limit."""
        return self.used_bytes / self.limit_bytes if self.limit_bytes else 0.0


class StoreMemory(Service):
    """Memory use of the fullest server, as of the last second."""

    #: A read may be cancelled at any point, because it changes nothing.
    grace_s = 0.0

    def __init__(self, store: Store, *, clock: Clock) -> None:
        super().__init__("store", clock=clock)
        self._store = store
        self.usage = MemoryUsage()

    @property
    def is_full(self) -> bool:
        """Whether a server has reached its limit and refuses writes."""
        return self.usage.share >= 1

    @property
    def is_short(self) -> bool:
        """Whether a server is at its warning level. Maintenance then deletes settled messages."""
        return self.usage.share >= WARN_SHARE

    @property
    def notes(self) -> list[str]:
        """Warnings for the operator, as sentences; empty below `WARN_SHARE`."""
        share = self.usage.share
        if not self.is_short:
            return []
        used = f"The store uses {_text(self.usage.used_bytes)} of {_text(self.usage.limit_bytes)}"
        if share < 1:
            return [f"{used} ({share:.0%}). At its limit it refuses new messages."]
        full = f"{used} ({share:.0%}): it is full. It refuses messages; queued transactions wait,"
        return [f"{full} and subscriptions read topics only while that needs no memory."]

    async def on_start(self) -> None:
        """Read the memory use. Raise StoreError if it cannot be read."""
        await self.read()

    async def run(self) -> None:
        """Read once a second. While the store does not answer, keep the last value."""
        await self.pause(_READ_SECONDS)
        await self.repeat(self.read, every_s=_READ_SECONDS)

    async def read(self) -> None:
        """Read the memory use of all servers, and check that they have the data set.

        Raise StoreDataLostError if a server lost it.
        """
        infos = await self._store.call_each("INFO", "memory")
        usages = [_usage(parse_info(info)) for info in infos.values()]
        before, self.usage = self.usage, max(usages, key=lambda each: each.share)
        store_memory_used.set(self.usage.used_bytes)
        store_memory_limit.set(self.usage.limit_bytes)
        for share in (WARN_SHARE, 1.0):
            if before.share < share <= self.usage.share:
                used, limit = self.usage.used_bytes, self.usage.limit_bytes
                self._log.warning("store memory threshold reached", used=used, limit=limit)
        await self._store.check_data_set()


def _usage(info: dict[str, str]) -> MemoryUsage:
    # The server does not count the buffers of replicas and of the append-only file either.
    uncounted = int(info.get("mem_not_counted_for_evict", "0"))
    used = int(info.get("used_memory", "0")) - uncounted
    return MemoryUsage(used, int(info.get("maxmemory", "0")))


def _text(size: int) -> str:
    return f"{size / 1_048_576:,.0f} MiB"
