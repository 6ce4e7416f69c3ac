"""Start: each whole or not at all, with its reason; external ids; one entry in the record log."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.transactions.cell_store import STATE, TERMS, CellStore, open_cell_store
from waystation.errors import LogFullError, LogNotFoundError, StoreFullError, StoreReplyError
from waystation.logs.protocol import Retention
from waystation.store.embedded.server import EmbeddedServer
from waystation.transactions import names
from waystation.transactions.cells import BATCH_MAX
from waystation.transactions.entry import Started
from waystation.transactions.states import State

DAY_MS = 86_400_000


async def outcomes(cells: CellStore, *items: object) -> list[tuple[str, str]]:
    started = await cells.entry.start(0, items)  # type: ignore[arg-type]
    return [(each.outcome, each.detail) for each in started]


async def test_a_start_writes_the_state_the_queue_the_record_and_the_count(
    store_server: EmbeddedServer,
) -> None:
    async with open_cell_store(store_server) as cells:
        before = int(time.time() * 1000)
        started = await cells.start(detail=b"\x91\x07")

        head = await cells.head(started)
        assert before - 5000 < head.since < before + 60_000
        assert (head.state, head.version, head.epoch, head.commits) == (State.QUEUED, 1, 0, 0)
        assert (head.group, head.queue, head.pipeline) == ("workers", "in", "refund")
        assert (head.owner, head.status, head.wake, head.switch) == ("default", None, 0, "")
        assert (head.flags, head.rescues, head.node, head.archive) == ("", 0, "", "")
        assert await cells.fields(started) == {
            "head": (await cells.fields(started))["head"],
            "state": STATE,
        }
        assert await cells.listed("qInL:workers") == [started]
        (fact,) = await cells.facts()
        assert (fact.kind, fact.id, fact.version, fact.epoch) == ("started", started, 1, 0)
        assert (fact.state, fact.status, fact.cause) == ("queued", "", "")
        assert fact.detail == b"\x91\x07"
        assert await cells.counts() == {"g:::workers:::o:::default:::p:::refund:::started": 1}


async def test_a_batch_is_one_entry_in_the_log_and_keeps_its_order_in_the_queue(
    store_server: EmbeddedServer,
) -> None:
    async with open_cell_store(store_server) as cells:
        items = [cells.new() for _ in range(BATCH_MAX)]
        started = await cells.entry.start(0, items)
        assert started == [Started("started")] * BATCH_MAX
        assert await cells.listed("qInL:workers") == [each.id for each in items]
        (entry,) = await cells.entries()
        assert [fact.id for fact in entry] == [each.id for each in items]
        assert sum((await cells.counts()).values()) == BATCH_MAX


async def test_more_ids_than_a_call_may_have_are_a_mistake_of_the_caller(
    store_server: EmbeddedServer,
) -> None:
    """F-22: no loop in a script is longer than 100 ids."""
    async with open_cell_store(store_server) as cells:
        with pytest.raises(AssertionError, match="more ids"):
            await cells.entry.start(0, [cells.new() for _ in range(BATCH_MAX + 1)])
        with pytest.raises(AssertionError, match="more ids"):
            await cells.claim(most=BATCH_MAX + 1)
        with pytest.raises(AssertionError, match="more ids"):
            await cells.holding.rescue(0, most=BATCH_MAX + 1, rescues_max=3)
        assert await cells.keys() == set()


async def test_every_item_is_answered_by_itself_and_a_refused_one_leaves_nothing_behind(
    store_server: EmbeddedServer,
) -> None:
    async with open_cell_store(store_server) as cells:
        await cells.define("inner", type_=False)
        good, later = cells.new(external_id="r-1"), cells.new()
        bad = [
            cells.new(pipeline="absent", external_id="a"),
            cells.new(pipeline="inner", external_id="b"),
            cells.new(version="v0", external_id="c"),
            cells.new(external_id="r-1"),
            cells.new(owner="shop", external_id="d"),
        ]
        assert await outcomes(cells, bad[0], good, *bad[1:], later) == [
            ("unknown-pipeline", ""),
            ("started", ""),
            ("not-a-type", ""),
            ("stale", "v1"),
            ("duplicate", good.id),
            ("unknown-pipeline", ""),
            ("started", ""),
        ]
        metric = {key for key in await cells.keys() if ":metric1H:" in key}
        assert await cells.keys() - metric == {
            names.state(good.id),
            names.state(later.id),
            names.queue_in(0, "workers"),
            names.external_id(0, "default", "r-1"),
        }
        assert [fact.id for fact in await cells.facts()] == [good.id, later.id]


async def test_a_call_in_which_nothing_starts_writes_no_record(
    store_server: EmbeddedServer,
) -> None:
    async with open_cell_store(store_server) as cells:
        assert await outcomes(cells, cells.new(version="v0")) == [("stale", "v1")]
        assert await cells.entries() == []
        assert await cells.keys() == set()


async def test_a_start_that_is_sent_again_is_known_and_happens_once(
    store_server: EmbeddedServer,
) -> None:
    async with open_cell_store(store_server) as cells:
        plain, named = cells.new(), cells.new(external_id="r-1")
        assert await outcomes(cells, plain, named) == [("started", "")] * 2
        assert await outcomes(cells, plain, named) == [("known", "queued")] * 2
        assert await outcomes(cells, plain, plain) == [("known", "queued")] * 2
        assert await cells.listed("qInL:workers") == [plain.id, named.id]
        assert len(await cells.entries()) == 1

        await cells.claim()
        assert await outcomes(cells, plain) == [("known", "running")]
        assert await cells.listed("qInL:workers") == []


async def test_the_same_id_twice_in_one_call_is_started_once(store_server: EmbeddedServer) -> None:
    async with open_cell_store(store_server) as cells:
        item = cells.new()
        assert await outcomes(cells, item, item) == [("started", ""), ("known", "queued")]
        assert await cells.listed("qInL:workers") == [item.id]
        assert len(await cells.facts()) == 1


async def test_an_external_id_leads_to_one_transaction_and_has_no_expiry_while_it_lives(
    store_server: EmbeddedServer,
) -> None:
    async with open_cell_store(store_server) as cells:
        first = await cells.start(external_id="r 1:2")
        key = names.external_id(0, "default", "r 1:2")
        assert await cells.store.call("GET", key) == first.encode()
        assert await cells.store.call("PTTL", key) == -1
        assert (await cells.head(first)).flags == "e"
        assert (await cells.fields(first))["externalId"] == b"r 1:2"
        again = cells.new(external_id="r 1:2")
        assert await outcomes(cells, again) == [("duplicate", first)]
        assert await cells.store.call("EXISTS", names.state(again.id)) == 0


async def test_external_ids_of_two_projects_are_two(store_server: EmbeddedServer) -> None:
    async with open_cell_store(store_server) as cells:
        await cells.define(project="shop")
        one, two = cells.new(external_id="r-1"), cells.new(external_id="r-1", owner="shop")
        assert await outcomes(cells, one, two) == [("started", "")] * 2
        assert (await cells.head(two.id)).owner == "shop"


async def test_an_external_id_that_outlived_its_state_is_known_to_its_own_id(
    store_server: EmbeddedServer,
) -> None:
    async with open_cell_store(store_server) as cells:
        item = cells.new(external_id="r-1")
        assert await outcomes(cells, item) == [("started", "")]
        await cells.store.call("DEL", names.state(item.id))
        assert await outcomes(cells, item) == [("known", "")]
        assert await cells.store.call("EXISTS", names.state(item.id)) == 0


async def test_many_at_once_with_one_external_id_start_one(store_server: EmbeddedServer) -> None:
    async with open_cell_store(store_server) as cells:
        items = [cells.new(external_id="r-1") for _ in range(20)]
        replies = await asyncio.gather(*(outcomes(cells, each) for each in items))
        assert sorted(reply[0][0] for reply in replies) == ["duplicate"] * 19 + ["started"]
        assert len(await cells.listed("qInL:workers")) == 1


async def test_from_inside_neither_the_type_nor_the_version_is_asked_for(
    store_server: EmbeddedServer,
) -> None:
    async with open_cell_store(store_server) as cells:
        await cells.define("inner", type_=False)
        inner = cells.new(pipeline="inner", version="v0", inside=True)
        absent = cells.new(pipeline="absent", inside=True)
        assert await outcomes(cells, inner, absent) == [("started", ""), ("unknown-pipeline", "")]


async def test_a_delayed_start_sleeps_until_then_and_is_in_no_queue(
    store_server: EmbeddedServer,
) -> None:
    async with open_cell_store(store_server) as cells:
        started = await cells.start(delay_ms=DAY_MS)
        head = await cells.head(started)
        assert (head.state, head.archive) == (State.SCHEDULED, "remove")
        assert head.wake == head.since + DAY_MS
        assert await cells.scores("sleepingZ") == {started: head.wake}
        assert await cells.scores("toArchiveZ") == {started: head.since + TERMS.archive_delay_ms}
        assert await cells.listed("qInL:workers") == []
        assert (await cells.facts())[0].state == "scheduled"
        assert await outcomes(cells, cells.new(id=started)) == [("known", "scheduled")]


async def test_a_deadline_is_kept_beside_the_queue(store_server: EmbeddedServer) -> None:
    async with open_cell_store(store_server) as cells:
        started = await cells.start(deadline_in_ms=5000)
        head = await cells.head(started)
        assert head.flags == "d"
        assert await cells.scores("deadlineZ") == {started: head.since + 5000}
        assert await cells.listed("qInL:workers") == [started]


async def test_workers_are_called_once_per_call_and_only_where_the_queue_was_empty(
    store_server: EmbeddedServer,
) -> None:
    async with open_cell_store(store_server) as cells:
        heard: list[bytes | None] = []
        for topic in (names.work_topic(0, "workers"), names.due_topic(0)):
            cells.wakeups.listen(topic, heard.append)
        while len(heard) < 2:
            await asyncio.sleep(0.005)
        heard.clear()
        await cells.entry.start(0, [cells.new() for _ in range(10)])
        await cells.start()
        await cells.start(delay_ms=5000)
        await cells.start(delay_ms=6000)
        await cells.start(delay_ms=4000, deadline_in_ms=9000)
        # What is published is heard in order: when this is here, all before it were.
        await cells.store.call("PUBLISH", names.work_topic(0, "workers"), "end")
        while b"end" not in heard:
            await asyncio.sleep(0.005)
        assert heard[:2] == [b"queued", b"sleepingZ"]
        assert sorted(heard[2:4]) == [b"deadlineZ", b"sleepingZ"]  # type: ignore[type-var]
        assert heard[4:] == [b"end"]


async def test_a_full_log_that_refuses_refuses_starts_and_nothing_is_written(
    store_server: EmbeddedServer,
) -> None:
    async with open_cell_store(store_server) as cells:
        kept = await cells.start(detail=b"\xc4\xff" + b"x" * 255)
        await cells.logs.set_retention(names.LOG, 0, Retention(max_bytes=400, policy="refuse"))
        await cells.logs.hold(names.LOG, 0, "history", 0)
        before = await cells.keys()
        with pytest.raises(LogFullError):
            await cells.entry.start(0, [cells.new(external_id="r-1") for _ in range(3)])
        assert await cells.keys() == before

        # Claims and what follows them go on: they are never refused.
        (claimed,) = (await cells.claim()).items
        assert claimed.id == kept
        (verdict,) = await cells.holding.release(0, [claimed.held])
        assert verdict.outcome == "done"
        assert [fact.kind for fact in await cells.facts()] == ["started", "released"]

        await cells.logs.release(names.LOG, 0, "history")
        await cells.logs.hold(names.LOG, 0, "history", 2)
        assert await outcomes(cells, cells.new()) == [("started", "")]


async def test_a_log_that_drops_never_refuses(store_server: EmbeddedServer) -> None:
    async with open_cell_store(store_server) as cells:
        retention = Retention(max_bytes=1000, policy="drop_and_count")
        await cells.logs.set_retention(names.LOG, 0, retention)
        for _ in range(20):
            await cells.start(detail=b"\xc4\xff" + b"x" * 255)
        assert len(await cells.listed("qInL:workers")) == 20
        assert (await cells.logs.state(names.LOG, 0)).bytes <= 1000


async def test_a_cell_that_was_never_opened_refuses_starts(store_server: EmbeddedServer) -> None:
    async with open_cell_store(store_server) as cells:
        await cells.define(cell=7)
        with pytest.raises(LogNotFoundError):
            await cells.entry.start(7, [cells.new(cell=7)])
        assert await cells.keys() == set()


async def test_cells_have_nothing_in_common(store_server: EmbeddedServer) -> None:
    async with open_cell_store(store_server, cells=3) as cells:
        started = [await cells.start(cell=cell) for cell in range(3)]
        for cell, each in enumerate(started):
            assert names.cell_of(each) == cell
            assert await cells.listed("qInL:workers", cell) == [each]
            assert [fact.id for fact in await cells.facts(cell)] == [each]
            assert [item.id for item in (await cells.claim(cell=cell)).items] == [each]


async def test_what_is_no_name_is_refused_by_the_script_before_it_writes(
    store_server: EmbeddedServer,
) -> None:
    """F-19: names are checked at the doors; the script itself writes nothing half."""
    async with open_cell_store(store_server) as cells:
        for wrong in ({"group": "two words"}, {"version": ""}, {"pipeline": "a\nb c"}):
            with pytest.raises(StoreReplyError):
                await cells.entry.start(0, [cells.new(), cells.new(**wrong)])
        assert await cells.keys() == set()
        assert await cells.entries() == []


async def test_ten_megabytes_of_state_pass_through_unseen(store_server: EmbeddedServer) -> None:
    """F-19: a large value is a value."""
    async with open_cell_store(store_server) as cells:
        state = bytes(range(256)) * 40_960
        await cells.start(state=state)
        await cells.start()
        claim = await cells.claim()
        assert [each.state for each in claim.items] == [state]
        assert claim.left == 1


async def test_nothing_to_start_is_nothing(store_server: EmbeddedServer) -> None:
    async with open_cell_store(store_server) as cells:
        assert await cells.entry.start(0, []) == []
        assert await cells.holding.release(0, []) == []


async def test_a_full_store_refuses_starts_and_lets_everything_else_go_on(
    store_server: EmbeddedServer,
) -> None:
    """F-20: claims, releases and rescues go on; starts again once there is room."""
    async with open_cell_store(store_server) as cells:
        kept = await cells.start()
        await cells.store.call("CONFIG", "SET", "maxmemory", 1)
        try:
            before = await cells.keys()
            with pytest.raises(StoreFullError):
                await cells.entry.start(0, [cells.new(external_id="r-1")])
            assert await cells.keys() == before
            for _ in range(2):
                (item,) = (await cells.claim()).items
                assert item.id == kept
                assert (await cells.holding.begin(item.held)).outcome == "done"
                (verdict,) = await cells.holding.release(0, [item.held])
                assert verdict.outcome == "done"
            await cells.claim(lease_ms=0)
            assert (await cells.holding.rescue(0, most=10, rescues_max=3)).done == 1
        finally:
            await cells.store.call("CONFIG", "SET", "maxmemory", 0)
        await cells.start()
