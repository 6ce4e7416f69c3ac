"""Parallel children: counter first, results into the parent, the last one queues it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from tests.transactions.helpers import (
    CELL,
    GRACE_MS,
    VERSION,
    TransactionStore,
    after,
    open_transactions,
)
from waystation.store.embedded.server import EmbeddedServer
from waystation.transactions import names
from waystation.transactions.entry import FanOut, NewTransaction
from waystation.transactions.held import Held
from waystation.transactions.outcomes import Policy
from waystation.transactions.progress import Commit, FanOpen, FanWait, Finish, next_round
from waystation.transactions.states import State, Status


def children(parent: str, numbers: Sequence[int], *, round_: int = 1) -> list[NewTransaction]:
    return [
        NewTransaction(
            id=names.child_id(parent, round_, n),
            owner="default",
            pipeline="p",
            version=VERSION,
            group="kids",
            state=b"child",
            inside=True,
        )
        for n in numbers
    ]


async def open_fan(
    tx: TransactionStore, held: Held, total: int, *, policy: Policy = "cancel_rest", round_: int = 1
) -> Held:
    move = FanOpen(held=held, state=b"list", round=round_, total=total, policy=policy)
    (verdict,) = await tx.progress.fan_open(CELL, [move])
    assert verdict.outcome == "done"
    return after(held)


async def fan_out(
    tx: TransactionStore, held: Held, first: int, last: int, *, round_: int = 1
) -> FanOut:
    items = children(held.id, range(first, last + 1), round_=round_)
    return await tx.entry.fan_out(held, round_=round_, first=first, items=items)


async def wait(tx: TransactionStore, held: Held) -> str:
    (verdict,) = await tx.progress.fan_wait(CELL, [FanWait(held=held, state=b"waits")])
    return verdict.outcome


async def waiting_parent(
    tx: TransactionStore, total: int, *, policy: Policy = "cancel_rest", **fields: object
) -> str:
    """A parent whose children are queued; returns its id."""
    held = await open_fan(tx, await tx.running(**fields), total, policy=policy)
    for first in range(1, total + 1, 100):
        await fan_out(tx, held, first, min(first + 99, total))
    assert await wait(tx, held) == "waiting"
    return held.id


async def end(
    tx: TransactionStore, count: int = 1, *, status: Status = Status.SUCCESS
) -> list[str]:
    """Claims children and ends them in one call; returns their ids."""
    claimed = await tx.claim(count, group="kids")
    assert len(claimed) == count
    moves = [
        Finish(held=each.held, state=b"end", status=status, output=f'"{each.id[-4:]}"'.encode())
        for each in claimed
    ]
    await tx.progress.finish(CELL, moves)
    return [each.id for each in claimed]


async def kids(tx: TransactionStore, parent: str) -> str:
    return (await tx.fields(parent))["kids"].decode()


async def test_the_last_child_queues_its_parent_by_out_with_all_results(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        parent = await waiting_parent(tx, 3)
        assert await kids(tx, parent) == "1 3 3 0 cancel_rest 0 -"
        picture = await tx.check()
        assert picture.where(parent) == set()
        versions = [picture.heads[parent].version]
        for done in (1, 2, 3):
            (child,) = await end(tx)
            assert (await tx.fields(parent))[f"result:{done}"] == f'success "{child[-4:]}"'.encode()
            assert await kids(tx, parent) == f"1 3 3 {done} cancel_rest 0 -"
            versions.append((await tx.check()).heads[parent].version)
        assert versions == sorted(set(versions)), "each result is a change of the parent"
        assert (await tx.check()).where(parent) == {"qOutL:main"}
        assert (await tx.kinds(parent))[-2:] == ["fanned", "woken"]
        (claimed,) = await tx.claim()
        assert {b"kids", b"result:1", b"result:2", b"result:3"} <= set(claimed.extras)
        drop = ("kids", "room", "tree", "result:1", "result:2", "result:3")
        await tx.progress.commit(CELL, [Commit(held=claimed.held, state=b"s", drop=drop)])
        assert await tx.fields(parent) == {"state": b"s"}


async def test_children_that_end_in_one_call_are_all_counted(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        parent = await waiting_parent(tx, 250)
        for count in (100, 100, 50):
            await end(tx, count)
        assert (await tx.check()).where(parent) == {"qOutL:main"}
        assert await kids(tx, parent) == "1 250 250 250 cancel_rest 0 -"
        assert len(await tx.claim(10)) == 1, "queued once"


async def test_children_that_end_before_their_parent_waits_are_not_missed(
    store_server: EmbeddedServer,
) -> None:
    """F-28."""
    async with open_transactions(store_server) as tx:
        held = await open_fan(tx, await tx.running(), 2)
        await fan_out(tx, held, 1, 2)
        await end(tx, 2)
        assert (await tx.check()).heads[held.id].state is State.RUNNING
        assert await wait(tx, held) == "queued"
        assert (await tx.check()).where(held.id) == {"qOutL:main"}
        assert await wait(tx, held) == "known"
        assert await tx.kinds(held.id) == ["started", "fanned", "fanned"]


async def test_a_parent_killed_in_the_middle_goes_on_creating(
    store_server: EmbeddedServer,
) -> None:
    """F-28: some children are there, some have ended; nothing is created twice."""
    async with open_transactions(store_server) as tx:
        held = await open_fan(tx, await tx.running(), 4)
        await fan_out(tx, held, 1, 2)
        await end(tx)
        await tx.machine.advance(11)
        await tx.holding.rescue(CELL, most=10, rescues_max=3)
        assert (await fan_out(tx, held, 3, 4)).outcome == "refused"
        assert await wait(tx, held) == "refused"
        (claimed,) = await tx.claim()
        assert claimed.state == b"list"
        again = await fan_out(tx, claimed.held, 1, 4)
        assert (again.outcome, again.created) == ("done", 4)
        assert await wait(tx, claimed.held) == "waiting"
        await end(tx, 3)
        assert (await tx.check()).where(held.id) == {"qOutL:main"}
        assert len((await tx.check()).heads) == 5


@pytest.mark.parametrize("status", [each for each in Status if each is not Status.SUCCESS])
async def test_the_first_failure_has_the_rest_cancelled(
    store_server: EmbeddedServer, status: Status
) -> None:
    async with open_transactions(store_server) as tx:
        parent = await waiting_parent(tx, 4)
        running = (await tx.claim(1, group="kids"))[0]
        await end(tx, status=status)
        assert await kids(tx, parent) == "1 4 4 1 cancel_rest 0 2"
        assert set((await tx.check()).sets["sweepZ"]) == {parent}

        swept = await tx.signals.sweep(CELL, grace_ms=GRACE_MS)

        assert (swept.done, swept.next_ms) == (4, -1)
        picture = await tx.check()
        assert picture.sets["sweepZ"] == {}
        assert picture.heads[running.id].cancelling, "what runs is asked"
        assert await kids(tx, parent) == "1 4 4 3 cancel_rest 4 2"
        assert picture.heads[parent].state is State.WAITING_CHILDREN
        (verdict,) = await tx.progress.commit(CELL, [Commit(held=running.held, state=b"s")])
        assert verdict.outcome == "cancelled"
        assert (await tx.check()).where(parent) == {"qOutL:main"}
        results = await tx.fields(parent)
        told = [results[f"result:{n}"].decode().split(" ")[0] for n in range(1, 5)]
        assert told == ["cancelled", status, "cancelled", "cancelled"]
        cause = (await tx.fields(names.child_id(parent, 1, 3)))["cause"]
        assert cause == b"a child beside it has failed"


async def test_where_all_are_waited_for_a_failure_cancels_nobody(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        parent = await waiting_parent(tx, 3, policy="wait_all")
        await end(tx, status=Status.FAILED)
        assert await kids(tx, parent) == "1 3 3 1 wait_all 0 1"
        assert (await tx.check()).sets["sweepZ"] == {}
        await end(tx, 2)
        assert (await tx.check()).where(parent) == {"qOutL:main"}


async def test_after_a_failure_no_more_children_are_created(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        held = await open_fan(tx, await tx.running(), 5)
        await fan_out(tx, held, 1, 2)
        await end(tx, status=Status.FAILED)
        await fan_out(tx, held, 3, 5)
        assert len((await tx.check()).heads) == 3
        assert await wait(tx, held) == "waiting"
        await tx.signals.sweep(CELL, grace_ms=GRACE_MS)
        assert (await tx.check()).where(held.id) == {"qOutL:main"}
        assert await kids(tx, held.id) == "1 5 5 5 cancel_rest 5 1"


async def test_a_sweep_takes_a_hundred_at_a_time(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        parent = await waiting_parent(tx, 230)
        await end(tx, status=Status.FAILED)
        passes = [await tx.signals.sweep(CELL, grace_ms=GRACE_MS) for _ in range(4)]
        assert [(each.done, each.next_ms) for each in passes] == [
            (100, 0),
            (100, 0),
            (30, -1),
            (0, -1),
        ]
        assert (await tx.check()).where(parent) == {"qOutL:main"}
        assert (await tx.claim(10))[0].id == parent


async def test_a_cancelled_parent_ends_when_its_last_child_has(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        parent = await waiting_parent(tx, 3, external_id="r-1")
        (running,) = await tx.claim(1, group="kids")
        (told,) = await tx.signals.cancel("default", [parent], cause="me", grace_ms=GRACE_MS)
        assert told.outcome == "asked"
        picture = await tx.check()
        assert picture.where(parent) == {"deadlineZ", "sweepZ"}
        await tx.signals.sweep(CELL, grace_ms=GRACE_MS)
        assert (await tx.check()).heads[parent].state is State.WAITING_CHILDREN
        assert (await tx.fields(names.child_id(parent, 1, 2)))["cause"] == b"its parent has ended"

        # The last one is done before it is stopped: the work is kept, and the parent ends.
        done = Finish(held=running.held, state=b"e", status=Status.SUCCESS, output=b"1")
        await tx.progress.finish(CELL, [done])

        head = (await tx.check()).heads[parent]
        assert (head.state, head.status) == (State.COMPLETE, Status.CANCELLED)
        assert (await tx.fields(parent))["cause"] == b"me"
        told = [(fact.kind, fact.id) for fact in (await tx.facts())[-2:]]
        assert told == [("finished", running.id), ("cancelled", parent)], "what led to it is first"
        assert await tx.claim(10) == []


async def test_a_parent_whose_children_do_not_end_is_ended_after_the_grace_time(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        parent = await waiting_parent(tx, 2, deadline_in_ms=5000)
        running = await tx.claim(2, group="kids")
        await tx.machine.advance(6)
        await tx.signals.expire(CELL, grace_ms=GRACE_MS)
        assert (await tx.check()).where(parent) == {"deadlineZ", "sweepZ"}
        await tx.machine.advance(GRACE_MS / 1000 + 1)
        await tx.signals.expire(CELL, grace_ms=GRACE_MS)
        head = (await tx.check()).heads[parent]
        assert (head.state, head.status) == (State.COMPLETE, Status.TIMEOUT)
        swept = await tx.signals.sweep(CELL, grace_ms=GRACE_MS)
        assert (swept.done, swept.next_ms) == (2, -1), "its children do not live on for ever"
        before = await tx.head(parent)
        for each in running:
            (verdict,) = await tx.progress.commit(CELL, [Commit(held=each.held, state=b"s")])
            assert verdict.outcome == "cancelled"
        assert await tx.head(parent) == before, "what is settled never changes"
        await tx.check()


async def test_the_end_of_a_parent_with_an_open_fan_has_its_children_swept(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        held = await open_fan(tx, await tx.running(), 4)
        await fan_out(tx, held, 1, 2)
        await tx.signals.cancel("default", [held.id], cause="me", grace_ms=GRACE_MS)
        (verdict,) = await tx.progress.commit(CELL, [Commit(held=held, state=b"s")])
        assert verdict.outcome == "cancelled"
        assert (await tx.signals.sweep(CELL, grace_ms=GRACE_MS)).done == 2
        picture = await tx.check()
        assert {head.status for head in picture.heads.values()} == {Status.CANCELLED}


async def test_a_cancel_of_all_at_once_leaves_nothing_on_the_lists(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        for order in itertools.permutations(range(3)):
            parent = await waiting_parent(tx, 2)
            ids = [parent, names.child_id(parent, 1, 1), names.child_id(parent, 1, 2)]
            await tx.signals.cancel(
                "default", [ids[n] for n in order], cause="me", grace_ms=GRACE_MS
            )
            await tx.signals.sweep(CELL, grace_ms=GRACE_MS)
            picture = await tx.check()
            assert picture.sets["deadlineZ"] == picture.sets["sweepZ"] == {}
            assert {picture.heads[each].status for each in ids} == {Status.CANCELLED}
            await tx.claim(10)


async def test_a_result_of_a_round_before_is_not_counted(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        held = await open_fan(tx, await tx.running(), 1)
        await fan_out(tx, held, 1, 1)
        (old,) = await tx.claim(1, group="kids")
        held = await open_fan(tx, held, 2, round_=2)
        await fan_out(tx, held, 1, 2, round_=2)
        late = Finish(held=old.held, state=b"e", status=Status.FAILED, output=b"1")
        await tx.progress.finish(CELL, [late])
        assert await kids(tx, held.id) == "2 2 2 0 cancel_rest 0 -"
        assert (await tx.check()).sets["sweepZ"] == {}


async def test_results_of_a_round_before_do_not_stand_in_for_those_of_the_next(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        held = await open_fan(tx, await tx.running(), 2)
        await fan_out(tx, held, 1, 2)
        await end(tx, 2)
        held = await open_fan(tx, held, 2, round_=2)
        assert not [name for name in await tx.fields(held.id) if name.startswith("result:")]
        await fan_out(tx, held, 1, 2, round_=2)
        assert await wait(tx, held) == "waiting"
        await end(tx, 2)
        assert (await tx.check()).where(held.id) == {"qOutL:main"}


async def test_a_child_of_a_round_before_is_never_written_over(
    store_server: EmbeddedServer,
) -> None:
    """Whoever uses the number of a round again is refused; `next_round` never does."""
    async with open_transactions(store_server) as tx:
        held = await open_fan(tx, await tx.running(), 1)
        await fan_out(tx, held, 1, 1)
        (child,) = await end(tx)
        held = await open_fan(tx, held, 2, round_=1)
        before = await tx.head(child), len(await tx.facts())
        assert (await fan_out(tx, held, 1, 2)).outcome == "refused"
        assert (await tx.head(child), len(await tx.facts())) == before
        assert await kids(tx, held.id) == "1 2 0 0 cancel_rest 0 -"
        await tx.check()
        rounds = [next_round(Held(child, epoch, commits)) for epoch in (1, 2) for commits in (0, 1)]
        assert len(set(rounds)) == 4


async def test_a_sweep_that_comes_late_does_not_touch_the_next_round(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        held = await open_fan(tx, await tx.running(), 1)
        await fan_out(tx, held, 1, 1)
        await end(tx, status=Status.FAILED)
        assert set((await tx.check()).sets["sweepZ"]) == {held.id}
        held = await open_fan(tx, held, 1, round_=2)
        await fan_out(tx, held, 1, 1, round_=2)
        swept = await tx.signals.sweep(CELL, grace_ms=GRACE_MS)
        assert (swept.done, swept.next_ms) == (1, -1), "the parent alone was looked at"
        assert (await tx.check()).heads[names.child_id(held.id, 2, 1)].state is State.QUEUED


async def test_the_end_of_a_grandchild_reaches_the_top_in_one_call(
    store_server: EmbeddedServer,
) -> None:
    """Parents that are to end, end with their last child, however deep that is."""
    async with open_transactions(store_server) as tx:
        top = await waiting_parent(tx, 1)
        (middle,) = await tx.claim(1, group="kids")
        held = await open_fan(tx, middle.held, 1)
        await fan_out(tx, held, 1, 1)
        await wait(tx, held)
        for each in (top, middle.id):
            await tx.signals.cancel("default", [each], cause="me", grace_ms=GRACE_MS)
        await end(tx)
        picture = await tx.check()
        assert picture.heads[middle.id].status is Status.CANCELLED
        assert picture.heads[top].status is Status.CANCELLED
        assert (await tx.fields(top))["result:1"] == b"cancelled "


# -- Trees: Parallels of Parallels -----------------------------------------------------------


async def child_running(tx: TransactionStore, parent: str) -> Held:
    """A child of a waiting parent, claimed."""
    (claimed,) = await tx.claim(1, group="kids")
    assert claimed.id == names.child_id(parent, 1, 1)
    return claimed.held


async def test_sweep_many_parents_with_few_children_handles_them_in_one_call(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        parents = [await waiting_parent(tx, 2) for _ in range(60)]
        await tx.signals.cancel("default", parents, cause="me", grace_ms=GRACE_MS)

        passes = [await tx.signals.sweep(CELL, grace_ms=GRACE_MS) for _ in range(2)]

        assert [(each.done, each.next_ms) for each in passes] == [(100, 0), (20, -1)]
        picture = await tx.check()
        assert {head.status for head in picture.heads.values()} == {Status.CANCELLED}
        assert picture.sets["sweepZ"] == picture.sets["deadlineZ"] == {}


async def test_sweep_parent_and_its_child_in_one_call_keeps_the_child_due(
    store_server: EmbeddedServer,
) -> None:
    """The child is looked at first, and only then cancelled: its own children must not stay."""
    async with open_transactions(store_server) as tx:
        root = await waiting_parent(tx, 1)
        held = await open_fan(tx, await child_running(tx, root), 1)
        await fan_out(tx, held, 1, 1)
        assert await wait(tx, held) == "waiting"
        sweeps = names.sorted_set(CELL, "sweepZ")
        await tx.store.call("ZADD", sweeps, 1, held.id)
        await tx.signals.cancel("default", [root], cause="me", grace_ms=GRACE_MS)
        while (await tx.signals.sweep(CELL, grace_ms=GRACE_MS)).next_ms >= 0:
            pass
        picture = await tx.check()
        assert {head.status for head in picture.heads.values()} == {Status.CANCELLED}


@pytest.mark.parametrize("end_of_root", ["cancelled", "expired", "ended"])
async def test_fan_open_below_a_stopped_root_cancels_instead(
    store_server: EmbeddedServer, end_of_root: str
) -> None:
    async with open_transactions(store_server) as tx:
        root = await waiting_parent(tx, 1, deadline_in_ms=5000)
        held = await child_running(tx, root)
        if end_of_root == "cancelled":
            await tx.signals.cancel("default", [root], cause="me", grace_ms=GRACE_MS)
        else:
            await tx.machine.advance(6)
            await tx.signals.expire(CELL, grace_ms=GRACE_MS)
        if end_of_root == "ended":
            await tx.machine.advance(GRACE_MS / 1000 + 1)
            await tx.signals.expire(CELL, grace_ms=GRACE_MS)
            assert (await tx.head(root)).state is State.COMPLETE
        move = FanOpen(held=held, state=b"list", round=1, total=2)

        told = [(await tx.progress.fan_open(CELL, [move]))[0].outcome for _ in range(2)]

        assert told == ["cancelled", "cancelled"], "a repetition after a lost reply hears the same"
        head = (await tx.check()).heads[held.id]
        assert (head.state, head.status) == (State.COMPLETE, Status.CANCELLED)
        fields = await tx.fields(held.id)
        assert fields["cause"] == b"a transaction above it has ended"
        assert "kids" not in fields
        assert (await tx.kinds(held.id)).count("cancelled") == 1


async def test_fan_open_beside_a_failed_child_cancels_instead(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        root = await waiting_parent(tx, 2)
        held = await child_running(tx, root)
        await end(tx, status=Status.FAILED)
        move = FanOpen(held=held, state=b"list", round=1, total=2)
        (verdict,) = await tx.progress.fan_open(CELL, [move])
        assert verdict.outcome == "cancelled"
        assert (await tx.check()).where(root) == {"qOutL:main", "sweepZ"}


async def test_fan_out_below_a_cancelled_root_creates_no_more_children(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        root = await waiting_parent(tx, 1)
        middle = await open_fan(tx, await child_running(tx, root), 1)
        await fan_out(tx, middle, 1, 1)
        assert await wait(tx, middle) == "waiting"
        (claimed,) = await tx.claim(1, group="kids")
        held = await open_fan(tx, claimed.held, 5)
        await fan_out(tx, held, 1, 2)
        # Two levels above the one that creates children.
        await tx.signals.cancel("default", [root], cause="me", grace_ms=GRACE_MS)

        reply = await fan_out(tx, held, 3, 5)

        assert (reply.outcome, reply.created) == ("done", 5)
        picture = await tx.check()
        assert len(picture.heads) == 5, "root, middle, the one that forks, and its first two"
        assert picture.heads[held.id].cancelling
        assert await wait(tx, held) == "cancelled"
        while (await tx.signals.sweep(CELL, grace_ms=GRACE_MS)).next_ms >= 0:
            pass
        picture = await tx.check()
        assert {head.status for head in picture.heads.values()} == {Status.CANCELLED}


async def test_fan_out_killed_below_a_cancelled_root_ends_by_rescue(
    store_server: EmbeddedServer,
) -> None:
    """The process dies between the call that creates no children and its next move."""
    async with open_transactions(store_server) as tx:
        root = await waiting_parent(tx, 1)
        held = await open_fan(tx, await child_running(tx, root), 3)
        await tx.signals.cancel("default", [root], cause="me", grace_ms=GRACE_MS)
        await fan_out(tx, held, 1, 2)
        await tx.machine.advance(11)
        await tx.holding.rescue(CELL, most=10, rescues_max=3)
        while (await tx.signals.sweep(CELL, grace_ms=GRACE_MS)).next_ms >= 0:
            pass
        picture = await tx.check()
        assert set(picture.heads) == {root, held.id}
        assert {head.status for head in picture.heads.values()} == {Status.CANCELLED}


async def test_fan_open_beyond_the_limit_of_the_tree_writes_nothing(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        first = FanOpen(held=await tx.running(), state=b"list", round=1, total=3, descendants_max=7)
        (verdict,) = await tx.progress.fan_open(CELL, [first])
        root = after(first.held)
        await fan_out(tx, root, 1, 3)
        assert (verdict.outcome, await wait(tx, root)) == ("done", "waiting")
        claimed = await tx.claim(3, group="kids")
        opened = [
            FanOpen(held=each.held, state=b"list", round=1, total=2, descendants_max=7)
            for each in claimed
        ]
        told = [each.outcome for each in await tx.progress.fan_open(CELL, opened)]
        assert told == ["done", "done", "tree-full"]
        fields = await tx.fields(claimed[2].id)
        assert fields["state"] == claimed[2].state
        assert "kids" not in fields
        assert (await tx.fields(root.id))["tree"] == b"7"
        # A reply that was lost: what is open is not counted twice, what was refused is again.
        told = [each.outcome for each in await tx.progress.fan_open(CELL, opened)]
        assert told == ["known", "known", "tree-full"]
        assert (await tx.fields(root.id))["tree"] == b"7"


async def test_fan_open_of_a_tree_without_a_count_begins_to_count(
    store_server: EmbeddedServer,
) -> None:
    """A root that a release without the limit has written."""
    async with open_transactions(store_server) as tx:
        root = await waiting_parent(tx, 1)
        await tx.store.call("HDEL", names.state(root), "tree")
        await open_fan(tx, await child_running(tx, root), 2)
        assert (await tx.fields(root))["tree"] == b"2"
