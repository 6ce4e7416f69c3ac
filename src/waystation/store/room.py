"""Room in the store: how much memory its servers use of what they may, asked once a second.

A store above `maxmemory` refuses what would grow it, but scripts that settle or make room run all
the same (`allow-oom`). Whoever feeds such scripts asks here and stops before they fill the store
without bound. Readiness and metrics warn from `WARN_SHARE` on.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from waystation.errors import BusyError, StoreError
from waystation.runtime.logging import logger
from waystation.store.checks import parse_info
from waystation.store.client import Store
from waystation.telemetry import metrics

_log = logger("store")

WARN_SHARE = 0.7
_ASK_SECONDS = 1.0


@dataclass(frozen=True)
class Usage:
    """Memory of one server. A limit of 0 is none."""

    used_bytes: int = 0
    limit_bytes: int = 0

    @property
    def share(self) -> float:
        """The used part of the limit; 0 without one."""
        return self.used_bytes / self.limit_bytes if self.limit_bytes else 0.0


class StoreRoom:
    """Knows the memory of the fullest server, as of the last second."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._task: asyncio.Task[None] | None = None
        self.usage = Usage()

    @property
    def is_full(self) -> bool:
        """Whether a server is at its limit, so that the store refuses what would grow it."""
        return self.usage.share >= 1

    @property
    def is_short(self) -> bool:
        """Whether a server is at its warning level; maintenance then deletes settled messages."""
        return self.usage.share >= WARN_SHARE

    @property
    def notes(self) -> list[str]:
        """Return what an operator should know, in sentences."""
        share = self.usage.share
        if not self.is_short:
            return []
        used = f"The store uses {_text(self.usage.used_bytes)} of {_text(self.usage.limit_bytes)}"
        if share < 1:
            return [f"{used} ({share:.0%}). Above its limit it refuses new messages."]
        told = "it is full. New messages are refused, and topics are read only while that needs"
        return [f"{used} ({share:.0%}): {told} no room."]

    async def start(self) -> None:
        """Ask now, and then once a second until `close`."""
        await self.look()
        self._task = asyncio.get_running_loop().create_task(self._keep_looking())

    async def close(self) -> None:
        """Stop asking."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def look(self) -> None:
        """Ask all servers for their memory."""
        infos = await self._store.call_each("INFO", "memory")
        usages = [_usage(parse_info(info)) for info in infos.values()]
        before, self.usage = self.usage, max(usages, key=lambda each: each.share)
        metrics.store_memory_used.set(self.usage.used_bytes)
        metrics.store_memory_limit.set(self.usage.limit_bytes)
        for share in (WARN_SHARE, 1.0):
            if before.share < share <= self.usage.share:
                used, limit = self.usage.used_bytes, self.usage.limit_bytes
                _log.warning("store memory reached a threshold", used=used, limit=limit)

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(_ASK_SECONDS)
            try:
                await self.look()
            except (StoreError, BusyError):
                continue  # The last answer holds until the store answers again.


def _usage(info: dict[str, str]) -> Usage:
    # The server does not count the buffers of its replicas and of its append-only file either.
    uncounted = int(info.get("mem_not_counted_for_evict", "0"))
    used = int(info.get("used_memory", "0")) - uncounted
    return Usage(used, int(info.get("maxmemory", "0")))


def _text(size: int) -> str:
    return f"{size / 1_048_576:,.0f} MiB"
