"""What a message costs the store does not grow with keys, and many keys move in no time."""

from __future__ import annotations

import pytest

from tests.pools.pool_slot import PLACE, PoolSlot, open_pool_slot
from waystation.store.embedded.server import EmbeddedServer

#: Commands inside scripts, which a store counts like others.
_COMMANDS_PER_MESSAGE_MAX = 52


async def commands(slot: PoolSlot) -> int:
    info = (await slot.store.call("INFO", "commandstats")).decode()
    calls = (line.partition("calls=")[2].partition(",")[0] for line in info.splitlines())
    return sum(int(each) for each in calls if each)


async def busy_seconds(slot: PoolSlot) -> float:
    info = (await slot.store.call("INFO", "cpu")).decode()
    figures = dict(line.split(":") for line in info.splitlines() if ":" in line)
    return sum(float(figures[f"used_cpu_{kind}_main_thread"]) for kind in ("user", "sys"))


async def cost(slot: PoolSlot, key: str) -> int:
    """Commands for one message: enqueued, taken, acknowledged."""
    before = await commands(slot)
    await slot.send(key)
    taken = await slot.take_one("a")
    await slot.ack("a", taken)
    return await commands(slot) - before


@pytest.mark.single_server
async def test_a_message_costs_the_same_commands_with_ten_keys_and_with_ten_thousand(
    store_server: EmbeddedServer,
) -> None:
    async with open_pool_slot(store_server) as slot:
        await slot.register("a")

        async def fill(count: int) -> None:
            await slot.send_all(*(f"k{i}" for i in range(count)))
            while taken := await slot.take("a"):
                await slot.ack("a", *taken)

        await fill(10)
        few = await cost(slot, "k1")
        await fill(10_000)
        assert await cost(slot, "k1") == few <= _COMMANDS_PER_MESSAGE_MAX


async def test_ten_thousand_keys_of_a_dead_worker_move_within_a_second_of_the_store(
    store_server: EmbeddedServer,
) -> None:
    """F-22: every loop is chunked, 100 keys a call."""
    async with open_pool_slot(store_server) as slot:
        await slot.register("a")
        keys = [f"did:key:z6Mk{i:040}" for i in range(10_000)]
        await slot.send_all(*keys)
        await slot.register("b", "c")
        await slot.later(10)
        await slot.beat("b", "c")
        await slot.later(6)
        await slot.store.call("CONFIG", "RESETSTAT")
        before = await busy_seconds(slot)
        assert await slot.assignments.reassign(PLACE, slot.terms, "a") == 10_000
        # Of its own time, not of the clock on the wall: others use this machine, too.
        assert await busy_seconds(slot) - before < 1
        info = (await slot.store.call("INFO", "commandstats")).decode()
        (line,) = (each for each in info.splitlines() if each.startswith("cmdstat_evalsha:"))
        assert ":calls=100," in line
        found = await slot.check()
        assert len(found["keys:b"]) == len(found["keys:c"]) == 5000
