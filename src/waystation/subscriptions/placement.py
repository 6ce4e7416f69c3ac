"""Placement: which delivery nodes are alive, and so which shards should be whose.

Each node says every two seconds that it is there, and hears who else is; one that was silent for
ten seconds is gone, one that stops takes itself off; all of it faster with a short lease. Nodes may
differ about it for a moment. That does no harm: a shard is delivered by whoever has its lease.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import msgspec

from waystation.errors import BusyError, StoreError
from waystation.store.client import Store
from waystation.store.scripts import script
from waystation.subscriptions.names import DELIVERY, Place
from waystation.subscriptions.spread import spread

_MEMBER_BEAT = script("waystation.store", "member_beat")
#: What the store gets to answer while we stop.
_LEAVE_SECONDS_MAX = 1.0


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """How fast a node hears of others, and how patient it is with them."""

    #: A node says so often that it is there, and looks for what has changed.
    beat_seconds: float = 2.0
    #: One that was silent for so long is gone.
    silent_seconds: float = 10.0
    lease_seconds: float = 10.0
    #: A shard that is free for so long, and whose node does not come, is anyone's; and how long
    #: whoever took it keeps it then, before it looks whether that node comes.
    stray_seconds: float = 5.0
    keep_seconds: float = 60.0

    @classmethod
    def of_lease(cls, seconds: float) -> Patience:
        """With a short lease all goes faster: it would not help to wait for the dead else."""
        return cls(
            beat_seconds=min(2.0, seconds / 5),
            silent_seconds=min(10.0, seconds),
            lease_seconds=seconds,
            stray_seconds=min(5.0, seconds / 2),
        )


class Placement:
    """One delivery node among all."""

    def __init__(self, store: Store, *, node: str, patience: Patience) -> None:
        self._store = store
        self._silent_ms = round(patience.silent_seconds * 1000)
        self.node = node
        #: Who is alive, as of the last beat; by the store's clock.
        self.nodes: tuple[str, ...] = ()
        self.now_ms = 0
        self._spread: tuple[tuple[object, ...], dict[Place, str]] = ((), {})

    async def attend(self) -> None:
        """Is there, and hears who else is."""
        reply = await self._store.run(_MEMBER_BEAT, [DELIVERY], (self.node, self._silent_ms))
        self.now_ms = int(reply[0])
        self.nodes = tuple(sorted(each.decode() for each in reply[1:]))

    async def leave(self) -> None:
        """Is gone from now on; the others hear of it. Not for long: silence tells the same."""
        with contextlib.suppress(BusyError, StoreError, TimeoutError):
            async with asyncio.timeout(_LEAVE_SECONDS_MAX):
                await self._store.call("ZREM", DELIVERY, self.node, repeatable=True)
                await self.tell()

    async def tell(self) -> None:
        """Makes all nodes look: a shard is free, or a definition has changed."""
        await self._store.call("PUBLISH", DELIVERY, "", repeatable=True)

    def owners(self, shards: Sequence[Place]) -> dict[Place, str]:
        """Whose each shard should be."""
        given = (self.nodes, *shards)
        if self._spread[0] != given:
            hands = spread(shards, self.nodes)
            self._spread = given, {each: node for node, hand in hands.items() for each in hand}
        return self._spread[1]
