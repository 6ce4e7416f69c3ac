"""A node under load: a topic with messages, a subscription to it, and what has become of them."""

from __future__ import annotations

import asyncio
import gc
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from waystation.api.server import settle_memory
from waystation.config import AuthConfig, Config, DeliveryConfig, StoreConfig
from waystation.messages.envelope import Envelope
from waystation.node import Node, open_node
from waystation.runtime.clock import Clock
from waystation.store.client import Store
from waystation.store.keys import DEFAULT_PROJECT
from waystation.subscriptions.definition import NewSubscription, Subscription, SubscriptionOptions
from waystation.subscriptions.states import Verdict
from waystation.telemetry import metrics
from waystation.types.message import Receipt
from waystation.types.topic import TopicOptions
from waystation_bench.benchmark import BenchmarkError
from waystation_bench.receivers import stamp
from waystation_bench.target import Target

#: Payload of a message.
DATA_BYTES = 100
#: Groups, where they are all alike.
GROUPS = 1000
#: Subscriptions that are fed at a steady rate, each with an endpoint of its own, and what they get
#: together: far below what can be delivered.
LANES = 50
MESSAGES_PER_SECOND = 400
#: Of the topic and of its subscription.
NAME = "bench"
PARTITIONS = 4
_PRODUCE_AT_ONCE = 1000
_LOOK_SECONDS = 0.005
#: Without any progress for so long, a node hangs.
_STUCK_SECONDS = 20.0


# -- The node --------------------------------------------------------------------------------


@asynccontextmanager
async def delivering(target: Target) -> AsyncIterator[Node]:
    """A node with a catalogue of its own, so that every round begins alike."""
    with tempfile.TemporaryDirectory(prefix="waystation-bench-") as folder:
        settings = Config(
            auth=AuthConfig(insecure=True),
            data=folder,
            delivery=DeliveryConfig(loopback=True),
            history=target.history,
            store=StoreConfig(durability=target.level, url=f"unix://{target.store_path}"),
        )
        node = await open_node(settings)
        try:
            yield node
        finally:
            await node.close()


@asynccontextmanager
async def collecting() -> AsyncIterator[None]:
    """Garbage is collected as it is in a process that serves."""
    settle_memory()
    gc.enable()
    try:
        yield
    finally:
        gc.disable()
        gc.unfreeze()


async def subscribe(
    node: Node,
    endpoint: str,
    options: SubscriptionOptions | None = None,
    *,
    name: str = NAME,
    partitions: int = PARTITIONS,
) -> Subscription:
    """A subscription from the beginning of its topic, which is made if it is not there."""
    await provide(node, name, partitions)
    new = NewSubscription(
        topic=name,
        endpoint=endpoint,
        start="beginning",
        options=options or SubscriptionOptions(),
    )
    return await node.subscriptions.subscriptions.create(DEFAULT_PROJECT, name, new)


async def provide(node: Node, topic: str, partitions: int = PARTITIONS) -> None:
    """The topic, if it is not there."""
    if node.topics.get_recent(DEFAULT_PROJECT, topic) is None:
        options = TopicOptions(grouped=True)
        await node.topics.create(DEFAULT_PROJECT, topic, partitions=partitions, options=options)


# -- Messages --------------------------------------------------------------------------------


def data(number: int) -> bytes:
    """So many bytes, of each message others."""
    return b'{"number":%d,"rest":"%b"}' % (number, b"x" * (DATA_BYTES - 28))


def message(number: int, data: bytes, *, groups: int = GROUPS) -> Envelope:
    """A message of one of the groups."""
    return Envelope(
        id=f"m-{number}",
        project=DEFAULT_PROJECT,
        data=data,
        group=f"order-{number % groups}",
        headers=(("content-type", "application/json"),),
    )


async def produce(
    node: Node, count: int, *, groups: int = GROUPS, data: Callable[[int], bytes] = data
) -> None:
    """Fills the topic."""
    await provide(node, NAME)
    for first in range(0, count, _PRODUCE_AT_ONCE):
        numbers = range(first, min(count, first + _PRODUCE_AT_ONCE))
        await send(node, NAME, [message(n, data(n), groups=groups) for n in numbers])


async def feed_each(node: Node, data: bytes) -> None:
    """One message for each lane."""
    for lane in range(LANES):
        await send(node, f"{NAME}-{lane}", [message(lane, data)])


async def feed(node: Node, count: int) -> None:
    """At a fixed rate, whatever the store and the node take."""
    clock, sends = Clock(), []
    begun = clock.monotonic()
    for number in range(count):
        await asyncio.sleep(begun + number / MESSAGES_PER_SECOND - clock.monotonic())
        fed = message(LANES + number, stamp())
        sends.append(asyncio.ensure_future(send(node, f"{NAME}-{number % LANES}", [fed])))
    await asyncio.gather(*sends)


async def send(node: Node, topic: str, messages: list[Envelope]) -> None:
    """Produces; what is refused ends the run."""
    for result in await node.producer.produce(DEFAULT_PROJECT, topic, messages):
        if not isinstance(result, Receipt):
            raise result


# -- What has become of them -----------------------------------------------------------------


def delivered(verdict: Verdict | None = Verdict.DONE, *, lanes: int = 0) -> int:
    """Return the requests of this process with this verdict; None: those that ended in any way.

    Counts the subscriptions to the first lanes.
    """
    names = [f"{NAME}-{lane}" for lane in range(lanes)] or [NAME]
    wanted = (Verdict.DONE, Verdict.AGAIN) if verdict is None else (verdict,)
    return sum(
        metrics.subscription_attempts.of(name, each.value).value
        for name in names
        for each in wanted
    )


async def until_delivered(
    count: int, verdict: Verdict | None = Verdict.DONE, *, lanes: int = 0
) -> None:
    """Wait until so many requests have this verdict; None: have been answered."""

    async def seen() -> int:
        return delivered(verdict, lanes=lanes)

    await _until(seen, count)


async def until_acknowledged(node: Node, count: int, *, clean: bool = False) -> None:
    """Waits until so many are acknowledged in the store; `clean`: and nothing is left there."""
    subscription = await node.subscriptions.subscriptions.get(DEFAULT_PROJECT, NAME)
    store, places = node.opened.store, [subscription.place(n) for n in range(subscription.shards)]

    async def seen() -> int:
        found = 0
        for place in places:
            found += sum(map(int, await store.call("HVALS", place.key("pos"))))
            for kind in ("retry", "dead", "groups") if clean else ():
                found -= int(await store.call("HLEN", place.key(kind)))
        return found

    await _until(seen, count)


async def _until(seen: Callable[[], Awaitable[int]], count: int) -> None:
    clock = Clock()
    last, last_at = -1, clock.monotonic()
    while (now := await seen()) < count:
        if now != last:
            last, last_at = now, clock.monotonic()
        if clock.monotonic() - last_at > _STUCK_SECONDS:
            raise BenchmarkError(f"Deliveries do not go on: {now} of {count}.")
        await asyncio.sleep(_LOOK_SECONDS)


async def weigh(store: Store, subscription: Subscription) -> dict[str, int]:
    """Bytes of all shards: what is kept of groups, and messages with the record log."""
    kinds = {
        "groups": ("groups", "due", "taken", "failed", "rnext", "dnext"),
        "records": ("retry", "dead", "log"),
    }
    weights = dict.fromkeys(kinds, 0)
    for shard in range(subscription.shards):
        for what, names in kinds.items():
            for name in names:
                key = subscription.place(shard).key(name)
                weights[what] += int(await store.call("MEMORY", "USAGE", key, "SAMPLES", 0) or 0)
    return weights


def url(target: Target) -> str:
    """Of the first receiver."""
    return f"http://127.0.0.1:{target.port}/hook"
