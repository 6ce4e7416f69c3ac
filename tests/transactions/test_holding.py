"""Claim, renew, begin, release, reclaim: one holder per epoch; what is not queued is dropped."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.transactions.cell_store import LEASE_MS, STATE, CellStore, open_cell_store
from waystation.store.embedded.server import EmbeddedServer
from waystation.transactions import holding, names
from waystation.transactions.cells import BATCH_MAX
from waystation.transactions.held import Held
from waystation.transactions.holding import RENEW, RENEW_MAX, Claimed
from waystation.transactions.states import State


async def renew(cells: CellStore, *pairs: tuple[str, int], lease_ms: int = LEASE_MS) -> Any:
    """Lost ids, and ids that are to end."""
    words = [word for pair in pairs for word in pair]
    _, lost, stopping = await cells.store.run(RENEW, [names.log(0)], [lease_ms, *words])
    return [each.decode() for each in lost], [each.decode() for each in stopping]


async def set_flags(cells: CellStore, transaction_id: str, flags: str) -> None:
    """Sets the flags of a head by hand, as another script would."""
    key = names.state(transaction_id)
    words = (await cells.store.call("HGET", key, "head")).decode().split(" ")
    words[5] = flags
    await cells.store.call("HSET", key, "head", " ".join(words))


async def set_word(cells: CellStore, transaction_id: str, number: int, word: str) -> None:
    key = names.state(transaction_id)
    words = (await cells.store.call("HGET", key, "head")).decode().split(" ")
    words[number - 1] = word
    await cells.store.call("HSET", key, "head", " ".join(words))


# -- Claim -----------------------------------------------------------------------------------


async def test_a_claim_makes_what_is_queued_run_under_a_lease_and_a_new_epoch(
    store_server: EmbeddedServer,
) -> None:
    async with open_cell_store(store_server) as cells:
        started = await cells.start()
        claim = await cells.claim(number=12)
        (item,) = claim.items
        assert (item.id, item.state, item.extras) == (started, STATE, {})
        assert item.head == await cells.head(started)
        assert (item.head.state, item.head.version) == (State.RUNNING, 2)
        assert (item.head.epoch, item.head.commits, item.head.node) == (1, 0, "n1:12")
        assert item.head.since == claim.now_ms
        assert item.held == Held(started, 1, 0)
        assert await cells.scores("processingZ") == {started: claim.now_ms}
        assert await cells.scores("leaseZ") == {started: claim.now_ms + LEASE_MS}
        assert await cells.listed("qInL:workers") == []
        assert (claim.left, claim.dropped, claim.admin, claim.log_end) == (0, 0, 0, 1)
        # What comes of a claim is recorded, not the claim.
        assert [fact.kind for fact in await cells.facts()] == ["started"]
        assert (await cells.counts())["g:::workers:::o:::default:::p:::refund:::claimed"] == 1


async def test_what_goes_on_is_claimed_before_what_begins_and_each_in_order(
    store_server: EmbeddedServer,
) -> None:
    async with open_cell_store(store_server) as cells:
        ids = [await cells.start() for _ in range(6)]
        queue_in, queue_out = names.queue_in(0, "workers"), names.queue_out(0, "workers")
        for each in ids[3:]:
            await set_word(cells, each, 8, "out")
            await cells.store.call("LREM", queue_in, 1, each)
            await cells.store.call("RPUSH", queue_out, each)
        first = await cells.claim(most=4)
        assert [each.id for each in first.items] == [*ids[3:], ids[0]]
        assert first.left == 2
        second = await cells.claim(most=4)
        assert [each.id for each in second.items] == ids[1:3]
        assert second.left == 0


async def test_a_claim_takes_no_more_than_was_asked_for_and_tells_what_is_left(
    store_server: EmbeddedServer,
) -> None:
    async with open_cell_store(store_server) as cells:
        await cells.entry.start(0, [cells.new() for _ in range(BATCH_MAX)])
        assert (await cells.claim(most=0)).left == BATCH_MAX
        claim = await cells.claim(most=30)
        assert (len(claim.items), claim.left) == (30, 70)
        claim = await cells.claim(most=70)
        assert (len(claim.items), claim.left) == (70, 0)
        empty = await cells.claim()
        assert (empty.items, empty.left, empty.dropped) == ([], 0, 0)


async def test_an_empty_claim_writes_nothing(store_server: EmbeddedServer) -> None:
    async with open_cell_store(store_server) as cells:
        await cells.claim()
        assert await cells.keys() == set()
        assert await cells.entries() == []


async def test_two_who_claim_at_once_never_get_the_same(store_server: EmbeddedServer) -> None:
    async with open_cell_store(store_server) as cells:
        items = [cells.new() for _ in range(BATCH_MAX)]
        await cells.entry.start(0, items)
        claims = await asyncio.gather(*(cells.claim(most=7, number=n) for n in range(20)))
        claimed = [each.id for claim in claims for each in claim.items]
        assert sorted(claimed) == sorted(each.id for each in items)


async def test_what_is_in_a_queue_and_not_queued_is_dropped_and_counted_and_never_brought_back(
    store_server: EmbeddedServer,
) -> None:
    async with open_cell_store(store_server) as cells:
        ids = [await cells.start() for _ in range(4)]
        await cells.store.call("DEL", names.state(ids[0]))
        await set_word(cells, ids[1], 2, "complete")
        await set_word(cells, ids[1], 11, "cancelled")
        await set_word(cells, ids[2], 2, "sleeping")
        before = {each: await cells.fields(each) for each in ids[:3]}
        claim = await cells.claim()
        assert [each.id for each in claim.items] == [ids[3]]
        assert (claim.dropped, claim.left) == (3, 0)
        assert await cells.listed("qInL:workers") == []
        assert {each: await cells.fields(each) for each in ids[:3]} == before
        counts = await cells.counts()
        assert counts["dropped:::not-queued"] == 2
        assert counts["dropped:::cancelled"] == 1
        assert list(await cells.scores("processingZ")) == [ids[3]]


async def test_a_broken_head_or_a_missing_state_stops_nobody_else(
    store_server: EmbeddedServer,
) -> None:
    """F-19: poison in the store is dropped and counted, not met again and again."""
    async with open_cell_store(store_server) as cells:
        ids = [await cells.start() for _ in range(4)]
        await cells.store.call("HSET", names.state(ids[0]), "head", "junk")
        await cells.store.call("HDEL", names.state(ids[1]), "state")
        await cells.store.call("HSET", names.state(ids[2]), "head", "1 complete x")
        claim = await cells.claim()
        assert [each.id for each in claim.items] == [ids[3]]
        assert claim.dropped == 3
        assert await cells.listed("qInL:workers") == []
        await cells.store.call("HSET", names.state(ids[3]), "head", "junk")
        assert (await renew(cells, (ids[3], 1)))[0] == [ids[3]]
        assert (await cells.holding.begin(claim.items[0].held)).outcome == "unknown"
        assert (await cells.holding.release(0, [claim.items[0].held]))[0].outcome == "unknown"
        await cells.machine.advance(LEASE_MS / 1000 + 1)
        assert (await cells.holding.rescue(0, most=10, rescues_max=3)).done == 0
        assert await cells.scores("leaseZ") == {}


async def test_a_claim_stops_when_it_has_enough_bytes_and_leaves_the_rest(
    store_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holding, "CLAIM_BYTES_MAX", 2500)
    async with open_cell_store(store_server) as cells:
        ids = [await cells.start(state=b"x" * 1000) for _ in range(5)]
        claim = await cells.claim()
        assert [each.id for each in claim.items] == ids[:3]
        assert claim.left == 2
        assert await cells.listed("qInL:workers") == ids[3:]


async def test_further_fields_come_with_a_claim_where_there_are_some(
    store_server: EmbeddedServer,
) -> None:
    async with open_cell_store(store_server) as cells:
        started = await cells.start(external_id="r-1")
        await set_flags(cells, started, "ex")
        await cells.store.call("HSET", names.state(started), "switches", "a=1", "once:1:x", "\x00")
        (item,) = (await cells.claim()).items
        assert item.extras == {b"externalId": b"r-1", b"switches": b"a=1", b"once:1:x": b"\x00"}
        assert item.state == STATE


async def test_node_groups_have_queues_of_their_own(store_server: EmbeddedServer) -> None:
    async with open_cell_store(store_server) as cells:
        await cells.start(group="others")
        assert (await cells.claim()).items == []
        assert len((await cells.claim(group="others")).items) == 1


# -- Paused ----------------------------------------------------------------------------------


async def test_what_begins_a_paused_pipeline_is_held_in_order_and_the_rest_runs(
    store_server: EmbeddedServer,
) -> None:
    async with open_cell_store(store_server) as cells:
        await cells.define("other")
        await cells.define(project="shop")
        held = [await cells.start() for _ in range(2)]
        runs = [await cells.start(pipeline="other"), await cells.start(owner="shop")]
        goes_on = await cells.start()
        await set_word(cells, goes_on, 8, "out")
        await cells.store.call("LREM", names.queue_in(0, "workers"), 1, goes_on)
        await cells.store.call("RPUSH", names.queue_out(0, "workers"), goes_on)
        await cells.define(paused=True)

        claim = await cells.claim()
        assert [each.id for each in claim.items] == [goes_on, *runs]
        assert claim.dropped == 0
        assert await cells.listed("holdL:refund") == held
        for each in held:
            head = await cells.head(each)
            assert (head.state, head.version, head.epoch) == (State.HELD, 2, 0)
        entry = (await cells.entries())[-1]
        assert [(fact.kind, fact.id, fact.state) for fact in entry] == [
            ("held", each, "held") for each in held
        ]
        assert claim.log_end == len(await cells.entries())


async def test_pausing_is_a_matter_of_the_project_too(store_server: EmbeddedServer) -> None:
    async with open_cell_store(store_server) as cells:
        await cells.define(project="shop", paused=True)
        mine, theirs = await cells.start(), await cells.start(owner="shop")
        assert [each.id for each in (await cells.claim()).items] == [mine]
        assert await cells.listed("holdL:shop.refund") == [theirs]


async def test_admin_events_are_applied_by_the_claim_that_takes_them(
    store_server: EmbeddedServer,
) -> None:
    async with open_cell_store(store_server) as cells:
        heard: list[bytes | None] = []
        cells.wakeups.listen(names.NODES.encode(), heard.append)
        while not heard:
            await asyncio.sleep(0.005)
        events = [f"set workers {n}" for n in range(9)]
        bad = ["set revision 9", "set x", "nonsense", "set a b c"]
        await cells.store.call("RPUSH", names.queue_admin("workers"), *events, *bad)
        assert (await cells.claim()).admin == 10
        assert (await cells.claim()).admin == 3
        assert (await cells.claim()).admin == 0
        settings = await cells.store.call("HGETALL", names.node_group("workers"))
        assert settings == [b"workers", b"8", b"revision", b"1"]
        assert (await cells.counts())["admin:::unreadable"] == 4
        while len(heard) < 2:
            await asyncio.sleep(0.005)
        assert heard[1:] == [b"workers"]


async def test_a_paused_node_group_gets_nothing_until_it_goes_on(
    store_server: EmbeddedServer,
) -> None:
    async with open_cell_store(store_server) as cells:
        await cells.start()
        await cells.store.call("RPUSH", names.queue_admin("workers"), "set paused 1")
        claim = await cells.claim()
        assert (claim.items, claim.left, claim.admin) == ([], 0, 1)
        assert len(await cells.listed("qInL:workers")) == 1
        await cells.store.call("RPUSH", names.queue_admin("workers"), "set paused 0")
        assert len((await cells.claim()).items) == 1


# -- Lost replies ----------------------------------------------------------------------------


async def test_a_claim_whose_reply_was_lost_is_found_by_its_number(
    store_server: EmbeddedServer,
) -> None:
    async with open_cell_store(store_server) as cells:
        await cells.entry.start(0, [cells.new() for _ in range(10)])
        since_ms = (await cells.claim(most=2, number=1)).now_ms
        lost = await cells.claim(most=3, number=2)
        await cells.claim(most=3, number=3)
        await cells.claim(most=2, number=2, node="n2")
        await set_flags(cells, lost.items[0].id, "x")
        await cells.store.call("HSET", names.state(lost.items[0].id), "switches", "a=1")

        found = await cells.holding.reclaim(0, node="n1", number=2, since_ms=since_ms)
        assert {each.id for each in found.items} == {each.id for each in lost.items}
        assert {each.held for each in found.items} == {each.held for each in lost.items}
        by_id = {each.id: each for each in found.items}
        assert by_id[lost.items[0].id].extras == {b"switches": b"a=1"}
        assert (found.log_end, found.left, found.dropped) == (1, 0, 0)
        assert found.now_ms >= lost.now_ms

        nothing = await cells.holding.reclaim(0, node="n1", number=9, since_ms=since_ms)
        assert nothing.items == []


async def test_a_lost_claim_is_found_among_thousands_that_run(
    store_server: EmbeddedServer,
) -> None:
    async with open_cell_store(store_server) as cells:
        since_ms = (await cells.claim()).now_ms
        for number in range(1, 6):
            await cells.entry.start(0, [cells.new() for _ in range(BATCH_MAX)])
            # All in one turn: many of them in one millisecond.
            await asyncio.gather(*(cells.claim(most=20, number=number) for _ in range(5)))
        found = await cells.holding.reclaim(0, node="n1", number=4, since_ms=since_ms)
        assert len(found.items) == BATCH_MAX
        assert all(each.head.node == "n1:4" for each in found.items)


async def test_what_was_rescued_meanwhile_is_not_reclaimed(store_server: EmbeddedServer) -> None:
    async with open_cell_store(store_server) as cells:
        await cells.start()
        claim = await cells.claim(number=2)
        await cells.holding.release(0, [claim.items[0].held])
        found = await cells.holding.reclaim(0, node="n1", number=2, since_ms=claim.now_ms)
        assert found.items == []


# -- Renew -----------------------------------------------------------------------------------


async def test_renewing_moves_the_leases_of_the_holder_and_tells_which_are_lost(
    store_server: EmbeddedServer,
) -> None:
    async with open_cell_store(store_server) as cells:
        await cells.entry.start(0, [cells.new() for _ in range(4)])
        items = (await cells.claim()).items
        await cells.machine.advance(3)
        await cells.holding.release(0, [items[1].held])
        unknown = f"tx-{'0' * 40}"
        leases = await cells.scores("leaseZ")
        lost, stopping = await renew(
            cells,
            (items[0].id, 1),
            (items[1].id, 1),
            (items[2].id, 2),
            (unknown, 1),
        )
        assert lost == [items[1].id, items[2].id, unknown]
        assert stopping == []
        renewed = await cells.scores("leaseZ")
        assert renewed[items[0].id] >= leases[items[0].id] + 3000
        assert renewed[items[2].id] == leases[items[2].id]
        assert renewed[items[3].id] == leases[items[3].id]
        assert set(renewed) == {items[0].id, items[2].id, items[3].id}


async def test_renewing_tells_which_are_to_end(store_server: EmbeddedServer) -> None:
    async with open_cell_store(store_server) as cells:
        await cells.entry.start(0, [cells.new() for _ in range(3)])
        items = (await cells.claim()).items
        await set_flags(cells, items[0].id, "ec")
        await set_flags(cells, items[1].id, "t")
        lost, stopping = await renew(cells, *((each.id, 1) for each in items))
        assert (lost, stopping) == ([], [items[0].id, items[1].id])


async def test_a_lease_that_is_over_and_nobody_noticed_is_renewed(
    store_server: EmbeddedServer,
) -> None:
    async with open_cell_store(store_server) as cells:
        item = await cells.started_and_claimed()
        await cells.machine.advance(60)
        assert await renew(cells, (item.id, 1)) == ([], [])
        assert (await cells.holding.rescue(0, most=100, rescues_max=3)).done == 0


async def test_renew_with_the_largest_number_of_ids_renews_all(
    store_server: EmbeddedServer,
) -> None:
    async with open_cell_store(store_server) as cells:
        items: list[Claimed] = []
        while len(items) < RENEW_MAX:
            await cells.entry.start(0, [cells.new() for _ in range(BATCH_MAX)])
            items += (await cells.claim()).items
        words = [word for each in items for word in (each.id, each.head.epoch)]
        for _ in range(2):
            reply = await cells.store.run(RENEW, [names.log(0)], [60_000, *words])
            assert reply[1:] == [[], []]
        now_ms = (await cells.claim()).now_ms
        assert min((await cells.scores("leaseZ")).values()) > now_ms + LEASE_MS


# -- Begin and release -----------------------------------------------------------------------


async def test_begin_marks_what_is_held_and_refuses_everyone_else(
    store_server: EmbeddedServer,
) -> None:
    async with open_cell_store(store_server) as cells:
        item = await cells.started_and_claimed()
        verdict = await cells.holding.begin(item.held)
        assert (verdict.outcome, verdict.version, verdict.log_end) == ("done", 3, 1)
        assert (await cells.head(item.id)).flags == "b"
        # Sent again, it changes nothing.
        assert await cells.holding.begin(item.held) == verdict

        for wrong in (Held(item.id, 0, 0), Held(item.id, 2, 0), Held(item.id, 1, 1)):
            assert (await cells.holding.begin(wrong)).outcome == "refused"
        assert (await cells.holding.begin(Held(f"tx-{'0' * 40}", 1, 0))).outcome == "unknown"
        assert (await cells.head(item.id)).version == 3
        await cells.holding.release(0, [item.held])
        assert (await cells.holding.begin(item.held)).outcome == "refused"


async def test_what_is_released_goes_to_the_head_of_its_queue_in_order_and_counts_nothing(
    store_server: EmbeddedServer,
) -> None:
    async with open_cell_store(store_server) as cells:
        ids = [await cells.start() for _ in range(5)]
        items = (await cells.claim(most=3)).items
        await cells.holding.begin(items[0].held)
        await set_word(cells, items[2].id, 8, "out")
        verdicts = await cells.holding.release(0, [each.held for each in items])
        assert [each.outcome for each in verdicts] == ["done"] * 3
        assert [each.version for each in verdicts] == [4, 3, 3]
        assert {each.log_end for each in verdicts} == {len(await cells.entries())}
        assert await cells.listed("qInL:workers") == [*ids[:2], *ids[3:]]
        assert await cells.listed("qOutL:workers") == [ids[2]]
        head = await cells.head(ids[0])
        assert (head.state, head.flags, head.rescues, head.node) == (State.QUEUED, "", 0, "")
        assert await cells.scores("processingZ") == {}
        assert await cells.scores("leaseZ") == {}
        entry = (await cells.entries())[-1]
        assert [(fact.kind, fact.id) for fact in entry] == [("released", each) for each in ids[:3]]


async def test_a_release_that_is_sent_again_is_known_and_another_holders_is_refused(
    store_server: EmbeddedServer,
) -> None:
    async with open_cell_store(store_server) as cells:
        item = await cells.started_and_claimed()
        other = Held(f"tx-{'0' * 40}", 1, 0)
        first = await cells.holding.release(0, [item.held, other])
        assert [each.outcome for each in first] == ["done", "unknown"]
        again = await cells.holding.release(0, [item.held, other])
        assert [each.outcome for each in again] == ["known", "unknown"]
        assert again[0].version == first[0].version
        assert await cells.listed("qInL:workers") == [item.id]
        assert [fact.kind for fact in await cells.facts()] == ["started", "released"]

        (claimed,) = (await cells.claim()).items
        assert claimed.head.epoch == 2
        (late,) = await cells.holding.release(0, [item.held])
        assert late.outcome == "refused"
        (wrong,) = await cells.holding.release(0, [Held(item.id, 2, 5)])
        assert wrong.outcome == "refused"
        assert (await cells.head(item.id)).state is State.RUNNING
