"""Lists: all of a project's transactions and no other's, in bounded pages."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.transactions.service_helpers import Outside, open_outside, packed
from waystation.errors import InvalidInputError
from waystation.store.embedded.server import EmbeddedServer
from waystation.transactions import names
from waystation.transactions.listing import TransactionRow
from waystation.transactions.order import Moment
from waystation.transactions.progress import Sleep
from waystation.transactions.states import State


async def pages(
    outside: Outside, project: str = "default", **asked: object
) -> list[TransactionRow]:
    """All pages, each row once."""
    found: dict[str, TransactionRow] = {}
    cursor = ""
    while True:
        rows, cursor = await outside.engine.listing.page(
            project,
            limit=10,
            cursor=cursor,
            **asked,  # type: ignore[arg-type]
        )
        found |= {row.id: row for row in rows}
        if not cursor:
            return list(found.values())


async def test_pages_have_all_of_a_project_and_nothing_of_another(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_outside(store_server.address, tmp_path, cells=3) as outside:
        await outside.define()
        await outside.define(project="shop")
        for n in range(3000):
            await outside.store.call("SET", f"other:{n}", n)
        ours = {await outside.start() for _ in range(120)}
        theirs = {await outside.start(project="shop") for _ in range(5)}
        assert {row.id for row in await pages(outside)} == ours
        assert {row.id for row in await pages(outside, "shop")} == theirs
        rows, cursor = await outside.engine.listing.page("default", limit=10)
        assert cursor or len(rows) == 120


async def test_states_are_found_in_all_cells(store_server: EmbeddedServer, tmp_path: Path) -> None:
    async with open_outside(store_server.address, tmp_path, cells=2) as outside:
        await outside.define()
        await outside.define("other")
        scheduled = {
            await outside.start(start_at=Moment(60_000, after_start=True)) for _ in range(2)
        }
        running = set()
        for cell in (0, 1, 0, 1):
            external_id = next(
                each
                for each in (f"r-{cell}-{n}-{len(running)}" for n in itertools.count())
                if names.cell_for("default", each, 2) == cell
            )
            pipeline = "other" if len(running) > 1 else "refund"
            await outside.start(pipeline, external_id=external_id)
            running |= {each.id for each in await outside.claim(cell=cell)}
        queued = {await outside.start()}
        assert {row.id for row in await pages(outside, state=State.SCHEDULED)} == scheduled
        assert {row.id for row in await pages(outside, state=State.RUNNING)} == running
        assert {row.id for row in await pages(outside, state=State.QUEUED)} == queued
        assert await pages(outside, state=State.SLEEPING) == []
        others = await pages(outside, state=State.RUNNING, pipeline="other")
        assert len(others) == 2
        assert {row.pipeline for row in others} == {"other"}


async def test_a_row_tells_how_it_stands(store_server: EmbeddedServer, tmp_path: Path) -> None:
    async with open_outside(store_server.address, tmp_path) as outside:
        await outside.define()
        claimed = await outside.running(external_id="r-1")
        sleep = Sleep(held=claimed.held, state=packed(claimed), switch="approved", place="1")
        await outside.progress.sleep(0, [sleep])
        (row,) = await pages(outside, state=State.WAITING_SWITCH)
        assert (row.id, row.external_id, row.switch) == (claimed.id, "r-1", "approved")
        assert (row.status, row.cancelling, row.wake_ms > row.since_ms) == ("", False, True)
        await outside.engine.transactions.cancel("default", claimed.id)
        (row,) = await pages(outside, state=State.COMPLETE)
        assert (row.status, row.wake_ms) == ("cancelled", 0)


async def test_an_external_id_leads_to_its_transaction(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_outside(store_server.address, tmp_path, cells=4) as outside:
        await outside.define()
        ids = {n: await outside.start(external_id=f"r-{n}") for n in range(8)}
        assert len({names.cell_of(each) for each in ids.values()}) > 1
        for n, transaction_id in ids.items():
            (row,) = await outside.engine.listing.by_external_id("default", f"r-{n}")
            assert row.id == transaction_id
        assert await outside.engine.listing.by_external_id("shop", "r-1") == []
        assert await outside.engine.listing.by_external_id("default", "r-9") == []


@pytest.mark.parametrize("cursor", ["x", "0", "9.0", "0.x", "0." + "9" * 24, "-1.0"])
async def test_a_cursor_that_is_none_of_ours_is_refused(
    store_server: EmbeddedServer, tmp_path: Path, cursor: str
) -> None:
    async with open_outside(store_server.address, tmp_path) as outside:
        with pytest.raises(InvalidInputError, match="cursor"):
            await outside.engine.listing.page("default", limit=10, cursor=cursor)
