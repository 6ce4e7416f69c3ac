"""The book of pipelines: one truth, a copy in every cell, versions that stay, and pauses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from waystation.catalogue import ProjectRecord, SqliteCatalogue
from waystation.errors import InvalidInputError, NotFoundError, PipelineUnknownError
from waystation.logs.streams import StreamLogs
from waystation.runtime.clock import Clock
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.pubsub import PubSub
from waystation.testing import CrashPoint, crash_points
from waystation.transactions import names
from waystation.transactions.cells import BATCH_MAX, Terms, open_cells
from waystation.transactions.entry import Entry, NewTransaction
from waystation.transactions.head import parse
from waystation.transactions.holding import Holding
from waystation.transactions.log_entry import unpack
from waystation.transactions.pipeline import Pipeline, define
from waystation.transactions.pipeline_row import VERSIONS_KEPT
from waystation.transactions.pipelines import Pipelines
from waystation.transactions.signals import Signals

CELLS = 3
TERMS = Terms(dataset="ds-1", archive_delay_ms=20_000, external_id_ms=60_000)
ONE, TWO = define("refund", ["a"]), define("refund", ["b"], group="gpu")


@dataclass
class Bench:
    """One process's view of all pipelines."""

    catalogue: SqliteCatalogue
    store: Store
    pipelines: Pipelines
    entry: Entry
    holding: Holding

    async def copy(self, cell: int, name: str = "refund") -> dict[str, str]:
        """What a cell has of a pipeline, without definitions."""
        pairs = await self.store.call("HGETALL", names.pipeline(cell, "default", name))
        found = {pairs[i].decode(): pairs[i + 1].decode() for i in range(0, len(pairs), 2)}
        return {name: value for name, value in found.items() if not name.startswith("v:")}

    async def kept(self, cell: int = 0) -> set[str]:
        """Versions whose definitions a cell keeps."""
        found = await self.store.call("HKEYS", names.pipeline(cell, "default", "refund"))
        return {field.decode()[2:] for field in found if field.startswith(b"v:")}

    async def start(self, pipeline: Pipeline, count: int, cell: int = 0) -> list[str]:
        """Starts transactions; returns their ids."""
        ids = [f"tx-{cell:04x}{number:036x}" for number in range(count)]
        for at in range(0, count, BATCH_MAX):
            items = [
                NewTransaction(
                    id=each,
                    owner="default",
                    pipeline=pipeline.name,
                    version=pipeline.version,
                    group=pipeline.group,
                    state=b"packed",
                )
                for each in ids[at : at + BATCH_MAX]
            ]
            started = await self.entry.start(cell, items)
            assert {each.outcome for each in started} == {"started"}
        return ids

    async def claim(
        self, cell: int = 0, *, group: str = "master", most: int = BATCH_MAX
    ) -> list[str]:
        """Ids that a claim brings."""
        claim = await self.holding.claim(
            cell, "master", node="n", number=1, most=most, lease_ms=10_000
        )
        return [each.id for each in claim.items]

    async def listed(self, list_: str, cell: int = 0) -> list[str]:
        """Ids of a list."""
        found = await self.store.call("LRANGE", names.tag(cell) + list_, 0, -1)
        return [each.decode() for each in found]

    async def states(self, ids: list[str]) -> set[str]:
        """The states of transactions."""
        heads = [await self.store.call("HGET", names.state(each), "head") for each in ids]
        return {parse(head).state for head in heads}


@asynccontextmanager
async def bench_at(store: Store, folder: Path) -> AsyncIterator[Bench]:
    catalogue = SqliteCatalogue(folder / "catalogue.db")
    await catalogue.open()
    await open_cells(store, StreamLogs(store), CELLS)
    pipelines = Pipelines(catalogue, store, cells=CELLS, terms=TERMS, clock=Clock())
    try:
        yield Bench(catalogue, store, pipelines, Entry(store, TERMS), Holding(store, TERMS))
    finally:
        await catalogue.close()


@asynccontextmanager
async def opened(
    server: EmbeddedServer, folder: Path, *, flush: bool = True
) -> AsyncIterator[Bench]:
    store = Store(server.address)
    try:
        if flush:
            await store.call("FLUSHALL")
        async with bench_at(store, folder) as bench:
            yield bench
    finally:
        await store.close()


# -- Versions --------------------------------------------------------------------------------


async def test_a_definition_reaches_every_cell(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with opened(store_server, tmp_path) as bench:
        row = await bench.pipelines.put("default", ONE)
        assert (row.active, row.revision, row.versions) == (ONE.version, 1, (ONE.version,))
        for cell in range(CELLS):
            copy = await bench.copy(cell)
            assert copy == {"revision": "1", "active": ONE.version, "type": "1", "paused": "0"}
            assert await bench.kept(cell) == {ONE.version}
        assert await bench.pipelines.active("default", "refund") == ONE


async def test_the_same_definition_again_changes_nothing(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with opened(store_server, tmp_path) as bench:
        first = await bench.pipelines.put("default", ONE)
        assert await bench.pipelines.put("default", define("refund", ["a"])) == first


async def test_an_older_version_stays_and_can_be_active_again(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with opened(store_server, tmp_path) as bench:
        await bench.pipelines.put("default", ONE)
        row = await bench.pipelines.put("default", TWO)
        assert (row.active, row.versions) == (TWO.version, (TWO.version, ONE.version))
        assert await bench.pipelines.active("default", "refund") == TWO
        assert await bench.pipelines.version("default", "refund", ONE.version) == ONE
        back = await bench.pipelines.put("default", ONE)
        assert (back.active, back.revision) == (ONE.version, 3)
        assert await bench.pipelines.active("default", "refund") == ONE


async def test_the_store_keeps_the_newest_versions_and_the_catalogue_all(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with opened(store_server, tmp_path) as bench:
        made = [define("refund", [f"s{number}"]) for number in range(VERSIONS_KEPT + 2)]
        for pipeline in made:
            await bench.pipelines.put("default", pipeline)
        assert await bench.kept() == {each.version for each in made[2:]}
        async with opened(store_server, tmp_path, flush=False) as other:
            for pipeline in made:
                found = await other.pipelines.version("default", "refund", pipeline.version)
                assert found == pipeline


async def test_what_may_not_be_started_is_told_to_scripts(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    inner = define("inner", ["a"], startable=False)
    async with opened(store_server, tmp_path) as bench:
        await bench.pipelines.put("default", inner)
        assert (await bench.copy(1, "inner"))["type"] == "0"


async def test_projects_have_pipelines_of_their_own(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with opened(store_server, tmp_path) as bench:
        await bench.catalogue.add_project(ProjectRecord(name="shop", created_ms=1))
        await bench.pipelines.put("shop", TWO)
        assert await bench.pipelines.active("shop", "refund") == TWO
        with pytest.raises(PipelineUnknownError):
            await bench.pipelines.active("default", "refund")
        keys = await bench.store.call("KEYS", "*pipelineH*")
        assert sorted(keys)[0] == b"{tx.0}:pipelineH:shop.refund"
        with pytest.raises(NotFoundError, match="no project nobody"):
            await bench.pipelines.put("nobody", ONE)


async def test_what_is_not_there_is_told(store_server: EmbeddedServer, tmp_path: Path) -> None:
    async with opened(store_server, tmp_path) as bench:
        await bench.pipelines.put("default", ONE)
        for asked in (
            bench.pipelines.active("default", "absent"),
            bench.pipelines.get("default", "absent"),
            bench.pipelines.pause("default", "absent"),
            bench.pipelines.resume("default", "absent"),
            bench.pipelines.retire("default", "absent"),
            bench.pipelines.version("default", "refund", "0" * 16),
        ):
            with pytest.raises(PipelineUnknownError):
                await asked
        with pytest.raises(InvalidInputError):
            await bench.pipelines.active("default", "}{")


async def test_pipelines_are_listed_by_name_in_pages(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with opened(store_server, tmp_path) as bench:
        for name in ("c", "a", "b", "gone"):
            await bench.pipelines.put("default", define(name, ["x"]))
        await bench.pipelines.retire("default", "gone")
        first = await bench.pipelines.list("default", limit=2)
        assert [row.name for row in first] == ["a", "b"]
        rest = await bench.pipelines.list("default", after="b", limit=2)
        assert [row.name for row in rest] == ["c"]
        all_ = [row.name async for row in bench.pipelines.everything()]
        assert all_ == ["a", "b", "c", "gone"]


# -- Several processes -----------------------------------------------------------------------


async def test_a_change_reaches_every_node_by_a_hint(
    store_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waystation.transactions.pipelines._FRESH_SECONDS", 60.0)
    async with (
        opened(store_server, tmp_path) as ours,
        opened(store_server, tmp_path, flush=False) as theirs,
    ):
        wakeups = PubSub(store_server.address)
        await wakeups.start()
        end = theirs.pipelines.follow(wakeups)
        try:
            await ours.pipelines.put("default", ONE)
            assert await theirs.pipelines.active("default", "refund") == ONE
            while not await ours.store.call("PUBSUB", "CHANNELS", names.PIPELINES_TOPIC):
                await asyncio.sleep(0.002)
            await ours.pipelines.put("default", TWO)
            async with asyncio.timeout(20):  # Before what is known would be read again anyway.
                while await theirs.pipelines.active("default", "refund") != TWO:
                    await asyncio.sleep(0.002)
        finally:
            end()
            await wakeups.stop()


async def test_what_is_known_needs_no_look_until_somebody_says_that_it_is_old(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with (
        opened(store_server, tmp_path) as ours,
        opened(store_server, tmp_path, flush=False) as theirs,
    ):
        await ours.pipelines.put("default", ONE)
        assert theirs.pipelines.known("default", "refund") is None
        assert await theirs.pipelines.active("default", "refund") == ONE
        await ours.pipelines.put("default", TWO)
        assert theirs.pipelines.known("default", "refund") == ONE
        theirs.pipelines.forget("default", "refund")
        assert await theirs.pipelines.active("default", "refund") == TWO


async def test_changes_at_once_are_made_one_after_the_other(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with (
        opened(store_server, tmp_path) as ours,
        opened(store_server, tmp_path, flush=False) as theirs,
    ):
        made = [define("refund", [f"s{number}"]) for number in range(8)]
        await asyncio.gather(
            *(
                bench.pipelines.put("default", pipeline)
                for bench, pipeline in zip([ours, theirs] * 4, made, strict=True)
            )
        )
        row = await ours.pipelines.get("default", "refund")
        assert row.revision == len(made)
        assert set(row.versions) == {each.version for each in made}
        for cell in range(CELLS):
            copy = await ours.copy(cell)
            assert (copy["revision"], copy["active"]) == ("8", row.active)


async def test_a_late_writer_of_an_older_revision_changes_nothing(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with opened(store_server, tmp_path) as bench:
        old = await bench.pipelines.put("default", ONE)
        await bench.pipelines.put("default", TWO)
        await bench.pipelines.mend(old)
        assert (await bench.copy(0))["active"] == TWO.version
        await bench.pipelines.retire("default", "refund")
        await bench.pipelines.mend(old)
        assert await bench.copy(0) == {"revision": "3"}


async def test_a_new_store_is_filled_from_the_catalogue(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with opened(store_server, tmp_path) as bench:
        await bench.pipelines.put("default", ONE)
    async with opened(store_server, tmp_path) as bench:
        assert await bench.copy(0) == {}
        assert await bench.pipelines.active("default", "refund") == ONE
        assert [(await bench.copy(cell))["active"] for cell in range(CELLS)] == [
            ONE.version
        ] * CELLS


async def test_a_new_catalogue_goes_on_from_what_cells_remember(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with opened(store_server, tmp_path) as bench:
        await bench.pipelines.put("default", ONE)
        await bench.pipelines.put("default", TWO)
    async with opened(store_server, tmp_path / "new", flush=False) as bench:
        row = await bench.pipelines.put("default", ONE)
        assert row.revision == 3
        assert (await bench.copy(CELLS - 1))["active"] == ONE.version


# -- Retiring --------------------------------------------------------------------------------


async def test_a_retired_pipeline_begins_nothing_and_its_versions_stay(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with opened(store_server, tmp_path) as bench:
        await bench.pipelines.put("default", ONE)
        await bench.start(ONE, 1)
        await bench.pipelines.retire("default", "refund")
        with pytest.raises(PipelineUnknownError):
            await bench.pipelines.active("default", "refund")
        item = NewTransaction(
            id="tx-0001" + "f" * 36,
            owner="default",
            pipeline="refund",
            version=ONE.version,
            group="master",
            state=b"packed",
        )
        (started,) = await bench.entry.start(1, [item])
        assert started.outcome == "unknown-pipeline"
    # What was started goes on, wherever.
    async with opened(store_server, tmp_path, flush=False) as bench:
        assert await bench.pipelines.version("default", "refund", ONE.version) == ONE
        # And the name can be used again.
        row = await bench.pipelines.put("default", TWO)
        assert (row.active, row.revision) == (TWO.version, 3)
        assert await bench.pipelines.active("default", "refund") == TWO


# -- Pausing ---------------------------------------------------------------------------------


async def test_what_a_paused_pipeline_held_begins_in_its_old_order(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with opened(store_server, tmp_path) as bench:
        await bench.pipelines.put("default", ONE)
        await bench.pipelines.pause("default", "refund")
        ids = await bench.start(ONE, 2 * BATCH_MAX + 50)
        while await bench.listed("qInL:master"):
            assert await bench.claim() == []
        assert await bench.listed("holdL:refund") == ids
        assert await bench.states(ids) == {"held"}

        await bench.pipelines.resume("default", "refund")
        assert await bench.listed("holdL:refund") == []
        assert await bench.listed("qInL:master") == ids
        assert await bench.states(ids) == {"queued"}
        assert await bench.claim(most=3) == ids[:3]
        read = (await StreamLogs(bench.store).read(names.LOG, 0, 0, limit=1000)).entries()
        kinds = [fact.kind for each in read for fact in unpack(each.payload).facts]
        assert kinds.count("resumed") == len(ids)


async def test_resuming_puts_what_was_held_before_what_came_later(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with opened(store_server, tmp_path) as bench:
        await bench.pipelines.put("default", ONE)
        await bench.pipelines.pause("default", "refund")
        ids = await bench.start(ONE, 4)
        assert await bench.claim(most=2) == []
        await bench.pipelines.resume("default", "refund")
        assert await bench.listed("qInL:master") == ids


async def test_what_ended_while_it_was_held_does_not_come_back(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with opened(store_server, tmp_path) as bench:
        await bench.pipelines.put("default", ONE)
        await bench.pipelines.pause("default", "refund")
        # A whole batch of them at the tail: there is more behind it.
        ids = await bench.start(ONE, BATCH_MAX + 2)
        while await bench.listed("qInL:master"):
            await bench.claim()
        signals = Signals(bench.store, TERMS)
        await signals.cancel("default", ids[2:], cause="by hand", grace_ms=1000)
        await bench.pipelines.resume("default", "refund")
        assert await bench.listed("holdL:refund") == []
        assert await bench.listed("qInL:master") == ids[:2]
        assert await bench.states(ids[2:]) == {"complete"}


async def test_nothing_is_let_go_while_the_pipeline_is_paused(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with opened(store_server, tmp_path) as bench:
        before = await bench.pipelines.put("default", ONE)
        await bench.pipelines.pause("default", "refund")
        ids = await bench.start(ONE, 3)
        await bench.claim()
        # Upkeep of a process that has read the row before.
        await bench.pipelines.mend(before)
        assert await bench.listed("holdL:refund") == ids


async def test_a_retired_pipeline_holds_nothing_back(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with opened(store_server, tmp_path) as bench:
        await bench.pipelines.put("default", ONE)
        await bench.pipelines.pause("default", "refund")
        ids = await bench.start(ONE, 3)
        await bench.claim()
        await bench.pipelines.retire("default", "refund")
        assert await bench.claim() == ids


async def test_a_pause_stays_over_another_version(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with opened(store_server, tmp_path) as bench:
        await bench.pipelines.put("default", ONE)
        await bench.pipelines.pause("default", "refund")
        row = await bench.pipelines.put("default", TWO)
        assert row.paused
        assert (await bench.copy(0))["paused"] == "1"


# -- Deaths ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_whoever_dies_while_changing_a_pipeline_is_finished_by_upkeep(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """F-01 for definitions: every cell ends where the catalogue is, and nothing stays held."""

    async def prepare(store: Store) -> None:
        for file in tmp_path.glob("catalogue.db*"):
            file.unlink()
        async with bench_at(store, tmp_path) as bench:
            await bench.pipelines.put("default", ONE)
            await bench.pipelines.pause("default", "refund")
            for cell in range(CELLS):
                await bench.start(ONE, 2, cell)
                await bench.claim(cell)

    async def scenario(store: Store) -> None:
        async with bench_at(store, tmp_path) as bench:
            await bench.pipelines.put("default", TWO)
            await bench.pipelines.resume("default", "refund")

    async def after(store: Store, point: CrashPoint) -> None:
        async with bench_at(store, tmp_path) as bench:
            async for row in bench.pipelines.everything():
                await bench.pipelines.mend(row)
            row = await bench.pipelines.get("default", "refund")
            assert row.active in (ONE.version, TWO.version)
            for cell in range(CELLS):
                ids = [f"tx-{cell:04x}{number:036x}" for number in range(2)]
                copy = await bench.copy(cell)
                assert copy["active"] == row.active
                assert copy["revision"] == str(row.revision)
                held = await bench.listed("holdL:refund", cell)
                assert held == (ids if row.paused else [])
                queued = await bench.listed("qInL:master", cell)
                assert queued == ([] if row.paused else ids)

    points = crash_points(store_server.address, scenario, after, prepare=prepare)
    assert len(points) > 20
