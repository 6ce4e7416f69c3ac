"""Memory use of the store, read once a second.

A server above `maxmemory` refuses writes, except scripts with `allow-oom`, which settle work or
free memory. Callers of such scripts check `is_full` and stop in time, because these scripts could
otherwise fill the store without limit. Readiness and metrics warn from `WARN_SHARE` on.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from prometheus_client import Gauge

from waystation.errors import BusyError, StoreError
from waystation.runtime.logging import logger
from waystation.runtime.metrics import registry
from waystation.store.client import Store, parse_info

_log = logger("store")

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


class StoreMemory:
    """Memory use of the fullest server, as of the last second."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._task: asyncio.Task[None] | None = None
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
        full = f"{used} ({share:.0%}): it is full. It refuses new messages,"
        return [f"{full} and subscriptions read topics only while that needs no memory."]

    async def start(self) -> None:
        """Read the memory use now, and then once a second until `close`."""
        await self.read()
        self._task = asyncio.get_running_loop().create_task(self._read_periodically())

    async def close(self) -> None:
        """Stop reading."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def read(self) -> None:
        """Read the memory use of all servers."""
        infos = await self._store.call_each("INFO", "memory")
        usages = [_usage(parse_info(info)) for info in infos.values()]
        before, self.usage = self.usage, max(usages, key=lambda each: each.share)
        store_memory_used.set(self.usage.used_bytes)
        store_memory_limit.set(self.usage.limit_bytes)
        for share in (WARN_SHARE, 1.0):
            if before.share < share <= self.usage.share:
                used, limit = self.usage.used_bytes, self.usage.limit_bytes
                _log.warning("store memory threshold reached", used=used, limit=limit)

    async def _read_periodically(self) -> None:
        while True:
            await asyncio.sleep(_READ_SECONDS)
            try:
                await self.read()
            except (StoreError, BusyError):
                continue  # Keep the last value until the store answers again.


def _usage(info: dict[str, str]) -> MemoryUsage:
    # The server does not count the buffers of replicas and of the append-only file either.
    uncounted = int(info.get("mem_not_counted_for_evict", "0"))
    used = int(info.get("used_memory", "0")) - uncounted
    return MemoryUsage(used, int(info.get("maxmemory", "0")))


def _text(size: int) -> str:
    return f"{size / 1_048_576:,.0f} MiB"
