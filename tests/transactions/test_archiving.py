"""A whole node with its archive: what leaves the store is found, listed, reached and woken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.helpers.waiting import eventually
from tests.transactions.archive_helpers import DATABASES, archive_url
from waystation import App, Child, Context, Parallel, Wait
from waystation.config import ArchiveConfig, TransactionConfig
from waystation.errors import (
    IllegalTransitionError,
    InvalidInputError,
    SettingsError,
    TransactionUnknownError,
)
from waystation.logs.operations import LOG as OPERATIONS
from waystation.logs.operations import unpack
from waystation.node import Node
from waystation.testing.station import _flush, quick_settings, serving
from waystation.transactions import names
from waystation.transactions.listing import TransactionRow
from waystation.transactions.order import Order
from waystation.transactions.start import StepPlace
from waystation.transactions.states import State

QUICK = TransactionConfig(
    archive_pause_idle_seconds=0.02, archive_delay_seconds=5.0, cache_seconds=1.0, workers=10
)
DAY = 86_400.0

app = App()


@app.step("wait")
async def wait(ctx: Context, given: Any) -> Any:
    answer = ctx.switch("go")
    return Wait("go", at_most="2d") if answer is None and not ctx.timed_out else answer


@app.step("fan")
async def fan(ctx: Context, given: Any) -> Parallel:
    return Parallel([Child("waiting"), Child("quick")], on_failure="wait_all")


@app.step("quick")
async def quick(ctx: Context, given: Any) -> Any:
    return given


app.pipeline("waiting", ["wait"])
app.pipeline("fan", ["fan"])
app.pipeline("quick", ["quick"])


@asynccontextmanager
async def node_with_archive(
    folder: Path, url: str = "", *, days: float = 0.0, **transactions: Any
) -> AsyncIterator[Node]:
    settings = quick_settings(
        str(folder),
        time_machine=True,
        archive=ArchiveConfig(url=url, retention_days=days),
        transactions=TransactionConfig(
            **{name: getattr(QUICK, name) for name in QUICK.__struct_fields__} | transactions
        ),
    )
    async with serving(settings, app=app) as running:
        yield running.node


async def advance(node: Node, seconds: float) -> None:
    assert node.opened.time_machine is not None
    await node.opened.time_machine.advance(seconds)


async def is_cached(node: Node, transaction_id: str) -> bool:
    return bool(await node.opened.store.call("EXISTS", names.state(transaction_id)))


async def start(node: Node, type_: str = "waiting", **more: Any) -> str:
    return (await node.engine.starter.start("default", Order(type=type_, **more))).id


async def asleep(node: Node, type_: str = "waiting", **more: Any) -> str:
    """One that waits, in the archive alone."""
    one = await start(node, type_, **more)
    await eventually(lambda: is_in(node, one, "waiting_switch"))
    await leaves(node, one)
    return one


async def is_in(node: Node, transaction_id: str, status: str) -> bool:
    found = await node.engine.transactions.get("default", transaction_id)
    return found.metadata.status == status


async def leaves(node: Node, *ids: str) -> None:
    """Time passes, and they leave the store; what has ended does so when its key expires."""

    async def gone() -> bool:
        return not any([await is_cached(node, each) for each in ids])

    await advance(node, 6.0)
    await eventually(gone)


async def listed(node: Node, **asked: Any) -> dict[str, TransactionRow]:
    found: dict[str, TransactionRow] = {}
    cursor = ""
    while True:
        rows, cursor = await node.engine.listing.page("default", limit=10, cursor=cursor, **asked)
        found |= {row.id: row for row in rows}
        if not cursor:
            return found


@pytest.mark.parametrize("database", DATABASES)
async def test_a_transaction_leaves_the_store_and_a_switch_brings_it_back_to_its_end(
    tmp_path: Path, request: pytest.FixtureRequest, database: str
) -> None:
    async with node_with_archive(tmp_path, archive_url(request, database)) as node:
        one = await asleep(node)
        await node.engine.transactions.set_switch("default", one, "go", "now")
        summary = await node.engine.transactions.get("default", one, wait_seconds=20)
        assert (summary.metadata.status, bytes(summary.data)) == ("success", b'"now"')
        # The end is archived, too, and is found after it has left.
        await leaves(node, one)
        summary = await node.engine.transactions.get("default", one)
        assert (summary.metadata.status, bytes(summary.data)) == ("success", b'"now"')


async def test_a_wait_for_one_that_sleeps_in_the_archive_ends_with_its_end(
    tmp_path: Path,
) -> None:
    async with node_with_archive(tmp_path) as node:
        one = await asleep(node)
        waiting = asyncio.create_task(node.engine.transactions.get("default", one, wait_seconds=20))
        await asyncio.sleep(0.2)
        assert not waiting.done(), "to be in the archive is no end"
        await node.engine.transactions.set_switch("default", one, "go", "now")
        assert (await waiting).metadata.status == "success"


async def test_lists_have_those_that_sleep_in_the_archive(tmp_path: Path) -> None:
    async with node_with_archive(tmp_path) as node:
        one = await asleep(node, external_id="r-1")
        here = await start(node)
        await eventually(lambda: is_in(node, here, "waiting_switch"))
        assert set(await listed(node)) == {one, here}
        rows = await listed(node, state=State.WAITING_SWITCH)
        assert set(rows) == {one, here}
        assert rows[one].switch == "go"
        assert rows[one].external_id == "r-1"
        assert await listed(node, state=State.WAITING_SWITCH, pipeline="quick") == {}
        assert await listed(node, state=State.SLEEPING) == {}
        (row,) = await node.engine.listing.by_external_id("default", "r-1")
        assert row.id == one
        assert not await is_cached(node, one), "a list brings nothing back"
        with pytest.raises(InvalidInputError):
            await node.engine.listing.page("default", limit=1, cursor="z0.x")


async def test_an_external_id_is_found_while_it_lives_and_in_the_archive_afterwards(
    tmp_path: Path,
) -> None:
    async with node_with_archive(tmp_path, external_id_seconds=60.0) as node:
        finder = node.engine.finder
        assert finder is not None
        assert await finder.by_external_id("default", "r-1") is None
        one = await asleep(node, external_id="r-1")
        found = await finder.by_external_id("default", "r-1")
        assert found is not None
        assert found.id == one
        await node.engine.transactions.set_switch("default", one, "go", "now")
        await eventually(lambda: is_in(node, one, "success"))
        await leaves(node, one)
        cell = names.cell_of(one)
        await node.opened.store.call("DEL", names.external_id(cell, "default", "r-1"))
        found = await finder.by_external_id("default", "r-1")
        assert found is not None
        assert (found.id, found.head.status) == (one, "success")
        assert await finder.by_external_id("shop", "r-1") is None
        # Used again, the newest answers.
        two = await start(node, "quick", external_id="r-1")
        found = await finder.by_external_id("default", "r-1")
        assert found is not None
        assert found.id == two


async def test_the_archive_is_listed_page_by_page(tmp_path: Path) -> None:
    async with node_with_archive(tmp_path) as node:
        finder = node.engine.finder
        assert finder is not None
        ids = [await start(node, "quick") for _ in range(7)]
        for each in ids:
            await eventually(lambda one=each: is_in(node, one, "success"))  # type: ignore[misc]
        sleeper = await asleep(node)
        await leaves(node, *ids)
        first, cursor = await finder.archived("default", limit=4)
        rest, end = await finder.archived("default", limit=4, cursor=cursor)
        assert (len(first), len(rest), end) == (4, 3, "")
        assert {row.id for row in first + rest} == set(ids)
        assert {(row.state, row.status) for row in first} == {(State.COMPLETE, "success")}
        (row,), _ = await finder.archived("default", ["waiting_switch"], limit=4)
        assert (row.id, row.state, row.status) == (sleeper, State.WAITING_SWITCH, "")
        assert await finder.archived("default", pipeline="other", limit=4) == ([], "")
        with pytest.raises(InvalidInputError):
            await finder.archived("default", limit=4, cursor="1.2")


async def test_children_that_sleep_in_the_archive_are_told_and_cancelled_with_their_parent(
    tmp_path: Path,
) -> None:
    async with node_with_archive(tmp_path) as node:
        transactions = node.engine.transactions
        parent = await start(node, "fan")

        async def one_waits() -> bool:
            children = (await transactions.children("default", parent)).children
            return [each.state for each in children[:1]] == ["waiting_switch"]

        await eventually(one_waits)
        first = (await transactions.children("default", parent)).children[0].id
        await leaves(node, first)
        children = (await transactions.children("default", parent)).children
        assert (children[0].state, children[0].status) == ("waiting_switch", "")
        assert not await is_cached(node, first)
        await transactions.cancel("default", parent)
        await eventually(lambda: is_in(node, parent, "cancelled"))
        await eventually(lambda: is_in(node, first, "cancelled"))


async def test_an_id_that_is_given_is_looked_for_in_the_archive(tmp_path: Path) -> None:
    async with node_with_archive(tmp_path) as node:
        one = await asleep(node)
        place = StepPlace(step=1, input=b"null", transaction_id=one)
        with pytest.raises(IllegalTransitionError):
            await node.engine.starter.start_at("default", Order(type="waiting"), place)
        assert await is_in(node, one, "waiting_switch")


async def test_what_has_ended_is_deleted_after_its_days(tmp_path: Path) -> None:
    async with node_with_archive(tmp_path, days=1.0) as node:
        one = await start(node, "quick")
        await eventually(lambda: is_in(node, one, "success"))
        await leaves(node, one)
        sleeper = await asleep(node)
        await node.engine.forget()
        assert await is_in(node, one, "success")
        assert OPERATIONS not in await node.logs.names(), "nothing was deleted"
        await eventually(lambda: _not(is_cached(node, one)))
        await advance(node, DAY + 60)
        await node.engine.forget()
        with pytest.raises(TransactionUnknownError):
            await node.engine.transactions.get("default", one)
        assert await is_in(node, sleeper, "waiting_switch"), "what lives is never deleted"
        # History knows why, and that was written down before
        # (twice, where upkeep looked at the same time).
        entry, *_ = entries = list((await node.logs.read(OPERATIONS, 0, 0, limit=10)).entries())
        told = unpack(entry.payload)
        assert told.kind == "prune"
        assert DAY * 1000 <= entry.ms - told.detail["before_ms"] < (DAY + 60) * 1000
        await node.engine.forget()
        assert (await node.logs.state(OPERATIONS, 0)).end == len(entries)


async def _not(holds: Awaitable[bool]) -> bool:
    return not await holds


async def test_a_node_group_can_be_told_not_to_archive_and_readiness_says_what_follows(
    tmp_path: Path,
) -> None:
    settings = quick_settings(str(tmp_path), time_machine=True, transactions=QUICK)
    async with serving(settings, app=app) as running:
        node = running.node
        (record,) = await node.engine.nodes.all()
        assert record.archives
        assert record.webhook_workers == 100
        await node.engine.nodes.tell("master", "archive_batch", 0)
        assert node.engine.archivist is not None
        archivist = node.engine.archivist

        async def heard() -> bool:
            return archivist.pace().batch == 0

        await eventually(heard)
        one = await start(node)
        await eventually(lambda: is_in(node, one, "waiting_switch"))
        await advance(node, 400)
        await asyncio.sleep(0.3)
        assert await is_cached(node, one)

        async def noted() -> bool:
            async with aiohttp.ClientSession() as session:
                reply = await (await session.get(f"{running.url}/readyz")).json()
            assert reply["ready"]
            return any("no living node archives" in each for each in reply["notes"])

        await advance(node, 31)
        await eventually(noted)
        await node.engine.nodes.tell("master", "archive_batch", 100)
        await leaves(node, one)


async def test_a_station_that_is_flushed_forgets_what_sleeps_in_its_archive(
    tmp_path: Path,
) -> None:
    async with node_with_archive(tmp_path) as node:
        one = await asleep(node)
        await _flush(node)
        with pytest.raises(TransactionUnknownError):
            await node.engine.transactions.get("default", one)
        assert await listed(node) == {}


async def test_external_ids_must_be_reserved_for_longer_than_archiving_waits(
    tmp_path: Path,
) -> None:
    with pytest.raises(SettingsError, match="external_id_seconds"):
        async with node_with_archive(tmp_path, external_id_seconds=5.0):
            pass
