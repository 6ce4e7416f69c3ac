"""Brings messages from a mirrored pool to the lists that agents pop.

The pool has all messages of a key in their order, and the list knows the last number that it got:
so any number of processes may push, at any time, and each message is there once and in order.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from waystation.acapy.envelopes import inbound_of
from waystation.acapy.mirror import Mirror
from waystation.errors import WaystationError
from waystation.messages.envelope import unpack
from waystation.pools import Pool, Pools
from waystation.pools.mirrored import Mirrored
from waystation.pools.names import Place
from waystation.runtime.logging import logger
from waystation.runtime.tasks import for_each

_log = logger("mirror")

#: Keys of which the last pushed number is remembered, to begin there.
_KNOWN_MAX = 10_000


class Pusher:
    """Pushes what waits, for one pool."""

    def __init__(self, pools: Pools, place: Place, mirrored: Mirrored, mirror: Mirror) -> None:
        self._pools = pools
        self._place = place
        self._mirrored = mirrored
        self._mirror = mirror
        self._known: OrderedDict[str, int] = OrderedDict()
        self._soon: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Pusher {self._place.pool} [{len(self._soon)} soon]>"

    def push_soon(self, key: str) -> None:
        """Pushes what waits for a key; if that fails, the reconciler does it."""
        self._soon.add(key)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._work())

    async def push(self, key: str, *, after: int | None = None) -> int:
        """Pushes all that a key's list lacks; how many messages that were."""
        if not self._mirror.can_have(key):
            return 0
        pool = await self._pools.use(self._place.project, self._place.pool)
        terms, count = self._pools.terms(pool), 0
        last = self._known.get(key, 0) if after is None else after
        while items := await self._mirrored.unpushed(self._place, terms, key, after=last):
            ours = [(number, self._written(pool, number, packed)) for number, packed in items]
            count += len(ours)
            last = max(items[-1][0], await self._mirror.push(key, ours))
        self._known[key] = last
        self._known.move_to_end(key)
        if len(self._known) > _KNOWN_MAX:
            self._known.popitem(last=False)
        return count

    def _written(self, pool: Pool, number: int, packed: bytes) -> bytes:
        envelope = unpack(packed, project=self._place.project)
        return inbound_of(envelope, number, can_answer=pool.can_answer)

    async def _work(self) -> None:
        try:
            while self._soon:
                keys, self._soon = self._soon, set()
                await for_each(keys, self._try)
        finally:
            self._task = None

    async def _try(self, key: str) -> None:
        try:
            await self.push(key)
        except WaystationError as error:
            _log.warning("messages for an agent are left to others", problem=str(error))
        except Exception as error:
            _log.error("messages for an agent could not be pushed", error=error)

    async def close(self) -> None:
        """Finishes what it has begun."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=5.0)
        if self._task is not None:
            self._task.cancel()
