"""Sleep, wake-up and switches: no wake-up is lost, and exactly one branch is taken."""

from __future__ import annotations

import asyncio

import pytest

from tests.transactions.helpers import (
    ARCHIVE_MS,
    CELL,
    TransactionStore,
    after,
    open_transactions,
)
from waystation.errors import (
    NotSleepingError,
    SwitchInvalidError,
    TransactionFinalError,
    TransactionUnknownError,
)
from waystation.store.embedded.server import EmbeddedServer
from waystation.transactions import names
from waystation.transactions.held import Held
from waystation.transactions.progress import Commit, Finish, Sleep
from waystation.transactions.states import State, Status
from waystation.transactions.switches import parse_switches

HOUR = 3600
NOBODY = "tx-0000" + "f" * 36


async def sleep(tx: TransactionStore, held: Held, **fields: object) -> str:
    move = Sleep(held=held, state=b"asleep", **fields)  # type: ignore[arg-type]
    (verdict,) = await tx.progress.sleep(CELL, [move])
    return verdict.outcome


async def switches(tx: TransactionStore, transaction_id: str) -> str:
    return (await tx.fields(transaction_id)).get("switches", b"").decode()


# -- Sleep -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "state", "seconds"),
    [
        ({"delay_ms": 1234}, State.SLEEPING, 1.234),
        ({}, State.SLEEPING, 300),
        ({"switch": "go"}, State.WAITING_SWITCH, 2 * HOUR),
        ({"switch": "go", "delay_ms": 5000}, State.WAITING_SWITCH, 5),
        ({"switch": "go", "place": "1", "at_most_ms": 9000}, State.WAITING_SWITCH, 9),
        ({"switch": "go", "place": "1", "at_most_ms": 86_400_000}, State.WAITING_SWITCH, 2 * HOUR),
    ],
)
async def test_who_sleeps_wakes_at_the_latest_time_that_was_named(
    store_server: EmbeddedServer, fields: dict[str, object], state: State, seconds: float
) -> None:
    async with open_transactions(store_server) as tx:
        held = await tx.running()
        now = await tx.now_ms()
        assert await sleep(tx, held, **fields) == "waiting"

        picture = await tx.check()
        head = picture.heads[held.id]
        assert (head.state, head.switch) == (state, fields.get("switch", ""))
        assert head.wake == pytest.approx(now + seconds * 1000, abs=1000)
        assert picture.where(held.id) == {"sleepingZ", "toArchiveZ"}
        assert picture.sets["toArchiveZ"][held.id] == pytest.approx(now + ARCHIVE_MS, abs=1000)
        assert head.archive == "remove"
        assert (await tx.fields(held.id))["state"] == b"asleep"


async def test_what_is_due_is_queued_in_the_order_of_its_time_and_nothing_else_is(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        helds = [await tx.running() for _ in range(4)]
        for held, delay_ms in zip(helds, (30_000, 10_000, 20_000, 90_000), strict=True):
            await sleep(tx, held, delay_ms=delay_ms)
        assert (await tx.signals.wake_due(CELL)).done == 0
        await tx.machine.advance(40)

        due = await tx.signals.wake_due(CELL)

        assert due.done == 3
        assert 0 < due.next_ms <= 50_000
        picture = await tx.check()
        assert picture.lists["qInL:main"] == [helds[1].id, helds[2].id, helds[0].id]
        assert set(picture.sets["sleepingZ"]) == {helds[3].id}
        assert set(picture.sets["toArchiveZ"]) == {helds[3].id}
        assert await tx.kinds(helds[0].id) == ["started", "slept", "woken"]
        assert len(await tx.claim(10)) == 3


async def test_a_pass_wakes_no_more_than_it_was_told(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        for _ in range(5):
            await sleep(tx, await tx.running(), delay_ms=1000)
        await tx.machine.advance(2)
        assert [(await tx.signals.wake_due(CELL, most=2)).next_ms for _ in range(3)] == [0, 0, -1]


async def test_what_was_not_started_yet_begins_when_it_is_due(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        started = await tx.start(delay_ms=3 * 86_400_000)
        assert (await tx.check()).heads[started].state is State.SCHEDULED
        assert await tx.claim() == []
        await tx.machine.advance(3 * 86_400)
        await tx.signals.wake_due(CELL)
        await tx.check()
        assert [each.id for each in await tx.claim()] == [started]


async def test_an_id_without_a_state_is_kept_for_the_archive_and_holds_nobody_up(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        held = await tx.running()
        await sleep(tx, held, delay_ms=0)
        await tx.store.call("ZADD", names.sorted_set(CELL, "sleepingZ"), 1, NOBODY)
        due = await tx.signals.wake_due(CELL)
        assert (due.done, due.missing) == (2, ())
        assert due.next_ms > 0
        picture = await tx.picture()
        assert set(picture.heads) == {held.id}
        assert set(picture.sets["sleepingZ"]) == {NOBODY}


async def test_an_expiry_goes_with_every_change_of_what_sleeps(
    store_server: EmbeddedServer,
) -> None:
    """A state that was read back from the archive has one."""
    async with open_transactions(store_server) as tx:
        helds = [await tx.running() for _ in range(5)]
        for held in helds:
            await sleep(tx, held, switch="go")
            await tx.store.call("EXPIRE", names.state(held.id), 1000)
            await tx.store.call("ZREM", names.sorted_set(CELL, "toArchiveZ"), held.id)
        woken, switched, other, cancelled, due = (held.id for held in helds)
        assert (await tx.picture()).mortal == {held.id for held in helds}

        await tx.signals.wake("default", woken)
        await tx.signals.set_switch("default", switched, "go", True)
        await tx.signals.set_switch("default", other, "other", True)
        await tx.signals.cancel("default", [cancelled], cause="me", grace_ms=0)
        await tx.store.call("ZADD", names.sorted_set(CELL, "sleepingZ"), 1, due)
        await tx.signals.wake_due(CELL)
        picture = await tx.check()
        assert picture.mortal == set()
        assert "toArchiveZ" in picture.where(other), "what has changed is archived anew"


async def test_timekeepers_are_called_for_the_first_to_wake_alone(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        first, second, third = [await tx.running() for _ in range(3)]
        async with tx.hearing(names.due_topic(CELL)) as heard:
            await sleep(tx, first, delay_ms=50_000)
            await sleep(tx, second, delay_ms=60_000)
            await tx.store.call("PUBLISH", names.due_topic(CELL), "mark")
            await sleep(tx, third, delay_ms=1000)
            async with asyncio.timeout(5):
                assert [await heard.get() for _ in range(3)] == ["sleepingZ", "mark", "sleepingZ"]


# -- By hand ---------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["sleeping", "waiting_switch", "scheduled"])
async def test_whatever_sleeps_can_be_woken_by_hand(store_server: EmbeddedServer, how: str) -> None:
    async with open_transactions(store_server) as tx:
        if how == "scheduled":
            transaction_id = await tx.start(delay_ms=60_000)
        else:
            held = await tx.running()
            await sleep(tx, held, switch="go" if how == "waiting_switch" else "")
            transaction_id = held.id
        await tx.signals.wake("default", transaction_id)
        picture = await tx.check()
        assert picture.where(transaction_id) == {"qInL:main"}
        head = picture.heads[transaction_id]
        assert (head.wake, head.switch) == (0, "")
        with pytest.raises(NotSleepingError) as caught:
            await tx.signals.wake("default", transaction_id)
        assert caught.value.state == "queued"


async def test_what_does_not_sleep_cannot_be_woken(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        held = await tx.running()
        with pytest.raises(NotSleepingError, match="running"):
            await tx.signals.wake("default", held.id)
        with pytest.raises(TransactionUnknownError):
            await tx.signals.wake("shop", held.id)
        with pytest.raises(TransactionUnknownError):
            await tx.signals.wake("default", NOBODY)
        end = Finish(held=held, state=b"", status=Status.SUCCESS, output=b"")
        await tx.progress.finish(CELL, [end])
        with pytest.raises(TransactionFinalError):
            await tx.signals.wake("default", held.id)
        assert await tx.kinds(held.id) == ["started", "finished"]


# -- Switches --------------------------------------------------------------------------------


async def test_a_switch_set_before_the_wait_queues_at_once(store_server: EmbeddedServer) -> None:
    """F-29: the step looked, then the switch was set, then it waits."""
    async with open_transactions(store_server) as tx:
        held = await tx.running()
        switched = await tx.signals.set_switch("default", held.id, "go", "yes")
        assert (switched.outcome, switched.switches) == ("updated", {"go": "yes"})
        assert await switches(tx, held.id) == '!go="yes"'

        assert await sleep(tx, held, switch="go", acknowledged="go", snapshot=True) == "queued"

        picture = await tx.check()
        assert picture.where(held.id) == {"qInL:main", "toArchiveZ"}
        assert picture.heads[held.id].archive == "snapshot"
        assert await switches(tx, held.id) == 'go="yes"'
        (claimed,) = await tx.claim()
        assert parse_switches(claimed.extras[b"switches"]) == {"go": "yes"}


async def test_a_switch_set_during_the_wait_wakes(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        held = await tx.running()
        await sleep(tx, held, switch="go")
        switched = await tx.signals.set_switch("default", held.id, "go", 3)
        assert switched.outcome == "woken"
        picture = await tx.check()
        assert picture.where(held.id) == {"qInL:main", "toArchiveZ"}
        assert picture.heads[held.id].archive == "snapshot"
        assert await switches(tx, held.id) == "!go=3"
        again = await tx.signals.set_switch("default", held.id, "go", 3)
        assert again.outcome == "nochange"
        assert await tx.kinds(held.id) == ["started", "slept", "switched"]
        assert (await tx.facts())[-1].cause == "go=3"


async def test_a_switch_set_after_the_time_out_leaves_one_branch(
    store_server: EmbeddedServer,
) -> None:
    """F-29: the wait has timed out, the step is queued; the switch comes then."""
    async with open_transactions(store_server) as tx:
        held = await tx.running()
        await sleep(tx, held, switch="go", place="1", at_most_ms=1000)
        await tx.machine.advance(2)
        await tx.signals.wake_due(CELL)
        assert (await tx.signals.set_switch("default", held.id, "go", True)).outcome == "updated"
        assert len((await tx.check()).lists["qInL:main"]) == 1
        (claimed,) = await tx.claim()
        assert parse_switches(claimed.extras[b"switches"]) == {"go": True}
        assert await tx.claim() == []


async def test_the_store_puts_a_switch_and_a_time_out_of_the_same_moment_one_behind_the_other(
    store_server: EmbeddedServer,
) -> None:
    """F-29: whoever is first, the step is queued once."""
    async with open_transactions(store_server) as tx:
        for turn in range(6):
            held = await tx.running()
            await sleep(tx, held, switch="go", place="1", at_most_ms=1000)
            await tx.machine.advance(2)
            calls = [
                tx.signals.wake_due(CELL),
                tx.signals.set_switch("default", held.id, "go", True),
            ]
            await asyncio.gather(*(calls if turn % 2 else reversed(calls)))
            assert (await tx.check()).lists["qInL:main"] == [held.id]
            await tx.claim()


async def test_what_a_step_has_seen_does_not_wake_it_again(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        held = await tx.running()
        await tx.signals.set_switch("default", held.id, "go", "no")
        seen = 'go="no"'
        assert await sleep(tx, held, switch="go", acknowledged=seen) == "waiting"
        assert await switches(tx, held.id) == seen
        await tx.signals.set_switch("default", held.id, "go", "yes")
        (claimed,) = await tx.claim()
        # It looks again, and sees "yes"; before it waits, the value changes once more.
        await tx.signals.set_switch("default", held.id, "go", "maybe")
        outcome = await sleep(tx, claimed.held, switch="go", acknowledged='go="yes"')
        assert outcome == "queued"


async def test_a_blind_wait_on_what_was_set_before_does_not_sleep(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        transaction_id = await tx.start()
        await tx.signals.set_switch("default", transaction_id, "go", True)
        (claimed,) = await tx.claim()
        assert await sleep(tx, claimed.held, switch="go") == "queued"
        (claimed,) = await tx.claim()
        assert await sleep(tx, claimed.held, switch="go") == "waiting", "once is enough"


async def test_a_switch_that_nobody_waits_for_is_only_kept(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        held = await tx.running()
        await sleep(tx, held, switch="go")
        before = await tx.picture()
        assert (await tx.signals.set_switch("default", held.id, "other", 1.5)).outcome == "updated"
        picture = await tx.check()
        assert picture.where(held.id) == {"sleepingZ", "toArchiveZ"}
        assert picture.sets["sleepingZ"] == before.sets["sleepingZ"]
        assert picture.heads[held.id].version == before.heads[held.id].version + 1
        assert picture.heads[held.id].since == before.heads[held.id].since
        await tx.signals.set_switch("default", held.id, "go", False)
        (claimed,) = await tx.claim()
        assert parse_switches(claimed.extras[b"switches"]) == {"other": 1.5, "go": False}


async def test_deleting_the_awaited_switch_wakes(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        held = await tx.running()
        await tx.signals.set_switch("default", held.id, "go", "no")
        await sleep(tx, held, switch="go", acknowledged='go="no"')
        gone = await tx.signals.set_switch("default", held.id, "go", None)
        assert (gone.outcome, gone.switches) == ("woken", {})
        await tx.check()
        (claimed,) = await tx.claim()
        assert parse_switches(claimed.extras[b"switches"]) == {}
        gone = await tx.signals.set_switch("default", held.id, "go", None)
        assert gone.outcome == "nochange"


async def test_a_switch_deleted_after_the_step_looked_queues_its_wait_at_once(
    store_server: EmbeddedServer,
) -> None:
    """To be deleted is a change, too."""
    async with open_transactions(store_server) as tx:
        transaction_id = await tx.start()
        await tx.signals.set_switch("default", transaction_id, "go", "no")
        (claimed,) = await tx.claim()
        await tx.signals.set_switch("default", transaction_id, "go", None)
        assert await switches(tx, transaction_id) == "!go"

        outcome = await sleep(tx, claimed.held, switch="go", acknowledged='go="no"')

        assert outcome == "queued"
        assert await switches(tx, transaction_id) == "", "nothing of it is left"
        (claimed,) = await tx.claim()
        outcome = await sleep(tx, claimed.held, switch="go", acknowledged="go")
        assert outcome == "waiting"


async def test_a_switch_set_and_deleted_behind_the_back_of_a_step_is_no_change(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        held = await tx.running()
        await tx.signals.set_switch("default", held.id, "go", "no")
        await tx.signals.set_switch("default", held.id, "go", None)
        assert await sleep(tx, held, switch="go", acknowledged="go") == "waiting"


async def test_a_switch_of_what_is_unknown_or_ended_is_an_error_and_leaves_nothing_behind(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        held = await tx.running()
        with pytest.raises(TransactionUnknownError):
            await tx.signals.set_switch("default", NOBODY, "go", True)
        with pytest.raises(TransactionUnknownError):
            await tx.signals.set_switch("shop", held.id, "go", True)
        with pytest.raises(TransactionUnknownError):
            await tx.signals.set_switch("default", "{tx.0}:*", "go", True)
        await tx.progress.commit(CELL, [Commit(held=held, state=b"s")])
        end = Finish(held=after(held), state=b"e", status=Status.SUCCESS, output=b"")
        await tx.progress.finish(CELL, [end])
        with pytest.raises(TransactionFinalError):
            await tx.signals.set_switch("default", held.id, "go", True)
        assert await tx.fields(held.id) == {"state": b"e"}
        assert set((await tx.check()).heads) == {held.id}


async def test_a_switch_that_is_set_again_after_the_end_that_it_led_to_was_set(
    store_server: EmbeddedServer,
) -> None:
    """A reply that was lost: who repeats the request must not be told that it came too late."""
    async with open_transactions(store_server) as tx:
        held = await tx.running()
        await tx.signals.set_switch("default", held.id, "go", True)
        end = Finish(held=held, state=b"e", status=Status.SUCCESS, output=b"")
        await tx.progress.finish(CELL, [end])
        again = await tx.signals.set_switch("default", held.id, "go", True)
        assert (again.outcome, again.switches) == ("nochange", {"go": True})
        with pytest.raises(TransactionFinalError):
            await tx.signals.set_switch("default", held.id, "go", False)


async def test_a_transaction_has_a_bounded_number_of_switches(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        transaction_id = await tx.start()
        for number in range(100):
            await tx.signals.set_switch("default", transaction_id, f"s{number}", number)
        with pytest.raises(SwitchInvalidError, match="100"):
            await tx.signals.set_switch("default", transaction_id, "one-more", 1)
        await tx.signals.set_switch("default", transaction_id, "s5", None)
        await tx.signals.set_switch("default", transaction_id, "one-more", 1)
        kept = parse_switches((await tx.fields(transaction_id))["switches"])
        assert kept == {f"s{n}": n for n in range(100) if n != 5} | {"one-more": 1}


# -- At most ---------------------------------------------------------------------------------


async def test_at_most_runs_from_the_first_wait(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        held = await tx.running()
        start = await tx.now_ms()
        field = "wait:1:go"
        await sleep(tx, held, switch="go", place="1", at_most_ms=3 * HOUR * 1000)
        til = int((await tx.fields(held.id))[field])
        assert til == pytest.approx(start + 3 * HOUR * 1000, abs=1000)
        assert (await tx.head(held.id)).wake == pytest.approx(start + 2 * HOUR * 1000, abs=1000)

        await tx.machine.advance(2 * HOUR + 1)
        await tx.signals.wake_due(CELL)
        (claimed,) = await tx.claim()
        assert int(claimed.extras[field.encode()]) == til, "it has not passed, and says so"
        await sleep(tx, claimed.held, switch="go", place="1", at_most_ms=3 * HOUR * 1000)

        assert int((await tx.fields(held.id))[field]) == til
        assert (await tx.head(held.id)).wake == til
        await tx.machine.advance(HOUR + 1)
        await tx.signals.wake_due(CELL)
        (claimed,) = await tx.claim()
        assert (await tx.head(held.id)).since >= til
        await tx.progress.commit(CELL, [Commit(held=claimed.held, state=b"s", drop=(field,))])
        assert field not in await tx.fields(held.id), "gone with its step"


async def test_a_step_that_waits_on_although_it_was_told_does_not_spin(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        held = await tx.running()
        await sleep(tx, held, switch="go", place="1", at_most_ms=1000)
        await tx.machine.advance(2)
        await tx.signals.wake_due(CELL)
        (claimed,) = await tx.claim()
        now = await tx.now_ms()
        # Then its holder names no such time any more.
        await sleep(tx, claimed.held, switch="go", place="1")
        assert (await tx.head(held.id)).wake == pytest.approx(now + 2 * HOUR * 1000, abs=1000)


async def test_a_step_that_was_not_told_yet_is_called_at_once(store_server: EmbeddedServer) -> None:
    """The time passes while the step runs: its next call is the first that can say so."""
    async with open_transactions(store_server) as tx:
        held = await tx.running()
        await sleep(tx, held, switch="go", place="1", at_most_ms=5000)
        await tx.signals.wake("default", held.id)
        (claimed,) = await tx.claim()
        await tx.machine.advance(6)
        await sleep(tx, claimed.held, switch="go", place="1", at_most_ms=5000)
        assert (await tx.signals.wake_due(CELL)).done == 1
        await tx.check()
