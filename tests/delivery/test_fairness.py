"""F-16, by counts and orders: what one endpoint does costs the others nothing but their turn."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading

import pytest

from tests.delivery.delivering import QUICK, delivering
from waystation.delivery import deliverer as deliverer_module
from waystation.delivery.addresses import AddressGuard
from waystation.delivery.endpoint import Endpoint
from waystation.delivery.outbox import Item
from waystation.delivery.request import Failure, Outgoing
from waystation.delivery.resolver import Resolver
from waystation.delivery.sender import Sender
from waystation.store.embedded.server import EmbeddedServer
from waystation.testing.endpoint import Answer, FakeEndpoint


async def test_a_hanging_endpoint_with_many_lanes_holds_its_own_slots_and_no_more(
    store_server: EmbeddedServer,
) -> None:
    hung = Endpoint(name="hung", schedule=QUICK, total_seconds_max=20)
    crm = Endpoint(name="crm", schedule=QUICK)
    async with (
        FakeEndpoint(plan=[Answer(hang=True)]) as black_hole,
        FakeEndpoint() as endpoint,
        delivering(store_server, hung, crm) as running,
    ):
        for number in range(30):
            for item in range(3):
                lane = f"{{h-{number}}}.out.hung"
                await running.outbox.add(lane, f"h-{item}", Item(url=black_hole.url))
        await black_hole.until(8)
        lanes = [f"{{c-{number}}}.out.crm" for number in range(20)]
        for lane in lanes:
            for item in range(10):
                await running.outbox.add(lane, f"m-{item}", Item(url=endpoint.url))

        # Then all others are delivered while not one of the hanging requests has ended
        for lane in lanes:
            await running.until_empty(lane)
        assert len(endpoint.received) == 200
        assert len(black_hole.received) == 8, "the slots of one endpoint, over all its lanes"
        assert all(each.status == 0 for each in black_hole.received)


async def test_an_endpoint_gets_a_slot_when_others_hold_all_that_a_process_has(
    store_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliverer_module, "TOTAL_MAX", 8)
    names = ("hung-1", "hung-2", "crm", "erp")
    endpoints = [Endpoint(name=name, schedule=QUICK, total_seconds_max=20) for name in names]
    async with (
        FakeEndpoint(plan=[Answer(hang=True)]) as black_hole,
        FakeEndpoint() as well,
        delivering(store_server, *endpoints) as running,
    ):
        for name in ("hung-1", "hung-2"):
            for number in range(20):
                item = Item(url=black_hole.url)
                await running.outbox.add(f"{{unit}}.out.{name}", f"h-{number}", item)
        await black_hole.until(8)
        for name in ("crm", "erp"):
            for number in range(50):
                item = Item(url=well.url)
                await running.outbox.add(f"{{unit}}.out.{name}", f"m-{number}", item)

        for name in ("crm", "erp"):
            await running.until_empty(f"{{unit}}.out.{name}")
        assert len(well.received) == 100
        assert len(black_hole.received) <= 9, "all there are, and one for the other that hangs"


async def test_a_long_lane_does_not_keep_a_short_one_of_the_same_endpoint_waiting(
    store_server: EmbeddedServer,
) -> None:
    async with (
        FakeEndpoint(plan=[Answer(delay_seconds=0.005)]) as endpoint,
        delivering(store_server) as running,
    ):
        for number in range(400):
            item = Item(url=endpoint.url, body=b"long")
            await running.outbox.add("{long}.out.crm", f"m-{number}", item, wait_ms=0)
        await endpoint.until(10)
        begun = len(endpoint.received)
        await running.outbox.add("{short}.out.crm", "m-1", Item(url=endpoint.url, body=b"short"))
        await running.until_empty("{long}.out.crm")
        await running.until_empty("{short}.out.crm")

    position = [each.body for each in endpoint.received].index(b"short")
    assert position - begun < 200, "it got its turn, not the end of the line"


async def test_a_name_service_that_hangs_for_one_host_holds_up_no_other() -> None:
    release = threading.Event()
    asked: list[str] = []

    def lookup(host: str) -> list[str]:
        asked.append(host)
        if host == "hangs.example.com":
            release.wait(20)
        return ["127.0.0.1"]

    guard = AddressGuard(loopback=True)
    async with FakeEndpoint() as endpoint:
        sender = Sender(guard, resolver=Resolver(guard, lookup=lookup))
        try:
            bad = endpoint.url.replace("127.0.0.1", "hangs.example.com")
            hanging = [asyncio.ensure_future(sender.send(Outgoing(url=bad))) for _ in range(100)]
            await asyncio.sleep(0)
            good = endpoint.url.replace("127.0.0.1", "well.example.com")
            outcomes = await asyncio.gather(*(sender.send(Outgoing(url=good)) for _ in range(10)))

            assert all(each.succeeded for each in outcomes)
            assert not any(each.done() for each in hanging)
            assert asked.count("hangs.example.com") == 1, "one thread, however many wait"
        finally:
            release.set()
            assert (await hanging[0]).failure in (None, Failure.NAME)
            await asyncio.gather(*hanging)
            await sender.close()


HANGING = """
import asyncio, time
from waystation.delivery.addresses import AddressGuard
from waystation.delivery.resolver import Resolver

async def main():
    resolver = Resolver(AddressGuard(), lookup=lambda host: time.sleep(20) or [])
    asking = asyncio.ensure_future(resolver.resolve("hangs.example.com"))
    await asyncio.sleep(0.05)
    asking.cancel()
    resolver.close()

asyncio.run(main())
"""


async def test_a_name_service_that_hangs_does_not_keep_a_process_from_ending() -> None:
    """F-34"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", HANGING)
    try:
        assert await asyncio.wait_for(process.wait(), 10) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
