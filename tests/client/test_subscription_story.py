"""The story that everyone reads first: topic, endpoint that fails, parked group, redrive."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from waystation import Waystation
from waystation.testing.endpoint import FakeEndpoint
from waystation.testing.station import Serving, quick_settings, serving

STATION, ENDPOINT = "http://127.0.0.1:7070", "http://127.0.0.1:9000/hook"
STORY = """
ws = Waystation("http://127.0.0.1:7070")
ws.topics.create("orders", partitions=4, grouped=True)
ws.subscriptions.create("billing", topic="orders", endpoint="http://127.0.0.1:9000/hook",
                        retry={"attempts": 3}, poison="park")
for n in range(3):
    receipt = ws.topics.produce("orders", {"n": n}, group="order-17", id=f"o17-{n}")
print(receipt.partition, receipt.offset, receipt.durability)
ws.subscriptions.wait("billing", group="order-17", state="parked")
print(ws.subscriptions.redrive("billing", group="order-17", dry_run=True).count)   # 3
ws.subscriptions.redrive("billing", group="order-17").wait()
"""


async def pass_time(station: Serving, endpoint: FakeEndpoint) -> None:
    """Lets the time between two attempts pass, each time that one has failed."""
    machine = station.node.opened.time_machine
    assert machine is not None
    for attempts in range(1, 4):
        await endpoint.until(attempts)
        await retry_is_written(station)
        await machine.advance(20)


async def retry_is_written(station: Serving) -> None:
    listing = station.server._desk.listing
    async with asyncio.timeout(10):
        while True:
            found = await listing.group("default", "billing", "order-17")
            if found.due_ms and not found.under_way:
                return
            await asyncio.sleep(0.01)


async def test_the_story_runs_word_for_word(tmp_path: Path) -> None:
    printed: list[tuple[Any, ...]] = []
    settings = quick_settings(str(tmp_path), time_machine=True)
    async with FakeEndpoint(plan=[500]) as endpoint, serving(settings) as station:

        def show(*values: Any) -> None:
            printed.append(values)
            if values == (3,):
                assert [each.status for each in endpoint.received] == [500] * 4
                endpoint.plan = [200]  # Somebody has read the number, and mended it.

        code = STORY.replace(STATION, station.url).replace(ENDPOINT, endpoint.url)
        world: dict[str, Any] = {"Waystation": Waystation, "print": show}
        passing = asyncio.create_task(pass_time(station, endpoint))
        try:
            async with asyncio.timeout(60):
                await asyncio.to_thread(exec, code, world)
            await passing
        finally:
            passing.cancel()
            await asyncio.to_thread(world["ws"].close)

        (partition, offset, durability), (count,) = printed
        assert (partition in range(4), offset, durability, count) == (True, 2, "memory", 3)
        assert [number_of(each.body) for each in endpoint.received[:4]] == [0] * 4
        assert [number_of(each.body) for each in endpoint.received[4:]] == [0, 1, 2]
        standing = await station.server._desk.overview.of("default", "billing")
        assert (standing.lag, standing.retry, standing.dead, standing.groups) == (0, 0, 0, 0)


def number_of(body: bytes) -> int:
    return int(msgspec.json.decode(body)["n"])
