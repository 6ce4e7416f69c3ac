"""Cancel and deadlines: what is not worked at ends at once, what is ends soon, and each once."""

from __future__ import annotations

import asyncio

import pytest

from tests.transactions.helpers import (
    CELL,
    EXTERNAL_MS,
    GRACE_MS,
    TransactionStore,
    after,
    open_transactions,
)
from waystation.store.embedded.server import EmbeddedServer
from waystation.transactions import names
from waystation.transactions.held import Held
from waystation.transactions.progress import Commit, FanOpen, Finish, PassOn, Sleep
from waystation.transactions.signals import Cancelled
from waystation.transactions.states import State, Status

IDLE = ("queued", "held", "scheduled", "sleeping", "waiting_switch")


async def put_into(tx: TransactionStore, state: str, **fields: object) -> str:
    """A transaction in a state in which nobody works at it."""
    if state == "scheduled":
        return await tx.start(delay_ms=600_000, **fields)
    if state == "held":
        await tx.define("slow", paused=True)
        transaction_id = await tx.start(pipeline="slow", **fields)
        assert await tx.claim() == []
        return transaction_id
    if state == "queued":
        return await tx.start(**fields)
    held = await tx.running(**fields)
    switch = "go" if state == "waiting_switch" else ""
    await tx.progress.sleep(CELL, [Sleep(held=held, state=b"s", switch=switch)])
    return held.id


async def cancel(tx: TransactionStore, transaction_id: str, *, grace_ms: int = GRACE_MS) -> str:
    (done,) = await tx.signals.cancel(
        "default", [transaction_id], cause="by hand", grace_ms=grace_ms
    )
    return done.outcome


def end(held: Held) -> Finish:
    return Finish(held=held, state=b"end", status=Status.SUCCESS, output=b"1")


# -- Cancel ----------------------------------------------------------------------------------


@pytest.mark.parametrize("state", IDLE)
async def test_what_nobody_works_at_is_cancelled_at_once(
    store_server: EmbeddedServer, state: str
) -> None:
    async with open_transactions(store_server) as tx:
        transaction_id = await put_into(tx, state, external_id="r-1", deadline_in_ms=900_000)
        before = await tx.head(transaction_id)
        assert before.state == state

        assert await cancel(tx, transaction_id) == "cancelled"

        picture = await tx.check()
        head = picture.heads[transaction_id]
        assert (head.state, head.status) == (State.COMPLETE, Status.CANCELLED)
        assert head.epoch == before.epoch + 1, "whoever held it once can do nothing more"
        assert (await tx.fields(transaction_id))["cause"] == b"by hand"
        assert 0 < picture.external["default:r-1"][1] <= EXTERNAL_MS
        fact = (await tx.facts())[-1]
        assert (fact.kind, fact.status, fact.cause) == ("cancelled", "cancelled", "by hand")
        assert await cancel(tx, transaction_id) == "known"
        assert await tx.head(transaction_id) == head
        assert await tx.claim() == [], "its id in the queue is dropped"
        stale = state == "held"
        assert picture.where(transaction_id) - {"toArchiveZ"} == (
            {"qInL:main"} if state == "queued" else {"holdL:slow"} if stale else set()
        )


@pytest.mark.parametrize("verb", ["commit", "pass_on", "sleep", "fan_open"])
async def test_what_runs_ends_with_the_next_move_of_its_holder(
    store_server: EmbeddedServer, verb: str
) -> None:
    async with open_transactions(store_server) as tx:
        held = await tx.running()
        assert await cancel(tx, held.id) == "asked"
        picture = await tx.check()
        assert picture.heads[held.id].cancelling
        assert picture.where(held.id) == {"processingZ", "leaseZ", "deadlineZ"}
        assert await cancel(tx, held.id) == "asked"
        assert await tx.head(held.id) == picture.heads[held.id], "to ask twice changes nothing"

        moves = {
            "commit": Commit(held=held, state=b"last"),
            "pass_on": PassOn(held=held, state=b"last", group="g", queue="out", pipeline="p"),
            "sleep": Sleep(held=held, state=b"last"),
            "fan_open": FanOpen(held=held, state=b"last", round=1, total=1),
        }
        move = getattr(tx.progress, verb)
        (verdict,) = await move(CELL, [moves[verb]])

        assert verdict.outcome == "cancelled"
        head = (await tx.check()).heads[held.id]
        assert (head.state, head.status, head.flags) == (State.COMPLETE, Status.CANCELLED, "x")
        assert (await tx.fields(held.id))["state"] == b"last", "what the step did is in its journal"
        assert (await tx.fields(held.id))["cause"] == b"by hand"
        assert await tx.kinds(held.id) == ["started", "cancelled", "cancelled"]
        (again,) = await move(CELL, [moves[verb]])
        assert again.outcome == "cancelled", "a holder whose reply was lost must not go on"
        assert again.version == verdict.version


async def test_the_end_is_stronger_than_a_cancel_that_was_asked_for(
    store_server: EmbeddedServer,
) -> None:
    """F-28: cancel races completion. One final state, and its cause is not another's."""
    async with open_transactions(store_server) as tx:
        held = await tx.running()
        await cancel(tx, held.id)
        (verdict,) = await tx.progress.finish(CELL, [end(held)])
        assert verdict.outcome == "done"
        head = (await tx.check()).heads[held.id]
        assert (head.status, head.flags) == (Status.SUCCESS, "x")
        assert await tx.fields(held.id) == {"state": b"end"}
        assert await cancel(tx, held.id) == "final"


@pytest.mark.parametrize("first", ["cancel", "finish"])
async def test_of_a_cancel_and_a_finish_at_once_one_wins(
    store_server: EmbeddedServer, first: str
) -> None:
    """F-28."""
    async with open_transactions(store_server) as tx:
        held = await tx.running()
        calls = [cancel(tx, held.id), tx.progress.finish(CELL, [end(held)])]
        await asyncio.gather(*(calls if first == "cancel" else reversed(calls)))
        facts = [fact for fact in await tx.facts() if fact.state == "complete"]
        assert [(fact.kind, fact.status) for fact in facts] == [("finished", "success")]
        await tx.check()


async def test_who_does_not_end_within_the_grace_time_is_ended(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        held = await tx.running()
        await cancel(tx, held.id)
        assert (await tx.signals.expire(CELL, grace_ms=GRACE_MS)).done == 0
        await tx.machine.advance(GRACE_MS / 1000 + 1)
        due = await tx.signals.expire(CELL, grace_ms=GRACE_MS)
        assert (due.done, due.next_ms) == (1, -1)
        head = (await tx.check()).heads[held.id]
        assert (head.status, head.epoch) == (Status.CANCELLED, held.epoch + 1)
        assert (await tx.fields(held.id))["cause"] == b"by hand"
        (verdict,) = await tx.progress.commit(CELL, [Commit(held=held, state=b"late")])
        assert verdict.outcome == "refused"
        (verdict,) = await tx.progress.finish(CELL, [end(held)])
        assert verdict.outcome == "refused"
        assert (await tx.fields(held.id))["state"] == b"state-0"


async def test_what_was_to_end_ends_when_its_holder_dies_and_no_step_runs_again(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        held = await tx.running(external_id="r-1")
        await cancel(tx, held.id)
        await tx.machine.advance(11)
        await tx.holding.rescue(CELL, most=10, rescues_max=3)
        picture = await tx.check()
        head = picture.heads[held.id]
        assert (head.state, head.status, head.epoch) == (State.COMPLETE, Status.CANCELLED, 2)
        assert picture.external["default:r-1"][1] > 0
        assert (await tx.fields(held.id))["cause"] == b"by hand"
        assert await tx.kinds(held.id) == ["started", "cancelled", "cancelled"]


async def test_what_was_to_end_ends_when_its_holder_gives_it_back(
    store_server: EmbeddedServer,
) -> None:
    """At SIGTERM, say."""
    async with open_transactions(store_server) as tx:
        asked, other = await tx.running(), await tx.running()
        await cancel(tx, asked.id)
        verdicts = await tx.holding.release(CELL, [asked, other])
        assert [each.outcome for each in verdicts] == ["cancelled", "done"]
        picture = await tx.check()
        assert picture.heads[asked.id].status is Status.CANCELLED
        assert picture.where(other.id) == {"qInL:main"}
        (again,) = await tx.holding.release(CELL, [asked])
        assert again.outcome == "known"


async def test_a_grace_time_never_puts_a_nearer_deadline_off(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        near = await tx.running(deadline_in_ms=5000)
        far = await tx.running(deadline_in_ms=500_000)
        for held in (near, far):
            await cancel(tx, held.id, grace_ms=60_000)
        now = await tx.now_ms()
        scores = (await tx.check()).sets["deadlineZ"]
        assert scores[near.id] == pytest.approx(now + 5000, abs=1000)
        assert scores[far.id] == pytest.approx(now + 60_000, abs=1000)


async def test_others_cannot_cancel_and_learn_nothing(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        transaction_id = await tx.start()
        nobody = "tx-0000" + "f" * 36
        before = await tx.head(transaction_id)
        told = await tx.signals.cancel("shop", [transaction_id, nobody], cause="x", grace_ms=0)
        assert told == [Cancelled("unknown", None)] * 2
        assert await tx.head(transaction_id) == before
        assert set((await tx.picture()).heads) == {transaction_id}


async def test_many_are_cancelled_in_one_call_each_with_its_answer(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        running = await tx.running()
        ended = await tx.running()
        await tx.progress.finish(CELL, [end(ended)])
        queued = await tx.start()
        ids = [queued, running.id, ended.id, queued]
        told = await tx.signals.cancel("default", ids, cause="all", grace_ms=0)
        assert [each.outcome for each in told] == ["cancelled", "asked", "final", "known"]
        assert [each.status for each in told] == ["cancelled", None, "success", "cancelled"]
        assert len({fact.id for fact in (await tx.facts())[-2:]}) == 2
        await tx.check()


# -- Deadlines -------------------------------------------------------------------------------


@pytest.mark.parametrize("state", IDLE)
async def test_what_nobody_works_at_ends_when_its_deadline_passes(
    store_server: EmbeddedServer, state: str
) -> None:
    async with open_transactions(store_server) as tx:
        transaction_id = await put_into(tx, state, deadline_in_ms=60_000)
        epoch = (await tx.head(transaction_id)).epoch
        await tx.signals.expire(CELL, grace_ms=GRACE_MS)
        assert (await tx.head(transaction_id)).state == state
        await tx.machine.advance(61)

        due = await tx.signals.expire(CELL, grace_ms=GRACE_MS)

        assert (due.done, due.next_ms) == (1, -1)
        head = (await tx.check()).heads[transaction_id]
        assert (head.state, head.status) == (State.COMPLETE, Status.TIMEOUT)
        assert head.epoch == epoch + 1
        assert (await tx.fields(transaction_id))["cause"] == b"its deadline has passed"
        assert (await tx.facts())[-1].kind == "expired"


async def test_what_runs_past_its_deadline_is_asked_and_then_ended(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        asked, deaf = [await tx.running(deadline_in_ms=5000) for _ in range(2)]
        await tx.machine.advance(6)
        due = await tx.signals.expire(CELL, grace_ms=GRACE_MS)
        assert due.done == 2
        assert 0 < due.next_ms <= GRACE_MS
        assert (await tx.check()).heads[asked.id].flags == "dtx"
        assert await cancel(tx, asked.id) == "asked", "it is to end already"
        (verdict,) = await tx.progress.commit(CELL, [Commit(held=asked, state=b"s")])
        assert verdict.outcome == "cancelled"
        assert (await tx.head(asked.id)).status is Status.TIMEOUT
        await tx.machine.advance(GRACE_MS / 1000 + 1)
        assert (await tx.signals.expire(CELL, grace_ms=GRACE_MS)).done == 1
        assert (await tx.check()).heads[deaf.id].status is Status.TIMEOUT


async def test_the_end_comes_off_the_list_of_deadlines(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        held = await tx.running(deadline_in_ms=5000)
        await tx.progress.commit(CELL, [Commit(held=held, state=b"s")])
        await tx.progress.finish(CELL, [end(after(held))])
        assert (await tx.check()).sets["deadlineZ"] == {}
        await tx.store.call("ZADD", names.sorted_set(CELL, "deadlineZ"), 1, held.id)
        assert (await tx.signals.expire(CELL, grace_ms=0)).done == 1
        assert (await tx.check()).sets["deadlineZ"] == {}, "what should not be there goes"
        assert (await tx.head(held.id)).status is Status.SUCCESS
