"""Standings: one for each target of a process, and what the store says of it is heard."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.subscriptions.hosting import until
from waystation.clock import Clock
from waystation.delivery.notices import Notice
from waystation.delivery.states import EndpointStates
from waystation.store import Store, Wakeups
from waystation.store.embedded import EmbeddedServer
from waystation.subscriptions.standings import Standings

NOTICE = Notice(kind="disabled", endpoint="crm:1", lane="billing", cause="410", at_ms=1)


@asynccontextmanager
async def standings_on(
    server: EmbeddedServer, *, flush: bool = True
) -> AsyncIterator[tuple[Standings, EndpointStates]]:
    store, wakeups = Store(server.address), Wakeups(server.address)
    if flush:
        await store.call("FLUSHALL")
    await wakeups.start()
    states = EndpointStates(store)
    standings = Standings(states, wakeups, clock=Clock())
    await standings.start()
    try:
        yield standings, states
    finally:
        await standings.stop()
        await wakeups.close()
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
        await until(lambda: crm.disabled, seconds=2)
        await states.enable("crm:1")
        await until(lambda: not crm.disabled and bool(woken), seconds=2)

        await states.hold("crm:1", 30)
        await until(lambda: crm.held_until > 0, seconds=2)


async def test_what_was_disabled_before_is_known_to_whoever_begins(
    store_server: EmbeddedServer,
) -> None:
    async with standings_on(store_server) as (_, states):
        await states.disable("crm:1", NOTICE)
        async with standings_on(store_server, flush=False) as (standings, _):
            assert standings.of("crm:1").disabled
