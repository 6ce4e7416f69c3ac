"""Proof of order: many groups, an endpoint that fails in every way, delivery nodes that are killed.

Checked from the log that the endpoint has of its own, and again from the record logs alone: nothing
is lost, nothing is attempted before the one before it in its group was settled, nothing is settled
twice, and nothing is taken twice but where an owner died with a request under way. Meanwhile dead
letters are redriven, again and again, under both poison policies.

    WAYSTATION_SEED=17 pytest tests/faults/test_order_proof.py -m ""

runs what a seed chooses once more; how processes take turns is not in its hands.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.delivery_node import DeliveryNodes, delivery_nodes, settings_of
from tests.helpers.order_check import (
    CONFLICT,
    UNFIT,
    FlakyEndpoint,
    Records,
    double_problems,
    loss_problems,
    order_problems,
    records_of,
)
from waystation.messages.envelope import Envelope
from waystation.node import Node, open_node
from waystation.store.embedded.server import EmbeddedServer
from waystation.subscriptions.definition import (
    NewSubscription,
    RetryPolicy,
    Subscription,
    SubscriptionOptions,
)
from waystation.subscriptions.looking import Looking
from waystation.subscriptions.operation import ENDED, Asked
from waystation.subscriptions.states import Poison
from waystation.testing import private_server
from waystation.types.message import Receipt
from waystation.types.topic import TopicOptions

PROJECT = "default"
RETRY = RetryPolicy(
    attempts=3,
    first_seconds=0.05,
    max_seconds=0.1,
    jitter=0.2,
    fatal_codes=(UNFIT,),
    retry_codes=(CONFLICT,),
)
ATTEMPTS_MAX = RETRY.attempts + 1


@dataclass(frozen=True)
class Size:
    """How much is done."""

    #: By poison policy.
    groups: dict[Poison, int]
    messages: int
    nodes: int
    kills: int
    lease_seconds: float
    #: The part of all messages that dies.
    poison_share: float
    #: A busy machine may take several times as long as an idle one.
    seconds_max: float

    def ids(self, policy: Poison) -> Iterator[list[str]]:
        """Messages for one subscription: the first of each group, then the second, and so on."""
        for number in range(self.messages):
            yield [f"{policy}-{group}-{number}" for group in range(self.groups[policy])]

    @property
    def total(self) -> int:
        return sum(self.groups.values()) * self.messages


SMALL = Size(
    groups={"park": 30, "skip": 10},
    messages=20,
    nodes=2,
    kills=3,
    lease_seconds=1.0,
    poison_share=0.04,
    seconds_max=90,
)
WHOLE = Size(
    groups={"park": 800, "skip": 200},
    messages=100,
    nodes=3,
    kills=24,
    lease_seconds=3.0,
    poison_share=0.004,
    seconds_max=900,
)


@dataclass
class Run:
    """One run, with all that is needed to prove it."""

    size: Size
    rng: random.Random
    node: Node
    endpoint: FlakyEndpoint
    nodes: DeliveryNodes

    async def subscribe(self, policy: Poison) -> Subscription:
        """Create a topic, its subscription, and a hold on the record logs, which are read later."""
        options = TopicOptions(grouped=True)
        await self.node.topics.create(PROJECT, policy, partitions=4, options=options)
        new = NewSubscription(
            topic=policy,
            endpoint=self.endpoint.url.replace("/hook", f"/{policy}"),
            options=SubscriptionOptions(poison=policy, retry=RETRY, timeout_seconds=2.0),
        )
        created = await self.node.subscriptions.subscriptions.create(PROJECT, policy, new)
        for shard in range(created.shards):
            # Without a reader, the shards of a subscription keep 16 MiB of records.
            await self.node.logs.hold(created.record_log, shard, "proof", 0)
        return created

    async def produce(self, policy: Poison) -> None:
        """Traffic: round after round, while others are delivered."""
        for ids in self.size.ids(policy):
            messages = [
                Envelope(id=each, project=PROJECT, data=b"{}", group=each.rpartition("-")[0])
                for each in ids
            ]
            receipts = await self.node.producer.produce(PROJECT, policy, messages)
            assert all(isinstance(each, Receipt) for each in receipts)

    async def kill_some(self) -> None:
        """Kills a node each time that so many requests have come, and starts another."""
        at = sorted(self.rng.sample(range(self.size.total // 20, self.size.total), self.size.kills))
        for count in at:
            await self.endpoint.until(count, seconds=self.size.seconds_max)
            self.nodes.kill(self.rng.randrange(len(self.nodes.alive)))
            self.nodes.start()

    async def redrive_on(self) -> None:
        """Redrives all dead letters, over and over."""
        operations = self.node.subscriptions.operations
        while True:
            for policy in self.size.groups:
                begun = await operations.begin(PROJECT, policy, Asked(kind="redrive"))
                while (await operations.get(PROJECT, policy, begun.id)).state not in ENDED:
                    await asyncio.sleep(0.05)
            await asyncio.sleep(0.2)

    async def until_settled(self, subscription: Subscription) -> None:
        """Waits until nothing is left anywhere."""
        looking = Looking(self.node.opened.store)
        topic = await self.node.topics.get(PROJECT, subscription.topic)
        log = topic.log(topic.storage[0])
        ends = {
            f"0.{partition}": (await self.node.logs.state(log, partition)).end
            for partition in range(4)
        }
        assert sum(ends.values()) == sum(map(len, self.size.ids(subscription.options.poison)))
        while True:
            looks = [await looking.shard(subscription.place(n)) for n in range(subscription.shards)]
            low = {at: offset for look in looks for at, offset in look.low.items()}
            left = sum(each.retry_count + each.dead_count for each in looks)
            if low == ends and not left:
                return
            await asyncio.sleep(0.1)


async def deliver_all(run: Run) -> list[Subscription]:
    """From nothing to the last settled message; nodes are stopped then."""
    for _ in range(run.size.nodes):
        run.nodes.start()
    subscriptions = [await run.subscribe(policy) for policy in run.size.groups]
    async with asyncio.timeout(run.size.seconds_max), asyncio.TaskGroup() as group:
        redriving = group.create_task(run.redrive_on())
        killing = group.create_task(run.kill_some())
        await asyncio.gather(*(run.produce(policy) for policy in run.size.groups))
        await killing
        await asyncio.gather(*map(run.until_settled, subscriptions))
        redriving.cancel()
    await asyncio.to_thread(run.nodes.stop)
    return subscriptions


def cut_off(nodes: DeliveryNodes, subscription: str, shard: int) -> set[int]:
    """Epochs of a shard that ended with the death of their owner, or behind its back."""
    told = nodes.told
    return {
        at.epoch
        for at, owner in told.owners.items()
        if (at.subscription, at.shard) == (subscription, shard)
        and (owner in nodes.killed or at in told.lost)
    }


def problems(run: Run, subscription: Subscription, records: list[Records]) -> Iterator[str]:
    """All that does not hold."""
    policy = subscription.options.poison
    produced = {each for ids in run.size.ids(policy) for each in ids}
    # By the endpoint's own log.
    log = run.endpoint.log(f"/{policy}")
    requests = [each for group in log.values() for each in group]
    yield from loss_problems(produced, requests)
    yield from order_problems(log, attempts_max=ATTEMPTS_MAX if policy == "skip" else None)
    # By the record logs alone.
    for each in records:
        yield from each.problems()
    settled = {message for each in records for message in each.settled}
    yield from (f"{each} is not in the records" for each in produced - settled)
    yield from (f"{each} was settled, never produced" for each in settled - produced)
    # By both.
    for each in records:
        epochs = cut_off(run.nodes, subscription.name, each.shard)
        yield from double_problems(requests, each, epochs)


async def prove(size: Size, folder: Path, server: EmbeddedServer) -> None:
    seed = int(os.environ.get("WAYSTATION_SEED", random.randrange(10**6)))
    print(f"seed {seed}")  # noqa: T201 (to repeat a failure)
    node = await open_node(settings_of(folder, server.address, deliver=False))
    endpoint = FlakyEndpoint(seed=seed, attempts_max=ATTEMPTS_MAX, poison_share=size.poison_share)
    try:
        async with endpoint:
            with delivery_nodes(folder, server.address, lease_seconds=size.lease_seconds) as nodes:
                run = Run(size, random.Random(seed), node, endpoint, nodes)
                try:
                    subscriptions = await deliver_all(run)
                except TimeoutError:
                    count = len(endpoint.received)
                    pytest.fail(f"seed {seed}: not settled after {count} requests")
        at_once = 0
        for subscription in subscriptions:
            records = await records_of(node.logs, subscription)
            found = list(problems(run, subscription, records))
            assert not found, f"seed {seed}: {len(found)} problems, such as {found[:10]}"
            kinds = sum((each.kinds for each in records), start=Counter[str]())
            dead = "parked" if subscription.options.poison == "park" else "dead"
            # It was no walk in the park.
            assert min(kinds[each] for each in (dead, "redriven", "behind")) > 0, kinds
            at_once += sum(each.dead_at_once for each in records)
        assert at_once > 0, "nobody died by the first attempt"
        assert len(nodes.killed) == size.kills
    finally:
        await node.close()


async def test_groups_keep_their_order_through_failures_deaths_and_redrives(tmp_path: Path) -> None:
    """F-26, small."""
    with private_server() as server:
        await prove(SMALL, tmp_path, server)


@pytest.mark.slow
@pytest.mark.timeout(1000)
async def test_a_thousand_groups_keep_their_order(tmp_path: Path) -> None:
    """F-26: 1,000 groups of 100 messages."""
    with private_server() as server:
        await prove(WHOLE, tmp_path, server)
