"""A relay whose pool agents serve: brings messages to their lists, and keeps the mirror."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from waystation.acapy.direct_responses import DirectResponses
from waystation.acapy.mirror import Mirror
from waystation.acapy.mirror_keeper import MirrorKeeper
from waystation.acapy.pusher import Pusher
from waystation.acapy.reconciler import Reconciler
from waystation.config import RelayConfig
from waystation.pools import Pool, Pools
from waystation.pools.held import Enqueued
from waystation.pools.mirrored import Mirrored
from waystation.pools.names import NOBODY
from waystation.runtime.ids import RandomIds
from waystation.store.leases import Leases
from waystation.store.opening import OpenStore

#: Keys of which the epoch is remembered, so that a change of the map is noticed.
_KNOWN_MAX = 10_000


class Mirroring:
    """What becomes of a message when it is in the pool."""

    def __init__(self, pusher: Pusher, keeper: MirrorKeeper) -> None:
        self._pusher = pusher
        self._keeper = keeper
        self._epochs: OrderedDict[str, int] = OrderedDict()

    def enqueued(self, key: str, enqueued: Enqueued) -> None:
        """A message of a key is in the pool; never waits. Whatever fails, the keeper repairs."""
        if enqueued.owner == NOBODY:
            return
        if self._epochs.get(key) != enqueued.epoch:
            # The agent may not have the key in its list yet.
            self._keeper.tell_changed()
            self._epochs[key] = enqueued.epoch
            if len(self._epochs) > _KNOWN_MAX:
                self._epochs.popitem(last=False)
        self._pusher.push_soon(key)


@asynccontextmanager
async def open_mirroring(
    pools: Pools, pool: Pool, opened: OpenStore, *, wanted: RelayConfig
) -> AsyncIterator[Mirroring]:
    """Mirrors a pool for the length of the block."""
    store = opened.store
    mirrored, mirror = Mirrored(store), Mirror(store, inbound=wanted.inbound)
    async with AsyncExitStack() as undo:
        leases = Leases(store, opened.renewer, owner=RandomIds().token(16))
        pusher = Pusher(pools, pool.place, mirrored, mirror)
        undo.push_async_callback(pusher.close)
        reconciler = Reconciler(pools, pool, mirrored, mirror, pusher)
        keeper = MirrorKeeper(reconciler, store, opened.wakeups, leases)
        await keeper.start()
        undo.push_async_callback(keeper.stop)
        lists = wanted.direct_responses
        responses = DirectResponses(store, pools.answers, pool.place, lists=lists)
        await responses.start()
        undo.push_async_callback(responses.stop)
        yield Mirroring(pusher, keeper)
