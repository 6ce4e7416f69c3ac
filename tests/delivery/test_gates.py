"""A lane that has something in it is always found: registering and retiring in every order.

The register lies in another slot than the lanes, so no script can change both. What is promised
must hold whoever stalls between whichever two calls, and for however long.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.delivery.delivering import LANE, delivering
from tests.helpers.interleavings import all_orders, some_orders
from tests.helpers.store_faults import store_at
from tests.helpers.waiting import eventually
from waystation.delivery.outbox import REGISTER, Item, Outbox
from waystation.errors import InvalidInputError
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.scripts import script
from waystation.testing import CrashPoint, crash_points
from waystation.testing.endpoint import FakeEndpoint

ITEM = Item(url="http://crm.example/")


async def add_first(store: Any) -> None:
    assert await Outbox(store).add(LANE, "m-1", ITEM)


async def add_second(store: Any) -> None:
    assert await Outbox(store).add(LANE, "m-2", ITEM)


async def retire(store: Any) -> None:
    outbox = Outbox(store)
    registered = await outbox.registration(LANE)
    if registered:
        await outbox.retire(LANE, registered)


async def new_lane(store: Store) -> None:
    await store.call("FLUSHALL")


async def open_lane(store: Store) -> None:
    await store.call("FLUSHALL")
    outbox = Outbox(store)
    await outbox.add(LANE, "m-0", ITEM)
    await outbox.discard(LANE, waiting=True)


async def half_retired_lane(store: Store) -> None:
    """Its gate is closed and it is registered still: somebody died in between."""
    await open_lane(store)
    await store.run(
        script("waystation.delivery", "close"),
        [f"{LANE}.{part}" for part in ("due", "failed", "untold", "gate", "in")],
        [60],
    )


async def retired_lane(store: Store) -> None:
    await open_lane(store)
    await retire(store)


BEFORE = [new_lane, open_lane, half_retired_lane, retired_lane]
CASTS = {
    "one adds": [add_first, retire],
    "two retire": [add_first, retire, retire],
    "two add": [add_first, add_second, retire],
}


async def check(store: Store, cast: str, order: str) -> None:
    outbox = Outbox(store)
    assert await outbox.waiting(LANE) == (2 if cast == "two add" else 1), f"order {order}"
    assert LANE in await outbox.lanes(), f"nobody would find the lane after {order}"


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("cast", CASTS)
async def test_in_any_order_of_calls_a_lane_with_items_is_registered(
    store_server: EmbeddedServer, before: Any, cast: str
) -> None:
    async with store_at(store_server.address) as store:
        await some_orders(
            store,
            lambda: before(store),
            CASTS[cast],
            lambda order: check(store, cast, order),
            seed=7,
            count=60,
        )


@pytest.mark.slow
@pytest.mark.parametrize("cast", ["two retire", "two add"])
async def test_in_thousands_of_orders_a_lane_with_items_is_registered(
    store_server: EmbeddedServer, cast: str
) -> None:
    async with store_at(store_server.address) as store:
        for before in BEFORE:
            await some_orders(
                store,
                lambda before=before: before(store),  # type: ignore[misc]
                CASTS[cast],
                lambda order: check(store, cast, order),
                seed=11,
                count=1500,
            )


@pytest.mark.parametrize("before", BEFORE)
async def test_in_every_order_of_one_adding_and_one_retiring_the_lane_is_registered(
    store_server: EmbeddedServer, before: Any
) -> None:
    async with store_at(store_server.address) as store:
        orders = await all_orders(
            store,
            lambda: before(store),
            CASTS["one adds"],
            lambda order: check(store, "one adds", order),
        )
    assert orders >= 4


async def test_a_publisher_that_stalls_before_it_opens_a_gate_cannot_open_one_closed_meanwhile(
    store_server: EmbeddedServer,
) -> None:
    async with store_at(store_server.address) as store:
        await new_lane(store)
        outbox = Outbox(store)
        # Given one who registered the lane and stands still before it opens the gate
        await outbox.register(LANE)
        # And others who opened, emptied and retired the lane meanwhile
        await open_then_retire(outbox)
        opens = script("waystation.delivery", "open")

        opened = await store.run(opens, [f"{LANE}.gate"], [""])

        # Then the late one is refused, and has to register again
        assert opened == 0
        assert await outbox.add(LANE, "m-9", ITEM)
        assert LANE in await outbox.lanes()


async def open_then_retire(outbox: Outbox) -> None:
    await outbox.add(LANE, "m-1", ITEM)
    await outbox.discard(LANE, waiting=True)
    assert await outbox.retire(LANE, await outbox.registration(LANE))


async def test_a_lane_with_a_failure_in_it_is_not_retired(store_server: EmbeddedServer) -> None:
    async with store_at(store_server.address) as store:
        await open_lane(store)
        outbox = Outbox(store)
        await store.call("ZADD", f"{LANE}.failed", 1, "m-1")

        assert not await outbox.retire(LANE, await outbox.registration(LANE))

        assert LANE in await outbox.lanes()


def test_a_death_at_any_call_of_retiring_leaves_a_lane_that_can_be_used(
    store_server: EmbeddedServer,
) -> None:
    async def after(store: Store, point: CrashPoint) -> None:
        outbox = Outbox(store)
        assert await outbox.add(LANE, "m-1", ITEM)
        assert LANE in await outbox.lanes()

    points = crash_points(store_server.address, retire, after, prepare=open_lane)

    assert len(points) == 3 * 3


async def test_an_empty_lane_is_retired_after_a_while_and_comes_back_with_the_next_item(
    store_server: EmbeddedServer,
) -> None:
    async with FakeEndpoint() as endpoint, delivering(store_server) as running:
        await running.outbox.add(LANE, "m-1", Item(url=endpoint.url))
        await endpoint.until(1)
        await running.until_empty()

        async def is_retired() -> bool:
            running.clock.shift_to(running.clock.shift_ms + 61_000)
            return not await running.store.call("EXISTS", REGISTER)

        await eventually(is_retired)
        assert not await running.store.call("EXISTS", f"{LANE}.due")
        assert await running.store.call("TTL", f"{LANE}.gate") > 0, "the gate dies in time"
        await running.outbox.add(LANE, "m-2", Item(url=endpoint.url))
        await endpoint.until(2)


async def test_an_id_that_could_be_taken_for_a_field_of_ours_is_refused(
    store_server: EmbeddedServer,
) -> None:
    """S-05"""
    async with store_at(store_server.address) as store:
        for bad in ("m.token", "m.cause", "m.attempts", "a\r\nb", "a\x00b", "ä"):
            with pytest.raises(InvalidInputError):
                await Outbox(store).add(LANE, bad, ITEM)
