"""Each script of an operation, twice = once; and with its reply lost on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.helpers.store_faults import Fate, proxy_to, store_at
from tests.subscriptions.shard_slot import PLACE, TERMS, ShardSlot, main, open_shard_slot
from tests.subscriptions.test_repetition import fill, without_times
from waystation.store.embedded.server import EmbeddedServer
from waystation.subscriptions.operating import Operating, PurgeStep, RedriveStep


def redrive(**more: Any) -> Callable[[Operating], Awaitable[Any]]:
    step = RedriveStep(operation="op", failed_before_ms=0, **more)
    return lambda operating: operating.redrive(PLACE, step)


def purge(**more: Any) -> Callable[[Operating], Awaitable[Any]]:
    step = PurgeStep(operation="op", failed_before_ms=0, **more)
    return lambda operating: operating.purge(PLACE, step)


#: `p` and `q` are parked, `long` is to follow, `g` retries; a dead letter stands alone.
CALLS: dict[str, Callable[[Operating], Awaitable[Any]]] = {
    "redrive_group": redrive(group="p"),
    "redrive_prefix": redrive(group="p", upto=52),
    "redrive_alone": redrive(upto=55),
    "redrive_all": redrive(most=1),
    "purge_group": purge(group="long"),
    "purge_alone": purge(upto=55),
    "purge_all": purge(),
    "skip_dead": lambda operating: operating.skip(PLACE, "op", "p", "d52"),
    "skip_retry": lambda operating: operating.skip(PLACE, "op", "g", "r1"),
    "enlist": lambda operating: operating.enlist(PLACE, "new", b"what is asked"),
    "progress": lambda operating: operating.progress(PLACE, TERMS, "old", {"state": "done"}),
    "reset": lambda operating: operating.reset(PLACE, 2, {"0.0": 3}),
    "freeze": lambda operating: operating.freeze(PLACE, "a new generation"),
}


async def fill_more(slot: ShardSlot) -> None:
    await fill(slot)
    await slot.parked(1, "q", first=700)
    slot.use(policy="skip")
    await slot.one(main(701, "", "dead"))
    slot.use(policy="park")
    await slot.operating.enlist(PLACE, "old", b"")
    assert set(await slot.scores("failed")) == {"1 long", "52 p", "54 q", "55"}


@pytest.mark.parametrize("name", CALLS)
async def test_twice_is_once(store_server: EmbeddedServer, name: str) -> None:
    async with open_shard_slot(store_server) as slot:
        await fill_more(slot)
        before = await slot.everything()
        first = await CALLS[name](slot.operating)
        once = await slot.everything()
        assert once != before, "it does something"
        second = await CALLS[name](slot.operating)
        twice = await slot.everything()
        assert (without_times(twice[0]), twice[1]) == (without_times(once[0]), once[1])
        if name.startswith("skip") or name in ("redrive_group", "redrive_prefix", "redrive_alone"):
            assert second == first, "what it did is told again"
        if name in ("purge_all", "redrive_all"):
            assert (second.messages, second.cursor) == (0, first.cursor)


@pytest.mark.parametrize("name", CALLS)
async def test_a_reply_that_was_lost_changes_nothing(
    store_server: EmbeddedServer, name: str
) -> None:
    async with open_shard_slot(store_server) as slot:
        await fill_more(slot)
        await CALLS[name](slot.operating)
        wanted, end = await slot.everything()
    async with open_shard_slot(store_server) as slot, proxy_to(store_server.address) as proxy:
        await fill_more(slot)
        async with store_at(proxy.address, test_mode=True) as store:
            await store.ping()
            await proxy.set_fates(replies=Fate.CUT)
            call = asyncio.ensure_future(CALLS[name](Operating(store, dataset="ds-1")))
            await proxy.met.wait()
            await proxy.set_fates()
            await call
        found, found_end = await slot.everything()
        for each in (found, wanted):
            each["head"].pop("opened_ms")
            # A cursor of `failed` is a time.
            each.get("ops", {}).pop("op:cursor", None)
        assert without_times(found) == without_times(wanted)
        assert found_end == end
