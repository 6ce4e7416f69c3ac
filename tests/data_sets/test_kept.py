"""Data sets that earlier releases left: this release opens them and reads everything in them."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.data_sets.make import DATABASES, read_everything, station_of
from waystation.catalogue.sqlite import migrations as catalogue_migrations
from waystation.store import keys
from waystation.store.migrations import FORMAT_VERSION

KEPT = sorted(Path(__file__).parent.glob("format-*"))


@pytest.fixture(params=KEPT, ids=lambda folder: folder.name)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    """The folder of a kept data set, and a data directory that has a copy of it."""
    folder, data = request.param, tmp_path / "data"
    shutil.copytree(folder / "appendonlydir", data / "store" / "appendonlydir")
    for name in DATABASES:
        shutil.copyfile(folder / name, data / name)
    for each in (data, *data.rglob("*")):
        each.chmod(0o700 if each.is_dir() else 0o600)
    return folder, data


def schema(file: Path) -> int:
    with closing(sqlite3.connect(file)) as database:
        return int(database.execute("PRAGMA user_version").fetchone()[0])


async def test_kept_data_set_is_opened_migrated_and_read_completely(
    kept: tuple[Path, Path],
) -> None:
    folder, data = kept
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    async with station_of(data) as (running, client):
        found = await read_everything(running, client)
        assert json.loads(json.dumps(found)) == expected
        version = await running.node.opened.store.call("HGET", keys.FORMAT, "version")
        assert int(version) == FORMAT_VERSION
        assert schema(data / "catalogue.db") == catalogue_migrations()[-1][0]
        assert await running.node.catalogue.data_sets() == (expected["dataset"],)

        # It is not only read: what waited goes on, and what is new stands behind what was there
        waiting = await client.transactions.by_external_id("t-waiting")
        await waiting.set_switch("approved", "yes")
        assert (await waiting.wait("30s")).status == "success"
        receipt = await client.topics.produce("orders", {"n": 7}, id="m-7", group="g-0")
        assert (receipt.storage, receipt.offset) == (1, 1)
    async with station_of(data) as (running, client):
        again = await read_everything(running, client)
        assert len(again["topic"]) == len(expected["topic"]) + 1


@pytest.mark.slow
async def test_kept_data_set_is_opened_by_two_nodes_at_once(kept: tuple[Path, Path]) -> None:
    _, data = kept

    async def open_and_look() -> str:
        async with station_of(data) as (running, _):
            return running.node.opened.dataset

    assert len(set(await asyncio.gather(open_and_look(), open_and_look()))) == 1
