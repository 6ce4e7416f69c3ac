"""Channels in the demo: orders through crashes, to two subscribers, complete and in order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from demo.stage import Stage
from demo.station import DemoStation
from waystation.client import AsyncWaystation

_ORDERS = 3000
_PUBLISHERS = 8
_SUBSCRIBERS = ("billing", "shipping")
_CHANNEL = "orders"


async def orders_through_a_crash(stage: Stage, station: DemoStation) -> None:
    """Publishes while the store is killed; checks what each subscriber got."""
    stage.act(f"{_ORDERS:,} orders to {len(_SUBSCRIBERS)} subscribers; the store dies on the way")
    done = stage.progress("received", _ORDERS * len(_SUBSCRIBERS))
    readers = [_Reader(name) for name in _SUBSCRIBERS]
    async with AsyncWaystation(station.url) as client:
        for reader in readers:
            await client.channels.subscribe(_CHANNEL, reader.name)
        reading = [asyncio.create_task(reader.read(client, done)) for reader in readers]
        sending = [
            asyncio.create_task(_publish(client, range(first, _ORDERS, _PUBLISHERS)))
            for first in range(_PUBLISHERS)
        ]
        while len(readers[0].got) < _ORDERS // 2:
            await asyncio.sleep(0.005)
        killed = station.kill_store()
        stage.say(f"kill -9 {killed}: the store, with orders in flight")
        await asyncio.gather(*sending, *reading)
        # A repetition, as after a lost reply: it is accepted and changes nothing.
        await client.channels.publish(_CHANNEL, {"order": 0}, message_id="order-0")
        for reader in readers:
            again = await client.channels.fetch(_CHANNEL, reader.name)
            stage.check(f"messages that {reader.name} got twice", len(again.messages), 0)
    first, second = readers
    for reader in readers:
        stage.check(f"orders that {reader.name} got", len(set(reader.got)), _ORDERS)
    stage.check("both saw the same order", first.got == second.got, True)


async def unread_after_a_crash(stage: Stage, station: DemoStation) -> None:
    """Kills the station with unread messages; checks that they are there after its restart."""
    stage.act("the station itself dies with messages unread")
    async with AsyncWaystation(station.url) as client:
        await client.channels.subscribe("alerts", "night-shift")
        for number in range(100):
            await client.channels.publish("alerts", {"alert": number}, message_id=f"a-{number}")
        killed = station.kill()
        stage.say(f"kill -9 {killed}: the station, 100 alerts unread")
        station.start()
        batch = await client.channels.fetch("alerts", "night-shift", limit=200)
        numbers = [message.content["alert"] for message in batch.messages]
        stage.check("unread after the restart, in order", numbers == list(range(100)), True)


async def a_poll_wakes(stage: Stage, station: DemoStation) -> None:
    """Measures how long a waiting poll takes to hear of a publish."""
    stage.act("a long poll hears of a publish")
    delays = []
    async with AsyncWaystation(station.url) as client:
        await client.channels.subscribe("bell", "door")
        for _ in range(50):
            poll = asyncio.create_task(client.channels.fetch("bell", "door", timeout=10))
            await asyncio.sleep(0.02)
            rung = time.perf_counter()
            await client.channels.publish("bell", "ding")
            batch = await poll
            delays.append((time.perf_counter() - rung) * 1000)
            await client.channels.ack("bell", "door", batch.handle)
    delays.sort()
    stage.say(f"publish to receipt: median {delays[25]:.1f} ms, slowest {delays[-1]:.1f} ms")


@dataclass
class _Reader:
    name: str
    got: list[str] = field(default_factory=list)

    async def read(self, client: AsyncWaystation, done: Callable[[], None]) -> None:
        while len(self.got) < _ORDERS:
            batch = await client.channels.fetch(_CHANNEL, self.name, timeout=5)
            for message in batch.messages:
                # At least once: what was not yet acknowledged when the store died comes again.
                if message.id not in self.got[-200:]:
                    self.got.append(message.id)
                    done()
            if batch.handle:
                await client.channels.ack(_CHANNEL, self.name, batch.handle)


async def _publish(client: AsyncWaystation, numbers: range) -> None:
    for number in numbers:
        await client.channels.publish(_CHANNEL, {"order": number}, message_id=f"order-{number}")
