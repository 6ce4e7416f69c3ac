"""Starting: once per external id, whole or not at all, many callers in few calls."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from tests.helpers.store_faults import Fate, proxy_to
from tests.transactions.service_helpers import open_outside, state_of
from waystation.errors import (
    AlreadyQueuedError,
    DuplicateTransactionError,
    IllegalTransitionError,
    InvalidInputError,
    LogFullError,
    NotATypeError,
    PipelineUnknownError,
    StoreFullError,
    TooLargeError,
)
from waystation.logs.protocol import Retention
from waystation.runtime.clock import Clock
from waystation.store.embedded.server import EmbeddedServer
from waystation.transactions import names
from waystation.transactions.cells import BATCH_MAX
from waystation.transactions.order import Moment, Order, read_orders
from waystation.transactions.pipeline import define
from waystation.transactions.start import Receipt, StepPlace

ORDER = Order(type="refund", data=b'{"cents":500}', external_id="r-17")


async def test_what_was_ordered_is_what_a_worker_finds(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_outside(store_server.address, tmp_path) as outside:
        await outside.define("refund", "refund/approve", "refund/pay")
        order = Order(
            type="refund",
            data=b'{"cents": 500}',
            metadata=b'{"lang":"de"}',
            external_id="r-17",
            deadline=Moment(60_000, after_start=True),
            traceparent="t",
        )
        receipt = await outside.engine.starter.start("default", order)
        (claimed,) = await outside.claim()
        state = state_of(claimed)
        assert (claimed.id, receipt.duplicate) == (receipt.id, False)
        assert (state.type, state.data, state.metadata) == ("refund", order.data, order.metadata)
        assert (state.external_id, state.traceparent) == ("r-17", "t")
        assert state.deadline_ms == state.started_ms + 60_000
        (frame,) = state.frames
        assert (frame.pipeline, frame.group, frame.step, frame.input) == (
            *("refund", "master", 0),
            order.data,
        )
        assert frame.version == (await outside.engine.pipelines.active("default", "refund")).version
        (facts,) = await outside.facts()
        assert [(fact.kind, fact.id) for fact in facts] == [("started", receipt.id)]
        shown = receipt.summary.metadata
        assert (shown.status, shown.external_id, shown.completion_time) == ("running", "r-17", None)


async def test_the_same_order_again_is_answered_with_what_is_there(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_outside(store_server.address, tmp_path, cells=3) as outside:
        await outside.define()
        starter = outside.engine.starter
        receipts = await asyncio.gather(*(starter.start("default", ORDER) for _ in range(50)))
        assert len({each.id for each in receipts}) == 1
        assert [each.duplicate for each in receipts].count(False) == 1
        again = await starter.start("default", ORDER)
        assert (again.id, again.duplicate) == (receipts[0].id, True)
        assert len([key for key in await outside.keys() if ":stateH:" in key]) == 1


async def test_another_order_under_a_taken_external_id_is_told_whose_it_is(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_outside(store_server.address, tmp_path) as outside:
        await outside.define()
        await outside.define("other")
        first = await outside.engine.starter.start("default", ORDER)
        before = await outside.keys()
        for other in (
            Order(type="refund", data=b'{"cents":501}', external_id="r-17"),
            Order(type="other", data=ORDER.data, external_id="r-17"),
        ):
            with pytest.raises(DuplicateTransactionError) as refused:
                await outside.engine.starter.start("default", other)
            assert refused.value.existing_id == first.id
        assert await outside.keys() == before


def read(body: object) -> Order:
    """An order as a client would write it."""
    ((order,), _) = read_orders(body if isinstance(body, bytes) else msgspec.json.encode(body))
    return order


FIRST = {
    "type": "refund",
    "metadata": {
        "externalId": "r-17",
        "lang": "de",
        "deadline": "2h",
        "startAt": "1h",
        "mine": {"a": 1, "b": [1.0]},
    },
    "data": {"cents": 12345678901234567890},
}


AGAIN = b"""{ "data": { "cents" : 12345678901234567890 }, "type": "refund", "metadata":
    {"startAt": "60m", "externalId": "r-17", "mine": {"b": [1], "a": 1}, "lang": "de",
    "deadline": "120m"} }"""


def changed(**metadata: object) -> dict[str, object]:
    kept = {**FIRST["metadata"], **metadata}  # type: ignore[dict-item]
    return {**FIRST, "metadata": {name: each for name, each in kept.items() if each != "-"}}


@pytest.mark.parametrize(
    "again",
    [
        AGAIN,
        changed(poll="short"),
        changed(webhook=None, progressReports=False),
        changed(nodeGroup="other", onComplete="ignored"),
    ],
)
async def test_start_again_with_the_same_content_is_the_same_start(
    store_server: EmbeddedServer, tmp_path: Path, again: object
) -> None:
    async with open_outside(store_server.address, tmp_path) as outside:
        await outside.define()
        starter = outside.engine.starter
        first = await starter.start("default", read(FIRST))
        await outside.machine.advance(60)
        second = await starter.start("default", read(again))
        assert (second.id, second.duplicate) == (first.id, True)


@pytest.mark.parametrize(
    ("again", "part"),
    [
        ({**FIRST, "data": {"cents": 12345678901234567891}}, "data"),
        ({**FIRST, "data": {"cents": True}}, "data"),
        (changed(deadline="3h"), "metadata.deadline"),
        (changed(deadline="-"), "metadata.deadline"),
        (changed(deadline="2040-01-01T00:00:00Z"), "metadata.deadline"),
        (changed(startAt="2m"), "metadata.startAt"),
        (changed(startAt="-"), "metadata.startAt"),
        (changed(lang="en"), "metadata.lang"),
        (changed(mine={"a": 2, "b": [1.0]}), "metadata.mine"),
        (changed(mine="-"), "metadata.mine"),
        (changed(other=None), "metadata.other"),
    ],
)
async def test_start_again_with_other_content_is_refused_and_names_the_part(
    store_server: EmbeddedServer, tmp_path: Path, again: object, part: str
) -> None:
    async with open_outside(store_server.address, tmp_path) as outside:
        await outside.define()
        first = await outside.engine.starter.start("default", read(FIRST))
        before = await outside.keys()
        with pytest.raises(DuplicateTransactionError, match=f": {part}\\. ") as refused:
            await outside.engine.starter.start("default", read(again))
        assert refused.value.existing_id == first.id
        assert await outside.keys() == before


async def test_start_again_after_the_end_compares_what_was_asked_for(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    body = {**FIRST, "metadata": {"externalId": "r-17", "deadline": "2h"}}
    other = {**FIRST, "metadata": {"externalId": "r-17", "deadline": "1h"}}
    async with open_outside(store_server.address, tmp_path) as outside:
        await outside.define()
        first = await outside.engine.starter.start("default", read(body))
        (claimed,) = await outside.claim()
        await outside.finish(claimed)
        again = await outside.engine.starter.start("default", read(body))
        assert (again.id, again.duplicate) == (first.id, True)
        with pytest.raises(DuplicateTransactionError):
            await outside.engine.starter.start("default", read(other))


async def test_start_again_of_a_state_of_the_release_before_works(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """That release has not kept `startAt`: it makes no difference there, all else does."""
    async with open_outside(store_server.address, tmp_path) as outside:
        await outside.define()
        starter = outside.engine.starter
        first = await starter.start("default", read(FIRST))
        key = names.state(first.id)
        fields = msgspec.msgpack.decode(await outside.store.call("HGET", key, "state"))
        await outside.store.call("HSET", key, "state", msgspec.msgpack.encode(fields[:-1]))
        for same in (FIRST, changed(startAt="2m")):
            assert (await starter.start("default", read(same))).id == first.id
        for other in (changed(deadline="3h"), changed(lang="en"), {**FIRST, "data": 1}):
            with pytest.raises(DuplicateTransactionError):
                await starter.start("default", read(other))


async def test_an_external_id_belongs_to_its_project(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_outside(store_server.address, tmp_path) as outside:
        await outside.define()
        await outside.define(project="shop")
        ours = await outside.engine.starter.start("default", ORDER)
        theirs = await outside.engine.starter.start("shop", ORDER)
        assert not theirs.duplicate
        assert ours.id != theirs.id


async def test_an_external_id_stays_taken_for_a_while_after_the_end(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_outside(store_server.address, tmp_path, external_id_seconds=3600) as outside:
        await outside.define()
        claimed = await outside.running(data=ORDER.data, external_id="r-17")
        await outside.finish(claimed, output=b'"paid"')
        again = await outside.engine.starter.start("default", ORDER)
        assert (again.id, again.summary.metadata.status) == (claimed.id, "success")
        assert bytes(again.summary.data) == b'"paid"'
        await outside.machine.advance(3601)
        later = await outside.engine.starter.start("default", ORDER)
        assert not later.duplicate
        assert later.id != claimed.id


async def test_a_start_that_fails_leaves_nothing_behind_and_does_not_burn_its_external_id(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_outside(store_server.address, tmp_path, state_bytes_max=2048) as outside:
        starter = outside.engine.starter
        with pytest.raises(PipelineUnknownError):
            await starter.start("default", ORDER)
        await outside.define()
        with pytest.raises(TooLargeError):
            await starter.start(
                "default", Order(type="refund", data=b'"%b"' % (b"x" * 2048), external_id="r-17")
            )
        with pytest.raises(InvalidInputError, match="deadline"):
            await starter.start(
                "default",
                Order(
                    type="refund",
                    external_id="r-17",
                    start_at=Moment(5000, after_start=True),
                    deadline=Moment(5000, after_start=True),
                ),
            )
        assert await outside.keys() == set()
        assert await outside.facts() == []
        assert not (await starter.start("default", ORDER)).duplicate


async def test_a_full_record_log_refuses_starts_and_takes_them_when_there_is_room(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_outside(store_server.address, tmp_path) as outside:
        await outside.define()
        full = Retention(max_bytes=1, policy="refuse")
        await outside.logs.set_retention(names.LOG, 0, full)
        await outside.logs.hold(names.LOG, 0, "history", 0)
        with pytest.raises(LogFullError):
            await outside.engine.starter.start("default", ORDER)
        assert await outside.keys() == set()
        await outside.logs.set_retention(
            names.LOG, 0, Retention(max_bytes=1_000_000, policy="refuse")
        )
        assert not (await outside.engine.starter.start("default", ORDER)).duplicate


async def test_a_full_store_refuses_starts_and_takes_them_when_there_is_room(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """F-20."""
    async with open_outside(store_server.address, tmp_path) as outside:
        await outside.define()
        await outside.start()
        await outside.store.call("CONFIG", "SET", "maxmemory", 1)
        try:
            with pytest.raises(StoreFullError):
                await outside.engine.starter.start("default", ORDER)
        finally:
            await outside.store.call("CONFIG", "SET", "maxmemory", 0)
        assert not (await outside.engine.starter.start("default", ORDER)).duplicate


async def test_of_a_list_each_has_a_result_of_its_own(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_outside(store_server.address, tmp_path, cells=2) as outside:
        await outside.define()
        await outside.define("inner", startable=False)
        orders = [
            *(Order(type="refund", data=b"%d" % n) for n in range(250)),
            Order(type="nobody"),
            Order(type="inner"),
            ORDER,
            ORDER,
            Order(type="refund", data=b"1", external_id="r-17"),
        ]
        results = await outside.engine.starter.start_many("default", orders)
        assert all(isinstance(each, Receipt) and not each.duplicate for each in results[:250])
        assert len({each.id for each in results[:250] if isinstance(each, Receipt)}) == 250
        nobody, inner, first, again, other = results[250:]
        assert isinstance(nobody, PipelineUnknownError)
        assert isinstance(inner, NotATypeError)
        assert isinstance(first, Receipt)
        assert isinstance(again, Receipt)
        assert (again.id, again.duplicate) == (first.id, True)
        assert isinstance(other, DuplicateTransactionError)
        entries = [*await outside.facts(0), *await outside.facts(1)]
        assert sum(map(len, entries)) == 251
        assert len(entries) <= 5, "not a call for each"
        claimed = [each for cell in (0, 1) for each in await outside.claim(most=100, cell=cell)]
        assert {names.cell_of(each.id) for each in claimed} == {0, 1}, "cells take turns"


async def test_starter_with_many_cells_fills_one_script_call_before_the_next_cell(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_outside(store_server.address, tmp_path, cells=16) as outside:
        await outside.define()
        starts = 16 * BATCH_MAX
        order = Order(type="refund")
        receipts = await asyncio.gather(
            *(outside.engine.starter.start("default", order) for _ in range(starts))
        )
        cells = Counter(names.cell_of(each.id) for each in receipts)
        assert cells == dict.fromkeys(range(16), BATCH_MAX), "every cell has its share"
        entries = [entry for cell in range(16) for entry in await outside.facts(cell)]
        assert len(entries) <= 32, "a cell that took starts one by one would have 100 entries"


async def test_callers_that_come_together_share_calls(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_outside(store_server.address, tmp_path) as outside:
        await outside.define()
        starter = outside.engine.starter
        order = Order(type="refund")
        await asyncio.gather(*(starter.start("default", order) for _ in range(300)))
        entries = await outside.facts()
        assert sum(map(len, entries)) == 300
        assert len(entries) <= 5


async def test_a_start_meets_a_change_of_its_pipeline(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """Another process has changed it, and ours has not heard of it yet."""
    async with open_outside(store_server.address, tmp_path) as outside:
        await outside.define()
        await outside.start()
        changed = define("refund", ["refund/approve", "refund/pay"])
        outside.engine.unfollow()
        await outside.others.put("default", changed)
        await outside.start()
        first, second = await outside.claim(most=2)
        assert state_of(first).frames[0].version != changed.version
        assert state_of(second).frames[0].version == changed.version
        await outside.others.retire("default", "refund")
        with pytest.raises(PipelineUnknownError):
            await outside.start()


async def test_a_caller_that_gives_up_does_not_take_its_order_along(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with (
        proxy_to(store_server.address) as proxy,
        open_outside(store_server.address, tmp_path, through=proxy.address) as outside,
    ):
        await outside.define()
        await outside.start()
        await proxy.set_fates(replies=Fate.HOLD)
        starting = asyncio.ensure_future(outside.engine.starter.start("default", ORDER))
        await proxy.met.wait()
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await proxy.set_fates()
        again = await outside.engine.starter.start("default", ORDER)
        assert again.duplicate
        assert len(await outside.claim(most=10)) == 2


async def test_a_start_whose_reply_was_lost_is_one_transaction(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """F-02, as far as the store is concerned: without an external id, too."""
    async with (
        proxy_to(store_server.address) as proxy,
        open_outside(store_server.address, tmp_path, through=proxy.address) as outside,
    ):
        await outside.define()
        await outside.start()
        await proxy.set_fates(replies=Fate.CUT)
        starting = asyncio.ensure_future(
            outside.engine.starter.start("default", Order(type="refund", data=b"2"))
        )
        await proxy.met.wait()
        await proxy.set_fates()
        receipt = await starting
        assert not receipt.duplicate
        assert [each.id for each in await outside.claim(most=10)][1:] == [receipt.id]


async def test_a_time_of_the_calendar_is_by_the_clock_of_the_store(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """F-15: the clock of our machine is an hour slow."""
    slow = Clock()
    async with open_outside(store_server.address, tmp_path, clock=slow) as outside:
        slow.shift_to(-3_600_000)
        await outside.define()
        now_ms = (await outside.signals.look(0)).now_ms
        order = Order(
            type="refund", start_at=Moment(now_ms + 60_000), deadline=Moment(now_ms + 120_000)
        )
        receipt = await outside.engine.starter.start("default", order)
        (found,) = await outside.signals.get("default", [receipt.id])
        assert found is not None
        assert found.sleeping_ms == pytest.approx(now_ms + 60_000, abs=2000)
        assert found.deadline_ms == pytest.approx(now_ms + 120_000, abs=2000)
        assert receipt.summary.metadata.status == "scheduled"
        assert receipt.summary.metadata.last_updated == pytest.approx(now_ms, abs=2000)


# -- At a step -------------------------------------------------------------------------------


async def test_a_transaction_can_begin_at_a_step_with_its_input(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_outside(store_server.address, tmp_path) as outside:
        await outside.define("refund", "refund/approve", "refund/pay", startable=False)
        old = (await outside.engine.pipelines.active("default", "refund")).version
        await outside.define("refund", "refund/pay", startable=False)
        place = StepPlace(step=2, input=b'{"ok":true}', version=old, cause="tx-before")
        receipt = await outside.engine.starter.start_at(
            "default", Order(type="refund", data=b"500"), place
        )
        (claimed,) = await outside.claim()
        state = state_of(claimed)
        (frame,) = state.frames
        assert (claimed.id, state.data, state.cause) == (receipt.id, b"500", "tx-before")
        assert (frame.step, frame.input, frame.version) == (1, b'{"ok":true}', old)


async def test_a_step_that_is_not_there_is_refused(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_outside(store_server.address, tmp_path) as outside:
        await outside.define()
        for step in (0, 2):
            with pytest.raises(InvalidInputError, match="no step"):
                await outside.engine.starter.start_at(
                    "default", Order(type="refund"), StepPlace(step=step, input=b"1")
                )
        assert await outside.keys() == set()


async def test_an_id_from_outside_is_started_once(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_outside(store_server.address, tmp_path) as outside:
        await outside.define()
        given = "tx-0000" + "a" * 36
        place, order = StepPlace(step=1, input=b"1", transaction_id=given), Order(type="refund")
        start_at = outside.engine.starter.start_at
        assert (await start_at("default", order, place)).id == given
        with pytest.raises(AlreadyQueuedError):
            await start_at("default", order, place)
        (claimed,) = await outside.claim()
        with pytest.raises(IllegalTransitionError) as refused:
            await start_at("default", order, place)
        assert (refused.value.from_state, refused.value.to_state) == ("running", "queued")
        await outside.finish(claimed)
        with pytest.raises(IllegalTransitionError, match="complete"):
            await start_at("default", order, place)
        elsewhere = StepPlace(step=1, input=b"1", transaction_id="tx-0009" + "a" * 36)
        with pytest.raises(InvalidInputError):
            await start_at("default", order, elsewhere)
