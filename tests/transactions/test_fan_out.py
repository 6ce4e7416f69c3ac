"""Children of a Parallel: created once each, whoever goes on creating, and never half."""

from __future__ import annotations

import pytest

from tests.transactions.cell_store import LEASE_MS, STATE, TERMS, CellStore, open_cell_store
from waystation.errors import LogFullError
from waystation.logs.protocol import Retention
from waystation.store.embedded.server import EmbeddedServer
from waystation.transactions import names
from waystation.transactions.entry import FanOut, NewTransaction
from waystation.transactions.held import Held
from waystation.transactions.outcomes import Policy
from waystation.transactions.progress import FanOpen, Finish, Progress
from waystation.transactions.states import State, Status

TOTAL = 5


async def open_fan(cells: CellStore, *, total: int = TOTAL, policy: Policy = "cancel_rest") -> Held:
    """A parent that has opened a Parallel; returns what its holder holds."""
    parent = await cells.started_and_claimed()
    move = FanOpen(held=parent.held, state=STATE, round=1, total=total, policy=policy)
    (verdict,) = await Progress(cells.store, TERMS).fan_open(0, [move])
    assert verdict.outcome == "done"
    return Held(parent.id, parent.head.epoch, 1)


def children(cells: CellStore, parent: Held, *numbers: int) -> list[NewTransaction]:
    return [cells.new(id=names.child_id(parent.id, 1, n), detail=b"\x90") for n in numbers]


async def fan_out(cells: CellStore, parent: Held, *numbers: int, round_: int = 1) -> FanOut:
    items = children(cells, parent, *numbers)
    return await cells.entry.fan_out(parent, round_=round_, first=numbers[0], items=items)


async def kids(cells: CellStore, parent: Held) -> str:
    return (await cells.fields(parent.id))["kids"].decode()


async def finish(cells: CellStore, number: int, status: Status) -> None:
    """Claims the next child, and ends it."""
    (child,) = (await cells.claim(most=1, number=number)).items
    move = Finish(held=child.held, state=b"", status=status, output=b"[1]")
    (verdict,) = await Progress(cells.store, TERMS).finish(0, [move])
    assert verdict.outcome == "done"


async def test_children_are_queued_in_order_with_their_place_in_the_parent(
    store_server: EmbeddedServer,
) -> None:
    async with open_cell_store(store_server) as cells:
        parent = await open_fan(cells)
        before = await cells.head(parent.id)
        made = await fan_out(cells, parent, 1, 2, 3)
        assert (made.outcome, made.created, made.version) == ("done", 3, before.version + 1)
        assert made.log_end == len(await cells.entries())
        expected = [names.child_id(parent.id, 1, n) for n in (1, 2, 3)]
        assert await cells.listed("qInL:workers") == expected
        for n, child in enumerate(expected, 1):
            assert names.cell_of(child) == names.cell_of(parent.id)
            head = await cells.head(child)
            assert (head.state, head.flags, head.version) == (State.QUEUED, "p", 1)
            assert (await cells.fields(child))["parent"] == f"{parent.id} 1 {n}".encode()
        assert await kids(cells, parent) == "1 5 3 0 cancel_rest 0 -"
        head = await cells.head(parent.id)
        assert (head.state, head.version, head.commits) == (State.RUNNING, made.version, 1)
        entry = (await cells.entries())[-1]
        assert [(fact.kind, fact.id) for fact in entry] == [("started", each) for each in expected]


async def test_a_call_that_is_sent_again_creates_nothing_twice(
    store_server: EmbeddedServer,
) -> None:
    async with open_cell_store(store_server) as cells:
        parent = await open_fan(cells)
        first = await fan_out(cells, parent, 1, 2, 3)
        assert await fan_out(cells, parent, 1, 2, 3) == first
        # One that overlaps goes on where the others ended.
        more = await fan_out(cells, parent, 2, 3, 4, 5)
        assert (more.outcome, more.created) == ("done", 5)
        assert len(await cells.listed("qInL:workers")) == 5
        started = [fact.id for fact in await cells.facts() if fact.kind == "started"]
        assert len(started) == len(set(started)) == 6


async def test_whoever_holds_the_parent_after_a_death_goes_on_creating(
    store_server: EmbeddedServer,
) -> None:
    """F-28: the list is in the state, and the counter says how far it went."""
    async with open_cell_store(store_server) as cells:
        parent = await open_fan(cells)
        await fan_out(cells, parent, 1, 2)
        await cells.machine.advance(LEASE_MS / 1000 + 1)
        await cells.holding.rescue(0, most=100, rescues_max=3)
        claimed = {each.id: each for each in (await cells.claim()).items}
        again = claimed[parent.id]
        assert again.extras[b"kids"] == b"1 5 2 0 cancel_rest 0 -"

        assert (await fan_out(cells, parent, 3, 4, 5)).outcome == "refused"
        made = await fan_out(cells, again.held, 1, 2, 3, 4, 5)
        assert (made.outcome, made.created) == ("done", 5)
        assert len(await cells.listed("qInL:workers")) == 3


async def test_only_the_holder_creates_and_only_in_order_and_in_its_round(
    store_server: EmbeddedServer,
) -> None:
    async with open_cell_store(store_server) as cells:
        parent = await open_fan(cells)
        before = await cells.keys()
        fields = await cells.fields(parent.id)
        for wrong in (Held(parent.id, 9, 1), Held(parent.id, 1, 0), Held(parent.id, 1, 2)):
            assert (await fan_out(cells, wrong, 1)).outcome == "refused"
        assert (await fan_out(cells, parent, 1, round_=2)).outcome == "refused"
        assert (await fan_out(cells, parent, 2)).outcome == "refused"
        unknown = Held(f"tx-{'0' * 40}", 1, 1)
        assert (await fan_out(cells, unknown, 1)).outcome == "unknown"
        assert await cells.keys() == before
        assert await cells.fields(parent.id) == fields


async def test_a_parent_without_an_open_parallel_gets_no_children(
    store_server: EmbeddedServer,
) -> None:
    async with open_cell_store(store_server) as cells:
        parent = await cells.started_and_claimed()
        assert (await fan_out(cells, parent.held, 1)).outcome == "refused"
        assert await cells.listed("qInL:workers") == []


async def test_children_beyond_the_total_are_not_created(store_server: EmbeddedServer) -> None:
    async with open_cell_store(store_server) as cells:
        parent = await open_fan(cells, total=2)
        made = await fan_out(cells, parent, 1, 2, 3, 4)
        assert made.created == 2
        assert len(await cells.listed("qInL:workers")) == 2


async def test_after_a_failed_sibling_the_rest_counts_as_cancelled_and_is_never_created(
    store_server: EmbeddedServer,
) -> None:
    async with open_cell_store(store_server) as cells:
        parent = await open_fan(cells)
        await fan_out(cells, parent, 1, 2)
        await finish(cells, 1, Status.SUCCESS)
        await finish(cells, 2, Status.FAILED)
        records = len(await cells.entries())
        made = await fan_out(cells, parent, 3, 4, 5)
        assert (made.outcome, made.created) == ("done", 5)
        assert await kids(cells, parent) == "1 5 5 5 cancel_rest 0 2"
        fields = await cells.fields(parent.id)
        assert [fields[f"result:{n}"] for n in range(1, 6)] == [
            b"success [1]",
            b"failed [1]",
            *[b"cancelled "] * 3,
        ]
        assert await cells.listed("qInL:workers") == []
        assert len(await cells.entries()) == records
        # Sent again it counts nothing twice.
        assert await fan_out(cells, parent, 3, 4, 5) == made


async def test_with_wait_all_a_failed_sibling_stops_nobody(store_server: EmbeddedServer) -> None:
    async with open_cell_store(store_server) as cells:
        parent = await open_fan(cells, policy="wait_all")
        await fan_out(cells, parent, 1)
        await finish(cells, 1, Status.FAILED)
        made = await fan_out(cells, parent, 2, 3, 4, 5)
        assert made.created == 5
        assert len(await cells.listed("qInL:workers")) == 4
        assert await kids(cells, parent) == "1 5 5 1 wait_all 0 1"


async def test_a_parent_that_is_to_end_creates_no_more(store_server: EmbeddedServer) -> None:
    async with open_cell_store(store_server) as cells:
        parent = await open_fan(cells)
        key = names.state(parent.id)
        words = (await cells.store.call("HGET", key, "head")).decode().split(" ")
        words[5] = "xc"
        await cells.store.call("HSET", key, "head", " ".join(words))
        made = await fan_out(cells, parent, 1, 2, 3, 4, 5)
        assert made.created == 5
        assert await cells.listed("qInL:workers") == []
        assert await kids(cells, parent) == "1 5 5 5 cancel_rest 0 -"


async def test_a_full_log_refuses_children_whole_and_they_can_be_created_later(
    store_server: EmbeddedServer,
) -> None:
    async with open_cell_store(store_server) as cells:
        parent = await open_fan(cells)
        await cells.logs.set_retention(names.LOG, 0, Retention(max_bytes=10, policy="refuse"))
        await cells.logs.hold(names.LOG, 0, "history", 0)
        before, fields = await cells.keys(), await cells.fields(parent.id)
        with pytest.raises(LogFullError):
            await fan_out(cells, parent, 1, 2, 3)
        assert await cells.keys() == before
        assert await cells.fields(parent.id) == fields

        await cells.logs.set_retention(names.LOG, 0, Retention())
        assert (await fan_out(cells, parent, 1, 2, 3)).created == 3
