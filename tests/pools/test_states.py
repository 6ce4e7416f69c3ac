"""The table of a key's states: every one is reached and left, also by the scripts."""

from __future__ import annotations

from itertools import pairwise

from tests.pools.pool_slot import PLACE, PoolSlot, open_pool_slot
from waystation.pools.states import TRANSITIONS, KeyState, chart
from waystation.store.embedded.server import EmbeddedServer


def test_every_state_is_reached_and_left() -> None:
    assert {each.from_ for each in TRANSITIONS} == set(KeyState)
    assert {each.to for each in TRANSITIONS} == set(KeyState)
    rows = [(each.from_, each.what, each.to) for each in TRANSITIONS]
    assert len(set(rows)) == len(rows)


def test_the_chart_has_every_way_once() -> None:
    lines = chart().splitlines()
    assert lines[:2] == ["stateDiagram-v2", "    [*] --> unknown"]
    ways = {(each.from_, each.to) for each in TRANSITIONS}
    assert len(lines) - 2 == len(ways)
    assert "    pending --> taken: take" in lines


async def test_a_key_goes_through_all_its_states(store_server: EmbeddedServer) -> None:
    async def state(slot: PoolSlot) -> KeyState:
        look = await slot.assignments.look_at(PLACE, slot.terms, "k")
        return KeyState.UNKNOWN if look is None else look.state

    async with open_pool_slot(store_server, stale_ms=10**6) as slot:
        found = [await state(slot)]
        await slot.send("k")
        found.append(await state(slot))
        await slot.register("a")
        found.append(await state(slot))
        taken = await slot.take_one("a")
        found.append(await state(slot))
        await slot.nack("a", taken, wait_ms=10_000)
        found.append(await state(slot))
        await slot.later(10)
        found.append(await state(slot))
        taken = await slot.take_one("a")
        found.append(await state(slot))
        await slot.ack("a", taken)
        found.append(await state(slot))
        await slot.later(60)
        await slot.sweep(retention_ms=30_000)
        found.append(await state(slot))
    assert found == [
        *("unknown", "waiting", "pending", "taken", "delayed"),
        *("pending", "taken", "idle", "unknown"),
    ]
    ways = {(each.from_, each.to) for each in TRANSITIONS}
    assert {*pairwise(found)} <= ways
