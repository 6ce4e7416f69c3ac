"""A worker, or who enqueues, dies at any call: nothing is lost, and nothing is there twice."""

from __future__ import annotations

from typing import cast

from tests.pools.pool_slot import LEASE_MS, PLACE, PoolSlot
from waystation.pools import Mail, Members
from waystation.pools.held import Letter, Nack, Session
from waystation.pools.terms import Terms
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.time_machine import TimeMachine
from waystation.testing import CrashPoint, crash_points

TERMS = Terms()
LETTERS = [Letter(f"m-{i}", "k", str(i).encode()) for i in range(4)]


async def prepare(store: Store) -> None:
    assert await Members(store).open(PLACE, TERMS)


async def life(store: Store) -> None:
    """All that a worker does, from its first call to its last."""
    members, mail = Members(store), Mail(store)
    session = await members.register(PLACE, TERMS, "w", nonce="n")
    await mail.enqueue(PLACE, TERMS, LETTERS, remember_ms=60_000)
    limits = {"most": 9, "bytes_max": 1000, "lease_ms": LEASE_MS}
    (first,) = (await mail.take(PLACE, TERMS, session, token="t", **limits)).items
    (acked,) = await mail.ack(PLACE, TERMS, session, [first], next_lease_ms=LEASE_MS)
    assert acked.next is not None
    await mail.nack(PLACE, TERMS, session, [Nack(taken=acked.next)])
    (again,) = (await mail.take(PLACE, TERMS, session, token="u", **limits)).items
    assert await members.drain(PLACE, TERMS, session) == 1
    await mail.ack(PLACE, TERMS, session, [again])
    await members.leave(PLACE, TERMS, session)


async def after(store: Store, _: CrashPoint) -> None:
    """Who enqueued tries again; the worker is replaced; all comes to its end, in order."""
    members, mail = Members(store), Mail(store)
    slot = PoolSlot(store, cast(TimeMachine, None))
    await slot.check()
    await mail.enqueue(PLACE, TERMS, LETTERS, remember_ms=60_000)
    await slot.check()
    await members.leave(PLACE, TERMS, Session("w"))
    await slot.check()
    await slot.register("next")
    seen = []
    while taken := await slot.take("next"):
        seen += [each.number for each in taken]
        await slot.ack("next", *taken)
    assert seen in ([1, 2, 3, 4], [2, 3, 4], [3, 4]), "settled ones are the first ones"
    found = await slot.check()
    assert (found["head"]["number"], found["head"]["messages"]) == ("4", "0")
    assert found["workers"].keys() == {"next"}


def test_a_death_at_any_call_loses_nothing_and_repeats_nothing(
    store_server: EmbeddedServer,
) -> None:
    points = crash_points(store_server.address, life, after, prepare=prepare)
    assert len(points) == 3 * 9
