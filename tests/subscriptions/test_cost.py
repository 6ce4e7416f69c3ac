"""What a shard costs the store: no command per message on the good path, few bytes per group."""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable

import pytest

from tests.subscriptions.shard_slot import PLACE, ShardSlot, ended, main, open_shard_slot
from waystation.store.embedded.server import EmbeddedServer

#: Lease, head, positions, acks, log, time.
CALL_MAX = 13


async def commands(slot: ShardSlot) -> int:
    """How many commands scripts have run since the statistics began."""
    told = (await slot.store.call("INFO", "commandstats")).decode()
    lines = [line for line in told.splitlines() if line.startswith("cmdstat_")]
    others = (
        "cmdstat_evalsha",
        "cmdstat_config",
        "cmdstat_ping",
        "cmdstat_hello",
        "cmdstat_client",
    )
    ours = [line for line in lines if not line.startswith(others)]
    return sum(int(line.partition("calls=")[2].partition(",")[0]) for line in ours)


async def cpu_seconds(slot: ShardSlot) -> float:
    """What the server has worked so far, whoever else had the processor meanwhile."""
    told = (await slot.store.call("INFO", "cpu")).decode().split()
    worked = [line for line in told if line.startswith("used_cpu") and "main_thread" in line]
    return sum(float(line.partition(":")[2]) for line in worked)


async def is_cheap(slot: ShardSlot, do: Callable[[int], Awaitable[object]]) -> None:
    """What is done costs the server less than 5 ms; now and then it does something else besides."""
    costs = []
    for number in range(9):
        before = await cpu_seconds(slot)
        await do(number)
        costs.append(await cpu_seconds(slot) - before)
    assert statistics.median(costs) < 0.005, costs


async def test_what_is_delivered_at_once_costs_no_command_of_its_own(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server, test_mode=False) as slot:
        cost = []
        for first, count in ((0, 1), (1, 100)):
            await slot.store.call("CONFIG", "RESETSTAT")
            await slot.commit(*(main(i, f"g{i}") for i in range(first, first + count)))
            cost.append(await commands(slot))
        # But for what a script does now and then: it lets go of old entries of the log.
        assert abs(cost[0] - cost[1]) <= 10
        assert max(cost) <= CALL_MAX


@pytest.mark.single_server
async def test_a_chain_costs_one_call_a_message_and_few_commands(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server, test_mode=False) as slot:
        await slot.retrying(100)
        (head,) = await slot.heads()
        await slot.store.call("CONFIG", "RESETSTAT")
        following, calls = head, 0
        while following is not None:
            following = (await slot.one(ended(following.member))).next  # type: ignore[assignment]
            calls += 1
        assert calls == 100
        assert await commands(slot) <= 100 * 18


async def test_a_group_that_retries_or_is_parked_costs_few_bytes_and_a_clean_one_none(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server, test_mode=False) as slot:

        async def bytes_of(*kinds: str) -> int:
            total = 0
            for kind in kinds:
                args = ("MEMORY", "USAGE", slot.key(kind), "SAMPLES", "0")
                total += int(await slot.store.call(*args) or 0)
            return total

        count = 20_000
        for i in range(0, count, 100):
            await slot.commit(*(main(j, f"order-{j}", "again") for j in range(i, i + 100)))
        assert await bytes_of("groups", "due", "taken") / count <= 300
        for i in range(count, 2 * count, 100):
            await slot.commit(*(main(j, f"order-{j}", "dead") for j in range(i, i + 100)))
        both = await bytes_of("groups", "due", "taken", "failed")
        assert both / count <= 300 + 200


async def test_a_long_group_costs_each_call_the_same(store_server: EmbeddedServer) -> None:
    """F-22: pushes, attempts and following go by numbers, never over what waits."""
    async with open_shard_slot(store_server, test_mode=False) as slot:
        await slot.retrying(50_000)
        (head,) = await slot.heads()

        async def settle(_: int) -> None:
            nonlocal head
            settled = await slot.one(ended(head.member))
            assert settled.next is not None
            head = settled.next

        async def follow(_: int) -> None:
            assert await slot.shard.follow(PLACE, slot.terms, "g") > 0

        await is_cheap(slot, settle)
        await is_cheap(slot, lambda number: slot.one(main(50_000 + number, verdict="behind")))
        await slot.one(ended(head.member, verdict="dead"))
        await is_cheap(slot, follow)
