"""Hosts on one store with shards that only tell what happens to them; and one as a process.

    python -m tests.subscriptions.hosting SOCKET NODE SHARDS

prints a line once it looks for shards, and ends on SIGTERM as a node does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType

from waystation.runtime.clock import Clock
from waystation.store.address import Address
from waystation.store.client import Store
from waystation.store.leases import Lease, LeaseRenewer
from waystation.store.pubsub import PubSub
from waystation.subscriptions.definition import Subscription, SubscriptionOptions
from waystation.subscriptions.host import Host
from waystation.subscriptions.names import Place
from waystation.subscriptions.placement import Patience
from waystation.subscriptions.states import ShardState
from waystation.topics.model import StorageTopicDefinition

#: Ten times as fast as nodes are.
QUICK = Patience(
    beat_seconds=0.2, silent_seconds=1.0, lease_seconds=1.0, stray_seconds=0.5, keep_seconds=60.0
)


def subscription(name: str = "billing", *, shards: int = 4, version: int = 1) -> Subscription:
    """A subscription that is active."""
    return Subscription(
        project="default",
        name=name,
        version=version,
        topic="orders",
        endpoint="http://127.0.0.1:9/hook",
        shards=shards,
        options=SubscriptionOptions(),
        state="active",
        retry=(StorageTopicDefinition(number=0, partitions=shards),),
        dead=(StorageTopicDefinition(number=0, partitions=shards),),
        start="end",
    )


class ToldShard:
    """A shard that delivers nothing, and tells what is done with it."""

    def __init__(self, subscription: Subscription, place: Place, lease: Lease) -> None:
        self.subscription = subscription
        self.place = place
        self.lease = lease
        self.ended = asyncio.Event()
        self.started = False
        self.stopped: float | None = None
        #: What a drain waits for.
        self.drained = asyncio.Event()
        self.drained.set()
        self.problem: Exception | None = None
        self.in_flight = 0
        self.throttled = False
        self.fills_full_store = False
        self.state = ShardState.RUNNING

    def carries(self, member: str) -> bool:
        return False

    async def start(self) -> None:
        assert not self.started
        if self.problem is not None:
            raise self.problem
        self.started = True

    def use(self, subscription: Subscription) -> None:
        self.subscription = subscription

    async def stop(self, *, grace_seconds: float) -> None:
        self.stopped = grace_seconds
        await self.drained.wait()


@dataclass
class Hosting:
    """A host, and all shards that it ever had."""

    store: Store
    definitions: list[Subscription]
    host: Host = field(init=False)
    shards: list[ToldShard] = field(default_factory=list)
    #: Done to each new shard before it starts.
    prepare: Callable[[ToldShard], None] = lambda _: None
    deaf: list[str] = field(default_factory=list)
    #: How often it has looked.
    looks: int = 0

    async def active(self) -> list[Subscription]:
        """What is to be delivered."""
        self.looks += 1
        return self.definitions

    def open(self, subscription: Subscription, place: Place, lease: Lease) -> ToldShard:
        """Makes a shard."""
        shard = ToldShard(subscription, place, lease)
        self.prepare(shard)
        self.shards.append(shard)
        return shard

    @property
    def places(self) -> set[Place]:
        """What it delivers now."""
        return {
            place
            for place, shard in self.host.shards.items()
            if isinstance(shard, ToldShard) and shard.started and shard.stopped is None
        }

    def shard(self, place: Place) -> ToldShard:
        """The newest of a place."""
        return [each for each in self.shards if each.place == place][-1]


@asynccontextmanager
async def hosting(
    address: Address,
    node: str,
    definitions: list[Subscription],
    *,
    patience: Patience = QUICK,
    shards_max: int = 1000,
    start: bool = True,
    call_seconds_max: float = 5.0,
) -> AsyncIterator[Hosting]:
    """A host, until the end of the block."""
    store, wakeups, clock = (
        Store(address, call_seconds_max=call_seconds_max),
        PubSub(address),
        Clock(),
    )
    await wakeups.start()
    hosted, renewer = Hosting(store, definitions), LeaseRenewer(address)
    hosted.host = host = Host(
        store,
        wakeups,
        hosted.active,
        hosted.open,
        renewer=renewer,
        clock=clock,
        node=node,
        patience=patience,
        shards_max=shards_max,
        grace_seconds=0.5,
        on_deaf=hosted.deaf.append,
    )
    if start:
        await host.start()
    try:
        yield hosted
    finally:
        await host.stop()
        renewer.close()
        await wakeups.stop()
        await store.close()


async def epoch_of(store: Store, place: Place) -> int:
    """The epoch that a shard has come to."""
    return int(await store.call("HGET", place.lease, "epoch") or 0)


class HostProcess:
    """A host in a process of its own."""

    def __init__(self, address: Address, node: str, *, shards: int = 4) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.subscriptions.hosting", address.path, node, str(shards)],
            stdout=subprocess.PIPE,
            env=dict(os.environ),
        )

    def __enter__(self) -> HostProcess:
        assert self.process.stdout is not None
        assert self.process.stdout.readline(), "it ended before it looked"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.communicate()

    def signal(self, number: int) -> None:
        """Sends a signal."""
        self.process.send_signal(number)


async def main(path: str, node: str, shards: str) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with hosting(Address(path=path), node, [subscription(shards=int(shards))]):
        print(node, flush=True)  # noqa: T201 (to the parent)
        await ended.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
