"""Rescue: what a dead worker held comes back, late commits are refused, and poison ends."""

from __future__ import annotations

import asyncio

from tests.transactions.cell_store import LEASE_MS, STATE, TERMS, CellStore, open_cell_store
from waystation.store.embedded.server import EmbeddedServer
from waystation.transactions import names
from waystation.transactions.cells import BATCH_MAX
from waystation.transactions.held import Due, Held
from waystation.transactions.holding import Claimed
from waystation.transactions.progress import Commit, Finish, Progress
from waystation.transactions.states import State, Status

RESCUES_MAX = 3


async def rescue(cells: CellStore, *, most: int = BATCH_MAX) -> Due:
    return await cells.holding.rescue(0, most=most, rescues_max=RESCUES_MAX)


async def died(cells: CellStore) -> Due:
    """A worker dies: its leases run out, and somebody looks."""
    await cells.machine.advance(LEASE_MS / 1000 + 1)
    return await rescue(cells)


async def run_and_die(cells: CellStore) -> Claimed:
    """A worker claims a suspect, begins it, and dies of it."""
    (item,) = (await cells.claim()).items
    assert (await cells.holding.begin(item.held)).outcome == "done"
    assert (await died(cells)).done == 1
    return item


async def test_what_nobody_renews_goes_back_to_the_head_of_its_queue_as_a_suspect(
    store_server: EmbeddedServer,
) -> None:
    async with open_cell_store(store_server) as cells:
        ids = [await cells.start() for _ in range(4)]
        await cells.claim(most=2)
        assert (await died(cells)).done == 2

        assert sorted((await cells.listed("qInL:workers"))[:2]) == sorted(ids[:2])
        assert (await cells.listed("qInL:workers"))[2:] == ids[2:]
        head = await cells.head(ids[0])
        assert (head.state, head.flags, head.epoch, head.version) == (State.QUEUED, "s", 2, 3)
        assert (head.rescues, head.node) == (0, "")
        assert await cells.scores("leaseZ") == {}
        assert await cells.scores("processingZ") == {}
        entry = (await cells.entries())[-1]
        assert {(fact.kind, fact.id, fact.epoch) for fact in entry} == {
            ("rescued", each, 2) for each in ids[:2]
        }
        # It is done: another look finds nothing.
        assert await rescue(cells) == Due(0, -1)


async def test_nothing_is_rescued_before_its_lease_is_over_and_the_next_time_is_told(
    store_server: EmbeddedServer,
) -> None:
    async with open_cell_store(store_server) as cells:
        item = await cells.started_and_claimed()
        due = await rescue(cells)
        assert due.done == 0
        assert LEASE_MS - 2000 < due.next_ms <= LEASE_MS
        assert (await cells.head(item.id)).state is State.RUNNING


async def test_it_goes_back_to_the_queue_that_it_came_from(store_server: EmbeddedServer) -> None:
    async with open_cell_store(store_server) as cells:
        started = await cells.start()
        key = names.state(started)
        words = (await cells.store.call("HGET", key, "head")).decode().split(" ")
        words[7] = "out"
        await cells.store.call("HSET", key, "head", " ".join(words))
        await cells.claim()
        await died(cells)
        assert await cells.listed("qOutL:workers") == [started]
        assert await cells.listed("qInL:workers") == []


async def test_a_late_holder_is_refused_whatever_it_says(store_server: EmbeddedServer) -> None:
    """F-13: its commit is refused, and the state has the effect of the other one alone."""
    async with open_cell_store(store_server) as cells:
        progress = Progress(cells.store, TERMS)
        late = await cells.started_and_claimed()
        await died(cells)
        for moment in ("queued", "running", "complete"):
            if moment == "running":
                (item,) = (await cells.claim()).items
            if moment == "complete":
                done = Finish(held=item.held, state=b"theirs", status=Status.SUCCESS, output=b"1")
                assert (await progress.finish(0, [done]))[0].outcome == "done"
            before = await cells.fields(late.id)
            commit = Commit(held=late.held, state=b"mine")
            assert (await progress.commit(0, [commit]))[0].outcome == "refused"
            assert (await cells.holding.begin(late.held)).outcome == "refused"
            assert (await cells.holding.release(0, [late.held]))[0].outcome == "refused"
            assert await cells.fields(late.id) == before
        assert (await cells.fields(late.id))["state"] == b"theirs"


async def test_the_death_of_a_process_does_not_count_against_what_it_had_not_begun(
    store_server: EmbeddedServer,
) -> None:
    """F-18: one poison does not fail the hundreds that were claimed beside it."""
    async with open_cell_store(store_server) as cells:
        await cells.entry.start(0, [cells.new() for _ in range(BATCH_MAX)])
        for death in range(1, 3 * RESCUES_MAX):
            assert len((await cells.claim()).items) == BATCH_MAX
            assert (await died(cells)).done == BATCH_MAX
            head = await cells.head((await cells.listed("qInL:workers"))[0])
            assert (head.state, head.rescues, head.epoch) == (State.QUEUED, 0, 2 * death)


async def test_a_suspect_that_kills_its_process_again_and_again_is_completed_with_its_cause(
    store_server: EmbeddedServer,
) -> None:
    """F-18: it ends after the maximum of begun rescues."""
    async with open_cell_store(store_server) as cells:
        started = await cells.start(external_id="r-1", deadline_in_ms=86_400_000)
        await cells.claim()
        await died(cells)
        for count in range(1, RESCUES_MAX + 1):
            await run_and_die(cells)
            head = await cells.head(started)
            assert (head.state, head.rescues, head.flags) == (State.QUEUED, count, "eds")
        last = await run_and_die(cells)

        head = await cells.head(started)
        assert (head.state, head.status) == (State.COMPLETE, Status.INTERNAL_ERROR)
        assert head.epoch == last.head.epoch + 1
        fields = await cells.fields(started)
        assert fields["cause"] == b"rescued too often"
        assert fields["state"] == STATE
        for gone in ("processingZ", "leaseZ", "deadlineZ"):
            assert await cells.scores(gone) == {}, gone
        assert await cells.listed("qInL:workers") == []
        assert await cells.scores("toArchiveZ") == {started: head.since + TERMS.archive_delay_ms}
        external = names.external_id(0, "default", "r-1")
        assert 0 < await cells.store.call("PTTL", external) <= TERMS.external_id_ms
        fact = (await cells.facts())[-1]
        assert (fact.kind, fact.status, fact.cause) == (
            "rescued",
            "internal-error",
            "rescued too often",
        )
        assert fact.version == head.version
        assert [each.kind for each in await cells.facts()] == ["started"] + ["rescued"] * 5


async def test_a_commit_clears_the_suspicion_and_its_count(store_server: EmbeddedServer) -> None:
    async with open_cell_store(store_server) as cells:
        progress = Progress(cells.store, TERMS)
        started = await cells.start()
        await cells.claim()
        await died(cells)
        await run_and_die(cells)
        (item,) = (await cells.claim()).items
        assert item.head.suspect
        await cells.holding.begin(item.held)
        (verdict,) = await progress.commit(0, [Commit(held=item.held, state=b"next")])
        assert verdict.outcome == "done"
        head = await cells.head(started)
        assert (head.flags, head.rescues, head.state) == ("", 0, State.RUNNING)


async def test_a_suspect_that_was_released_has_not_begun(store_server: EmbeddedServer) -> None:
    async with open_cell_store(store_server) as cells:
        started = await cells.start()
        await cells.claim()
        await died(cells)
        (item,) = (await cells.claim()).items
        await cells.holding.begin(item.held)
        await cells.holding.release(0, [item.held])
        assert (await cells.head(started)).flags == "s"
        await cells.claim()
        await died(cells)
        assert (await cells.head(started)).rescues == 0


async def test_what_is_in_the_sets_and_does_not_run_is_taken_off_them(
    store_server: EmbeddedServer,
) -> None:
    async with open_cell_store(store_server) as cells:
        items = [await cells.started_and_claimed() for _ in range(2)]
        ghost = f"tx-{'0' * 40}"
        for each in (ghost, items[0].id):
            await cells.store.call("ZADD", names.sorted_set(0, "leaseZ"), 1, each)
            await cells.store.call("ZADD", names.sorted_set(0, "processingZ"), 1, each)
        key = names.state(items[0].id)
        line = (await cells.store.call("HGET", key, "head")).replace(b"running", b"sleeping")
        await cells.store.call("HSET", key, "head", line)
        assert (await rescue(cells)).done == 0
        assert list(await cells.scores("leaseZ")) == [items[1].id]
        assert list(await cells.scores("processingZ")) == [items[1].id]
        assert await cells.store.call("EXISTS", names.state(ghost)) == 0


async def test_a_pass_is_bounded_and_says_that_there_is_more(store_server: EmbeddedServer) -> None:
    async with open_cell_store(store_server) as cells:
        await cells.entry.start(0, [cells.new() for _ in range(30)])
        await cells.claim()
        await cells.machine.advance(LEASE_MS / 1000 + 1)
        assert await rescue(cells, most=20) == Due(20, 0)
        assert await rescue(cells, most=20) == Due(10, -1)


async def test_two_who_rescue_at_once_rescue_each_once(store_server: EmbeddedServer) -> None:
    async with open_cell_store(store_server) as cells:
        await cells.entry.start(0, [cells.new() for _ in range(BATCH_MAX)])
        await cells.claim()
        await cells.machine.advance(LEASE_MS / 1000 + 1)
        passes = await asyncio.gather(*(rescue(cells, most=30) for _ in range(8)))
        assert sum(each.done for each in passes) == BATCH_MAX
        queued = await cells.listed("qInL:workers")
        assert len(queued) == len(set(queued)) == BATCH_MAX
        assert len([fact for fact in await cells.facts() if fact.kind == "rescued"]) == BATCH_MAX


async def test_workers_are_called_when_a_rescue_fills_an_empty_queue(
    store_server: EmbeddedServer,
) -> None:
    async with open_cell_store(store_server) as cells:
        heard: list[bytes | None] = []
        await cells.started_and_claimed()
        await cells.machine.advance(LEASE_MS / 1000 + 1)
        cells.wakeups.listen(names.work_topic(0, "workers"), heard.append)
        while not heard:
            await asyncio.sleep(0.005)
        heard.clear()
        await rescue(cells)
        async with asyncio.timeout(5):
            while not heard:
                await asyncio.sleep(0.005)
        assert heard == [b"queued"]


async def test_an_epoch_that_is_ahead_of_the_store_is_refused(
    store_server: EmbeddedServer,
) -> None:
    async with open_cell_store(store_server) as cells:
        item = await cells.started_and_claimed()
        ahead = Held(item.id, 7, 0)
        assert (await cells.holding.release(0, [ahead]))[0].outcome == "refused"
