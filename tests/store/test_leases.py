"""Leases with epochs: one holder at a time, late commits refused, deaths of every kind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.heartbeat import Heartbeat
from waystation.store.leases import Leases
from waystation.store.scripts import Script, script
from waystation.testing import CrashPoint, crash_points, private_server

KEY = "{unit}:lease"


@asynccontextmanager
async def worker(
    server: EmbeddedServer, owner: str, *, lease_ms: int = 10_000
) -> AsyncIterator[Leases]:
    store, heartbeat = Store(server.address), Heartbeat(server.address)
    await store.call("FLUSHDB") if owner == "first" else None
    try:
        yield Leases(store, heartbeat, owner=owner, lease_ms=lease_ms)
    finally:
        heartbeat.close()
        await store.close()


async def until(condition: object, *, seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.01)


async def test_one_at_a_time_and_a_release_passes_it_on_at_once(
    store_server: EmbeddedServer,
) -> None:
    async with worker(store_server, "first") as first, worker(store_server, "second") as second:
        held = await first.acquire(KEY)
        assert held is not None
        assert await second.acquire(KEY) is None

        await held.release()
        taken = await second.acquire(KEY)

        assert taken is not None
        assert taken.epoch == held.epoch + 1


async def test_asking_again_after_a_lost_reply_gives_the_same_epoch(
    store_server: EmbeddedServer,
) -> None:
    async with worker(store_server, "first") as first:
        once = await first.acquire(KEY)
        again = await first.acquire(KEY)

        assert once is not None
        assert again is not None
        assert once.epoch == again.epoch


async def test_heartbeats_keep_a_lease_while_the_event_loop_is_blocked(
    store_server: EmbeddedServer,
) -> None:
    """F-14"""
    async with (
        worker(store_server, "first", lease_ms=1000) as first,
        worker(store_server, "second", lease_ms=1000) as second,
    ):
        held = await first.acquire(KEY)
        assert held is not None
        time.sleep(3.0)  # a step that computes for three leases

        assert await second.acquire(KEY) is None
        assert not held.lost


async def test_after_the_deadline_another_takes_over_and_the_former_holder_learns_it(
    store_server: EmbeddedServer,
) -> None:
    async with (
        worker(store_server, "first", lease_ms=200) as first,
        worker(store_server, "second", lease_ms=60_000) as second,
    ):
        held = await first.acquire(KEY)
        assert held is not None
        first.heartbeat.forget(KEY)
        taken = None
        async with asyncio.timeout(5):
            while taken is None:
                taken = await second.acquire(KEY)
                await asyncio.sleep(0.02)

        first.heartbeat.keep(KEY, held.epoch, 200)
        await until(lambda: held.lost)
        assert taken.epoch == held.epoch + 1
        assert not taken.lost
        await held.release()
        assert await first.acquire(KEY) is None, "a late release must not free another's lease"


async def test_a_commit_with_an_old_epoch_writes_nothing(store_server: EmbeddedServer) -> None:
    commit: Script = script("tests.store", "commit")
    async with worker(store_server, "first") as first, worker(store_server, "second") as second:
        held = await first.acquire(KEY)
        assert held is not None
        await held.release()
        taken = await second.acquire(KEY)
        assert taken is not None
        store = Store(store_server.address)

        late = await store.run(commit, [KEY, "{unit}:work"], [held.epoch, "late"])
        good = await store.run(commit, [KEY, "{unit}:work"], [taken.epoch, "good"])

        assert (late, good) == (0, 1)
        assert await store.call("LRANGE", "{unit}:work", 0, -1) == [b"good"]
        await store.close()


async def test_a_heartbeat_survives_the_death_of_the_store() -> None:
    # On disk: where a flush is late, a killed server may have lost the last second.
    with private_server(durability="disk") as server:
        async with worker(server, "first", lease_ms=4_000) as first:
            held = await first.acquire(KEY)
            assert held is not None
            os.kill(server.process_id, signal.SIGKILL)
            await asyncio.sleep(4.5)  # longer than the lease: only renewals keep it

            store = Store(server.address)
            deadline = int(await store.call("HGET", KEY, "until_ms"))
            now = int((await store.call("TIME"))[0]) * 1000
            await store.close()
            assert deadline > now
            assert not held.lost


async def test_a_holder_is_sure_of_its_lease_until_the_last_renewal_is_older_than_it(
    store_server: EmbeddedServer,
) -> None:
    """F-13: what stood still knows so by its own clock, before it has asked anybody."""
    async with worker(store_server, "first", lease_ms=1500) as first:
        held = await first.acquire(KEY)
        assert held is not None
        before = first.heartbeat.now()
        await until(lambda: first.heartbeat.now() - before > 2)
        assert held.sure, "it was renewed meanwhile"

        first.heartbeat.close()
        assert held.sure, "nobody can have taken it yet"
        await until(lambda: not held.sure)

        assert not held.lost, "nobody has said so"
        await held.release()
        assert not held.sure


async def test_a_lease_is_sure_from_the_time_that_it_was_asked_for(
    store_server: EmbeddedServer,
) -> None:
    async with worker(store_server, "first", lease_ms=60_000) as first:
        held = await first.acquire(KEY)
        assert held is not None
        # As if the reply had been on its way for longer than the lease.
        late = first.heartbeat.now() - 61
        first.heartbeat.close()
        first.heartbeat.keep(KEY, held.epoch, 60_000, asked_at=late)

        assert not held.sure


def test_a_stopped_process_loses_its_lease_and_knows_when_it_wakes(
    store_server: EmbeddedServer,
) -> None:
    """F-13"""
    program = f"""
import asyncio, sys
from waystation.store.client import Store
from waystation.store.address import Address
from waystation.store.heartbeat import Heartbeat
from waystation.store.leases import Leases
async def main():
    address = Address(path={store_server.address.path!r})
    leases = Leases(Store(address), Heartbeat(address), owner="frozen", lease_ms=300)
    held = await leases.acquire("{{frozen}}:lease")
    print(held.epoch, flush=True)
    while not held.lost:
        await asyncio.sleep(0.01)
    print("lost", flush=True)
asyncio.run(main())
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        epoch = int(process.stdout.readline())
        process.send_signal(signal.SIGSTOP)

        async def take() -> int:
            async with worker(store_server, "second", lease_ms=60_000) as second:
                async with asyncio.timeout(10):
                    while (taken := await second.acquire("{frozen}:lease")) is None:
                        await asyncio.sleep(0.02)
                return taken.epoch

        assert asyncio.run(take()) == epoch + 1
        process.send_signal(signal.SIGCONT)
        assert process.stdout.readline() == "lost\n"
    finally:
        process.kill()
        process.communicate()


def test_a_death_at_any_store_call_leaves_a_lease_that_can_be_taken(
    store_server: EmbeddedServer,
) -> None:
    async def scenario(store: Store) -> None:
        heartbeat = Heartbeat(store.address)
        leases = Leases(store, heartbeat, owner="dying", lease_ms=100)
        held = await leases.acquire(KEY)
        assert held is not None
        await held.release()

    async def after(store: Store, point: CrashPoint) -> None:
        heartbeat = Heartbeat(store.address)
        leases = Leases(store, heartbeat, owner="next")
        before = int(await store.call("HGET", KEY, "epoch") or 0)
        async with asyncio.timeout(5):
            while (taken := await leases.acquire(KEY)) is None:
                await asyncio.sleep(0.01)
        heartbeat.close()
        assert taken.epoch == before + 1, "every holder has an epoch of its own"

    assert len(crash_points(store_server.address, scenario, after)) == 6
