"""The loader: what is in the archive alone comes back for those who need it, once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.transactions.archive_helpers import DATABASES, DAY_MS, Movers, archive_url, open_movers
from tests.transactions.helpers import CACHE_MS, CELL, GRACE_MS, GROUP, LOAD_MS, TERMS
from tests.transactions.test_children import waiting_parent
from waystation.archive import Archive, ArchivedState
from waystation.errors import ArchiveUnavailableError, StoreFullError, TransactionUnknownError
from waystation.store.embedded.server import EmbeddedServer
from waystation.transactions import names
from waystation.transactions.count_slots import CountSlots
from waystation.transactions.limits import Limits
from waystation.transactions.loader import WAITING_MAX, Loader
from waystation.transactions.restoring import Missing, Restoring
from waystation.transactions.signals import Signals
from waystation.transactions.states import State, Status
from waystation.transactions.timekeeper import Timekeeper

NOBODY = "tx-0000" + "f" * 36


class Watched:
    """An archive in front of another: its reads are counted, can be held up, and can fail."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self.reads: list[list[str]] = []
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.is_away = False

    async def get(self, ids: Sequence[str]) -> dict[str, ArchivedState]:
        self.reads.append(list(ids))
        await self.go_on.wait()
        if self.is_away:
            raise ArchiveUnavailableError("It is away.")
        return await self._archive.get(ids)


def watched(movers: Movers) -> tuple[Watched, Loader, Signals]:
    archive = Watched(movers.archive)
    loader = Loader(
        Restoring(movers.tx.store, TERMS),
        archive,  # type: ignore[arg-type]
        load_ms=LOAD_MS,
        clock=movers.tx.clock,
    )
    return archive, loader, Signals(movers.tx.store, TERMS, loader)


def timekeeper(movers: Movers, loader: Loader | None = None) -> Timekeeper:
    tx = movers.tx
    return Timekeeper(
        movers.signals,
        tx.holding,
        CountSlots(tx.store),
        tx.wakeups,
        clock=tx.clock,
        cells=1,
        limits=Limits(cancel_grace_ms=GRACE_MS),
        loader=loader or movers.loader,
    )


async def nonces(movers: Movers) -> int:
    keys = await movers.tx.store.call("KEYS", f"{names.tag(CELL)}loadH:*")
    return sum([await movers.tx.store.call("HLEN", key) for key in keys])


async def queued(movers: Movers) -> list[str]:
    ids = await movers.tx.store.call("LRANGE", names.queue_in(CELL, GROUP), 0, -1)
    return [each.decode() for each in ids]


# -- For somebody who asks -------------------------------------------------------------------


@pytest.mark.parametrize("database", DATABASES)
async def test_every_verb_reaches_what_is_in_the_archive_alone(
    store_server: EmbeddedServer, tmp_path: Path, request: pytest.FixtureRequest, database: str
) -> None:
    url = archive_url(request, database)
    async with open_movers(store_server, tmp_path, url) as movers:
        seen, switched, woken, cancelled = await movers.asleep_in_the_archive(4)
        signals = movers.signals
        (found,) = await signals.get("default", [seen])
        assert found is not None
        assert found.state == b"asleep"
        assert CACHE_MS - 5_000 < (found.cache_ms or 0) <= CACHE_MS
        done = await signals.set_switch("default", switched, "paid", value=True)
        assert done.switches == {"paid": True}
        await signals.wake("default", woken)
        (told,) = await signals.cancel("default", [cancelled], cause="enough", grace_ms=1000)
        assert told.outcome == "cancelled"
        heads = [await movers.tx.head(each) for each in (seen, switched, woken, cancelled)]
        assert [head.state for head in heads] == [
            State.SLEEPING, State.SLEEPING, State.QUEUED, State.COMPLETE,
        ]  # fmt: skip
        assert await nonces(movers) == 0
        # What has changed is to be archived once more, and leaves again.
        await movers.due()
        movers.archiver("node-b")
        await movers.drained()
        # One that was only read stays for its time, and is not written again.
        assert await movers.cached([switched, seen, woken, cancelled]) == [seen, woken, cancelled]
        row = (await movers.archive.get([cancelled]))[cancelled]
        assert (row.status, row.version) == ("cancelled", 4)


async def test_what_is_nowhere_or_another_project_s_is_unknown_and_stays_where_it_is(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_movers(store_server, tmp_path) as movers:
        (one,) = await movers.asleep_in_the_archive(1)
        assert await movers.signals.get("default", [NOBODY]) == [None]
        assert await nonces(movers) == 0, "a scan of ids leaves nothing behind"
        assert await movers.signals.get("shop", [one]) == [None]
        with pytest.raises(TransactionUnknownError):
            await movers.signals.wake("shop", one)
        assert await movers.cached([one]) == []
        assert await movers.signals.get("", [one]) != [None]


async def test_those_who_ask_at_once_share_one_load_and_one_who_leaves_ends_it_for_nobody(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_movers(store_server, tmp_path) as movers:
        (one,) = await movers.asleep_in_the_archive(1)
        archive, loader, signals = watched(movers)
        archive.go_on.clear()
        asked = [asyncio.create_task(signals.get("default", [one])) for _ in range(20)]
        async with asyncio.timeout(5):
            while not archive.reads:
                await asyncio.sleep(0.002)
        await asyncio.sleep(0.02)
        asked[0].cancel()
        archive.go_on.set()
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(found[0], asyncio.CancelledError)
        assert all(isinstance(each, list) and each[0] is not None for each in found[1:])
        assert archive.reads == [[one]]
        assert repr(loader) == "<Loader [0 loads, 0 to wake]>"


async def test_an_archive_that_is_away_is_no_reason_to_call_anything_unknown(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_movers(store_server, tmp_path) as movers:
        gone, cached = (await movers.asleep_in_the_archive(1))[0], (await movers.sleepers(1))[0]
        archive, _, signals = watched(movers)
        archive.is_away = True
        for verb in (
            signals.get("default", [gone]),
            signals.wake("default", gone),
            signals.set_switch("default", gone, "a", 1),
            signals.cancel("default", [gone], cause="x", grace_ms=1),
        ):
            with pytest.raises(ArchiveUnavailableError):
                await verb
        assert await signals.get("default", [cached]) != [None], "this one needs no archive"
        archive.is_away = False
        assert await signals.get("default", [gone]) != [None]


async def test_a_store_without_room_is_read_past_and_nothing_else_is_done(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """F-20: the state as the archive has it is the newest there is."""
    async with open_movers(store_server, tmp_path) as movers:
        (one,) = await movers.asleep_in_the_archive(1)
        await movers.tx.store.call("CONFIG", "SET", "maxmemory", 1)
        try:
            (found,) = await movers.signals.get("default", [one])
            assert found is not None
            assert (found.state, found.head.state) == (b"asleep", State.SLEEPING)
            with pytest.raises(StoreFullError):
                await movers.signals.wake("default", one)
            assert await movers.signals.get("default", [NOBODY]) == [None]
        finally:
            await movers.tx.store.call("CONFIG", "SET", "maxmemory", 0)
        await movers.signals.wake("default", one)
        assert (await movers.tx.head(one)).state is State.QUEUED


# -- By time ---------------------------------------------------------------------------------


@pytest.mark.parametrize("database", DATABASES)
async def test_thousands_that_sleep_in_the_archive_are_queued_when_their_time_comes(
    store_server: EmbeddedServer, tmp_path: Path, request: pytest.FixtureRequest, database: str
) -> None:
    url = archive_url(request, database)
    async with open_movers(store_server, tmp_path, url) as movers:
        ids = await movers.asleep_in_the_archive(1_500)
        (later,) = await movers.asleep_in_the_archive(1, delay_ms=10 * DAY_MS)
        keeper = timekeeper(movers)
        keeper.start()
        try:
            await movers.tx.machine.advance(DAY_MS / 1000)
            async with asyncio.timeout(30):
                while len(await queued(movers)) < len(ids):
                    await asyncio.sleep(0.01)
        finally:
            await keeper.stop()
        assert sorted(await queued(movers)) == sorted(ids), "each once"
        assert await movers.cached([later]) == []
        assert await nonces(movers) == 0
        assert movers.loader.room == WAITING_MAX
        sets = (await movers.tx.picture()).sets
        assert set(sets["sleepingZ"]) == {later}
        versions = {(await movers.tx.head(each)).version for each in ids[:50]}
        assert versions == {4}


async def test_what_cannot_be_loaded_sleeps_on_and_what_is_cached_wakes_meanwhile(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_movers(store_server, tmp_path) as movers:
        gone = await movers.asleep_in_the_archive(5)
        (cached,) = await movers.sleepers(1, delay_ms=DAY_MS)
        archive, loader, _ = watched(movers)
        archive.is_away = True
        keeper = timekeeper(movers, loader)
        keeper.start()
        try:
            await movers.tx.machine.advance(DAY_MS / 1000 + 1)
            async with asyncio.timeout(10):
                while await queued(movers) != [cached] or not archive.reads:
                    await asyncio.sleep(0.005)
            assert await movers.cached(gone) == []
            # After the load pause they are tried again.
            archive.is_away = False
            await movers.tx.machine.advance(LOAD_MS / 1000)
            async with asyncio.timeout(10):
                while len(await queued(movers)) < 6:
                    await asyncio.sleep(0.005)
        finally:
            await keeper.stop()
            await loader.stop()
        assert sorted(await queued(movers)) == sorted([cached, *gone])


async def test_what_is_in_no_archive_stays_and_is_looked_at_by_the_hour(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_movers(store_server, tmp_path) as movers:
        (one,) = await movers.sleepers(1)
        await movers.tx.store.call("DEL", names.state(one))
        await movers.tx.machine.advance(DAY_MS / 1000 + 1)
        due = await movers.signals.wake_due(CELL, loads=10)
        movers.loader.wake(CELL, due.missing)
        now_ms = await movers.tx.now_ms()
        async with asyncio.timeout(5):
            while (await movers.tx.picture()).sets["sleepingZ"][one] < now_ms + 3_500_000:
                await asyncio.sleep(0.005)
        assert await queued(movers) == []


async def test_what_waited_too_long_to_be_loaded_is_left_to_whoever_has_it_by_now(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_movers(store_server, tmp_path) as movers:
        archive, loader, _ = watched(movers)
        archive.go_on.clear()
        for batch in range(4):
            ids = [f"tx-0000{batch:036x}"]
            loader.wake(CELL, [Missing(each, "1") for each in ids])
            await asyncio.sleep(0.01)
        # Two are being read, two wait.
        assert len(archive.reads) == 2
        assert loader.room == WAITING_MAX - 2
        await movers.tx.machine.advance(LOAD_MS / 1000 + 1)
        archive.go_on.set()
        async with asyncio.timeout(5):
            while loader.room < WAITING_MAX:
                await asyncio.sleep(0.002)
        await loader.stop()
        assert len(archive.reads) == 2


async def test_an_archived_transaction_ends_at_its_deadline(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_movers(store_server, tmp_path) as movers:
        (one,) = await movers.asleep_in_the_archive(1, deadline_in_ms=DAY_MS // 2)
        keeper = timekeeper(movers)
        keeper.start()
        try:
            await movers.tx.machine.advance(DAY_MS / 2000)
            async with asyncio.timeout(10):
                while not await movers.cached([one]):
                    await asyncio.sleep(0.005)
                while (head := await movers.tx.head(one)).state is not State.COMPLETE:
                    await asyncio.sleep(0.005)
        finally:
            await keeper.stop()
        assert head.status is Status.TIMEOUT


async def test_children_that_are_nowhere_do_not_hold_up_the_others(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_movers(store_server, tmp_path) as movers:
        tx = movers.tx
        parents = [await waiting_parent(tx, 3) for _ in range(2)]
        first, last = ([names.child_id(each, 1, n) for each in parents] for n in (1, 3))
        await tx.store.call("DEL", *map(names.state, first))
        await tx.signals.cancel("default", parents, cause="enough", grace_ms=GRACE_MS)
        keeper = timekeeper(movers)
        keeper.start()
        try:
            async with asyncio.timeout(15):
                while await tx.store.call("ZCARD", names.sorted_set(CELL, "sweepZ")):
                    await asyncio.sleep(0.01)
        finally:
            await keeper.stop()
        assert {(await tx.head(each)).status for each in last} == {Status.CANCELLED}
