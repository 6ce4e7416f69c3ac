"""Channels as endpoints: published once, ids that fit, bytes wrapped, what is full tried again."""

from __future__ import annotations

import base64
import hashlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.store_faults import Fate, proxy_to
from tests.subscriptions.parcels import means_with, parcel, subscription_to
from waystation.channels.service import ChannelService
from waystation.config import ChannelConfig, ChannelRule
from waystation.delivery.request import Failure, Outcome
from waystation.delivery.schedule import Schedule, Verdict
from waystation.runtime.clock import Clock
from waystation.runtime.ids import is_name
from waystation.store.address import Address
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.pubsub import PubSub
from waystation.subscriptions.endpoints.channel import content_of, id_in_channel
from waystation.subscriptions.endpoints.opening import open_endpoint
from waystation.subscriptions.endpoints.protocol import Endpoint

RULES = (
    ChannelRule(pattern="small", backlog_max=2, backlog_policy="refuse"),
    ChannelRule(pattern="orders"),
)


@asynccontextmanager
async def channels_at(address: Address, **more: float) -> AsyncIterator[ChannelService]:
    store, wakeups, clock = Store(address, **more), PubSub(address), Clock()
    await wakeups.start()
    channels = ChannelService(store, wakeups, clock=clock, settings=ChannelConfig(rules=RULES))
    try:
        yield channels
    finally:
        channels.close()
        await wakeups.stop()
        await store.close()


@asynccontextmanager
async def delivering(
    server: EmbeddedServer, channel: str = "orders"
) -> AsyncIterator[tuple[Endpoint, ChannelService]]:
    async with (
        channels_at(server.address) as channels,
        means_with(publish_many=channels.publish_many) as means,
    ):
        await channels._store.call("FLUSHALL")
        await channels.subscribe("default", channel, "me")
        yield open_endpoint(subscription_to(f"channel:{channel}"), (), means), channels


async def found(channels: ChannelService, channel: str = "orders") -> list[tuple[str, object]]:
    fetched = await channels.fetch("default", channel, "me", limit=100)
    return [(each.id, msgspec.json.decode(each.content)) for each in fetched.messages]


async def test_messages_are_published_in_order_and_a_repetition_once(
    store_server: EmbeddedServer,
) -> None:
    async with delivering(store_server) as (endpoint, channels):
        parcels = [parcel(b'{"n": %d}' % n, id=f"m-{n}", group=None) for n in range(3)]
        for _ in range(2):
            assert all(each.succeeded for each in await endpoint.send(parcels))
        assert await found(channels) == [
            (id_in_channel(each), {"n": n}) for n, each in enumerate(parcels)
        ]
        assert all(id_in_channel(each).startswith(f"m-{n}-") for n, each in enumerate(parcels))


async def test_ids_that_are_no_names_and_bytes_that_are_no_json_are_published_all_the_same(
    store_server: EmbeddedServer,
) -> None:
    async with delivering(store_server) as (endpoint, channels):
        long, strange = "x" * 100, "Größe 17"
        parcels = [parcel(b"\xff\x00", id=long), parcel(b"NaN", id=strange), parcel(b"", id="a")]
        assert all(each.succeeded for each in await endpoint.send(parcels))
        hashes = [
            hashlib.sha256(f"billing:1:0-3-17:{each}".encode()).hexdigest()
            for each in (long, strange, "a")
        ]
        assert await found(channels) == [
            (f"h-{hashes[0][:60]}", {"base64": "/wA="}),
            (f"h-{hashes[1][:60]}", {"base64": "TmFO"}),
            (f"a-{hashes[2][:20]}", {"base64": ""}),
        ]


async def test_a_rewind_is_published_again(store_server: EmbeddedServer) -> None:
    async with delivering(store_server) as (endpoint, channels):
        for incarnation in (1, 2, 2, 3):
            (outcome,) = await endpoint.send([parcel(id="m-1", incarnation=incarnation)])
            assert outcome.succeeded
        ids = [each for each, _ in await found(channels)]
        assert len(ids) == 3
        assert all(each.startswith("m-1-") for each in ids)


async def test_what_finds_no_room_is_tried_again_and_the_rest_is_done(
    store_server: EmbeddedServer,
) -> None:
    async with delivering(store_server, "small") as (endpoint, _):
        parcels = [parcel(id=f"m-{n}") for n in range(3)]
        outcomes = await endpoint.send(parcels)
        assert [each.succeeded for each in outcomes] == [True, True, False]
        (refused,) = await endpoint.send(parcels[2:])
        assert refused.failure is outcomes[2].failure is Failure.BUSY
        assert verdict(refused) is Verdict.RETRY


async def test_a_channel_that_no_rule_allows_is_fatal(store_server: EmbeddedServer) -> None:
    async with (
        channels_at(store_server.address) as channels,
        means_with(publish_many=channels.publish_many) as means,
    ):
        endpoint = open_endpoint(subscription_to("channel:nowhere"), (), means)
        outcomes = await endpoint.send([parcel(), parcel(id="other")])
        assert [verdict(each) for each in outcomes] == [Verdict.FAILED] * 2
        assert "nowhere" in outcomes[0].detail


@pytest.mark.parametrize("timeout", [0.1, 30.0], ids=["ours", "the store's"])
async def test_a_store_that_is_away_is_tried_again(
    store_server: EmbeddedServer, timeout: float
) -> None:
    async with (
        proxy_to(store_server.address) as proxy,
        channels_at(proxy.address, call_seconds_max=20 if timeout < 1 else 0.5) as channels,
        means_with(publish_many=channels.publish_many) as means,
    ):
        subscription = subscription_to("channel:orders", timeout_seconds=timeout)
        endpoint = open_endpoint(subscription, (), means)
        await proxy.set_fates(requests=Fate.CUT)
        (outcome,) = await endpoint.send([parcel()])
        assert outcome.failure is (Failure.TIMEOUT if timeout < 1 else Failure.BUSY)
        assert verdict(outcome) is Verdict.RETRY


@given(st.text(min_size=1, max_size=100), st.integers(1, 10**6))
def test_every_id_becomes_a_name(message_id: str, incarnation: int) -> None:
    assert is_name(id_in_channel(parcel(id=message_id, incarnation=incarnation)))


@given(st.binary(max_size=200))
def test_whatever_is_published_is_json_and_says_what_it_was(data: bytes) -> None:
    content = content_of(data)
    read = msgspec.json.decode(content)
    assert content == data or base64.b64decode(read["base64"]) == data


def verdict(outcome: Outcome) -> Verdict:
    return Schedule().decide(outcome, attempt=1, rng=random.Random(1)).verdict
