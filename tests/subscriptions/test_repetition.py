"""Each script of an owner, twice = once; and with its reply lost on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.helpers.store_faults import Fate, proxy_to, store_at
from tests.subscriptions.shard_slot import PLACE, TERMS, ShardSlot, ended, main, open_shard_slot
from waystation.store.embedded.server import EmbeddedServer
from waystation.subscriptions.commits import Commits
from waystation.subscriptions.shard_store import ShardStore

Call = Callable[[Commits, ShardStore], Awaitable[Any]]
#: Enough of everything: `g` retries with its head taken, `long` is to follow, `p` is parked, `w`
#: is due.
CALLS: dict[str, Call] = {
    "establish": lambda _, shard: shard.establish(
        PLACE, TERMS, {"0.0": 7, "0.9": 3}, topic="orders"
    ),
    "open": lambda _, shard: shard.open(PLACE, TERMS),
    "due": lambda _, shard: shard.due(PLACE, TERMS, call=99, most=9, bytes_max=10**6),
    "follow": lambda _, shard: shard.follow(PLACE, TERMS, "long"),
    "pass_over": lambda _, shard: shard.pass_over(PLACE, TERMS, "0.0", 0, 3, "trimmed"),
    "give_back": lambda _, shard: shard.give_back(PLACE, TERMS, ["r1.1"]),
    "offer": lambda _, shard: shard.offer(PLACE, TERMS, ["r1.1", "m0.0.900"], most=9, seen=0),
    "done": lambda commits, _: commits.commit(PLACE, TERMS, [ended("r1.1")], call=99),
    "again": lambda commits, _: commits.commit(
        PLACE, TERMS, [ended("r1.1", verdict="again")], call=99
    ),
    "dead": lambda commits, _: commits.commit(
        PLACE, TERMS, [ended("r1.1", verdict="dead")], call=99
    ),
    "release": lambda commits, _: commits.commit(
        PLACE, TERMS, [ended("r1.1", verdict="release")], call=99
    ),
    "main": lambda commits, _: commits.commit(
        PLACE,
        TERMS,
        [
            main(0, "new"),
            main(900, "x", "again"),
            main(901, "g", "behind"),
            main(902, "p", "behind"),
            main(903, "y", "dead"),
            main(904, "z", "late"),
            main(905, "", "again"),
        ],
        call=99,
    ),
}


async def fill(slot: ShardSlot) -> None:
    await slot.retrying(3, first=10)
    await slot.heads()
    await slot.retrying(300, "long", first=100)
    await slot.heads()
    await slot.one(ended("r4.1", "long", "dead"))
    await slot.parked(2, "p", first=500)
    await slot.one(main(600, "w", "again"))


def without_times(found: dict[str, Any]) -> dict[str, Any]:
    """Of the sets whose scores are times, the members alone."""
    return found | {name: sorted(found.get(name, ())) for name in ("due", "failed")}


@pytest.mark.parametrize("name", CALLS)
async def test_twice_is_once(store_server: EmbeddedServer, name: str) -> None:
    async with open_shard_slot(store_server) as slot:
        await fill(slot)
        before = await slot.everything()
        first = await CALLS[name](slot.commits, slot.shard)
        once = await slot.everything()
        assert name in ("release", "follow") or once != before, "it does something"
        if name == "follow":
            while await CALLS[name](slot.commits, slot.shard):
                pass
            once = await slot.everything()
        second = await CALLS[name](slot.commits, slot.shard)
        twice = await slot.everything()
        assert (without_times(twice[0]), twice[1]) == (without_times(once[0]), once[1])
        if hasattr(first, "items"):
            assert {each.outcome for each in second.items} == {"known"}
            assert [each.next for each in second.items] == [each.next for each in first.items]
            assert [each.state for each in second.items] == [each.state for each in first.items]
        if name == "due":
            # What is to follow stays due, and the next call tells it.
            assert second.heads == [head for head in first.heads if not head.follow] != []


@pytest.mark.parametrize("name", [name for name in CALLS if name != "follow"])
async def test_a_reply_that_was_lost_changes_nothing(
    store_server: EmbeddedServer, name: str
) -> None:
    async with open_shard_slot(store_server) as slot:
        await fill(slot)
        await CALLS[name](slot.commits, slot.shard)
        wanted, end = await slot.everything()
    async with open_shard_slot(store_server) as slot, proxy_to(store_server.address) as proxy:
        await fill(slot)
        async with store_at(proxy.address, test_mode=True) as store:
            await store.ping()
            await proxy.set_fates(replies=Fate.CUT)
            call = asyncio.ensure_future(CALLS[name](Commits(store), ShardStore(store)))
            await proxy.met.wait()
            await proxy.set_fates()
            await call
        found, found_end = await slot.everything()
        for each in (found, wanted):
            each["head"].pop("opened_ms")
        assert without_times(found) == without_times(wanted)
        assert found_end == end


async def test_a_new_owner_finds_due_what_the_former_one_had_taken(
    store_server: EmbeddedServer,
) -> None:
    """F-03: its request may have been answered; it is delivered again, and not counted."""
    async with open_shard_slot(store_server) as slot:
        for offset in range(0, 1200, 100):
            await slot.commit(*(main(i, f"g{i}", "again") for i in range(offset, offset + 100)))
        taken = 0
        while heads := await slot.heads():
            taken += len(heads)
        assert taken == 1200
        await slot.acquire("other")
        opened = await slot.shard.open(PLACE, slot.terms)
        assert (opened.incarnation, opened.low, opened.acks) == (1, {"0.0": 1200}, {"0.0": []})
        assert opened.retry_bytes == int((await slot.hash("head"))["retry_bytes"])
        assert len(await slot.scores("due")) == 1200
        assert {head.tries for head in await slot.heads()} == {1}


async def test_heads_are_taken_up_to_the_bytes_and_the_rest_stays_due(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.commit(*(main(i, f"g{i}", "again") for i in range(5)))
        due = await slot.due(bytes_max=1)
        assert (len(due.heads), due.next_ms) == (1, 0)
        due = await slot.due(most=3)
        assert (len(due.heads), due.next_ms) == (3, 0)
        due = await slot.due()
        assert (len(due.heads), due.next_ms) == (1, -1)


async def test_a_head_without_its_record_is_taken_off_and_counted(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.retrying(1)
        await slot.store.call("UNLINK", slot.key("retry"))
        assert await slot.heads() == []
        assert await slot.scores("due") == {}
        assert (await slot.hash("head"))["orphans"] == "1"


async def test_positions_that_are_there_stay_and_groups_are_told_apart(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.one(main(0))
        assert not await slot.shard.establish(PLACE, TERMS, {"0.0": 50, "0.1": 8}, topic="orders")
        assert await slot.hash("pos") == {"0.0": "1", "0.1": "8"}
        starts = [fact.was for fact in await slot.facts() if fact.kind == "start"]
        assert starts == ["m0.0.0", "m0.1.8"]
        await slot.retrying(1, "a", first=5)
        assert await slot.shard.unclean(PLACE, ["a", "b", "a"]) == {"a"}
        assert await slot.shard.unclean(PLACE, []) == set()
