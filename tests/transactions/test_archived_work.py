"""What a step has done is in the archive with its transaction: records, journal, snapshots."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.helpers.waiting import eventually
from waystation import App, Child, Context, Wait
from waystation.config import TransactionConfig
from waystation.node import Node
from waystation.testing.station import quick_settings, serving
from waystation.transactions import names
from waystation.transactions.archiver import ArchivePace
from waystation.transactions.order import Order

AT_ONCE = TransactionConfig(archive_pause_idle_seconds=0.01, archive_delay_seconds=0)


class Shop:
    """An app whose steps say what they did."""

    def __init__(self) -> None:
        self.charges = 0
        self.reached = asyncio.Event()
        self.let_go = asyncio.Event()
        self.app = app = App()
        app.step("charge")(self.charge)
        app.step("linger")(self.linger)
        app.step("as-it-is")(self.as_it_is)
        app.step("call")(self.call)
        app.pipeline("charging", ["charge"])
        app.pipeline("saved", [("util/checkpoint", {}), "linger"])
        app.pipeline("kept", ["as-it-is"], snapshot=True)
        app.pipeline("plain", ["as-it-is"])
        for child in ("kept", "plain"):
            app.pipeline(f"calls-{child}", [("call", {"child": child}), "linger"])

    async def charge(self, ctx: Context, given: Any) -> Any:
        receipt = await ctx.once("charge", self._charge)
        ctx.log.info("charged", receipt=receipt)
        answer = ctx.switch("go")
        return Wait("go") if answer is None else [receipt, answer]

    async def _charge(self) -> int:
        self.charges += 1
        return self.charges

    async def linger(self, ctx: Context, given: Any) -> Any:
        self.reached.set()
        await self.let_go.wait()
        return given

    async def as_it_is(self, ctx: Context, given: Any) -> Any:
        return given

    async def call(self, ctx: Context, given: Any) -> Child:
        return Child(ctx.options["child"])


@asynccontextmanager
async def shop_at_work(
    folder: Path, *, cache_seconds: float = 0.1
) -> AsyncIterator[tuple[Shop, Node]]:
    shop = Shop()
    transactions = msgspec.structs.replace(AT_ONCE, cache_seconds=cache_seconds)
    settings = quick_settings(str(folder), transactions=transactions)
    async with serving(settings, app=shop.app) as running:
        yield shop, running.node


async def start(node: Node, type_: str) -> str:
    return (await node.engine.starter.start("default", Order(type=type_, data=b"7"))).id


async def test_what_was_done_once_and_the_journal_go_to_the_archive_and_come_back(
    tmp_path: Path,
) -> None:
    async with shop_at_work(tmp_path) as (shop, node):
        one, transactions = await start(node, "charging"), node.engine.transactions

        async def has_left() -> bool:
            return not await node.opened.store.call("EXISTS", names.state(one))

        await eventually(has_left)
        row = (await node.archive.get([one]))[one]
        assert b"once:" in row.fields
        await transactions.set_switch("default", one, "go", "now")
        end = await transactions.get("default", one, wait_seconds=20)
        assert json.loads(bytes(end.data)) == [1, "now"]
        assert shop.charges == 1, "its record came back with it"
        await eventually(has_left)
        (step,) = (await transactions.journal("default", one)).steps
        assert [each.outcome for each in step.last] == ["waiting", "success"]
        assert [each.text for each in step.logs] == ["charged receipt=1"] * 2, "of both lives"


async def test_a_checkpoint_is_archived_while_the_transaction_runs(tmp_path: Path) -> None:
    async with shop_at_work(tmp_path) as (shop, node):
        one = await start(node, "saved")
        await shop.reached.wait()

        async def is_archived() -> bool:
            return one in await node.archive.get([one])

        await eventually(is_archived)
        row = (await node.archive.get([one]))[one]
        assert (row.status, row.step, row.completed_ms) == ("running", "2", 0)
        shop.let_go.set()
        end = await node.engine.transactions.get("default", one, wait_seconds=20)
        assert end.metadata.status == "success"


@pytest.mark.parametrize("child", ["kept", "plain"])
async def test_the_return_of_a_child_is_archived_where_its_pipeline_asks_for_it(
    tmp_path: Path, child: str
) -> None:
    async with shop_at_work(tmp_path) as (shop, node):
        one = await start(node, f"calls-{child}")
        await shop.reached.wait()
        if child == "kept":

            async def is_archived() -> bool:
                return one in await node.archive.get([one])

            await eventually(is_archived)
            row = (await node.archive.get([one]))[one]
            assert (row.step, row.completed_ms) == ("2", 0)
        else:
            scheduled = names.sorted_set(names.cell_of(one), "toArchiveZ")
            assert await node.opened.store.call("ZSCORE", scheduled, one) is None
            assert await node.archive.get([one]) == {}
        assert await node.opened.store.call("PTTL", names.state(one)) == -1, "it runs on"
        shop.let_go.set()
        end = await node.engine.transactions.get("default", one, wait_seconds=20)
        assert end.metadata.status == "success"


async def test_why_tells_what_the_archive_has_against_a_transaction_until_it_takes_it(
    tmp_path: Path,
) -> None:
    async with shop_at_work(tmp_path) as (_, node):
        file = tmp_path / "archive.db"
        with closing(sqlite3.connect(file)) as database:
            database.execute(
                "CREATE TRIGGER rule BEFORE INSERT ON state WHEN new.pipeline = 'charging'"
                " BEGIN SELECT RAISE(ABORT, 'not on a Friday'); END"
            )
        one = await start(node, "charging")

        async def code() -> str:
            return (await node.engine.why.explain("default", one)).code

        async def is_refused() -> bool:
            return await code() == "archiving_failed"

        await eventually(is_refused)
        reason = await node.engine.why.explain("default", one)
        assert "not on a Friday" in reason.text
        with closing(sqlite3.connect(file)) as database:
            database.execute("DROP TRIGGER rule")
        assert node.engine.archivist is not None
        assert await node.engine.archivist.archiving.retry(names.cell_of(one)) == 1

        async def is_taken() -> bool:
            return await code() == "archived"

        await eventually(is_taken)


async def test_what_is_looked_at_stays_for_as_long_again(tmp_path: Path) -> None:
    async with shop_at_work(tmp_path, cache_seconds=100) as (_, node):
        order = Order(type="plain", external_id="r-1")
        one = (await node.engine.starter.start("default", order)).id
        store, key = node.opened.store, names.state(one)

        async def is_archived() -> bool:
            return int(await store.call("PTTL", key)) > 0

        await eventually(is_archived)
        assert node.engine.finder is not None
        looks: list[Callable[[], Awaitable[object]]] = [
            partial(node.engine.transactions.get, "default", one),
            partial(node.engine.transactions.journal, "default", one),
            partial(node.engine.finder.by_external_id, "default", "r-1"),
        ]
        for look in looks:
            await store.call("PEXPIRE", key, 20_000)
            await look()
            assert 90_000 < await store.call("PTTL", key) <= 100_000
        await store.call("PEXPIRE", key, 20_000)
        await node.engine.why.explain("default", one)
        assert await store.call("PTTL", key) <= 20_000, "who asks why changes nothing"


async def test_batch_and_pauses_are_those_of_the_node_group(tmp_path: Path) -> None:
    async with shop_at_work(tmp_path) as (_, node):
        assert node.engine.archivist is not None
        archivist = node.engine.archivist
        assert archivist.pace() == ArchivePace(batch=1000, pause_ms=0, idle_ms=10)
        told = {"archive_batch": 70, "archive_pause_ms": 50, "archive_pause_idle_ms": 20}
        for setting, value in told.items():
            await node.engine.nodes.tell("master", setting, value)

        async def is_heard() -> bool:
            return archivist.pace() == ArchivePace(batch=70, pause_ms=50, idle_ms=20)

        await eventually(is_heard)
