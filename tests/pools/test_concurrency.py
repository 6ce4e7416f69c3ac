"""Many at once: what is decided in the store is decided once."""

from __future__ import annotations

import asyncio

from tests.helpers.store_faults import store_at
from tests.pools.pool_slot import PLACE, PoolSlot, open_pool_slot
from waystation.errors import WorkerUnknownError
from waystation.pools import Assignments, Mail, Members
from waystation.pools.held import Letter
from waystation.store.embedded.server import EmbeddedServer


async def test_keys_that_many_assign_at_once_are_all_in_somebody_s_list(
    store_server: EmbeddedServer,
) -> None:
    """The plugin lost 18 of 20 here: they were assigned, and in nobody's list."""
    keys = [f"k{i}" for i in range(20)]
    async with open_pool_slot(store_server) as slot:
        await slot.register("a", "b")

        async def relay(number: int) -> list[str]:
            async with store_at(store_server.address, test_mode=True) as store:
                letters = [Letter(f"{key}-{number}", key, b"") for key in keys]
                calls = (
                    Mail(store).enqueue(PLACE, slot.terms, [each], remember_ms=1000)
                    for each in letters
                )
                return [batch.items[0].owner for batch in await asyncio.gather(*calls)]

        first, *others = await asyncio.gather(*(relay(number) for number in range(5)))
        assert all(each == first for each in others), "everybody was told the same owner"
        found = await slot.check()
        assert len(found["keys:a"]) == len(found["keys:b"]) == 10
        assert [len(await slot.queue(key)) for key in keys] == [5] * 20


async def test_workers_that_start_at_once_share_what_waited_for_them(
    store_server: EmbeddedServer,
) -> None:
    async with open_pool_slot(store_server) as slot:
        await slot.send_all(*(f"k{i}" for i in range(500)))

        async def start(uid: str) -> set[str]:
            async with store_at(store_server.address, test_mode=True) as store:
                session = await Members(store).register(PLACE, slot.terms, uid, nonce=f"n-{uid}")
                slot.sessions[uid] = session
                return {each.key for each in await slot.take(uid)}

        held = await asyncio.gather(*(start(f"w{i}") for i in range(8)))
        assert sum(map(len, held)) == len(set().union(*held)), "nobody has what another has"
        await slot.sweep()
        assert "ready:-" not in await slot.check()


async def test_one_name_claimed_by_two_processes_at_once_is_one_s(
    store_server: EmbeddedServer,
) -> None:
    """F-30: two claim one key; the loser can do nothing with it."""
    async with open_pool_slot(store_server) as slot:
        await slot.register("a", nonce="zero")
        await slot.send("k")

        async def claim(nonce: str) -> bool:
            async with store_at(store_server.address, test_mode=True) as store:
                members, mail = Members(store), Mail(store)
                session = await members.register(PLACE, slot.terms, "a", nonce=nonce)
                limits = {"most": 1, "bytes_max": 1000, "lease_ms": 60_000}
                try:
                    found = await mail.take(PLACE, slot.terms, session, token=nonce, **limits)
                except WorkerUnknownError:
                    return False
                acked = await mail.ack(PLACE, slot.terms, session, found.items)
                return [each.outcome for each in acked] == ["done"]

        claims = await asyncio.gather(*(claim(f"n-{number}") for number in range(5)))
        assert claims.count(True) == 1, "one message, settled once"
        assert (await slot.check())["head"]["messages"] == "0"


async def test_a_stale_worker_found_by_many_at_once_is_evicted_once(
    store_server: EmbeddedServer,
) -> None:
    """F-30: it dies with 1,000 keys; what waited for it arrives, in order, with others."""
    keys = [f"k{i}" for i in range(1000)]
    async with open_pool_slot(store_server) as slot:
        await slot.register("a")
        await slot.send_all(*keys)
        held = [each for _ in range(5) for each in await slot.take("a")]
        assert len(held) == 500
        await slot.register("b", "c", "d")
        await slot.later(10)
        await slot.beat("b", "c", "d")
        await slot.later(6)

        async def relay(number: int) -> None:
            async with store_at(store_server.address, test_mode=True) as store:
                mail, assignments = Mail(store), Assignments(store)
                for i in range(number * 100, number * 100 + 1000, 100):
                    some = [keys[each % 1000] for each in range(i, i + 100)]
                    letters = [Letter(f"{number}-{key}", key, b"") for key in some]
                    batch = await mail.enqueue(PLACE, slot.terms, letters, remember_ms=60_000)
                    for uid in batch.unfinished:
                        await assignments.reassign(PLACE, slot.terms, uid)

        await asyncio.gather(*(relay(number) for number in range(4)), slot.sweep())
        found = await slot.check()
        assert "keys:a" not in found
        sizes = [len(found[f"keys:{uid}"]) for uid in ("b", "c", "d")]
        assert sum(sizes) == 1000
        assert max(sizes) - min(sizes) <= 1
        await assert_all_arrive_in_order(slot, keys, ("b", "c", "d"), 5)


async def assert_all_arrive_in_order(
    slot: PoolSlot, keys: list[str], uids: tuple[str, ...], count: int
) -> None:
    seen: dict[str, list[int]] = {key: [] for key in keys}
    for uid in uids:
        while taken := await slot.take(uid):
            for each in taken:
                seen[each.key].append(each.number)
            await slot.ack(uid, *taken)
    assert all(
        len(numbers) == count and numbers == sorted(set(numbers)) for numbers in seen.values()
    )
