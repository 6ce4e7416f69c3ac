"""A whole node delivers: to every kind of endpoint, with others, and to the last on SIGTERM."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from standardwebhooks import Webhook

from tests.helpers.http import async_ask
from tests.helpers.processes import station_process
from tests.helpers.waiting import eventually
from tests.subscriptions.at_work import Hook
from waystation.config import (
    ChannelConfig,
    ChannelRule,
    Config,
    DeliveryConfig,
    StoreConfig,
    SubscriptionConfig,
)
from waystation.errors import EndpointInvalidError, ForbiddenAddressError, SubscriptionNotFoundError
from waystation.messages.envelope import Envelope, unpack
from waystation.node import Node
from waystation.subscriptions.definition import (
    NewSubscription,
    RetryPolicy,
    Subscription,
    SubscriptionOptions,
)
from waystation.subscriptions.looking import Looking
from waystation.subscriptions.looks import DeadQuery, ShardLook
from waystation.subscriptions.shards import partition_owner
from waystation.subscriptions.states import GroupState, MessageState
from waystation.testing import serving
from waystation.testing.endpoint import Answer, FakeEndpoint, ReceivedRequest
from waystation.testing.station import quick_settings
from waystation.topics.router import hash_of
from waystation.transactions.pipeline import define
from waystation.types.message import Receipt
from waystation.types.topic import TopicOptions

#: Keys by which started transactions are found again.
STARTED = "{tx.*}:externalId:*"


async def new_topic(node: Node, *, partitions: int = 4) -> None:
    options = TopicOptions(grouped=True)
    await node.topics.create("default", "orders", partitions=partitions, options=options)


async def subscribe(
    node: Node, endpoint: str, name: str = "billing", shards: int | None = None, **options: object
) -> None:
    new = NewSubscription(
        topic="orders",
        endpoint=endpoint,
        shards=shards,
        options=SubscriptionOptions(**options),  # type: ignore[arg-type]
    )
    await node.subscriptions.subscriptions.create("default", name, new)


async def produce(node: Node, *ids: str) -> None:
    envelopes = [
        Envelope(
            id=each,
            project="default",
            data=b'{"id": "%b"}' % each.encode(),
            group=each.rpartition("-")[0],
            headers=(("content-type", "application/json"),),
        )
        for each in ids
    ]
    await node.producer.produce("default", "orders", envelopes)


async def until_acknowledged(node: Node, subscription: Subscription) -> list[ShardLook]:
    """Waits until all of the topic is settled or a dead letter; the shards then."""
    looking = Looking(node.opened.store)
    topic = await node.topics.get("default", subscription.topic)
    (storage,) = topic.storage
    ends = {
        f"0.{partition}": (await node.logs.state(topic.log(storage), partition)).end
        for partition in range(storage.partitions)
    }
    async with asyncio.timeout(30):
        while True:
            looks = [await looking.shard(subscription.place(n)) for n in range(subscription.shards)]
            low = {at: offset for look in looks for at, offset in look.low.items()}
            if low == ends and not any(look.retry_count for look in looks):
                return looks
            await asyncio.sleep(0.01)


def ids_of(groups: int, each: int) -> list[str]:
    return [f"g{group}-{number}" for number in range(each) for group in range(groups)]


async def test_what_is_produced_arrives_signed_and_in_the_order_of_its_group(
    settings: Config,
) -> None:
    async with FakeEndpoint() as receiver, serving(settings) as station:
        node = station.node
        await new_topic(node)
        await subscribe(node, receiver.url)
        ids = ids_of(20, 5)
        await produce(node, *ids)
        received = await receiver.until(100)
        assert sorted(each.headers["waystation-id"] for each in received) == sorted(ids)
        for group in range(20):
            told = [each.headers["waystation-id"] for each in received]
            of_group = [each for each in told if each.startswith(f"g{group}-")]
            assert of_group == [f"g{group}-{number}" for number in range(5)]
        subscription = await node.subscriptions.subscriptions.get("default", "billing")
        (secret,) = await node.subscriptions.subscriptions.secrets(subscription)
        Webhook(secret.text).verify(received[0].body, received[0].headers)


async def test_a_rotated_secret_and_a_changed_header_hold_for_what_comes_next(
    settings: Config,
) -> None:
    async with FakeEndpoint() as receiver, serving(settings) as station:
        node = station.node
        subscriptions = node.subscriptions.subscriptions
        await new_topic(node)
        await subscribe(node, receiver.url)
        await produce(node, "g-0")
        await receiver.until(1)
        secret = await subscriptions.rotate_secret("default", "billing")
        present = await subscriptions.get("default", "billing")
        options = msgspec.structs.replace(present.options, headers=(("x-new", "yes"),))
        await subscriptions.change("default", "billing", options, version=present.version)
        host = node.subscriptions.host
        assert host is not None
        await eventually(
            lambda: all(each.version == present.version + 1 for each in host.shards.values())
        )

        async def arrives_so() -> bool:
            count = len(receiver.received)
            await produce(node, f"g-{count}")
            newest = (await receiver.until(count + 1))[-1]
            return newest.headers.get("x-new") == "yes"

        async with asyncio.timeout(10):
            while not await arrives_so():
                pass
        newest = receiver.received[-1]
        Webhook(secret).verify(newest.body, newest.headers)


async def test_messages_start_transactions_and_are_published_to_channels(
    settings: Config,
) -> None:
    async with serving(settings) as station:
        node = station.node
        await new_topic(node)
        await node.engine.pipelines.put("default", define("refund", ["refund/pay"]))
        await node.channels.subscribe("default", "news", "me")
        await subscribe(node, "pipeline:refund", "starting")
        await subscribe(node, "channel:news", "publishing")
        ids = ids_of(10, 3)
        await produce(node, *ids)
        seen: set[str] = set()
        async with asyncio.timeout(15):
            while len(seen) < 30:
                fetched = await node.channels.fetch("default", "news", "me", limit=100, wait_s=1)
                # Without the digits that tell messages with the same id apart.
                seen = {each.id.rpartition("-")[0] for each in fetched.messages}
        assert seen == set(ids)
        store = node.opened.store

        async def started() -> int:
            return len(await store.call("KEYS", STARTED))

        async with asyncio.timeout(15):
            while await started() < 30:
                await asyncio.sleep(0.01)
        found = [key.decode() for key in await store.call("KEYS", STARTED)]
        assert {key.rpartition(":")[2] for key in found} == set(ids)
        assert all(":starting:1:" in key for key in found)


async def test_what_is_not_json_ends_as_a_dead_letter_of_its_shard_where_a_pipeline_is_started(
    settings: Config,
) -> None:
    async with serving(settings) as station:
        node = station.node
        await new_topic(node)
        await node.engine.pipelines.put("default", define("refund", ["refund/pay"]))
        await subscribe(node, "pipeline:refund", retry=RetryPolicy(first_seconds=0.02))
        bad = Envelope(id="bad-0", project="default", data=b"no {JSON", group="bad")
        (receipt,) = await node.producer.produce("default", "orders", [bad])
        assert isinstance(receipt, Receipt)
        await produce(node, "bad-1", *ids_of(10, 3))
        subscription = await node.subscriptions.subscriptions.get("default", "billing")
        await until_acknowledged(node, subscription)

        looking = Looking(node.opened.store)
        letters = {
            shard: (await looking.dead_letters(subscription.place(shard), DeadQuery())).letters
            for shard in range(subscription.shards)
        }
        owner = partition_owner(receipt.partition, 4, subscription.shards)
        assert {shard for shard, found in letters.items() if found} == {owner}
        (letter,) = letters[owner]
        assert (letter.state, letter.behind) == (MessageState.PARKED, 1)
        record = letter.record
        assert (record.group, record.attempts, record.failure) == ("bad", 1, "refused")
        position = record.position
        assert (position.partition, position.offset) == (receipt.partition, receipt.offset)
        assert "not JSON" in record.cause
        assert unpack(record.envelope, project="default").data == b"no {JSON"
        look = await looking.group(subscription.place(owner), "bad")
        assert (look.state, look.retry, look.dead) == (GroupState.PARKED, 0, 2)
        # All others have started, those of its shard too.
        started = [key.decode() for key in await node.opened.store.call("KEYS", STARTED)]
        assert {key.rpartition(":")[2] for key in started} == set(ids_of(10, 3))


@pytest.mark.parametrize(("partitions", "shards"), [(5, 2), (5, 3), (10, 4), (2, 3)])
async def test_shards_of_different_sizes_deliver_everything_once_in_the_order_of_groups(
    settings: Config, partitions: int, shards: int
) -> None:
    """Also where some have a partition more than others, or none at all."""
    failed: set[str] = set()

    def decide(request: ReceivedRequest) -> int:
        """One message in seven fails first: it stays in its shard, and its group waits."""
        id_ = request.headers["waystation-id"]
        fails = hash_of(id_) % 7 == 0 and id_ not in failed
        failed.add(id_)
        return 409 if fails else 200

    quick = RetryPolicy(first_seconds=0.02, retry_codes=(409,))
    async with Hook(decide=decide) as receiver, serving(settings) as station:
        node = station.node
        await new_topic(node, partitions=partitions)
        await subscribe(node, receiver.url, shards=shards, retry=quick)
        ids = ids_of(60, 4)
        await produce(node, *ids)
        subscription = await node.subscriptions.subscriptions.get("default", "billing")
        assert subscription.shards == shards
        looks = await until_acknowledged(node, subscription)

        assert sorted(receiver.ids(status=200)) == sorted(ids)
        for group in range(60):
            wanted = [f"g{group}-{number}" for number in range(4)]
            assert receiver.of(f"g{group}", status=200) == wanted
        assert len(receiver.received) > len(ids), "some had to be tried again"
        sizes = [len(look.low) for look in looks]
        assert (sum(sizes), max(sizes) - min(sizes)) == (partitions, 1)
        assert all(low > 0 for look in looks for low in look.low.values())


async def test_an_endpoint_that_cannot_be_reached_is_refused_when_it_is_given(
    tmp_path: Path,
) -> None:
    settings = quick_settings(
        str(tmp_path),
        delivery=DeliveryConfig(loopback=False),
        channels=ChannelConfig(rules=(ChannelRule(pattern="news"),)),
    )
    async with serving(settings) as station:
        node = station.node
        await new_topic(node)
        with pytest.raises(ForbiddenAddressError):
            await subscribe(node, "http://127.0.0.1:9/hook")
        for endpoint in (
            *("pool:workers", "ftp://x/", "https://u:p@x.example/"),
            *("channel:No Name", "channel:no-rule"),
        ):
            with pytest.raises(EndpointInvalidError):
                await subscribe(node, endpoint)
        assert not await node.subscriptions.subscriptions.list("default", limit=10)


async def test_a_sample_is_sent_by_a_node_that_delivers_nothing_itself(tmp_path: Path) -> None:
    settings = quick_settings(str(tmp_path), subscriptions=SubscriptionConfig(deliver=False))
    async with FakeEndpoint() as receiver, serving(settings) as station:
        node = station.node
        await new_topic(node)
        await subscribe(node, receiver.url)
        await produce(node, "g-0")
        assert node.subscriptions.host is None
        sample = await node.subscriptions.send_sample("default", "billing")
        assert (sample.status, len(receiver.received)) == (200, 1)
        assert dict(sample.headers)["waystation-id"].startswith("sample-")
        with pytest.raises(SubscriptionNotFoundError):
            await node.subscriptions.send_sample("default", "other")


async def test_a_node_that_is_deaf_to_shards_is_not_ready(settings: Config) -> None:
    async with serving(settings) as station:
        host = station.node.subscriptions.host
        assert host is not None
        answer = await async_ask(station.url, "GET", "/readyz")
        assert (answer.status, answer.json()["ready"]) == (200, True)
        assert host._looker is not None
        host._looker.cancel()
        host._answered_at -= 21.0
        answer = await async_ask(station.url, "GET", "/readyz")
        assert answer.status == 503
        assert list(answer.json()["problems"]) == ["delivery"]


@asynccontextmanager
async def two_nodes(tmp_path: Path) -> AsyncIterator[tuple[Node, Node]]:
    """On one store and one catalogue, as two processes would be."""
    settings = quick_settings(str(tmp_path))
    async with serving(settings) as one, serving(settings) as two:
        yield one.node, two.node


async def test_two_nodes_share_the_shards_and_one_that_closes_loses_nothing(
    tmp_path: Path,
) -> None:
    """F-34"""
    slow = Answer(200, delay_seconds=0.05)
    async with FakeEndpoint(plan=[slow]) as receiver, two_nodes(tmp_path) as (one, two):
        await new_topic(one)
        await subscribe(one, receiver.url)
        hosts = one.subscriptions.host, two.subscriptions.host
        assert hosts[0] is not None
        assert hosts[1] is not None
        first, second = hosts
        await eventually(lambda: (len(first.shards), len(second.shards)) == (2, 2))
        ids = ids_of(50, 4)
        await produce(one, *ids)
        await receiver.until(20)
        await two.subscriptions.close()
        assert not second.shards
        await eventually(
            lambda: {each.headers["waystation-id"] for each in receiver.received} == set(ids)
        )
        assert len(receiver.received) == len(ids), "what was under way has ended, once"


@pytest.mark.slow
async def test_sigterm_lets_requests_end_and_the_next_process_goes_on(tmp_path: Path) -> None:
    """F-34: nothing is lost, nothing is repeated, nothing waits for a lease."""
    data = tmp_path / "data"
    slow = Answer(200, delay_seconds=0.5)
    environment = {"WAYSTATION_DELIVERY_LOOPBACK": "true"}
    ids = ids_of(50, 4)
    data.mkdir()
    setting_up = quick_settings(
        str(data),
        store=StoreConfig(durability="disk"),
        subscriptions=SubscriptionConfig(deliver=False),
    )
    async with FakeEndpoint(plan=[slow]) as receiver:
        async with serving(setting_up) as station:
            await new_topic(station.node)
            await subscribe(station.node, receiver.url)
            await produce(station.node, *ids)
        with station_process(data, **environment) as delivering:
            await receiver.until(20)
            delivering.signal(signal.SIGTERM)
            assert await delivering.exit_code() == 0
        before = len(receiver.received)
        assert before < len(ids), "it was told to end under load"
        with station_process(data, **environment) as again:
            await receiver.until(len(ids), seconds=40)
            assert again.alive
    assert sorted(each.headers["waystation-id"] for each in receiver.received) == sorted(ids)
