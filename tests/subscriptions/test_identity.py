"""Delivery ids: different messages with one id arrive, each once, at every kind of endpoint."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pools.pool_bench import NAME, PROJECT, open_bench
from tests.subscriptions.at_work import Hook, at_work
from tests.subscriptions.parcels import parcel
from tests.subscriptions.test_channel_endpoint import delivering, found
from tests.subscriptions.test_dispatch import STARTED, until_acknowledged
from tests.subscriptions.test_pipeline_endpoint import deliver, started
from tests.subscriptions.test_pool_endpoint import endpoint_of, waiting
from tests.transactions.service_helpers import open_outside
from waystation.config import Config
from waystation.delivery.request import Outcome
from waystation.messages.envelope import Envelope
from waystation.pools.recipient import check_id
from waystation.runtime.ids import is_name
from waystation.store.embedded.server import EmbeddedServer
from waystation.subscriptions.definition import NewSubscription
from waystation.subscriptions.endpoints.channel import id_in_channel
from waystation.subscriptions.endpoints.identity import delivery_id
from waystation.subscriptions.endpoints.pipeline import external_id_of
from waystation.subscriptions.endpoints.pool import id_in_pool
from waystation.subscriptions.endpoints.protocol import ACCEPTED, DUPLICATE, Parcel
from waystation.testing import serving
from waystation.transactions.order import EXTERNAL_ID_LENGTH_MAX
from waystation.transactions.pipeline import define
from waystation.types.topic import TopicOptions

#: Three messages that a producer named alike.
ALIKE = [parcel(b'{"n": %d}' % n, id="order-17", offset=n) for n in range(3)]

_NAMES = st.from_regex(r"[0-9a-z][0-9a-z_-]{0,62}", fullmatch=True)
_MESSAGES = st.builds(
    parcel,
    id=st.one_of(
        st.text(min_size=1, max_size=100), st.sampled_from(["a", "1:0-3-17:a", "h-a", "0-3-17:a"])
    ),
    subscription=st.one_of(_NAMES, st.sampled_from(["a", "a-1", "a-1-0-3-17"])),
    incarnation=st.sampled_from([1, 2, 12, 10**9]),
    offset=st.sampled_from([0, 1, 7, 17, 2**53]),
)


def identity(each: Parcel) -> tuple[object, ...]:
    return each.subscription, each.incarnation, each.position, each.message.id


@given(_MESSAGES, _MESSAGES)
def test_delivery_id_of_different_messages_differs_at_every_endpoint(
    one: Parcel, other: Parcel
) -> None:
    for id_of in (delivery_id, id_in_channel, id_in_pool, external_id_of):
        assert (id_of(one) == id_of(other)) == (identity(one) == identity(other))


@given(_MESSAGES)
def test_delivery_id_fits_every_receiver(each: Parcel) -> None:
    assert is_name(id_in_channel(each))
    assert check_id(id_in_pool(each))
    assert len(external_id_of(each)) <= EXTERNAL_ID_LENGTH_MAX


def test_delivery_id_of_two_projects_differs_for_one_http_receiver() -> None:
    one = parcel(id="order-17")
    project = msgspec.structs.replace(one.message, project="shop")
    other = msgspec.structs.replace(one, message=project)
    assert delivery_id(other) == f"shop/{delivery_id(one)}"


def test_delivery_id_of_a_later_attempt_is_the_same() -> None:
    first, third = parcel(id="order-17"), parcel(id="order-17", attempt=3)
    for id_of in (delivery_id, id_in_channel, id_in_pool, external_id_of):
        assert id_of(first) == id_of(third)


def check_receipts(first: list[Outcome], again: list[Outcome]) -> None:
    """Each message is accepted under its own receipt, and its repetition has the same receipt."""
    assert [each.status for each in first] == [ACCEPTED] * 3
    assert [each.status for each in again] == [DUPLICATE] * 3
    assert [each.receipt for each in first] == [each.receipt for each in again]
    assert len({each.receipt for each in first}) == 3


async def test_channel_given_three_messages_with_one_id_publishes_three(
    store_server: EmbeddedServer,
) -> None:
    async with delivering(store_server) as (endpoint, channels):
        check_receipts(await endpoint.send(ALIKE), await endpoint.send(ALIKE))
        assert [content for _, content in await found(channels)] == [{"n": n} for n in range(3)]


async def test_channel_given_one_id_by_two_subscriptions_publishes_two(
    store_server: EmbeddedServer,
) -> None:
    async with delivering(store_server) as (endpoint, channels):
        await endpoint.send([parcel(subscription="one"), parcel(subscription="two")])
        assert len(await found(channels)) == 2


async def test_pool_given_three_messages_with_one_id_keeps_three(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench, endpoint_of(bench) as endpoint:
        await bench.create()
        check_receipts(await endpoint.send(ALIKE), await endpoint.send(ALIKE))
        kept = await waiting(bench.store, "order-17")
        assert kept == [each.message for each in ALIKE], "with the id that their producer gave"


async def test_pipeline_given_three_messages_with_one_id_starts_three(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_outside(store_server.address, tmp_path) as outside:
        await outside.define("refund")
        # With the same data too: nothing but the position tells these messages apart.
        alike = [parcel(id="order-17", offset=n) for n in range(3)]
        check_receipts(await deliver(outside, *alike), await deliver(outside, *alike))
        assert await started(outside) == 3


async def test_http_webhook_id_of_alike_messages_differs_and_stays_over_retry_and_owner(
    store_server: EmbeddedServer,
) -> None:
    """The first owner's attempts fail; the second owner delivers under the same ids."""
    failing = True
    hook = Hook(decide=lambda _: 503 if failing else 200)
    async with hook, at_work(store_server, hook.url) as work:
        for _ in range(3):
            work.produced = 0
            assert await work.produce(None) == ["None-00001"]
        shard = await work.start()
        await work.until_count("retry", 3)
        await work.kill(shard)
        failing = False
        await work.start()
        await work.until_count("retry", 0)
        await work.until_low(3)
    ids: dict[str, set[str]] = {}
    for each in hook.received:
        assert each.headers["waystation-id"] == "None-00001"
        ids.setdefault(each.headers["waystation-position"], set()).add(each.headers["webhook-id"])
    assert len(ids) == 3
    assert all(len(told) == 1 for told in ids.values()), "the same at every attempt"
    assert len(set.union(*ids.values())) == 3


def alike(source: str, group: str) -> Envelope:
    """An event with id `order-17`, which is unique within its source and group alone."""
    return Envelope(
        id="order-17",
        project="default",
        data=b'{"from": "%b", "group": "%b"}' % (source.encode(), group.encode()),
        group=group,
        headers=(("ce-id", "order-17"), ("ce-source", source), ("ce-type", "t"),
                 ("ce-specversion", "1.0")),
    )  # fmt: skip


@pytest.mark.parametrize("dedup_seconds", [0.0, 60.0])
async def test_node_delivers_alike_messages_of_a_topic_to_every_endpoint(
    settings: Config, dedup_seconds: float
) -> None:
    """Without deduplication three that are the same; with it those of other sources and groups."""
    async with serving(settings) as station:
        node = station.node
        options = TopicOptions(grouped=True, dedup_seconds=dedup_seconds)
        await node.topics.create("default", "orders", partitions=2, options=options)
        await node.engine.pipelines.put("default", define("refund", ["refund/pay"]))
        await node.pools.pools.create(PROJECT, NAME)
        await node.channels.subscribe("default", "news", "me")
        for name, endpoint in (
            ("starting", "pipeline:refund"),
            ("publishing", "channel:news"),
            ("pooling", f"pool:{NAME}"),
        ):
            new = NewSubscription(topic="orders", endpoint=endpoint)
            await node.subscriptions.subscriptions.create("default", name, new)
        messages = (
            [alike("/a", "g"), alike("/b", "g"), alike("/a", "h")]
            if dedup_seconds
            else [alike("/a", "g")] * 3
        )
        receipts = await node.producer.produce("default", "orders", messages)
        assert not any(getattr(each, "duplicate", True) for each in receipts)
        for name in ("starting", "publishing", "pooling"):
            subscription = await node.subscriptions.subscriptions.get("default", name)
            await until_acknowledged(node, subscription)

        fetched = await node.channels.fetch("default", "news", "me", limit=100)
        assert sorted(bytes(each.content) for each in fetched.messages) == sorted(
            each.data for each in messages
        )
        store = node.opened.store
        pooled = [*await waiting(store, "g"), *await waiting(store, "h")]
        assert len(pooled) == 3
        assert len(await store.call("KEYS", STARTED)) == 3
