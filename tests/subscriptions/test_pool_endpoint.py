"""Pools as endpoints: a message waits once for the worker of its key, however often it comes."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.processes import station_process
from tests.helpers.store_faults import Fate, proxy_to, store_at
from tests.pools.pool_bench import NAME, PROJECT, PoolBench, bench_on, open_bench
from tests.subscriptions.parcels import means_with, parcel, subscription_to
from tests.subscriptions.test_dispatch import ids_of, new_topic, produce, subscribe
from waystation.catalogue import SqliteCatalogue
from waystation.config import Config, StoreConfig, SubscriptionConfig
from waystation.delivery.request import Failure, Outcome
from waystation.delivery.schedule import Schedule, Verdict
from waystation.errors import EndpointInvalidError
from waystation.messages.envelope import Envelope, unpack
from waystation.pools.names import Place
from waystation.pools.recipient import check_id
from waystation.store.address import Address
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.pubsub import PubSub
from waystation.store.scripts import script
from waystation.subscriptions.endpoints.opening import open_endpoint
from waystation.subscriptions.endpoints.pool import RECIPIENT_HEADER, id_in_pool
from waystation.subscriptions.endpoints.protocol import Endpoint, Parcel
from waystation.testing import CrashPoint, crash_points, serving
from waystation.testing.station import quick_settings

CLOSE = script("waystation.pools", "close")
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@asynccontextmanager
async def endpoint_of(
    bench: PoolBench, *, to: str = NAME, **options: float
) -> AsyncIterator[Endpoint]:
    """The endpoint of subscription `billing`."""
    async with means_with(enqueue_many=bench.pools.enqueue) as means:
        endpoint = open_endpoint(subscription_to(f"pool:{to}", **options), (), means)
        assert (endpoint.batch_max, endpoint.target) == (100, f"pool:default.{to}")
        yield endpoint


async def waiting(store: Store, key: str, *, pool: str = NAME) -> list[Envelope]:
    """What waits for a key, in order."""
    found = await store.call("LRANGE", Place(PROJECT, pool).key(f"m:{key}"), 0, -1)
    return [unpack(each.split(b" ", 2)[2], project=PROJECT) for each in found]


def verdict(outcome: Outcome) -> Verdict:
    return Schedule().decide(outcome, attempt=1, rng=random.Random(1)).verdict


async def test_messages_wait_under_their_group_in_order_and_a_repetition_once(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench, endpoint_of(bench) as endpoint:
        await bench.create()
        parcels = [
            parcel(b"\xff%d" % n, id=f"m-{n}", group=f"g{n % 2}", traceparent=TRACE)
            for n in range(4)
        ]
        for _ in range(2):
            assert all(each.succeeded for each in await endpoint.send(parcels))
        for group in (0, 1):
            found = await waiting(bench.store, f"g{group}")
            assert found == [parcels[group].message, parcels[group + 2].message]


async def test_the_key_is_the_group_else_what_a_header_names_else_the_id(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench, endpoint_of(bench) as endpoint:
        await bench.create()
        named = ((RECIPIENT_HEADER, "did:key:z6Mk"),)
        await endpoint.send(
            [
                parcel(id="a", group="g", headers=named),
                parcel(id="b", group=None, headers=named),
                parcel(id="c", group=None),
            ]
        )
        keys = ("g", "did:key:z6Mk", "c")
        assert [[each.id for each in await waiting(bench.store, key)] for key in keys] == [
            *(["a"], ["b"], ["c"])
        ]


async def test_a_rewind_and_another_subscription_hand_over_theirs(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench, endpoint_of(bench) as endpoint:
        await bench.create()
        first = parcel(id="m", group="g")
        others = [
            parcel(id="m", group="g", incarnation=2),
            Parcel(
                message=first.message,
                position=first.position,
                attempt=2,
                subscription="audit",
                incarnation=1,
            ),
        ]
        for each in (first, *others, first, *others):
            (outcome,) = await endpoint.send([each])
            assert outcome.succeeded
        assert len(await waiting(bench.store, "g")) == 3


async def test_what_finds_no_room_is_tried_again_and_the_rest_is_done(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench, endpoint_of(bench) as endpoint:
        await bench.create(messages_max=2)
        parcels = [parcel(id=f"m-{n}") for n in range(3)]
        outcomes = await endpoint.send(parcels)
        assert [each.succeeded for each in outcomes] == [True, True, False]
        assert outcomes[2].failure is Failure.BUSY
        assert verdict(outcomes[2]) is Verdict.RETRY
        assert "full" in outcomes[2].detail


async def test_a_pool_that_closes_is_tried_again_and_one_that_is_not_there_is_fatal(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with (
        open_bench(store_server, tmp_path) as bench,
        endpoint_of(bench) as endpoint,
        endpoint_of(bench, to="nowhere") as absent,
    ):
        pool = await bench.create()
        await bench.store.run(CLOSE, [pool.place.head], [pool.incarnation, ""])
        (closed,) = await endpoint.send([parcel()])
        assert (closed.failure, verdict(closed)) == (Failure.BUSY, Verdict.RETRY)
        outcomes = await absent.send([parcel(), parcel(id="other")])
        assert [verdict(each) for each in outcomes] == [Verdict.FAILED] * 2
        assert "nowhere" in outcomes[0].detail
        await bench.pools.delete(PROJECT, NAME)
        (gone,) = await endpoint.send([parcel()])
        assert verdict(gone) is Verdict.FAILED


async def test_a_key_that_no_pool_takes_is_refused_alone(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench, endpoint_of(bench) as endpoint:
        await bench.create()
        strange = parcel(id="bad", group="no\N{NO-BREAK SPACE}break")
        outcomes = await endpoint.send([parcel(id="a"), strange, parcel(id="b")])
        assert [verdict(each) for each in outcomes] == [
            *(Verdict.DONE, Verdict.FAILED, Verdict.DONE)
        ]
        assert [each.id for each in await waiting(bench.store, "order-17")] == ["a", "b"]
        (outcome,) = await endpoint.send([strange])
        assert outcome.failure is Failure.REFUSED


@pytest.mark.parametrize("timeout", [0.1, 30.0], ids=["ours", "the store's"])
async def test_a_store_that_is_away_is_tried_again(
    store_server: EmbeddedServer, tmp_path: Path, timeout: float
) -> None:
    async with open_bench(store_server, tmp_path) as bench, proxy_to(store_server.address) as proxy:
        await bench.create()
        patience = 20.0 if timeout < 1 else 0.5
        async with (
            away(proxy.address, bench.catalogue, call_seconds_max=patience) as cut,
            endpoint_of(bench) as before,
            endpoint_of(cut, timeout_seconds=timeout) as endpoint,
        ):
            (outcome,) = await before.send([parcel(id="before")])
            assert outcome.succeeded
            await proxy.set_fates(requests=Fate.CUT)
            (outcome,) = await endpoint.send([parcel(id="late")])
            assert outcome.failure is (Failure.TIMEOUT if timeout < 1 else Failure.BUSY)
            assert verdict(outcome) is Verdict.RETRY
        assert [each.id for each in await waiting(bench.store, "order-17")] == ["before"]


@asynccontextmanager
async def away(
    address: Address, catalogue: SqliteCatalogue, *, call_seconds_max: float
) -> AsyncIterator[PoolBench]:
    store = Store(address, call_seconds_max=call_seconds_max)
    bench = bench_on(catalogue, store, PubSub(address))
    try:
        yield bench
    finally:
        await bench.pools.close()
        await store.close()


@given(st.text(min_size=1, max_size=100), st.integers(1, 10**6))
def test_every_id_of_a_topic_becomes_one_of_a_pool(message_id: str, incarnation: int) -> None:
    made = id_in_pool(parcel(id=message_id, incarnation=incarnation))
    assert check_id(made).startswith(f"billing:{incarnation}:")
    other = id_in_pool(parcel(id=message_id + "\N{NO-BREAK SPACE}", incarnation=incarnation))
    assert other != made


# -- Deaths ----------------------------------------------------------------------------------


def test_a_death_between_the_pool_and_the_settlement_repeats_nothing(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """Whoever has the shard next delivers again: the id tells the pool that it has it already."""
    parcels = [parcel(id=f"m-{n}", group="g") for n in range(3)]

    async def deliver(store: Store) -> None:
        async with (
            open_bench(store_server, tmp_path, empty=False, store=store) as bench,
            endpoint_of(bench) as endpoint,
        ):
            assert all(each.succeeded for each in await endpoint.send(parcels))

    async def prepare(store: Store) -> None:
        for file in tmp_path.glob("catalogue.db*"):
            file.unlink()
        async with open_bench(store_server, tmp_path, empty=False, store=store) as bench:
            await bench.create()

    async def after(store: Store, _: CrashPoint) -> None:
        there = len(await waiting(store, "g"))
        assert there in (0, 3), "all of a call, or nothing"
        await deliver(store)
        assert [each.id for each in await waiting(store, "g")] == ["m-0", "m-1", "m-2"]

    assert len(crash_points(store_server.address, deliver, after, prepare=prepare)) >= 3


async def test_a_subscription_delivers_to_a_pool_in_the_order_of_its_groups(
    settings: Config,
) -> None:
    async with serving(settings) as station:
        node = station.node
        await new_topic(node)
        with pytest.raises(EndpointInvalidError, match="no pool agents"):
            await subscribe(node, f"pool:{NAME}")
        await node.pools.pools.create(PROJECT, NAME)
        await subscribe(node, f"pool:{NAME}")
        await produce(node, *ids_of(10, 3))
        await arrived(node.opened.store, 30)
        for group in range(10):
            found = await waiting(node.opened.store, f"g{group}")
            assert [each.id for each in found] == [f"g{group}-{n}" for n in range(3)]


async def arrived(store: Store, count: int, *, seconds: float = 30) -> None:
    """Waits until a pool has so many messages."""
    async with asyncio.timeout(seconds):
        while int(await store.call("HGET", Place(PROJECT, NAME).head, "messages") or 0) < count:
            await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_a_station_that_is_killed_while_it_delivers_hands_every_message_over_once(
    tmp_path: Path,
) -> None:
    """F-03: what was enqueued, and not settled, is enqueued again by the next owner, in vain."""
    data, ids = tmp_path / "data", ids_of(40, 100)
    data.mkdir()
    setting_up = quick_settings(
        str(data),
        store=StoreConfig(durability="disk"),
        subscriptions=SubscriptionConfig(deliver=False),
    )
    async with serving(setting_up) as station:
        node = station.node
        await new_topic(node)
        await node.pools.pools.create(PROJECT, NAME)
        await subscribe(node, f"pool:{NAME}")
        await produce(node, *ids)
    with station_process(data) as delivering:
        async with store_at(delivering.store) as store:
            await arrived(store, 1)
        delivering.signal(signal.SIGKILL)
        await delivering.exit_code()
    with station_process(data) as again:
        async with store_at(again.store, call_seconds_max=10) as store:
            await arrived(store, len(ids), seconds=60)
            found = [[each.id for each in await waiting(store, f"g{n}")] for n in range(40)]
    assert found == [[f"g{n}-{number}" for number in range(100)] for n in range(40)]
