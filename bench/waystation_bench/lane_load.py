"""Load on fifty lanes at once: fed at a steady rate, delivered by a deliverer of this process.

What is fed stays far below what can be delivered, so that a delay tells how long a delivery took on
its way, not how long the queue before it was.
"""

from __future__ import annotations

import asyncio
import os

from waystation.delivery.outbox import Item, Outbox
from waystation.runtime.clock import Clock
from waystation_bench.benchmark import BenchmarkError
from waystation_bench.receivers import stamp
from waystation_bench.report import Sample
from waystation_bench.send_load import delivering
from waystation_bench.target import Target, Window

LANES = 50
ITEMS_PER_SECOND = 400
#: A hanging endpoint is given up on within the round: what that costs belongs to it.
_ATTEMPT_SECONDS_MAX = 0.4
_DRAIN_SECONDS_MAX = 10.0


async def deliver_steadily(target: Target, seconds: float) -> Sample:
    """One operation = one delivery to an endpoint other than the last, which may hang."""
    async with delivering(target, seconds_max=_ATTEMPT_SECONDS_MAX) as outbox:
        lanes = _Lanes(outbox, target.ports)
        # Before the window: lanes are found and connections open.
        await asyncio.gather(*(lanes.add(number, f"w{number}", b"") for number in range(LANES)))
        await lanes.settled()
        window = Window(target, os.getpid())
        await lanes.feed(int(seconds * ITEMS_PER_SECOND))
        await lanes.settled()
        return window.close(int(seconds * ITEMS_PER_SECOND) * (LANES - 1) // LANES)


class _Lanes:
    """One lane per receiver."""

    def __init__(self, outbox: Outbox, ports: tuple[int, ...]) -> None:
        assert len(ports) == LANES
        self._outbox = outbox
        self._names = [f"b.{{{number}}}.out.e{number}" for number in range(LANES)]
        self._urls = [f"http://127.0.0.1:{port}/hook" for port in ports]

    async def add(self, number: int, item_id: str, body: bytes) -> None:
        lane = number % LANES
        item = Item(url=self._urls[lane], body=body)
        await self._outbox.add(self._names[lane], item_id, item)

    async def feed(self, count: int) -> None:
        """At a fixed rate, whatever the store and the deliverer take."""
        clock = Clock()
        begun = clock.monotonic()
        adds = []
        for number in range(count):
            await asyncio.sleep(begun + number / ITEMS_PER_SECOND - clock.monotonic())
            adds.append(asyncio.ensure_future(self.add(number, f"m{number}", stamp())))
        await asyncio.gather(*adds)

    async def settled(self) -> None:
        """Waits until nothing is left but what goes to the last endpoint."""
        clock = Clock()
        until = clock.monotonic() + _DRAIN_SECONDS_MAX
        while any(await asyncio.gather(*map(self._outbox.waiting, self._names[:-1]))):
            if clock.monotonic() > until:
                raise BenchmarkError("Deliveries do not end.")
            await asyncio.sleep(0.02)
