"""Subscriptions in the demo: events to a flaky endpoint, in order, though who delivers dies."""

from __future__ import annotations

import asyncio

from demo.flaky import NOT_NOW, FlakyEndpoint, is_put_off
from demo.stage import ACT_SECONDS_MAX, Stage
from demo.station import DemoStation
from waystation.client import AsyncWaystation, NewMessage, Receipt

_TOPIC = "events"
_NAME = "ledger"
#: The same events, for a page that shows them.
_BOARD = "board"
_ORDERS = 60
#: Events of each order.
_EVENTS = 10
#: So many orders cannot be taken before the endpoint is mended, from their third event on.
_BROKEN = 4
_PARKED = _BROKEN * (_EVENTS - 2)
#: All attempts at an event that nobody takes: the first, and two more.
_TRIES = 3
_PUT_OFF = sum(is_put_off(order, number) for order in range(_ORDERS) for number in range(_EVENTS))
#: What history has to say of each endpoint: requests, and those that were answered 500 or more.
EXPECTED_REQUESTS = {
    "127.0.0.1": [_ORDERS * _EVENTS + _PUT_OFF + _BROKEN * _TRIES, _PUT_OFF],
    f"channel:default.{_BOARD}": [_ORDERS * _EVENTS, 0],
}
#: The topic, and how many messages history has to have of it.
EVENTS = (_TOPIC, _ORDERS * _EVENTS)


async def events_to_a_flaky_endpoint(stage: Stage, station: DemoStation) -> None:
    """Delivers grouped events, kills a delivery process, redrives what was parked, counts all."""
    total = _ORDERS * _EVENTS
    stage.act(f"{total} events of {_ORDERS} orders to a flaky endpoint; who delivers dies")
    other = station.deliverer()
    try:
        with FlakyEndpoint(broken_orders=_BROKEN) as endpoint:
            await asyncio.to_thread(other.facts)
            async with AsyncWaystation(station.url) as client:
                await _subscribe(client, endpoint)
                await _until_shared(client)
                producing = asyncio.create_task(_produce(client))
                await _until_taken(endpoint, total // 5)
                stage.say(f"kill -9 {other.kill()}: a delivery process with half of the shards")
                stage.check("events accepted", await producing, total)
                await _deliver_most(stage, client, endpoint, total)
                await _redrive(stage, client, endpoint)
                _check(stage, endpoint, total)
                left = await client.subscriptions.shards(_NAME)
                stage.check("events that are left", left.lag + left.retry + left.dead, 0)
                await _until_published(client)
    finally:
        other.stop()


async def _subscribe(client: AsyncWaystation, endpoint: FlakyEndpoint) -> None:
    await client.topics.create(_TOPIC, partitions=4, grouped=True)
    made = await client.subscriptions.create(
        _NAME,
        topic=_TOPIC,
        endpoint=endpoint.url,
        retry={"attempts": _TRIES - 1, "first_seconds": 0.1, "retry_codes": [NOT_NOW]},
        poison="park",
    )
    await client.subscriptions.create(_BOARD, topic=_TOPIC, endpoint=f"channel:{_BOARD}")
    assert made.secret is not None
    endpoint.secret = made.secret


async def _until_shared(client: AsyncWaystation) -> None:
    """Waits until both processes have shards."""
    while True:
        shards = (await client.subscriptions.shards(_NAME)).shards
        owners = {each.owner for each in shards}
        if len(owners) == 2 and "" not in owners:
            return
        await asyncio.sleep(0.02)


async def _produce(client: AsyncWaystation) -> int:
    """All events, round after round; how many were accepted."""
    accepted = 0
    for number in range(_EVENTS):
        events = [
            NewMessage({"event": number}, id=f"event-{order}-{number}", group=f"order-{order}")
            for order in range(_ORDERS)
        ]
        answers = await client.topics.produce_many(_TOPIC, events)
        accepted += sum(isinstance(each, Receipt) for each in answers)
    return accepted


async def _until_published(client: AsyncWaystation) -> None:
    """Waits until the channel has all events."""
    while (await client.subscriptions.shards(_BOARD)).lag:
        await asyncio.sleep(0.02)


async def _until_taken(endpoint: FlakyEndpoint, count: int) -> None:
    while endpoint.count < count:
        await asyncio.sleep(0.01)


async def _deliver_most(
    stage: Stage, client: AsyncWaystation, endpoint: FlakyEndpoint, total: int
) -> None:
    """All but what the endpoint cannot take: those groups are parked, the others know nothing."""
    done = stage.progress("delivered", total)
    shown = 0
    while shown < total - _PARKED:
        await asyncio.sleep(0.02)
        taken = endpoint.count
        for _ in range(shown, taken):
            done()
        shown = taken
    for order in range(_BROKEN):
        await client.subscriptions.wait(_NAME, group=f"order-{order}", state="parked")
    parked = [each async for each in client.subscriptions.groups(_NAME, state="parked")]
    stage.check("orders parked, since one of their events fails", len(parked), _BROKEN)
    stage.check("events delivered meanwhile", endpoint.count, total - _PARKED)
    found = await client.subscriptions.why(_NAME, group="order-0")
    stage.say(f"why: {found.text}")


async def _redrive(stage: Stage, client: AsyncWaystation, endpoint: FlakyEndpoint) -> None:
    counted = await client.subscriptions.redrive(_NAME, dry_run=True)
    stage.check("dead letters that a redrive would deliver", counted.count, _PARKED)
    endpoint.mended = True
    operation = await client.subscriptions.redrive(_NAME)
    ended = await operation.wait(f"{ACT_SECONDS_MAX}s")
    stage.check("dead letters redriven", ended.progress.settled, _PARKED)


def _check(stage: Stage, endpoint: FlakyEndpoint, total: int) -> None:
    stage.check("events delivered in all", endpoint.count, total)
    # Delivered again after a kill is one more of the same, right behind it.
    in_order = all(numbers == sorted(numbers) for numbers in endpoint.taken.values())
    stage.check("the events of every order came in order", in_order, True)
    stage.check("events whose signature did not hold", endpoint.forged, 0)
    again = sum(len(numbers) for numbers in endpoint.taken.values()) - total
    stage.say(f"put off and tried again: {endpoint.put_off}")
    stage.say(f"delivered twice because of the kill, with the same id: {again}")
