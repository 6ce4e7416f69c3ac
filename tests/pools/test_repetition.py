"""Each script of a pool, twice = once; and with its reply lost on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.helpers.store_faults import Fate, proxy_to
from tests.pools.pool_slot import LEASE_MS, PLACE, PoolSlot, open_pool_slot
from waystation.pools.held import Letter, Taken
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer

Call = Callable[[PoolSlot, list[Taken]], Awaitable[Any]]


def _letters() -> list[Letter]:
    return [Letter(f"again-{key}", key, b"data") for key in ("k1", "new", "k1", "late")]


#: `a` has k1 and k2 taken and k3 ready; `z` is stale with k4; `b` is live and has nothing.
CALLS: dict[str, Call] = {
    "register": lambda slot, _: slot.register("c", nonce="same"),
    "register anew": lambda slot, _: slot.register("a", nonce="same"),
    "beat": lambda slot, _: slot.beat("b"),
    "drain": lambda slot, _: slot.drain("a"),
    "leave": lambda slot, _: slot.leave("a"),
    "enqueue": lambda slot, _: slot.mail.enqueue(PLACE, slot.terms, _letters(), remember_ms=60_000),
    "assign": lambda slot, _: slot.assignments.assign(PLACE, slot.terms, "k9"),
    "assign by name": lambda slot, _: slot.assignments.assign(PLACE, slot.terms, "k3", uid="b"),
    "reassign": lambda slot, _: slot.assignments.reassign(PLACE, slot.terms, "z"),
    "take": lambda slot, _: slot.take("a", token="same"),
    "ack": lambda slot, taken: slot.ack("a", *taken),
    "ack with next": lambda slot, taken: slot.ack("a", *taken, next_lease_ms=LEASE_MS),
    "nack again": lambda slot, taken: slot.nack("a", taken[0], wait_ms=60_000),
    "nack release": lambda slot, taken: slot.nack("a", taken[0], "release"),
    "nack dead": lambda slot, taken: slot.nack("a", taken[0], "dead", cause="no"),
    "renew": lambda slot, taken: slot.mail.renew(
        PLACE, slot.terms, slot.sessions["a"], taken, lease_ms=10 * LEASE_MS
    ),
    "sweep": lambda slot, _: slot.sweep(),
}
#: What a repetition answers, where that is another word than the first time.
SECOND = {
    "ack": ["known", "known"],
    "nack again": "known",
    "nack release": "known",
    "nack dead": "known",
}


async def fill(slot: PoolSlot) -> list[Taken]:
    await slot.register("z", nonce="z")
    await slot.send_all("k4")
    await slot.later(10)
    await slot.register("a", nonce="a")
    for key in ("k1", "k2", "k3"):
        await slot.assignments.assign(PLACE, slot.terms, key, uid="a")
    await slot.send_all("k1", "k2", "k1", "k1")
    taken = await slot.take("a")
    await slot.register("b", nonce="b")
    await slot.send_all("k3")
    await slot.later(6)
    slot.calls = 1000
    return sorted(taken, key=lambda each: each.key)


def timeless(slot: dict[str, Any]) -> dict[str, Any]:
    """Without times, which are another at each call."""
    return {kind: _timeless(kind, held) for kind, held in slot.items()}


def _timeless(kind: str, held: Any) -> Any:
    match kind.partition(":")[0]:
        case "keys" if kind == "keys":
            return {key: line.split(" ")[:5] + line.split(" ")[6:] for key, line in held.items()}
        case "workers":
            return {uid: line.split(" ")[:4] for uid, line in held.items()}
        case "head":
            return {word: value for word, value in held.items() if word != "opened_ms"}
        case "keys" | "ready" | "taken" | "seen" | "failed":
            return sorted(held)
        case "m":
            return [each.split(b" ")[0] for each in held]
        case "dead":
            return {number: letter.split(" ", 1)[1] for number, letter in held.items()}
    return held


@pytest.mark.parametrize("name", CALLS)
async def test_twice_is_once(store_server: EmbeddedServer, name: str) -> None:
    async with open_pool_slot(store_server) as slot:
        taken = await fill(slot)
        before = await slot.slot()
        first = await CALLS[name](slot, taken)
        once = await slot.check()
        assert once != before, "it does something"
        second = await CALLS[name](slot, taken)
        twice = await slot.check()
        assert timeless(twice) == timeless(once)
        match name:
            case "take":
                assert first == second != []
            case "ack with next":
                assert [each.outcome for each in second] == ["known", "known"]
                assert [each.next for each in second] == [each.next for each in first]
                assert first[0].next is not None
            case "enqueue":
                assert {each.outcome for each in second.items} == {"duplicate"}
                assert [each.number for each in second.items] == [
                    each.number for each in first.items
                ]
            case "ack":
                assert [each.outcome for each in second] == SECOND[name]
            case _ if name in SECOND:
                assert second == SECOND[name]


@pytest.mark.parametrize("name", [name for name in CALLS if name not in ("reassign", "sweep")])
async def test_a_reply_that_was_lost_changes_nothing(
    store_server: EmbeddedServer, name: str
) -> None:
    async with open_pool_slot(store_server) as slot:
        taken = await fill(slot)
        await CALLS[name](slot, taken)
        wanted = timeless(await slot.check())
    async with proxy_to(store_server.address) as proxy:
        store = Store(proxy.address, test_mode=True)
        async with open_pool_slot(store_server, store=store) as slot:
            taken = await fill(slot)
            await proxy.set_fates(replies=Fate.CUT)
            call = asyncio.ensure_future(CALLS[name](slot, taken))
            await proxy.met.wait()
            await proxy.set_fates()
            await call
            assert timeless(await slot.check()) == wanted


async def test_what_was_enqueued_is_known_by_its_id_for_as_long_as_was_said(
    store_server: EmbeddedServer,
) -> None:
    """F-25: a duplicate is told as one, with the number of the first."""
    async with open_pool_slot(store_server) as slot:
        await slot.register("a")
        first = await slot.send("k", message_id="m")
        again = await slot.send("k", message_id="m")
        assert (again.outcome, again.number, again.pending) == ("duplicate", first.number, 1)
        await slot.later(61)
        assert (await slot.send("k", message_id="m")).outcome == "added"
        assert len(await slot.queue("k")) == 2
