"""What is given to the archive, and what a confirm does: row by row, repeated, without room."""

from __future__ import annotations

import pytest

from tests.transactions.archive_helpers import NODE, Shelf, confirms, version_of
from tests.transactions.helpers import (
    ARCHIVE_MS,
    CACHE_MS,
    CELL,
    ROLE_MS,
    TransactionStore,
    after,
    open_transactions,
)
from waystation.errors import StoreFullError
from waystation.store.embedded.server import EmbeddedServer
from waystation.transactions import names
from waystation.transactions.archive_writing import Batch
from waystation.transactions.archiving import ArchiveTurn, Confirmed, SetAside
from waystation.transactions.progress import Commit, Finish, Sleep
from waystation.transactions.states import State, Status

HOUR_SECONDS = 3600
MINUTE_MS = 60_000


async def asleep(tx: TransactionStore, *, delay_ms: int = 86_400_000, **fields: object) -> str:
    """One that sleeps; it is to be removed."""
    held = await tx.running(**fields)
    await tx.progress.sleep(CELL, [Sleep(held=held, state=b"asleep", delay_ms=delay_ms)])
    return held.id


async def complete(tx: TransactionStore) -> str:
    """One that has ended; it is to stay for a while."""
    held = await tx.running()
    end = Finish(held=held, state=b"end", status=Status.SUCCESS, output=b"1")
    await tx.progress.finish(CELL, [end])
    return held.id


async def due(tx: TransactionStore) -> None:
    await tx.machine.advance(ARCHIVE_MS / 1000 + 1)


async def read(tx: TransactionStore, *, most: int = 100, skip: int = 0) -> ArchiveTurn:
    # With a new role: how long it lasts is no matter here.
    await tx.archiving.turn(CELL, node=NODE, most=0, flight="leave")
    return await tx.archiving.turn(CELL, node=NODE, most=most, skip=skip)


async def confirm(tx: TransactionStore, *confirmed: Confirmed, node: str = NODE) -> ArchiveTurn:
    return await tx.archiving.turn(CELL, node=node, most=0, confirmed=confirmed)


async def scheduled(tx: TransactionStore) -> dict[str, float]:
    return (await tx.picture()).sets["toArchiveZ"]


async def pttl(tx: TransactionStore, transaction_id: str) -> int:
    left: int = await tx.store.call("PTTL", names.state(transaction_id))
    return left


# -- Reading ---------------------------------------------------------------------------------


async def test_only_what_is_due_is_given_whole_and_nothing_of_it_changes(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        first = await asleep(tx, external_id="r-1")
        before = await read(tx)
        assert (before.role, before.items, before.waiting) == ("archiver", [], 1)
        await due(tx)
        later = await complete(tx)
        picture = await tx.picture()

        turn = await read(tx)

        (given,) = turn.items
        assert given.id == first
        assert given.fields[b"state"] == b"asleep"
        assert given.fields[b"externalId"] == b"r-1"
        assert version_of(given) == picture.heads[first].version
        assert (turn.waiting, turn.set_aside) == (2, 0)
        assert turn.oldest_ms == picture.sets["toArchiveZ"][first]
        assert await tx.picture() == picture
        assert [each.id for each in (await read(tx)).items] == [first], "until it is confirmed"
        assert later not in {each.id for each in turn.items}


async def test_what_is_in_flight_is_passed_over_and_no_more_is_given_than_asked_for(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        ids = [await asleep(tx) for _ in range(5)]
        await due(tx)
        parts = [[each.id for each in (await read(tx, most=2, skip=n)).items] for n in (0, 2, 4)]
        assert sorted(map(len, parts)) == [1, 2, 2]
        assert {each for part in parts for each in part} == set(ids)
        assert (await read(tx, most=0)).items == []


async def test_a_large_state_ends_what_is_given_and_comes_in_any_case(
    store_server: EmbeddedServer,
) -> None:
    """F-19: 10 MB are one turn."""
    async with open_transactions(store_server) as tx:
        for size in (10, 10_000_000, 10):
            held = await tx.running()
            await tx.progress.sleep(
                CELL, [Sleep(held=held, state=b"x" * size, delay_ms=86_400_000)]
            )
            await tx.machine.advance(1)
        await due(tx)
        sizes = [
            [len(each.fields[b"state"]) for each in (await read(tx, skip=n)).items]
            for n in (0, 1, 2)
        ]
        assert sizes == [[10, 10_000_000], [10_000_000], [10]]


async def test_what_cannot_be_archived_is_set_aside_and_costs_nobody_beside_it_anything(
    store_server: EmbeddedServer,
) -> None:
    """F-19: no state, no hash, no head, no packed state."""
    async with open_transactions(store_server) as tx:
        ids = [await asleep(tx) for _ in range(6)]
        await due(tx)
        gone, no_hash, no_head, half_head, no_state, sound = ids
        await tx.store.call("DEL", *(names.state(each) for each in (gone, no_hash)))
        await tx.store.call("SET", names.state(no_hash), "not a hash")
        await tx.store.call("HDEL", names.state(no_head), "head")
        await tx.store.call("HSET", names.state(half_head), "head", "1 sleeping 2 3 4")
        await tx.store.call("HDEL", names.state(no_state), "state")

        turn = await read(tx)
        assert [each.id for each in turn.items] == [no_head, half_head, no_state, sound]
        assert (turn.waiting, turn.set_aside) == (5, 1)
        batch = Batch.of(turn.items, turn.now_ms)
        assert [each.id for each in batch.rows] == [sound]
        # Twice: a reply may be lost.
        for _ in range(2):
            await confirm(tx, *batch.unfit)

        aside, cursor = await tx.archiving.set_aside(CELL)
        assert cursor == ""
        assert {each.id: each.cause for each in aside} == {
            no_hash: "it is no hash",
            no_head: "its head cannot be read",
            half_head: "its head cannot be read",
            no_state: "it has no field state",
        }
        again = await read(tx)
        assert [each.id for each in again.items] == [sound]
        assert again.set_aside == 4
        assert (await tx.archiving.set_aside(CELL))[0] == aside, "and it is not looked at meanwhile"
        await tx.store.call("DEL", *(names.state(each) for each in ids))
        await tx.machine.advance(HOUR_SECONDS)
        assert (await read(tx)).waiting == 0, "what is gone is forgotten"
        assert await tx.archiving.set_aside(CELL) == ([], "")


# -- The table of confirms -------------------------------------------------------------------


async def test_what_sleeps_leaves_the_store_with_its_confirm_and_its_time_stays(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        one = await asleep(tx, external_id="r-1", deadline_in_ms=86_400_000)
        await due(tx)
        turn = await read(tx)
        for _ in range(2):
            done = await confirm(tx, *confirms(turn))
            assert (done.waiting, done.oldest_ms) == (0, None)
            picture = await tx.picture()
            assert picture.heads == {}
            assert picture.where(one) == {"sleepingZ", "deadlineZ"}
            assert picture.external == {"default:r-1": (one, -1)}


async def test_what_is_complete_stays_for_a_while(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        one = await complete(tx)
        await due(tx)
        turn = await read(tx)
        version = (await tx.head(one)).version
        for _ in range(2):
            await confirm(tx, *confirms(turn))
            assert await scheduled(tx) == {}
            assert CACHE_MS - 5000 < await pttl(tx, one) <= CACHE_MS
            assert (await tx.head(one)).version == version


async def test_a_snapshot_changes_nothing_but_its_schedule_in_whatever_version_it_is_now(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        held = await tx.running()
        await tx.progress.commit(CELL, [Commit(held=held, state=b"1", snapshot=True)])
        await tx.machine.advance(0.01)
        turn = await read(tx)
        await tx.progress.commit(CELL, [Commit(held=after(held), state=b"2")])
        for _ in range(2):
            await confirm(tx, *confirms(turn))
            assert await scheduled(tx) == {}
            assert await pttl(tx, held.id) == -1
            assert (await tx.head(held.id)).state is State.RUNNING


async def test_a_snapshot_that_was_asked_for_again_meanwhile_stays_scheduled(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        held = await tx.running()
        await tx.progress.commit(CELL, [Commit(held=held, state=b"1", snapshot=True)])
        turn = await read(tx)
        await tx.machine.advance(0.01)
        again = Commit(held=after(held), state=b"2", snapshot=True)
        await tx.progress.commit(CELL, [again])
        await confirm(tx, *confirms(turn))
        assert set(await scheduled(tx)) == {held.id}
        (given,) = (await read(tx)).items
        assert given.fields[b"state"] == b"2"


@pytest.mark.parametrize("end", [asleep, complete])
async def test_what_has_changed_meanwhile_stays_scheduled_as_it_is(
    store_server: EmbeddedServer, end: object
) -> None:
    async with open_transactions(store_server) as tx:
        one = await end(tx)  # type: ignore[operator]
        await due(tx)
        (given,) = (turn := await read(tx)).items
        before = await tx.picture()
        stale = Confirmed(one, version_of(given) - 1, turn.now_ms)
        newer = Confirmed(one, version_of(given) + 1, turn.now_ms)
        await confirm(tx, stale, newer)
        assert await tx.picture() == before
        assert await pttl(tx, one) == -1


async def test_a_confirm_of_what_is_gone_takes_it_off_and_one_of_no_hash_does_not(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        one, other = await asleep(tx), await asleep(tx)
        await due(tx)
        turn = await read(tx)
        await tx.store.call("DEL", names.state(one), names.state(other))
        await tx.store.call("SET", names.state(other), "not a hash")
        await confirm(tx, *confirms(turn))
        flat = await tx.store.call("ZRANGE", names.sorted_set(CELL, "toArchiveZ"), 0, -1)
        assert flat == [other.encode()]


async def test_a_confirm_needs_the_version_and_not_the_role(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        one = await asleep(tx)
        await due(tx)
        turn = await read(tx)
        await tx.machine.advance(2 * ROLE_MS / 1000)
        other = await tx.archiving.turn(CELL, node="node-b", most=100)
        assert (other.role, [each.id for each in other.items]) == ("archiver", [one])
        late = await confirm(tx, *confirms(turn))
        assert (late.role, late.waiting) == ("other", 0)
        # And the same of the other, who was given the same.
        assert (await confirm(tx, *confirms(other), node="node-b")).waiting == 0


# -- Refused ---------------------------------------------------------------------------------


async def test_what_is_refused_is_set_aside_for_longer_and_longer_and_its_neighbours_are_not(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        bad, good = await asleep(tx), await asleep(tx)
        shelf = Shelf(tx)
        await due(tx)
        for tries, minutes in enumerate((1, 2, 4, 8, 16, 32, 60, 60), 1):
            turn = await read(tx)
            assert bad in {each.id for each in turn.items}
            refused = [
                each if each.id == good else Confirmed(bad, each.version, each.read_ms, 0, "no: ü")
                for each in confirms(turn)
            ]
            for _ in range(2):  # The second finds that it was set aside.
                done = await confirm(tx, *refused)
                assert (done.waiting, done.set_aside) == (1, 1)
            score = (await scheduled(tx))[bad]
            assert score == pytest.approx(turn.now_ms + minutes * MINUTE_MS, abs=2000)
            ((aside,), _) = await tx.archiving.set_aside(CELL)
            assert aside == SetAside(bad, aside.since_ms, tries, "no: ü")
            (found,) = await tx.signals.get("default", [bad])
            assert found is not None
            assert found.archive_failed == f"{aside.since_ms} {tries} no: ü"
            await tx.machine.advance(minutes * 60 + 1)
        assert (await tx.head(bad)).state is State.SLEEPING
        done = await shelf.archive()
        assert (done.waiting, done.set_aside) == (0, 0)


async def test_a_snapshot_that_is_refused_is_set_aside_though_its_transaction_commits_on(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        held = await tx.running()
        await tx.progress.commit(CELL, [Commit(held=held, state=b"1", snapshot=True)])
        turn = await read(tx)
        await tx.progress.commit(CELL, [Commit(held=after(held), state=b"2")])
        (each,) = confirms(turn)
        done = await confirm(tx, Confirmed(each.id, each.version, each.read_ms, 0, "no"))
        assert done.set_aside == 1
        assert (await read(tx)).items == []


async def test_what_was_set_aside_can_be_made_due_at_once(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        ids = {await asleep(tx) for _ in range(3)}
        await due(tx)
        turn = await read(tx)
        refused = [Confirmed(c.id, c.version, c.read_ms, 0, "no") for c in confirms(turn)]
        await confirm(tx, *refused)
        woken = refused[0].id
        await tx.signals.wake("default", woken)
        assert await tx.archiving.retry(CELL) == 2
        assert await tx.archiving.retry(CELL) == 0
        turn = await read(tx)
        assert {each.id for each in turn.items} == ids - {woken}, "what left the schedule stays off"
        assert turn.oldest_ms == pytest.approx(turn.now_ms, abs=5000), "and is not said to be late"


async def test_a_cause_is_cut_and_may_be_any_text(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        await asleep(tx)
        await due(tx)
        (each,) = confirms(await read(tx))
        strange = "\udcff\n\0 " + "ü" * 1000
        await confirm(tx, Confirmed(each.id, each.version, each.read_ms, 0, strange))
        ((aside,), _) = await tx.archiving.set_aside(CELL)
        assert aside.cause.startswith("?\n\0 üü")
        assert len(aside.cause) < 300


# -- An archive that is ahead ----------------------------------------------------------------


@pytest.mark.parametrize("end", [asleep, complete])
@pytest.mark.parametrize("ahead", [0, 3])
async def test_a_version_that_the_archive_is_ahead_of_is_lifted_over_it_and_archived_next(
    store_server: EmbeddedServer, end: object, ahead: int
) -> None:
    """A store that has lost a second must not meet its own past for good."""
    async with open_transactions(store_server) as tx:
        one = await end(tx)  # type: ignore[operator]
        await due(tx)
        turn = await read(tx)
        (each,) = confirms(turn)
        above = each.version + ahead
        lifted = Confirmed(one, each.version, each.read_ms, above)
        for _ in range(2):
            await confirm(tx, lifted)
            assert (await tx.head(one)).version == above + 1
        assert await pttl(tx, one) == -1
        assert (await tx.facts())[-1].kind == "lifted"
        assert (await tx.facts())[-1].version == above + 1
        assert (await tx.kinds(one)).count("lifted") == 1
        (given,) = (await read(tx)).items
        assert version_of(given) == above + 1
        assert (await tx.head(one)).state is (State.COMPLETE if end is complete else State.SLEEPING)


# -- Without room ----------------------------------------------------------------------------


async def test_a_full_store_is_made_smaller_by_archiving_and_restores_nothing(
    store_server: EmbeddedServer,
) -> None:
    """F-20."""
    async with open_transactions(store_server) as tx:
        ids = [await asleep(tx, delay_ms=1), await complete(tx)]
        shelf = Shelf(tx)
        await due(tx)
        await tx.store.call("CONFIG", "SET", "maxmemory", 1)
        try:
            done = await shelf.archive()
            assert (done.waiting, set(shelf.rows)) == (0, set(ids))
            assert await tx.store.call("EXISTS", names.state(ids[0])) == 0
            due_now = await tx.signals.wake_due(CELL, loads=10)
            (missing,) = due_now.missing
            with pytest.raises(StoreFullError):
                await tx.restoring.restore(CELL, shelf.found([missing]), mode="wake")
            assert await tx.store.call("EXISTS", names.state(ids[0])) == 0
        finally:
            await tx.store.call("CONFIG", "SET", "maxmemory", 0)
        restored = await tx.restoring.restore(CELL, shelf.found([missing]), mode="wake")
        assert restored == ["woken"], "without a restart"
