"""An archive that is away at the start is opened later; that of another store is not used."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.archive.conformance import archived
from tests.helpers.postgres import PostgresServer
from tests.helpers.store_faults import store_at
from waystation.archive import SqliteArchive, archive_at
from waystation.config import ArchiveConfig, StoreConfig
from waystation.errors import (
    ArchiveForeignError,
    ArchiveRefusedError,
    ArchiveUnavailableError,
    StoreUnavailableError,
)
from waystation.node import open_node
from waystation.runtime.clock import Clock
from waystation.testing import private_server
from waystation.testing.station import quick_settings, serving
from waystation.transactions import archive_opening
from waystation.transactions.archive_opening import LateArchive, open_archive
from waystation.transactions.order import Order
from waystation.transactions.pipeline import define


async def anyone(name: str) -> None:
    """Whatever archive it is."""


async def test_an_archive_that_is_there_is_open_at_once(tmp_path: Path) -> None:
    archive = await open_archive("", tmp_path, admit=anyone, clock=Clock())
    try:
        await archive.upsert([archived("tx-1")])
        assert set(await archive.get(["tx-1"])) == {"tx-1"}
        assert (await archive.counts()) == {"sleeping": 1}
        await archive.ping()
    finally:
        await archive.close()
    with pytest.raises(ArchiveUnavailableError):
        await archive.get(["tx-1"])


async def test_one_that_is_away_is_opened_when_it_comes(postgres: PostgresServer) -> None:
    url = postgres.url(postgres.empty_database())
    await asyncio.to_thread(postgres.kill)
    try:
        archive = LateArchive(archive_at(url, folder=Path()), admit=anyone, clock=Clock())
        await archive.open()
        with pytest.raises(ArchiveUnavailableError, match="away"):
            await archive.get(["tx-1"])
    finally:
        await asyncio.to_thread(postgres.start)
    async with asyncio.timeout(20):
        while True:
            try:
                await archive.upsert([archived("tx-1")])
            except ArchiveUnavailableError:
                await asyncio.sleep(0.01)
            else:
                break
    assert set(await archive.get(["tx-1"])) == {"tx-1"}
    await archive.close()


async def test_one_that_never_can_be_opened_ends_the_start(tmp_path: Path) -> None:
    first = SqliteArchive(tmp_path / "archive.db")
    await first.open()
    await first._writer.query("PRAGMA user_version = 999")
    await first.close()
    with pytest.raises(ArchiveRefusedError):
        await open_archive("", tmp_path, admit=anyone, clock=Clock())


async def test_a_node_starts_and_serves_without_its_archive(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    url = postgres.url(postgres.empty_database())
    await asyncio.to_thread(postgres.kill)
    try:
        without = quick_settings(str(tmp_path), archive=ArchiveConfig(url=url))
        async with serving(without) as running:
            engine = running.node.engine
            with pytest.raises(ArchiveUnavailableError):
                await engine.transactions.get("default", "tx-0000" + "f" * 36)
            await engine.pipelines.put("default", define("refund", ["refund/pay"]))
            started = await engine.starter.start("default", Order(type="refund"))
            found = await engine.transactions.get("default", started.id)
            assert found.metadata.status == "running"
    finally:
        await asyncio.to_thread(postgres.start)


@pytest.mark.slow
async def test_a_second_archive_of_one_store_is_refused_at_the_start(tmp_path: Path) -> None:
    """Two machines, each with a file of its own: one would not find what the other has."""
    with private_server() as server:
        store = StoreConfig(durability="memory", url=f"unix://{server.address.path}")
        first = quick_settings(str(tmp_path / "one"), store=store)
        second = quick_settings(str(tmp_path / "two"), store=store)
        async with serving(first) as running:
            kept = await running.node.archive.identity()
            with pytest.raises(ArchiveForeignError, match=kept) as caught:
                await open_node(second)
            assert caught.value.code == "archive.foreign"
            await running.node.archive.ping()
        async with serving(first) as again:
            assert await again.node.archive.identity() == kept
        # The way out, for who wants that: docs/operating/archive.md
        async with store_at(server.address) as direct:
            await direct.call("HDEL", "waystation.format", "archive")
        async with serving(second) as other:
            assert await other.node.archive.identity() != kept
        with pytest.raises(ArchiveForeignError):
            await open_node(first)


async def test_one_that_comes_late_and_is_another_s_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Queue[str]()
    verdicts: list[Exception | None] = [
        StoreUnavailableError("away"),
        ArchiveForeignError("not yours"),
        ArchiveForeignError("not yours"),
        None,
    ]

    async def admit(name: str) -> None:
        asked.put_nowait(name)
        if verdict := verdicts.pop(0):
            raise verdict

    async def refuse() -> None:
        raise ArchiveUnavailableError("locked")

    inner = archive_at("", folder=tmp_path)
    archive = LateArchive(inner, admit=admit, clock=Clock())
    monkeypatch.setattr(archive_opening, "_PAUSE_SECONDS_MAX", 0.1)
    with monkeypatch.context() as away:
        away.setattr(inner, "open", refuse)
        await archive.open()
    try:
        async with asyncio.timeout(10):
            for _ in range(3):
                await asked.get()
                with pytest.raises(ArchiveUnavailableError):
                    await archive.upsert([archived("tx-1")])
            with pytest.raises(ArchiveUnavailableError, match="not yours"):
                await archive.get(["tx-1"])
            await asked.get()
            while True:
                try:
                    assert await archive.get(["tx-1"]) == {}, "nothing was written meanwhile"
                    break
                except ArchiveUnavailableError:
                    await asyncio.sleep(0.01)
    finally:
        await archive.close()
