"""States come back from the archive once, under their nonce, and never an old one."""

from __future__ import annotations

import asyncio

import pytest

from tests.transactions.archive_helpers import DAY_MS, Shelf, miss, nonces
from tests.transactions.helpers import (
    ARCHIVE_MS,
    CACHE_MS,
    CELL,
    GRACE_MS,
    LOAD_MS,
    TransactionStore,
    open_transactions,
)
from waystation.store.embedded.server import EmbeddedServer
from waystation.transactions import names
from waystation.transactions.progress import Finish, Sleep
from waystation.transactions.restoring import RESTORE_BYTES_MAX, LoadMode, Missing, Restoration
from waystation.transactions.states import State, Status

NOBODY = "tx-0000" + "f" * 36
HOUR_MS = 3_600_000


async def restore(shelf: Shelf, *missing: Missing, mode: LoadMode = "") -> list[str]:
    done = await shelf.tx.restoring.restore(CELL, shelf.found(missing), mode=mode)
    return list(done)


async def pttl(tx: TransactionStore, transaction_id: str) -> int:
    left: int = await tx.store.call("PTTL", names.state(transaction_id))
    return left


async def whole(tx: TransactionStore, transaction_id: str) -> dict[bytes, bytes]:
    flat = await tx.store.call("HGETALL", names.state(transaction_id))
    return dict(zip(flat[::2], flat[1::2], strict=True))


async def slept_again(tx: TransactionStore, shelf: Shelf, state: bytes) -> None:
    """The one that is queued runs, sleeps, and leaves for the archive."""
    (claimed,) = await tx.claim()
    await tx.progress.sleep(CELL, [Sleep(held=claimed.held, state=state, delay_ms=DAY_MS)])
    await tx.machine.advance(ARCHIVE_MS / 1000 + 1)
    await shelf.archive()


# -- For somebody who looks ------------------------------------------------------------------


async def test_a_state_comes_back_byte_for_byte_for_a_while_and_its_nonce_goes(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        shelf = Shelf(tx)
        one = await shelf.sleeper(external_id="r-1", deadline_in_ms=10 * DAY_MS)
        before = await tx.picture()
        (missing,) = await miss(tx, one)
        assert await nonces(tx) == {one: missing.nonce}

        assert await restore(shelf, missing) == ["restored"]

        assert await whole(tx, one) == shelf.rows[one]
        assert CACHE_MS - 5000 < await pttl(tx, one) <= CACHE_MS
        assert await nonces(tx) == {}
        assert (await tx.picture()).sets == before.sets, "it sleeps on, and is not to be archived"
        assert await restore(shelf, missing) == ["cached"], "when that reply was lost"
        assert (await tx.facts())[-1].kind == "slept", "nothing has happened to it"


async def test_two_that_miss_have_one_nonce_and_the_second_finds_it_cached(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        shelf = Shelf(tx)
        one = await shelf.sleeper()
        (first,), (second,) = await miss(tx, one), await miss(tx, one)
        assert first == second
        assert await restore(shelf, second) == ["restored"]
        assert await restore(shelf, first) == ["cached"]


async def test_one_that_is_named_twice_in_a_call_comes_back_once(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        shelf = Shelf(tx)
        one = await shelf.sleeper(delay_ms=120_000)
        await tx.machine.advance(120)
        (missing,) = (await tx.signals.wake_due(CELL, loads=10)).missing
        assert await restore(shelf, missing, missing, mode="wake") == ["woken", "cached"]
        assert (await tx.check()).lists["qInL:main"] == [one]


async def test_a_load_that_is_late_never_brings_back_an_old_state(
    store_server: EmbeddedServer,
) -> None:
    """In between it ran, slept, was archived and left again."""
    async with open_transactions(store_server) as tx:
        shelf = Shelf(tx)
        one = await shelf.sleeper()
        (slow,) = await miss(tx, one)
        old = Restoration(slow, dict(shelf.rows[one]))
        (quick,) = await miss(tx, one)
        await restore(shelf, quick)
        await tx.signals.wake("default", one)
        await slept_again(tx, shelf, b"newer")

        assert await tx.restoring.restore(CELL, [old]) == ["again"]
        assert await tx.store.call("EXISTS", names.state(one)) == 0
        (fresh,) = await miss(tx, one)
        assert int(fresh.nonce) > int(slow.nonce)
        assert await tx.restoring.restore(CELL, [old]) == ["again"], "nor under another's nonce"
        assert await restore(shelf, fresh) == ["restored"]
        assert (await tx.fields(one))["state"] == b"newer"


async def test_a_nonce_lives_for_one_to_two_minutes(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        shelf = Shelf(tx)
        one = await shelf.sleeper()
        (first,) = await miss(tx, one)
        await tx.machine.advance(60)
        assert await miss(tx, one) == [first], "the last minute counts"
        await tx.machine.advance(60)
        assert await restore(shelf, first) == ["again"]
        (second,) = await miss(tx, one)
        assert second.nonce != first.nonce
        keys = await tx.store.call("KEYS", f"{names.tag(CELL)}loadH:*")
        assert all([0 < await tx.store.call("PTTL", key) <= 180_000 for key in keys])


async def test_a_nonce_of_nothing_is_taken_back_and_leaves_nothing(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        shelf = Shelf(tx)
        (missing,) = await miss(tx, NOBODY)
        assert await restore(shelf, missing) == ["unknown"]
        assert await nonces(tx) == {}
        assert await restore(shelf, missing) == ["again"]
        assert (await tx.picture()).heads == {}
        assert await tx.store.call("KEYS", f"{names.tag(CELL)}metric1H:*") == [], "no loss"


@pytest.mark.parametrize("key", ["sleepingZ", "deadlineZ"])
async def test_what_must_be_somewhere_and_is_nowhere_is_lost_for_whoever_asks(
    store_server: EmbeddedServer, key: str
) -> None:
    async with open_transactions(store_server) as tx:
        shelf, time = Shelf(tx), await tx.now_ms() + HOUR_MS
        await tx.store.call("ZADD", names.sorted_set(CELL, key), time, NOBODY)
        assert await restore(shelf, *await miss(tx, NOBODY)) == ["lost"]
        (slot,) = await tx.store.call("KEYS", f"{names.tag(CELL)}metric1H:*")
        assert await tx.store.call("HGET", slot, "archive:::lost") == b"1"
        assert (await tx.picture()).sets[key] == {NOBODY: time}, "its time is as it was"


@pytest.mark.parametrize("state", ["queued", "held", "running", "waiting_children"])
async def test_a_snapshot_of_what_the_store_has_lost_is_not_made_alive_again(
    store_server: EmbeddedServer, state: str
) -> None:
    async with open_transactions(store_server) as tx:
        shelf = Shelf(tx)
        one = await shelf.sleeper()
        line = shelf.rows[one][b"head"].replace(b" sleeping ", b" %s " % state.encode())
        shelf.rows[one][b"head"] = line
        assert await restore(shelf, *await miss(tx, one)) == ["alive"]
        assert await tx.store.call("EXISTS", names.state(one)) == 0
        assert await nonces(tx) == {}


@pytest.mark.parametrize("line", [b"", b"nonsense", b"1 sleeping 2 3 4 - g in p"])
async def test_a_row_without_a_head_that_can_be_read_is_no_state(
    store_server: EmbeddedServer, line: bytes
) -> None:
    """F-19: nothing of it is written, and its neighbour comes back."""
    async with open_transactions(store_server) as tx:
        shelf = Shelf(tx)
        one, other = await shelf.sleeper(), await shelf.sleeper()
        shelf.rows[one][b"head"] = line
        for mode in ("", "deadline", "wake"):
            missing = await miss(tx, one)
            assert await restore(shelf, *missing, mode=mode) == ["lost"]  # type: ignore[arg-type]
        done = await restore(shelf, *await miss(tx, one, other))
        assert done == ["lost", "restored"]
        assert set((await tx.picture()).heads) == {other}


async def test_what_is_there_and_no_transaction_is_left_alone(
    store_server: EmbeddedServer,
) -> None:
    """F-19."""
    async with open_transactions(store_server) as tx:
        shelf = Shelf(tx)
        one = await shelf.sleeper()
        missing = await miss(tx, one)
        await tx.store.call("SET", names.state(one), "not a hash")
        for mode in ("", "deadline", "wake"):
            assert await restore(shelf, *missing, mode=mode) == ["cached"]  # type: ignore[arg-type]
        assert await tx.store.call("GET", names.state(one)) == b"not a hash"


async def test_a_state_of_thousands_of_fields_and_of_many_bytes_comes_back_whole(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        shelf = Shelf(tx)
        one, other = await shelf.sleeper(), await shelf.sleeper()
        shelf.rows[one] |= {b"once:1:%d" % n: b"%d" % n for n in range(4999)}
        shelf.rows[other][b"state"] = b"x" * RESTORE_BYTES_MAX
        done = await restore(shelf, *await miss(tx, one, other))
        assert done == ["restored", "restored"]
        assert await whole(tx, one) == shelf.rows[one]
        assert await whole(tx, other) == shelf.rows[other]


# -- What is due -----------------------------------------------------------------------------


async def test_what_has_slept_long_enough_is_queued_with_the_same_call(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        shelf = Shelf(tx)
        one = await shelf.sleeper(delay_ms=120_000, deadline_in_ms=DAY_MS, external_id="r-1")
        await tx.machine.advance(120)
        due = await tx.signals.wake_due(CELL, loads=10)
        assert (due.done, due.next_ms) == (1, LOAD_MS)
        before = shelf.head(one)

        assert await restore(shelf, *due.missing, mode="wake") == ["woken"]

        picture = await tx.check()
        head = picture.heads[one]
        assert (head.state, head.queue, head.wake, head.archive) == (State.QUEUED, "in", 0, "")
        assert (head.version, head.epoch) == (before.version + 1, before.epoch)
        assert head.flags == before.flags
        assert await pttl(tx, one) == -1
        assert picture.where(one) == {"qInL:main", "deadlineZ"}
        assert await tx.kinds(one) == ["started", "slept", "woken"]
        assert (await tx.facts())[-1].version == head.version
        assert await restore(shelf, *due.missing, mode="wake") == ["cached"]
        assert await tx.check() == picture
        (claimed,) = await tx.claim()
        assert (claimed.id, claimed.state) == (one, b"asleep")


async def test_waking_from_the_archive_leaves_what_waking_in_the_store_does(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        shelf = Shelf(tx)
        archived = await shelf.sleeper(delay_ms=120_000, external_id="a")
        held = await tx.running(external_id="b")
        sleep = Sleep(held=held, state=b"asleep", delay_ms=0)
        await tx.progress.sleep(CELL, [sleep])
        await tx.machine.advance(120)
        due = await tx.signals.wake_due(CELL, loads=10)
        await restore(shelf, *due.missing, mode="wake")
        heads = (await tx.check()).heads
        ours, theirs = heads[archived], heads[held.id]
        assert ours.since - theirs.since < 5000
        words = [name for name in ours.__struct_fields__ if name != "since"]
        assert [getattr(ours, n) for n in words] == [getattr(theirs, n) for n in words]


async def test_what_somebody_has_brought_back_meanwhile_is_queued_if_it_is_due(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        shelf = Shelf(tx)
        due_one = await shelf.sleeper(delay_ms=120_000)
        await tx.machine.advance(120)
        due = await tx.signals.wake_due(CELL, loads=10)
        await restore(shelf, *await miss(tx, due_one))
        assert await restore(shelf, *due.missing, mode="wake") == ["woken"]
        picture = await tx.check()
        assert picture.where(due_one) == {"qInL:main"}
        assert await pttl(tx, due_one) == -1


async def test_a_cancel_that_was_faster_than_the_wake_has_the_last_word(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        shelf = Shelf(tx)
        one = await shelf.sleeper(delay_ms=120_000)
        await tx.machine.advance(120)
        due = await tx.signals.wake_due(CELL, loads=10)
        await restore(shelf, *await miss(tx, one))
        await tx.signals.cancel("default", [one], cause="by hand", grace_ms=0)
        assert await restore(shelf, *due.missing, mode="wake") == ["cached"]
        assert (await tx.check()).heads[one].status is Status.CANCELLED


async def test_what_was_given_out_too_early_sleeps_on_until_its_true_time(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        shelf = Shelf(tx)
        one = await shelf.sleeper()
        await tx.store.call("ZADD", names.sorted_set(CELL, "sleepingZ"), 1, one)
        due = await tx.signals.wake_due(CELL, loads=10)
        assert await restore(shelf, *due.missing, mode="wake") == ["restored"]
        assert (await tx.picture()).sets["sleepingZ"] == {one: shelf.head(one).wake}


@pytest.mark.parametrize("mode", ["wake", "deadline"])
async def test_what_is_lost_stays_and_is_looked_at_once_an_hour(
    store_server: EmbeddedServer, mode: LoadMode
) -> None:
    async with open_transactions(store_server) as tx:
        shelf, key = Shelf(tx), "sleepingZ" if mode == "wake" else "deadlineZ"
        await tx.store.call("ZADD", names.sorted_set(CELL, key), 1, NOBODY)
        for _ in range(2):
            if mode == "wake":
                due = await tx.signals.wake_due(CELL, loads=10)
            else:
                due = await tx.signals.expire(CELL, grace_ms=0, loads=10)
            assert await restore(shelf, *due.missing, mode=mode) == ["lost"]
            now = await tx.now_ms()
            score = (await tx.picture()).sets[key][NOBODY]
            assert score == pytest.approx(now + HOUR_MS, abs=2000)
            (slot,) = await tx.store.call("KEYS", f"{names.tag(CELL)}metric1H:*")
            assert await tx.store.call("HGET", slot, "archive:::lost") == b"1"
            await tx.machine.advance(HOUR_MS / 1000)


async def test_a_deadline_that_has_passed_ends_what_was_archived(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        shelf = Shelf(tx)
        one = await shelf.sleeper(deadline_in_ms=120_000)
        await tx.machine.advance(120)
        due = await tx.signals.expire(CELL, grace_ms=GRACE_MS, loads=10)
        assert (due.done, due.next_ms, [each.id for each in due.missing]) == (1, LOAD_MS, [one])
        assert (await tx.signals.expire(CELL, grace_ms=GRACE_MS, loads=10)).missing == ()
        assert await restore(shelf, *due.missing, mode="deadline") == ["restored"]
        assert (await tx.signals.look(CELL)).deadline_ms <= await tx.now_ms()  # type: ignore[operator]
        await tx.signals.expire(CELL, grace_ms=GRACE_MS)
        picture = await tx.check()
        assert picture.heads[one].status is Status.TIMEOUT
        assert picture.where(one) == {"toArchiveZ"}


async def test_a_deadline_does_not_wait_for_the_load_pause_where_another_was_faster(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        shelf = Shelf(tx)
        one = await shelf.sleeper(deadline_in_ms=120_000)
        await tx.machine.advance(120)
        due = await tx.signals.expire(CELL, grace_ms=GRACE_MS, loads=10)
        await restore(shelf, *await miss(tx, one))
        assert await restore(shelf, *due.missing, mode="deadline") == ["cached"]
        await tx.signals.expire(CELL, grace_ms=GRACE_MS)
        assert (await tx.check()).heads[one].status is Status.TIMEOUT


# -- In bulk ---------------------------------------------------------------------------------


async def test_more_than_a_call_may_have_are_restored_in_calls_of_one_write_in_order(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        shelf = Shelf(tx)
        for _ in range(3):
            await tx.entry.start(CELL, [tx.new(delay_ms=1) for _ in range(100)])
        await tx.machine.advance(ARCHIVE_MS / 1000 + 1)
        for _ in range(3):
            await shelf.archive()
        missing = []
        while len(missing) < 300:
            missing += (await tx.signals.wake_due(CELL, loads=100)).missing
        found = shelf.found(missing)
        found[150] = Restoration(missing[150], None)
        done = await tx.restoring.restore(CELL, found, mode="wake")
        assert done == ["woken"] * 150 + ["lost"] + ["woken"] * 149
        queued = (await tx.picture()).lists["qInL:main"]
        assert queued == [each.id for i, each in enumerate(missing) if i != 150]
        assert await tx.restoring.restore(CELL, []) == []


async def test_those_who_load_at_once_and_the_worker_leave_one_queue_entry(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        shelf = Shelf(tx)
        ids = [await shelf.sleeper(delay_ms=1_000_000) for _ in range(5)]
        await tx.machine.advance(1_000)
        due = await tx.signals.wake_due(CELL, loads=10)
        looks = await miss(tx, *ids)
        await asyncio.gather(
            restore(shelf, *due.missing, mode="wake"),
            restore(shelf, *looks),
            restore(shelf, *due.missing, mode="wake"),
        )
        queued = (await tx.check()).lists["qInL:main"]
        assert sorted(queued) == sorted(ids)
        ends = [
            Finish(held=each.held, state=b"e", status=Status.SUCCESS, output=b"")
            for each in await tx.claim(10)
        ]
        assert {each.outcome for each in await tx.progress.finish(CELL, ends)} == {"done"}
