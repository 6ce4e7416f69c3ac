"""Leader: one node runs the maintenance steps, and another takes over when it stops or crashes."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from tests.helpers.store_faults import Fate, proxy_to
from tests.helpers.waiting import eventually
from waystation.errors import StoreReplyError, StoreUnavailableError
from waystation.runtime import service
from waystation.runtime.clock import Clock
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.leader import Leader, MaintenanceFunctions, MaintenanceStep
from waystation.store.leases import Lease, LeaseRenewer, Leases
from waystation.testing import private_server

KEY = "{tests}:leader"


class Step:
    """A step that counts its passes and may fail, wait or choose its next pass."""

    def __init__(self) -> None:
        self.passes = 0
        self.stood_down = 0
        self.error: Exception | None = None
        self.next_s: float | None = None
        self.on_run: Callable[[], Awaitable[None]] | None = None

    async def run(self) -> float | None:
        self.passes += 1
        if self.on_run is not None:
            await self.on_run()
        if self.error is not None:
            raise self.error
        return self.next_s

    def stand_down(self) -> None:
        self.stood_down += 1


@asynccontextmanager
async def leader_of(
    server: EmbeddedServer,
    owner: str,
    *steps: MaintenanceStep,
    every_s: float = 0.02,
    lease_ms: int = 10_000,
    clock: Clock | None = None,
) -> AsyncIterator[Leader]:
    store, renewer = Store(server.address), LeaseRenewer(server.address)
    leases = Leases(store, renewer, owner=owner, lease_ms=lease_ms)
    leader = Leader(leases, KEY, steps, every_s=every_s, clock=clock or Clock())
    try:
        async with leader:
            yield leader
    finally:
        renewer.close()
        await store.close()


@pytest.fixture
async def server(store_server: EmbeddedServer) -> EmbeddedServer:
    store = Store(store_server.address)
    await store.call("DEL", KEY)
    await store.close()
    return store_server


async def test_leader_of_two_nodes_runs_steps_on_one(server: EmbeddedServer) -> None:
    steps = [Step(), Step()]
    async with leader_of(server, "one", steps[0]) as one, leader_of(server, "two", steps[1]) as two:
        await eventually(lambda: steps[0].passes + steps[1].passes >= 5)
        assert one.leads != two.leads
        leads = 0 if one.leads else 1
        assert steps[leads].passes >= 5
        assert steps[1 - leads].passes == 0


async def test_leader_that_stops_releases_the_lease_and_resets_gauges(
    server: EmbeddedServer,
) -> None:
    one, two = Step(), Step()
    async with leader_of(server, "one", one, lease_ms=600_000) as first:
        await eventually(lambda: first.leads)
        async with leader_of(server, "two", two) as second:
            await asyncio.sleep(0.1)
            assert not second.leads
            await first.stop()
            assert one.stood_down == 1
            # The lease of ten minutes has not expired: the first node released it.
            await eventually(lambda: two.passes > 0)
            assert second.leads


async def test_leader_that_is_killed_is_replaced_when_its_lease_expires(
    server: EmbeddedServer,
) -> None:
    program = f"""
import asyncio
from waystation.runtime.clock import Clock
from waystation.store.address import Address
from waystation.store.client import Store
from waystation.store.leader import MaintenanceFunctions, Leader
from waystation.store.leases import LeaseRenewer, Leases
async def step():
    print("led", flush=True)
async def main():
    address = Address(path={server.address.path!r})
    leases = Leases(Store(address), LeaseRenewer(address), owner="killed", lease_ms=500)
    async with Leader(leases, {KEY!r}, [MaintenanceFunctions(step)], every_s=0.05, clock=Clock()):
        await asyncio.Event().wait()
asyncio.run(main())
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == "led\n"
        step = Step()
        async with leader_of(server, "next", step, lease_ms=60_000) as leader:
            await asyncio.sleep(1.0)  # Two lease periods: the other process renews its lease.
            assert step.passes == 0
            process.send_signal(signal.SIGKILL)
            await eventually(lambda: leader.leads)
            await eventually(lambda: step.passes > 0)
    finally:
        process.kill()
        process.communicate()


async def test_leader_that_loses_the_lease_during_a_step_starts_no_other_step(
    server: EmbeddedServer,
) -> None:
    store = Store(server.address)
    first, second = Step(), Step()
    other = Leases(store, LeaseRenewer(server.address), owner="other", lease_ms=60_000)
    taken: list[Lease] = []

    async def lose() -> None:
        # The state after this node was suspended for longer than its lease.
        while not taken:
            await store.call("HSET", KEY, "until_ms", "1")
            if (lease := await other.acquire(KEY)) is not None:
                taken.append(lease)
        await eventually(lambda: not leader.leads)

    first.on_run = lose
    async with leader_of(server, "one", first, second, lease_ms=300) as leader:
        await eventually(lambda: first.stood_down > 0)
        assert not taken[0].lost
        assert (first.passes, second.passes) == (1, 0)
        first.on_run = None
        await taken[0].release()
        await eventually(lambda: second.passes > 0)
    other.renewer.close()
    await store.close()


@pytest.mark.parametrize(
    "error", [StoreReplyError("refused"), ValueError("a bug")], ids=["refused", "bug"]
)
async def test_leader_with_failing_step_logs_once_and_runs_the_others(
    server: EmbeddedServer, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    failing, healthy = Step(), Step()
    failing.error = error
    async with leader_of(server, "one", failing, healthy):
        await eventually(lambda: failing.passes >= 3 and healthy.passes >= 3)
        assert caplog.text.count("task failed") == 1
        failing.error = None
        passes = failing.passes
        await eventually(lambda: failing.passes > passes)


async def test_leader_with_unavailable_store_ends_the_pass_and_repeats_the_step(
    server: EmbeddedServer,
) -> None:
    failing, later = Step(), Step()
    failing.error = StoreUnavailableError("silent")
    async with leader_of(server, "one", failing, later, every_s=0.05):
        await eventually(lambda: failing.passes >= 2)
        assert later.passes == 0
        failing.error = None
        await eventually(lambda: later.passes > 0)


async def test_leader_runs_a_step_again_after_the_time_that_the_step_returned(
    server: EmbeddedServer,
) -> None:
    often, seldom = Step(), Step()
    often.next_s = 0.01
    async with leader_of(server, "one", often, seldom, every_s=600):
        await eventually(lambda: often.passes >= 5)
        assert seldom.passes == 1


async def test_leader_runs_all_steps_after_a_jump_of_test_time(server: EmbeddedServer) -> None:
    step, clock = Step(), Clock()
    async with leader_of(server, "one", step, every_s=600, clock=clock):
        await eventually(lambda: step.passes == 1)
        clock.shift_to(601_000)
        await eventually(lambda: step.passes == 2)


async def test_leader_with_maintenance_functions_calls_run_and_stand_down(
    server: EmbeddedServer,
) -> None:
    step = Step()
    async with leader_of(server, "one", MaintenanceFunctions(step.run, step.stand_down)) as leader:
        await eventually(lambda: step.passes > 0)
        assert "leading" in repr(leader)
    assert step.stood_down == 1


async def test_leader_on_silent_store_stops_within_two_seconds_and_resets_gauges() -> None:
    step = Step()
    with private_server() as server:
        async with proxy_to(server.address) as proxy:
            store, renewer = Store(proxy.address), LeaseRenewer(proxy.address)
            leases = Leases(store, renewer, owner="one")
            leader = Leader(leases, KEY, [step], every_s=0.02, clock=Clock())
            await leader.start()
            await eventually(lambda: step.passes > 0)
            await proxy.set_fates(requests=Fate.HOLD)

            async with asyncio.timeout(2.5):
                await leader.stop()

            assert step.stood_down == 1
            renewer.close()
            await store.close()


async def test_leader_that_stops_while_it_acquires_the_lease_releases_it(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine may take longer than the second that a service has.
    monkeypatch.setattr(service, "_ON_STOP_S_MAX", 20.0)
    granted, answered = asyncio.Event(), asyncio.Event()

    class LateLeases(Leases):
        """Leases whose replies arrive late."""

        async def acquire(self, key: str) -> Lease | None:
            lease = await super().acquire(key)
            granted.set()
            await answered.wait()
            return lease

    store, renewer = Store(server.address), LeaseRenewer(server.address)
    leases = LateLeases(store, renewer, owner="one", lease_ms=600_000)
    leader = Leader(leases, KEY, [Step()], every_s=0.02, clock=Clock())
    await leader.start()
    await granted.wait()
    stopping = asyncio.create_task(leader.stop())
    await eventually(lambda: leader.stopping)
    answered.set()
    await stopping

    successor = Leases(store, renewer, owner="two")
    assert await successor.acquire(KEY) is not None
    renewer.close()
    await store.close()
