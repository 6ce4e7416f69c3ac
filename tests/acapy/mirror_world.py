"""A mirrored pool on a real store, its reconciler, and the plugin's keys in plain view."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from waystation.acapy.envelopes import envelope_of
from waystation.acapy.mirror import Mirror
from waystation.acapy.pusher import Pusher
from waystation.acapy.reconciler import Reconciled, Reconciler
from waystation.catalogue import SqliteCatalogue
from waystation.config import PoolConfig
from waystation.messages.envelope import pack
from waystation.pools import Pool, PoolOptions, Pools
from waystation.pools.held import Enqueued, Letter, PoolLook
from waystation.pools.mirrored import Mirrored
from waystation.runtime.clock import Clock
from waystation.store.address import Address
from waystation.store.client import Store
from waystation.store.pubsub import PubSub
from waystation.store.time_machine import TimeMachine

INBOUND = "acapy_inbound"


def written_list(*keys: str) -> bytes:
    """A list of keys as the plugin writes it."""
    return base64.urlsafe_b64encode(json.dumps(list(keys)).encode())


@dataclass
class MirrorWorld:
    """Pool, mirror and reconciler; agents and mediators are played by single calls."""

    store: Store
    machine: TimeMachine | None
    pools: Pools
    pool: Pool
    sent: int = 0

    def __post_init__(self) -> None:
        self.mirrored, self.mirror = Mirrored(self.store), Mirror(self.store, inbound=INBOUND)
        self.pusher = Pusher(self.pools, self.pool.place, self.mirrored, self.mirror)
        self.reconciler = self.another()

    def another(self) -> Reconciler:
        """A reconciler that knows nothing yet."""
        pusher = Pusher(self.pools, self.pool.place, self.mirrored, self.mirror)
        return Reconciler(self.pools, self.pool, self.mirrored, self.mirror, pusher)

    @property
    def terms(self) -> Any:
        return self.pools.terms(self.pool)

    async def step(self) -> Reconciled:
        """One step of the reconciler."""
        return await self.reconciler.step()

    async def send(self, key: str, text: str = "", *, answer_to: str = "") -> Enqueued:
        """Enqueues one message, as the relay does."""
        self.sent += 1
        message_id = f"m-{self.sent}"
        envelope = envelope_of(
            (text or message_id).encode(),
            message_id=message_id,
            project="default",
            key=key,
            transport="http",
            content_type="application/json",
            answer_to=answer_to,
        )
        letter = Letter(message_id, key, pack(envelope))
        (item,) = await self.pools.enqueue("default", self.pool.name, [letter])
        return item

    async def look(self) -> PoolLook:
        """The pool and its workers."""
        return await self.pools.assignments.look(self.pool.place, self.terms)

    async def owner(self, key: str) -> str:
        """Who has a key, in the pool."""
        found = await self.pools.assignments.look_at(self.pool.place, self.terms, key)
        return found.owner if found else ""

    async def later(self, seconds: float) -> None:
        """Time passes."""
        assert self.machine is not None
        await self.machine.advance(seconds)

    # -- What agents and mediators do ----------------------------------------------------------

    async def agent_starts(self, *uids: str) -> None:
        """Agents register, as the plugin does at its start."""
        for uid in uids:
            await self.store.call("HSET", "uid_recip_keys_map", uid, "W10=")

    async def agent_pops(self, uid: str, key: str, *, at: str) -> str | None:
        """An agent pops a key's list once, and writes the time."""
        found = await self.store.call("LPOP", f"{INBOUND}_{key}")
        if found is None:
            return None
        await self.store.call("HSET", "uid_last_access_map", uid, at)
        return base64.urlsafe_b64decode(json.loads(found)["payload"]).decode()

    async def mediator_pushes(self, key: str, text: str) -> None:
        """A mediator of the plugin pushes a message itself."""
        payload = base64.urlsafe_b64encode(text.encode()).decode()
        message = json.dumps({"payload": payload})
        await self.store.call("RPUSH", f"{INBOUND}_{key}", message)

    # -- What the plugin's keys hold -------------------------------------------------------------

    async def hash(self, name: str) -> dict[str, str]:
        """One of the plugin's maps."""
        words = [each.decode() for each in await self.store.call("HGETALL", name)]
        return dict(zip(words[::2], words[1::2], strict=True))

    async def lists(self) -> dict[str, list[str]]:
        """The keys of each agent, as it reads them."""
        raw = await self.hash("uid_recip_keys_map")
        return {
            uid: sorted(json.loads(base64.urlsafe_b64decode(each))) for uid, each in raw.items()
        }

    async def queue(self, key: str) -> list[str]:
        """The messages in a key's list."""
        found = await self.store.call("LRANGE", f"{INBOUND}_{key}", 0, -1)
        return [base64.urlsafe_b64decode(json.loads(each)["payload"]).decode() for each in found]


@asynccontextmanager
async def mirror_world(
    address: Address, *, fresh: bool = True, machine: bool = True, **options: Any
) -> AsyncIterator[MirrorWorld]:
    """A mirrored pool without agents; time moves only when it is told to."""
    store, wakeups, clock = Store(address, test_mode=machine), PubSub(address), Clock()
    time_machine = TimeMachine(store, wakeups, clock) if machine else None
    with TemporaryDirectory() as folder:
        catalogue = SqliteCatalogue(Path(folder) / "catalogue.db")
        await catalogue.open()
        pools = Pools(catalogue, store, wakeups, clock=clock, settings=PoolConfig())
        try:
            if fresh:
                await store.call("FLUSHALL")
            await wakeups.start()
            if time_machine is not None:
                await time_machine.start()
            given = PoolOptions(mirror=True, **options)
            pool = await pools.create("default", "agents", given)
            yield MirrorWorld(store, time_machine, pools, pool)
        finally:
            await pools.close()
            if time_machine is not None:
                await time_machine.stop()
            await wakeups.stop()
            await store.close()
            await catalogue.close()
