"""Who delivers dies at every call to the store, stands still, or has company: order stays."""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from tests.faults.delivery_node import delivery_nodes, settings_of
from tests.helpers.order_check import Records, double_problems, records_of
from tests.helpers.waiting import eventually
from tests.subscriptions.at_work import (
    QUICK,
    AtWork,
    Hook,
    at_work,
    establish,
    subscription_to,
    working,
)
from waystation.config import Config, SubscriptionConfig
from waystation.delivery.request import Outcome
from waystation.messages.envelope import Envelope
from waystation.node import Node, open_node
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.subscriptions.definition import (
    NewSubscription,
    Subscription,
    SubscriptionOptions,
)
from waystation.subscriptions.endpoints.protocol import Parcel
from waystation.subscriptions.looking import Looking
from waystation.subscriptions.operation import ENDED, Asked, Operation
from waystation.testing import CrashPoint, Moment, crash_points, private_server, serving
from waystation.testing.endpoint import Answer, ReceivedRequest
from waystation.testing.station import quick_settings
from waystation.topics.model import StorageTopicDefinition, TopicDefinition
from waystation.types.topic import TopicOptions

PROJECT = "default"
SUBSCRIPTION = subscription_to("http://127.0.0.1:9/")
TOPIC = TopicDefinition(
    project=PROJECT,
    name="orders",
    version=1,
    options=TopicOptions(grouped=True),
    storage=(StorageTopicDefinition(number=0, partitions=1),),
)


# -- Death at every call -------------------------------------------------------------------------


class Diary:
    """An endpoint whose log outlives who calls it; the second message of each group fails once."""

    target = "diary"
    batch_max = 1

    def __init__(self, file: Path) -> None:
        self.file = file

    async def send(self, parcels: Sequence[Parcel]) -> list[Outcome]:
        (parcel,) = parcels
        fails = parcel.message.id.endswith("1") and not self.saw(parcel.message.id)
        with self.file.open("a") as file:
            file.write(f"{parcel.message.id} {500 if fails else 200}\n")
        return [Outcome(status=500 if fails else 200)]

    @property
    def lines(self) -> list[tuple[str, int]]:
        if not self.file.exists():
            return []
        words = [line.split() for line in self.file.read_text().splitlines()]
        return [(message, int(status)) for message, status in words]

    def saw(self, message: str) -> bool:
        return any(message == each for each, _ in self.lines)


def process_on(store: Store) -> AbstractAsyncContextManager[AtWork]:
    return working(store, SUBSCRIPTION, TOPIC)


async def produce(work: AtWork) -> None:
    for number in range(3):
        for group in "ab":
            work.produced = number - 1  # So that numbers are those of the group.
            await work.produce(group)


async def deliver(store: Store, diary: Diary) -> None:
    """Delivers all that there is, and lets the topic know."""
    async with process_on(store) as work:
        work.endpoint = diary
        shard = await work.start()
        await work.until_low(6)
        await work.until_count("groups", 0)
        await work.stop(shard)


@pytest.mark.parametrize(
    "moment",
    [
        Moment.AFTER_SEND,
        pytest.param(Moment.BEFORE_SEND, marks=pytest.mark.slow),
        pytest.param(Moment.AFTER_REPLY, marks=pytest.mark.slow),
    ],
)
def test_wherever_an_owner_dies_the_next_one_delivers_all_in_order_and_settles_once(
    store_server: EmbeddedServer, tmp_path: Path, moment: Moment
) -> None:
    """F-03: opening, reading, requests, commits, retries, holds; what is doubled was under way."""
    diary = Diary(tmp_path / "diary.txt")

    async def prepare(store: Store) -> None:
        diary.file.unlink(missing_ok=True)
        async with process_on(store) as work:
            await establish(work)
            await produce(work)

    async def after(store: Store, _: CrashPoint) -> None:
        before = len(diary.lines)
        # The lease of the dead is over.
        await store.call("HSET", SUBSCRIPTION.place(0).lease, "until_ms", 0)
        await deliver(store, diary)
        async with process_on(store) as work:
            assert await work.hold_of() == 6
            for kind in ("retry", "dead", "due", "taken", "acks:0.0"):
                assert await work.count(kind) == 0
            (records,) = await records_of(work.logs, SUBSCRIPTION)
        check_diary(diary.lines, before, records)

    points = crash_points(
        store_server.address,
        lambda store: deliver(store, diary),
        after,
        prepare=prepare,
        moments=[moment],
        varies=True,
        test_mode=True,
    )
    assert len(points) >= 10


def check_diary(lines: list[tuple[str, int]], before: int, records: Records) -> None:
    """Each group in order, each message taken, and twice only what the dead one had under way."""
    assert list(records.problems()) == []
    taken = Counter(message for message, status in lines if status == 200)
    assert taken.keys() == records.settled.keys() == {f"{g}-{n:05}" for g in "ab" for n in range(3)}
    for group in "ab":
        seen = [message for message, _ in lines if message.startswith(group)]
        assert seen == sorted(seen), "a group went back"
        again = [message for message, times in taken.items() if times > 1 and message[0] == group]
        assert len(again) <= 1, "a group has one request under way"
        assert all(message in dict(lines[:before]) for message in again)


# -- Whole nodes ---------------------------------------------------------------------------------


async def subscribe(
    node: Node, url: str, name: str = "crm", *, shards: int | None = None, **options: object
) -> Subscription:
    """A subscription that is quick to try again; the topic is made with the first."""
    if name == "crm":
        grouped = TopicOptions(grouped=True)
        await node.topics.create(PROJECT, "orders", partitions=4, options=grouped)
    given = SubscriptionOptions(**{"retry": QUICK, **options})  # type: ignore[arg-type]
    new = NewSubscription(topic="orders", endpoint=url, shards=shards, options=given)
    return await node.subscriptions.subscriptions.create(PROJECT, name, new)


async def produce_to(node: Node, numbers: range, *, groups: int = 20) -> None:
    """`<group>-<number>`, round after round."""
    for number in numbers:
        messages = [
            Envelope(id=f"g{group}-{number}", project=PROJECT, data=b"{}", group=f"g{group}")
            for group in range(groups)
        ]
        await node.producer.produce(PROJECT, "orders", messages)


async def until_settled(node: Node, subscription: Subscription, count: int) -> None:
    """Waits until so many messages of the topic are settled, and nothing else is left."""
    looking = Looking(node.opened.store)
    places = [subscription.place(shard) for shard in range(subscription.shards)]

    async def is_so() -> bool:
        looks = [await looking.shard(place) for place in places]
        left = sum(each.retry_count + each.dead_count for each in looks)
        return not left and sum(sum(each.low.values()) for each in looks) == count

    await eventually(is_so, timeout=40)


@pytest.mark.slow
async def test_an_owner_that_stands_still_for_longer_than_its_lease_settles_nothing_any_more(
    tmp_path: Path,
) -> None:
    """F-13: SIGSTOP with requests under way, and SIGCONT when all is done."""
    hook = Hook(decide=lambda _: Answer(delay_seconds=0.03))
    with (
        private_server() as server,
        delivery_nodes(tmp_path, server.address, lease_seconds=1.0) as nodes,
    ):
        for _ in range(2):
            nodes.start()
        node = await open_node(settings_of(tmp_path, server.address, deliver=False))
        async with hook:
            subscription = await subscribe(node, hook.url)

            async def is_shared() -> bool:
                owners = nodes.told.owners.values()
                return {each.pid for each in nodes.alive} == set(owners) and len(owners) >= 4

            await eventually(is_shared)
            await produce_to(node, range(20))
            await hook.until(60)
            nodes.signal(0, signal.SIGSTOP)
            stopped = nodes.alive[0].pid
            before = {at for at, owner in nodes.told.owners.items() if owner == stopped}
            await until_settled(node, subscription, 400)
            nodes.signal(0, signal.SIGCONT)

            async def has_heard() -> bool:
                return bool(nodes.told.lost & before)

            await eventually(has_heard)
            await produce_to(node, range(20, 25))
            await until_settled(node, subscription, 500)
            await asyncio.to_thread(nodes.stop)
        for records in await records_of(node.logs, subscription):
            assert list(records.problems()) == []
            lost = {at.epoch for at in nodes.told.lost if at.shard == records.shard}
            assert list(double_problems(hook.received, records, lost)) == []
        await node.close()


async def test_two_redrives_under_load_deliver_nothing_twice_and_keep_the_order(
    settings: Config,
) -> None:
    """F-27"""
    ill = True
    hook = Hook(decide=lambda _: 400 if ill else 200)
    async with hook, serving(settings) as station:
        node = station.node
        subscription = await subscribe(node, hook.url)
        operations = node.subscriptions.operations
        await produce_to(node, range(3))
        looking = Looking(node.opened.store)

        async def all_parked() -> bool:
            places = [subscription.place(shard) for shard in range(subscription.shards)]
            return sum([(await looking.shard(place)).dead_count for place in places]) == 60

        await eventually(all_parked)
        ill = False
        begun = await asyncio.gather(
            operations.begin(PROJECT, "crm", Asked(kind="redrive")),
            operations.begin(PROJECT, "crm", Asked(kind="redrive")),
            produce_to(node, range(3, 30)),
        )

        async def have_ended() -> bool:
            ids = [each.id for each in begun if isinstance(each, Operation)]
            found = [await operations.get(PROJECT, "crm", each) for each in ids]
            return all(each.state in ENDED for each in found)

        await eventually(have_ended)
        await until_settled(node, subscription, 600)
        taken = hook.ids(status=200)
        assert len(taken) == len(set(taken)) == 600
        for group in range(20):
            of_group = [each for each in taken if each.startswith(f"g{group}-")]
            assert of_group == [f"g{group}-{number}" for number in range(30)]


@pytest.mark.slow
async def test_one_endpoint_of_a_hundred_that_never_answers_costs_the_others_nothing(
    tmp_path: Path,
) -> None:
    """F-16: all others get everything while it holds a few slots; what it does not take waits."""
    hook = Hook(decide=lambda request: Answer(hang=request.path == "/hook/0"))
    hasty = SubscriptionConfig(grace_seconds=0.1)
    settings = quick_settings(str(tmp_path), subscriptions=hasty)
    async with hook, serving(settings) as station:
        node = station.node
        for number in range(100):
            name = f"s{number}" if number else "crm"
            await subscribe(node, f"{hook.url}/{number}", name, shards=1, timeout_seconds=600.0)
        await produce_to(node, range(3), groups=8)

        async def others_have_all() -> bool:
            return len(hook.received) - sum(hangs(each) for each in hook.received) >= 99 * 24

        def hangs(request: ReceivedRequest) -> bool:
            return request.path == "/hook/0"

        await eventually(others_have_all, timeout=60)
        by_path = Counter(each.path for each in hook.received)
        assert set(by_path.values()) - {by_path["/hook/0"]} <= {24}
        # Its slots, and no more: what waits for one of them is in the topic.
        assert 1 <= by_path["/hook/0"] <= 8
        for path in by_path.keys() - {"/hook/0"}:
            seen = [each.headers["waystation-id"] for each in hook.received if each.path == path]
            for _, ids in itertools.groupby(sorted(seen, key=group_of), group_of):
                numbers = [int(each.rpartition("-")[2]) for each in ids]
                assert numbers == [0, 1, 2]


def group_of(message: str) -> str:
    return message.rpartition("-")[0]


async def test_a_reply_that_comes_after_the_deadline_is_a_failure_and_is_not_missed(
    store_server: EmbeddedServer,
) -> None:
    """F-25: the message is sent again, with its id; the one behind it has waited."""
    late = [Answer(delay_seconds=6)]
    hook = Hook(decide=lambda _: late.pop() if late else 200)
    async with hook, at_work(store_server, hook.url, timeout_seconds=2.0) as work:
        first, second = await work.produce("a", "a")
        await work.start()
        await work.until_low(2)
        await work.until_count("groups", 0)
        assert hook.ids() == [first, first, second]
        (records,) = await records_of(work.logs, work.subscription)
        assert (records.unknown[first], len(records.settled[first])) == (1, 1)
        await work.check_order(["a"])
