"""Standings: one for each target of a process, and what the store says of it is heard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.helpers.waiting import eventually
from waystation.delivery.notices import Notice
from waystation.delivery.request import Failure, Outcome
from waystation.delivery.standing import Standing
from waystation.delivery.states import EndpointStates
from waystation.runtime.clock import Clock
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.pubsub import PubSub
from waystation.subscriptions.standings import Standings

NOTICE = Notice(kind="disabled", endpoint="crm:1", lane="billing", cause="410", at_ms=1)


@asynccontextmanager
async def standings_on(
    server: EmbeddedServer, *, flush: bool = True, node: str = ""
) -> AsyncIterator[tuple[Standings, EndpointStates]]:
    store, wakeups = Store(server.address), PubSub(server.address)
    if flush:
        await store.call("FLUSHALL")
    await wakeups.start()
    states = EndpointStates(store)
    standings = Standings(states, wakeups, clock=Clock(), node=node)
    await standings.start()
    try:
        yield standings, states
    finally:
        await standings.stop()
        await wakeups.stop()
        await store.close()


async def test_all_who_send_to_a_target_share_its_standing(store_server: EmbeddedServer) -> None:
    async with standings_on(store_server) as (standings, _):
        crm = standings.of("crm:1")
        crm.join("lane", lambda: None)
        assert standings.of("crm:1") is crm
        assert standings.of("crm:2") is not crm
        assert standings.known("crm:2") is None, "nobody uses it any more"
        assert standings.known("crm:1") is crm


async def test_what_another_process_has_found_out_is_heard_in_moments(
    store_server: EmbeddedServer,
) -> None:
    async with standings_on(store_server) as (standings, states):
        woken: list[int] = []
        crm = standings.of("crm:1")
        crm.join("lane", lambda: woken.append(1))

        await states.disable("crm:1", NOTICE)
        await eventually(lambda: crm.disabled, timeout=2)
        await states.enable("crm:1")
        await eventually(lambda: not crm.disabled and bool(woken), timeout=2)

        await states.hold("crm:1", 30)
        await eventually(lambda: crm.held_until > 0, timeout=2)


async def test_what_was_disabled_before_is_known_to_whoever_begins(
    store_server: EmbeddedServer,
) -> None:
    async with standings_on(store_server) as (_, states):
        await states.disable("crm:1", NOTICE)
        async with standings_on(store_server, flush=False) as (standings, _):
            assert standings.of("crm:1").disabled


def break_down(standing: Standing) -> None:
    """Open the breaker, for longer than a test takes."""
    for number in range(5):
        standing.share.take()
        lost = Outcome(failure=Failure.NAME)
        standing.report(lost, now=1e9, probe=False, source=f"g{number}")
    assert not standing.breaker.is_closed


async def test_standings_endpoint_declared_repaired_closes_breakers_of_every_node(
    store_server: EmbeddedServer,
) -> None:
    async with (
        standings_on(store_server, node="n1") as (first, states),
        standings_on(store_server, flush=False, node="n2") as (second, _),
    ):
        ours, theirs = first.of("crm:1"), second.of("crm:1")
        other = second.of("crm:2")
        for each in (ours, theirs, other):
            break_down(each)

        await states.declare_repaired("crm:1")

        await eventually(lambda: ours.breaker.is_closed and theirs.breaker.is_closed, timeout=10)
        assert not other.breaker.is_closed

        break_down(ours)
        await states.enable("crm:1")
        await eventually(lambda: ours.breaker.is_closed, timeout=10)


async def test_standings_open_breaker_is_reported_to_other_nodes_until_it_closes(
    store_server: EmbeddedServer,
) -> None:
    async with standings_on(store_server, node="n1") as (standings, states):
        crm = standings.of("crm:1")
        break_down(crm)
        seen: list[dict[str, dict[str, int]]] = [{}]

        async def look() -> None:
            seen.append((await states.survey()).breakers)

        await states.hold("crm:2", 1)  # Makes all nodes read the states.
        for _ in range(200):
            await look()
            if seen[-1]:
                break
            await asyncio.sleep(0.05)
        assert list(seen[-1]) == ["n1"]
        assert seen[-1]["n1"]["crm:1"] > 0

        await states.declare_repaired("crm:1")
        for _ in range(200):
            await look()
            if not seen[-1]:
                break
            await asyncio.sleep(0.05)
        assert seen[-1] == {}


async def test_states_report_of_a_node_that_crashed_expires(store_server: EmbeddedServer) -> None:
    async with standings_on(store_server) as (_, states):
        await states.report_breakers("n1", {"crm:1": 500})
        assert (await states.survey()).breakers == {"n1": {"crm:1": 500}}
        key = "delivery.{endpoints}.breakers"
        await states._store.call("HSET", key, "n1", b'1 {"crm:1":500}')

        assert (await states.survey()).breakers == {}
        assert await states._store.call("EXISTS", key) == 0


async def test_states_declarations_of_repair_are_bounded(store_server: EmbeddedServer) -> None:
    async with standings_on(store_server) as (_, states):
        for number in range(1010):
            await states.declare_repaired(f"crm:{number}")

        repaired = (await states.survey()).repaired_ms
        assert len(repaired) == 1000
        before = repaired["crm:1009"]
        await states.declare_repaired("crm:1009")
        await states.declare_repaired("crm:1009")
        assert (await states.survey()).repaired_ms["crm:1009"] >= before + 2
