"""Leases with epochs: one owner at a time, renewal by a thread, refusal of late commits."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from tests.helpers.store_faults import Fate, proxy_to, store_at
from tests.helpers.waiting import eventually
from waystation.store.address import Address, parse_address
from waystation.store.client import Store
from waystation.store.connection import Reply
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.leases import LeaseRenewer, Leases, RenewalCall
from waystation.store.scripts import Script, script
from waystation.testing import CrashPoint, crash_points, private_server

KEY = "{unit}:lease"


@asynccontextmanager
async def leases_of(
    server: EmbeddedServer,
    owner: str,
    *,
    lease_ms: int = 10_000,
    renewals: Address | None = None,
) -> AsyncIterator[Leases]:
    """Yield the leases of one process. Its renewal thread connects to `renewals`."""
    store, renewer = Store(server.address), LeaseRenewer(renewals or server.address)
    try:
        yield Leases(store, renewer, owner=owner, lease_ms=lease_ms)
    finally:
        renewer.close()
        await store.close()


@pytest.fixture
async def server(store_server: EmbeddedServer) -> EmbeddedServer:
    async with store_at(store_server.address) as store:
        await store.call("DEL", KEY, repeatable=True)
    return store_server


async def test_lease_is_owned_by_one_process_until_its_release(server: EmbeddedServer) -> None:
    async with leases_of(server, "first") as first, leases_of(server, "second") as second:
        lease = await first.acquire(KEY)
        assert lease is not None
        assert await second.acquire(KEY) is None

        await lease.release()
        next_lease = await second.acquire(KEY)

        assert next_lease is not None
        assert next_lease.epoch == lease.epoch + 1
        assert lease.lost
        assert not lease.sure


async def test_lease_acquired_twice_by_its_owner_keeps_the_epoch(server: EmbeddedServer) -> None:
    async with leases_of(server, "first") as first:
        once = await first.acquire(KEY)
        again = await first.acquire(KEY)

        assert once is not None
        assert again is once, "the reply to the first call may have been lost"


async def test_lease_commit_with_an_old_epoch_writes_nothing(server: EmbeddedServer) -> None:
    commit: Script = script("tests.store", "commit")
    async with leases_of(server, "first") as first, leases_of(server, "second") as second:
        lease = await first.acquire(KEY)
        assert lease is not None
        await lease.release()
        next_lease = await second.acquire(KEY)
        assert next_lease is not None
        async with store_at(server.address) as store:
            await store.call("DEL", "{unit}:work")

            late = await store.run(commit, [KEY, "{unit}:work"], [lease.epoch, "late"])
            good = await store.run(commit, [KEY, "{unit}:work"], [next_lease.epoch, "good"])

            assert (late, good) == (0, 1)
            assert await store.call("LRANGE", "{unit}:work", 0, -1) == [b"good"]


# -- Renewal ---------------------------------------------------------------------------------


async def test_lease_renewer_with_blocked_event_loop_renews(server: EmbeddedServer) -> None:
    # A step that blocks the event loop must not lose the lease.
    async with (
        leases_of(server, "first", lease_ms=1000) as first,
        leases_of(server, "second", lease_ms=1000) as second,
    ):
        lease = await first.acquire(KEY)
        assert lease is not None
        time.sleep(3.0)  # The step computes for three lease periods.

        assert await second.acquire(KEY) is None
        assert lease.sure


async def test_lease_that_was_not_renewed_in_time_is_lost_to_another_process(
    server: EmbeddedServer,
) -> None:
    async with (
        proxy_to(server.address) as proxy,
        leases_of(server, "first", lease_ms=300, renewals=proxy.address) as first,
        leases_of(server, "second", lease_ms=60_000) as second,
    ):
        await proxy.set_fates(requests=Fate.HOLD)
        lease = await first.acquire(KEY)
        assert lease is not None
        next_lease = None
        async with asyncio.timeout(5):
            while next_lease is None:
                next_lease = await second.acquire(KEY)
                await asyncio.sleep(0.02)
        assert not lease.sure
        assert not lease.lost, "no renewal was refused yet"

        await proxy.set_fates()
        await eventually(lambda: lease.lost)

        assert next_lease.epoch == lease.epoch + 1
        assert not next_lease.lost
        await lease.release()
        assert await first.acquire(KEY) is None, "a late release must not free the lease"


async def test_lease_renewer_after_crash_of_store_renews() -> None:
    # With durability `disk`, because a killed server may otherwise lose the last second.
    with private_server(durability="disk") as server:
        async with leases_of(server, "first", lease_ms=4_000) as first:
            lease = await first.acquire(KEY)
            assert lease is not None
            os.kill(server.process_id, signal.SIGKILL)
            await asyncio.sleep(4.5)  # Longer than the lease: only renewals keep it.

            async with store_at(server.address) as store:
                deadline = int(await store.call("HGET", KEY, "until_ms"))
                now = int((await store.call("TIME"))[0]) * 1000
            assert deadline > now
            assert not lease.lost


async def test_lease_renewer_after_script_flush_renews(server: EmbeddedServer) -> None:
    async with leases_of(server, "first", lease_ms=300) as first:
        lease = await first.acquire(KEY)
        assert lease is not None
        async with store_at(server.address) as store:
            await store.call("SCRIPT", "FLUSH")
        asked_at = lease.asked_at
        await eventually(lambda: lease.asked_at > asked_at)


@pytest.mark.single_server
@pytest.mark.parametrize("fate", [Fate.HOLD, Fate.SWALLOW], ids=["held", "swallowed"])
async def test_lease_renewer_on_silent_store_closes_without_waiting(fate: Fate) -> None:
    with private_server() as server:
        async with proxy_to(server.address) as proxy:
            renewer = LeaseRenewer(proxy.address)
            async with store_at(server.address) as store:
                lease = await Leases(store, renewer, owner="me", lease_ms=300).acquire(KEY)
                assert lease is not None
                asked_at = lease.asked_at
                await eventually(lambda: lease.asked_at > asked_at)
                await proxy.set_fates(requests=fate)
                await asyncio.sleep(0.2)  # A renewal is waiting for its reply.

                began = time.monotonic()
                renewer.close()

                assert time.monotonic() - began < 1.0
                renewer.close()


async def test_lease_renewer_that_resolves_a_host_name_closes_without_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolving, release = threading.Event(), threading.Event()

    def resolve(*_given: object, **_named: object) -> list[object]:
        resolving.set()
        release.wait(30)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    renewer = LeaseRenewer(parse_address("redis://store.example:6379"))
    renewer.add(OneRenewal())
    try:
        assert await asyncio.to_thread(resolving.wait, 10)
        began = time.monotonic()
        renewer.close()
        # The resolver would block for 30 s.
        assert time.monotonic() - began < 10.0
    finally:
        release.set()


class OneRenewal:
    """A holder of one lease that it does not own."""

    lease_ms = 60

    def calls(self) -> list[RenewalCall]:
        return [(script("waystation.store", "lease_renew"), [KEY], [1, 60])]

    def renewed(self, replies: Sequence[Reply | Exception], asked_at: float) -> None:
        pass


class Source:
    """Stand-in for a holder of leases: each of its renewals raises an error."""

    lease_ms = 60

    def __init__(self) -> None:
        self.asked = 0

    def calls(self) -> list[RenewalCall]:
        self.asked += 1
        raise ValueError("a bug")

    def renewed(self, replies: Sequence[Reply | Exception], asked_at: float) -> None:
        raise AssertionError("a renewal that failed must have no reply")


async def test_lease_renewer_with_failing_source_renews_the_others(
    server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with leases_of(server, "first", lease_ms=300) as first:
        source = Source()
        first.renewer.add(source)
        lease = await first.acquire(KEY)
        assert lease is not None
        await eventually(lambda: source.asked > 3)
        asked_at = lease.asked_at
        await eventually(lambda: lease.asked_at > asked_at)
        first.renewer.remove(source)
        await asyncio.sleep(0.1)
        asked = source.asked
        await asyncio.sleep(0.3)
        assert source.asked == asked
    assert caplog.text.count("task failed") == 1


# -- Checks by the local clock ---------------------------------------------------------------


async def test_lease_is_sure_for_one_period_after_its_last_renewal(
    server: EmbeddedServer,
) -> None:
    # F-13: a process that was suspended detects it by its clock, without a call to the store.
    async with leases_of(server, "first", lease_ms=1500) as first:
        lease = await first.acquire(KEY)
        assert lease is not None
        before = first.now()
        await eventually(lambda: first.now() - before > 2)
        assert lease.sure, "it was renewed meanwhile"

        first.renewer.close()
        assert lease.sure, "nobody can have acquired it yet"
        await eventually(lambda: not lease.sure)

        assert not lease.lost, "no renewal was refused"
        await lease.release()
        assert not lease.sure


async def test_lease_with_reply_after_its_deadline_is_not_sure(
    server: EmbeddedServer,
) -> None:
    async with proxy_to(server.address) as proxy, store_at(proxy.address) as store:
        renewer = LeaseRenewer(server.address)
        leases = Leases(store, renewer, owner="first", lease_ms=400)
        await store.ping()
        renewer.close()
        await proxy.set_fates(replies=Fate.HOLD)
        acquiring = asyncio.ensure_future(leases.acquire(KEY))
        await asyncio.sleep(0.6)
        await proxy.set_fates()

        lease = await acquiring

        assert lease is not None
        assert not lease.sure, "the store granted it up to 0.6 s ago"


def test_lease_of_a_suspended_process_is_lost_when_the_process_continues(
    store_server: EmbeddedServer,
) -> None:
    # F-13: a suspended process must not act on a lease that has expired.
    program = f"""
import asyncio, sys
from waystation.store.client import Store
from waystation.store.address import Address, parse_address
from waystation.store.leases import LeaseRenewer, Leases
async def main():
    address = Address(path={store_server.address.path!r})
    leases = Leases(Store(address), LeaseRenewer(address), owner="suspended", lease_ms=300)
    lease = await leases.acquire("{{suspended}}:lease")
    print(lease.epoch, flush=True)
    while not lease.lost:
        await asyncio.sleep(0.01)
    print("lost", flush=True)
asyncio.run(main())
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        epoch = int(process.stdout.readline())
        process.send_signal(signal.SIGSTOP)

        async def acquire() -> int:
            async with leases_of(store_server, "second", lease_ms=60_000) as second:
                async with asyncio.timeout(10):
                    while (lease := await second.acquire("{suspended}:lease")) is None:
                        await asyncio.sleep(0.02)
                return lease.epoch

        assert asyncio.run(acquire()) == epoch + 1
        process.send_signal(signal.SIGCONT)
        assert process.stdout.readline() == "lost\n"
    finally:
        process.kill()
        process.communicate()


def test_lease_of_a_process_that_crashes_at_any_store_call_can_be_acquired(
    store_server: EmbeddedServer,
) -> None:
    async def scenario(store: Store) -> None:
        renewer = LeaseRenewer(store.address)
        leases = Leases(store, renewer, owner="crashing", lease_ms=100)
        try:
            lease = await leases.acquire(KEY)
            assert lease is not None
            await lease.release()
        finally:
            renewer.close()

    async def after(store: Store, point: CrashPoint) -> None:
        renewer = LeaseRenewer(store.address)
        leases = Leases(store, renewer, owner="next")
        before = int(await store.call("HGET", KEY, "epoch") or 0)
        async with asyncio.timeout(5):
            while (lease := await leases.acquire(KEY)) is None:
                await asyncio.sleep(0.01)
        renewer.close()
        assert lease.epoch == before + 1, "every owner has a new epoch"

    assert len(crash_points(store_server.address, scenario, after)) == 6
