"""What is in the archive alone is reached as if it were in the store; what is nowhere, never."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pytest

from tests.transactions.archive_helpers import DAY_MS, Shelf, miss, nonces, row_with
from tests.transactions.helpers import (
    ARCHIVE_MS,
    CACHE_MS,
    CELL,
    GRACE_MS,
    LOAD_MS,
    TERMS,
    TransactionStore,
    after,
    open_transactions,
)
from waystation.errors import (
    ArchiveUnavailableError,
    StoreFullError,
    TransactionLoadingError,
    TransactionUnknownError,
)
from waystation.store.embedded.server import EmbeddedServer
from waystation.transactions import names
from waystation.transactions.archiving import Given
from waystation.transactions.found import found_of
from waystation.transactions.progress import FanOpen, FanWait, Finish
from waystation.transactions.restoring import Loaded, LoadMode, Loads, Missing
from waystation.transactions.signals import LOADS_MAX, Signals
from waystation.transactions.states import State, Status

NOBODY = "tx-0000" + "f" * 36
BUSY_MS = 1_000


class Answers:
    """Somebody who loads, and always says the same; `exception`: he cannot."""

    def __init__(self, loaded: Loaded | None = None, exception: Exception | None = None) -> None:
        self.loaded = loaded
        self.exception = exception
        self.asked = 0

    async def bring(
        self, owner: str, missing: Sequence[Missing], *, mode: LoadMode = ""
    ) -> dict[str, Loaded]:
        self.asked += 1
        if self.exception is not None:
            raise self.exception
        assert self.loaded is not None
        return {each.id: self.loaded for each in missing}


def with_loader(tx: TransactionStore, loader: Loads) -> Signals:
    return Signals(tx.store, TERMS, loader)


Verb = Callable[[Signals, str], Awaitable[Any]]


async def set_switch(signals: Signals, transaction_id: str) -> None:
    await signals.set_switch("default", transaction_id, "go", True)


async def cancel(signals: Signals, transaction_id: str) -> None:
    (told,) = await signals.cancel("default", [transaction_id], cause="me", grace_ms=0)
    if told.outcome == "unknown":
        raise TransactionUnknownError("no")


async def wake(signals: Signals, transaction_id: str) -> None:
    await signals.wake("default", transaction_id)


async def get(signals: Signals, transaction_id: str) -> None:
    (found,) = await signals.get("default", [transaction_id])
    if found is None:
        raise TransactionUnknownError("no")


VERBS = [set_switch, cancel, wake, get]


# -- From outside ----------------------------------------------------------------------------


async def test_a_switch_brings_back_what_waits_for_it_and_queues_it(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        shelf = Shelf(tx)
        one = await shelf.sleeper(switch="go")
        done = await with_loader(tx, shelf).set_switch("default", one, "go", True)
        assert (done.outcome, done.switches) == ("woken", {"go": True})
        picture = await tx.check()
        assert picture.heads[one].state is State.QUEUED
        assert picture.heads[one].archive == "snapshot"
        assert picture.mortal == set()


async def test_a_switch_that_nobody_waits_for_makes_it_due_for_the_archive_once_more(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        shelf = Shelf(tx)
        one = await shelf.sleeper(switch="go")
        done = await with_loader(tx, shelf).set_switch("default", one, "other", 1)
        assert done.outcome == "updated"
        head = (await tx.check()).heads[one]
        assert (head.state, head.archive) == (State.WAITING_SWITCH, "remove")
        assert head.version == shelf.head(one).version + 1
        await tx.machine.advance(ARCHIVE_MS / 1000 + 1)
        await shelf.archive()
        assert shelf.head(one).version == head.version
        assert shelf.rows[one][b"switches"] == b"!other=1"


async def test_a_wake_by_hand_and_a_cancel_reach_what_is_archived(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        shelf = Shelf(tx)
        woken, gone = await shelf.sleeper(), await shelf.sleeper(external_id="r-1")
        signals = with_loader(tx, shelf)
        await signals.wake("default", woken)
        queued = await tx.start()
        ids = [gone, NOBODY, queued, gone]
        told = await signals.cancel("default", ids, cause="by hand", grace_ms=0)
        assert [each.outcome for each in told] == ["cancelled", "unknown", "cancelled", "known"]
        picture = await tx.check()
        assert picture.heads[woken].state is State.QUEUED
        assert picture.heads[gone].status is Status.CANCELLED
        assert picture.where(gone) == {"toArchiveZ"}
        assert picture.external["default:r-1"][1] > 0
        assert await nonces(tx) == {}


async def test_a_look_brings_back_for_a_while_and_may_make_that_longer(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        shelf = Shelf(tx)
        one = await shelf.sleeper(deadline_in_ms=DAY_MS)
        here, signals = await tx.start(), with_loader(tx, shelf)
        found, cached, nobody = await signals.get("default", [one, here, NOBODY])
        assert nobody is None
        assert found is not None
        assert cached is not None
        assert (found.state, found.head.state) == (b"asleep", State.SLEEPING)
        assert found.sleeping_ms == found.head.wake
        assert found.deadline_ms is not None
        assert (found.archive_ms, cached.cache_ms, found.archive_failed) == (None, None, "")
        assert CACHE_MS - 5000 < (found.cache_ms or 0) <= CACHE_MS
        await tx.machine.advance(100)
        (plain,) = await signals.get("default", [one])
        assert plain is not None
        assert (plain.cache_ms or 0) <= CACHE_MS - 100_000
        (renewed, still) = await signals.get("default", [one, here], renew=True)
        assert renewed is not None
        assert still is not None
        assert (renewed.cache_ms, still.cache_ms) == (CACHE_MS, None), "only what would go anyway"
        assert shelf.brought == [(one, NOBODY)], "once"
        await tx.machine.advance(CACHE_MS / 1000)
        assert (await tx.picture()).heads.keys() == {here}


async def test_a_look_that_is_not_to_load_leaves_no_trace(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        shelf = Shelf(tx)
        one = await shelf.sleeper()
        assert await with_loader(tx, shelf).get("default", [one], load=False) == [None]
        assert await tx.signals.get("default", [one]) == [None], "nor where nobody loads"
        assert await nonces(tx) == {}
        assert shelf.brought == []


async def test_another_project_s_state_is_unknown_and_not_renewed(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        shelf = Shelf(tx)
        one = await shelf.sleeper()
        await shelf.bring("default", await miss(tx, one))
        await tx.machine.advance(100)
        assert await with_loader(tx, shelf).get("shop", [one], renew=True) == [None]
        assert await tx.store.call("PTTL", names.state(one)) <= CACHE_MS - 100_000


async def test_a_look_tells_when_the_next_reply_is_due(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        one = await tx.start()
        key, lane = names.state(one), f"{names.tag(CELL)}webhooksZ:"
        line = (await tx.store.call("HGET", key, "head")).replace(b" - main", b" r main")
        await tx.store.call("HSET", key, "head", line, "reply", "ps w.default.0a t.default.news")
        await tx.store.call("ZADD", f"{lane}w.default.0a", 2000, one)
        await tx.store.call("ZADD", f"{lane}t.default.news", 1000, f"{one}.t")
        (found,) = await tx.signals.get("default", [one])
        assert found is not None
        assert found.reply_ms == 1000


async def test_a_look_at_what_cannot_be_read_finds_nothing_and_its_neighbour(
    store_server: EmbeddedServer,
) -> None:
    """F-19."""
    async with open_transactions(store_server) as tx:
        ids = [await tx.start() for _ in range(4)]
        await tx.store.call("DEL", names.state(ids[0]))
        await tx.store.call("SET", names.state(ids[0]), "not a hash")
        await tx.store.call("HSET", names.state(ids[1]), "head", "1 2 3")
        await tx.store.call("HDEL", names.state(ids[2]), "state")
        signals = with_loader(tx, answers := Answers())
        found = await signals.get("default", ids)
        assert [each and each.id for each in found] == [None, None, None, ids[3]]
        assert answers.asked == 0, "no archive has what is there"
        for verb in (set_switch, cancel, wake):
            with pytest.raises(TransactionUnknownError):
                await verb(signals, ids[0])


# -- What comes of a load --------------------------------------------------------------------


@pytest.mark.parametrize("outcome", ["lost", "unknown", "alive", "foreign"])
@pytest.mark.parametrize("verb", VERBS)
async def test_what_nobody_has_is_unknown(
    store_server: EmbeddedServer, verb: Verb, outcome: Any
) -> None:
    async with open_transactions(store_server) as tx:
        answers = Answers(Loaded(outcome))
        with pytest.raises(TransactionUnknownError):
            await verb(with_loader(tx, answers), NOBODY)
        assert answers.asked == 1
        assert (await tx.picture()).heads == {}


@pytest.mark.parametrize("verb", VERBS)
async def test_what_others_are_always_faster_with_is_being_loaded(
    store_server: EmbeddedServer, verb: Verb
) -> None:
    async with open_transactions(store_server) as tx:
        answers = Answers(Loaded("again"))
        with pytest.raises(TransactionLoadingError):
            await verb(with_loader(tx, answers), NOBODY)
        assert answers.asked == LOADS_MAX + 1


@pytest.mark.parametrize("verb", VERBS)
async def test_an_archive_that_is_away_is_never_taken_for_an_unknown_transaction(
    store_server: EmbeddedServer, verb: Verb
) -> None:
    async with open_transactions(store_server) as tx:
        away = Answers(exception=ArchiveUnavailableError("away"))
        with pytest.raises(ArchiveUnavailableError):
            await verb(with_loader(tx, away), NOBODY)


async def test_without_room_a_look_answers_from_the_row_and_a_verb_says_so(
    store_server: EmbeddedServer,
) -> None:
    """F-20."""
    async with open_transactions(store_server) as tx:
        shelf = Shelf(tx)
        one = await shelf.sleeper(external_id="r-1")
        row = row_with(Given(one, shelf.rows[one]))
        signals = with_loader(tx, Answers(Loaded("no-room", row)))
        (found,) = await signals.get("default", [one])
        assert found == found_of(row)
        assert found is not None
        assert (found.state, found.extras) == (b"asleep", {b"externalId": b"r-1"})
        assert found.head == shelf.head(one)
        for verb in (set_switch, cancel, wake):
            with pytest.raises(StoreFullError):
                await verb(signals, one)


# -- By time ---------------------------------------------------------------------------------


async def test_what_is_not_in_the_store_is_given_to_one_to_load_and_holds_nobody_up(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        shelf = Shelf(tx)
        away = [await shelf.sleeper(delay_ms=1_000_000) for _ in range(4)]
        cached = await tx.start(delay_ms=1_000_000)
        await tx.machine.advance(1_001)

        due = await tx.signals.wake_due(CELL, loads=3)

        assert due.done == 5
        assert len(due.missing) == 3
        assert {each.id for each in due.missing} < set(away)
        assert (await tx.picture()).lists["qInL:main"] == [cached]
        assert 0 < due.next_ms <= BUSY_MS, "the fourth is looked at soon"
        await tx.machine.advance(BUSY_MS / 1000)
        rest = await tx.signals.wake_due(CELL, loads=3)
        assert [each.id for each in rest.missing] == [*set(away) - {m.id for m in due.missing}]
        assert rest.next_ms > LOAD_MS - 5_000
        await tx.machine.advance(LOAD_MS / 1000)
        again = await tx.signals.wake_due(CELL, loads=10)
        assert set(again.missing) == {*due.missing, *rest.missing}, "it comes again, if not loaded"


async def test_where_nobody_loads_it_is_looked_at_again_and_never_dropped(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        shelf = Shelf(tx)
        one = await shelf.sleeper(delay_ms=120_000, deadline_in_ms=120_000)
        await tx.machine.advance(120)
        for _ in range(3):
            for due in (
                await tx.signals.wake_due(CELL),
                await tx.signals.expire(CELL, grace_ms=GRACE_MS),
            ):
                assert (due.done, due.missing) == (1, ())
                assert 0 < due.next_ms <= BUSY_MS
            await tx.machine.advance(BUSY_MS / 1000)
        assert (await tx.picture()).where(one) == {"sleepingZ", "deadlineZ"}
        assert await nonces(tx) == {}


async def test_what_is_no_transaction_goes_off_the_list_of_deadlines(
    store_server: EmbeddedServer,
) -> None:
    """F-19."""
    async with open_transactions(store_server) as tx:
        one, other = await tx.start(deadline_in_ms=1), await tx.start(deadline_in_ms=1)
        await tx.store.call("DEL", names.state(one))
        await tx.store.call("SET", names.state(one), "not a hash")
        await tx.machine.advance(1)
        due = await tx.signals.expire(CELL, grace_ms=GRACE_MS, loads=10)
        assert (due.done, due.missing, due.next_ms) == (2, (), -1)
        assert (await tx.head(other)).status is Status.TIMEOUT


# -- Children --------------------------------------------------------------------------------


async def family(tx: TransactionStore, children: int) -> tuple[str, list[str]]:
    """A parent that waits for children who are not to start before a day has passed."""
    parent = await tx.running()
    opened = FanOpen(held=parent, state=b"f", round=1, total=children)
    await tx.progress.fan_open(CELL, [opened])
    ids = [names.child_id(parent.id, 1, n + 1) for n in range(children)]
    items = [tx.new(id=each, delay_ms=DAY_MS) for each in ids]
    await tx.entry.fan_out(after(parent), round_=1, first=1, items=items)
    await tx.progress.fan_wait(CELL, [FanWait(held=after(parent), state=b"w")])
    return parent.id, ids


async def test_children_that_are_archived_are_loaded_before_those_behind_them_count_as_swept(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        shelf = Shelf(tx)
        parent, children = await family(tx, 5)
        await tx.machine.advance(ARCHIVE_MS / 1000 + 1)
        await shelf.archive()
        assert set(shelf.rows) == set(children)
        await shelf.bring("", await miss(tx, children[0], children[3]))
        await tx.signals.cancel("default", [parent], cause="me", grace_ms=GRACE_MS)

        due = await tx.signals.sweep(CELL, grace_ms=GRACE_MS)

        assert due.done == 5
        assert {each.id for each in due.missing} == {children[1], children[2], children[4]}
        assert 0 < due.next_ms <= BUSY_MS, "others have their turn meanwhile"
        picture = await tx.picture()
        assert picture.kids[parent].split()[5] == "1", "up to the first that is missing"
        assert picture.heads[children[3]].status is Status.CANCELLED
        version = picture.heads[parent].version
        await tx.machine.advance(BUSY_MS / 1000)
        again = await tx.signals.sweep(CELL, grace_ms=GRACE_MS)
        assert again.missing == due.missing, "the same nonces, until somebody loads"
        assert (await tx.head(parent)).version == version, "and no new version of the parent"

        await shelf.bring("", due.missing)
        await tx.machine.advance(BUSY_MS / 1000)
        last = await tx.signals.sweep(CELL, grace_ms=GRACE_MS)
        assert (last.missing, last.next_ms) == ((), -1)
        heads = (await tx.check()).heads
        assert {heads[each].status for each in (parent, *children)} == {Status.CANCELLED}


async def test_a_child_that_is_nowhere_is_passed_over_once_that_is_known(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        shelf = Shelf(tx)
        parent, children = await family(tx, 3)
        await tx.machine.advance(ARCHIVE_MS / 1000 + 1)
        await shelf.archive()
        del shelf.rows[children[1]]
        await tx.signals.cancel("default", [parent], cause="me", grace_ms=GRACE_MS)
        due = await tx.signals.sweep(CELL, grace_ms=GRACE_MS)
        loaded = await shelf.bring("", due.missing)
        lost = [key for key, each in loaded.items() if each.outcome == "lost"]
        assert lost == [children[1]]
        await tx.machine.advance(BUSY_MS / 1000)
        last = await tx.signals.sweep(CELL, grace_ms=GRACE_MS, lost=lost)
        assert (last.missing, last.next_ms) == ((), -1)
        heads = (await tx.picture()).heads
        assert {heads[each].status for each in (children[0], children[2])} == {Status.CANCELLED}


async def test_a_parent_that_has_ended_and_left_is_loaded_to_sweep_its_children(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        shelf = Shelf(tx)
        parent, (child, other) = await family(tx, 2)
        await tx.machine.advance(ARCHIVE_MS / 1000 + 1)
        await tx.signals.cancel("default", [parent], cause="me", grace_ms=0)
        await tx.machine.advance(1)
        await tx.signals.expire(CELL, grace_ms=0)
        assert (await tx.head(parent)).status is Status.CANCELLED
        await tx.machine.advance(ARCHIVE_MS / 1000 + 1)
        await shelf.archive()
        await tx.machine.advance(CACHE_MS / 1000)
        assert (await tx.picture()).heads == {}

        due = await tx.signals.sweep(CELL, grace_ms=0)
        assert [each.id for each in due.missing] == [parent]
        await shelf.bring("", due.missing)
        await tx.machine.advance(BUSY_MS / 1000)
        due = await tx.signals.sweep(CELL, grace_ms=0)
        assert [each.id for each in due.missing] == [child, other]
        await shelf.bring("", due.missing)
        await tx.machine.advance(BUSY_MS / 1000)
        assert (await tx.signals.sweep(CELL, grace_ms=0)).next_ms == -1
        picture = await tx.check()
        assert {head.status for head in picture.heads.values()} == {Status.CANCELLED}
        assert set(picture.sets["toArchiveZ"]) == {parent, child, other}
        assert picture.mortal == set(), "what has changed stays until it is archived"


async def test_a_parent_that_went_on_and_sleeps_in_the_archive_is_archived_once_more(
    store_server: EmbeddedServer,
) -> None:
    """Its last child has failed, and the rest was not swept yet when it fell asleep."""
    async with open_transactions(store_server) as tx:
        shelf = Shelf(tx)
        parent = await shelf.sleeper()
        shelf.rows[parent] |= {b"kids": b"1 1 1 1 cancel_rest 0 1", b"result:1": b"failed "}
        await tx.store.call("ZADD", names.sorted_set(CELL, "sweepZ"), 1, parent)
        await shelf.bring("", (await tx.signals.sweep(CELL, grace_ms=0)).missing)
        await tx.machine.advance(BUSY_MS / 1000)
        assert (await tx.signals.sweep(CELL, grace_ms=0)).next_ms == -1
        version = (await tx.head(parent)).version
        assert version == shelf.head(parent).version + 1
        assert (await tx.picture()).mortal == set(), "what has changed stays until it is archived"
        await tx.machine.advance(ARCHIVE_MS / 1000 + 1)
        await shelf.archive()
        assert shelf.head(parent).version == version
        assert await tx.store.call("EXISTS", names.state(parent)) == 0


async def test_a_parent_that_is_nowhere_is_not_swept_for_good(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        await tx.store.call("ZADD", names.sorted_set(CELL, "sweepZ"), 1, NOBODY)
        due = await tx.signals.sweep(CELL, grace_ms=0)
        assert [each.id for each in due.missing] == [NOBODY]
        await tx.machine.advance(BUSY_MS / 1000)
        assert (await tx.signals.sweep(CELL, grace_ms=0, lost=[NOBODY])).next_ms == -1
        await tx.store.call("SET", names.state(NOBODY), "not a hash")
        await tx.store.call("ZADD", names.sorted_set(CELL, "sweepZ"), 1, NOBODY)
        assert (await tx.signals.sweep(CELL, grace_ms=0)).next_ms == -1


async def test_a_child_that_has_ended_and_left_holds_nobody_up(
    store_server: EmbeddedServer,
) -> None:
    """Its result is in the parent."""
    async with open_transactions(store_server) as tx:
        shelf = Shelf(tx)
        parent, (first, second) = await family(tx, 2)
        await tx.signals.wake("default", first)
        (claimed,) = await tx.claim()
        end = Finish(held=claimed.held, state=b"e", status=Status.SUCCESS, output=b"1")
        await tx.progress.finish(CELL, [end])
        await tx.machine.advance(ARCHIVE_MS / 1000 + 1)
        await shelf.archive()
        await tx.machine.advance(CACHE_MS / 1000)
        await tx.signals.cancel("default", [parent], cause="me", grace_ms=GRACE_MS)
        due = await tx.signals.sweep(CELL, grace_ms=GRACE_MS)
        assert [each.id for each in due.missing] == [second]
        assert (await tx.picture()).kids[parent].split()[5] == "1"


async def test_a_look_tells_when_archiving_is_due(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        await tx.start(delay_ms=DAY_MS)
        look = await tx.signals.look(CELL)
        assert look.archive_ms == pytest.approx(look.now_ms + ARCHIVE_MS, abs=2000)
        assert msgspec.structs.asdict(look)["lease_ms"] is None
