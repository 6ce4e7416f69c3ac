"""An app in a process: its pipelines are defined, its node is seen, and both go with it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from waystation import App
from waystation.api.probe_routes import Readiness
from waystation.config import Config, TransactionConfig
from waystation.errors import AppInvalidError, StoreRefusedError
from waystation.testing.station import quick_settings, serving
from waystation.transactions import names
from waystation.transactions.order import Order
from waystation.transactions.pipeline import Pipeline
from waystation.transactions.pipeline_row import PipelineRow


def app_of(*pipelines: str) -> App:
    app = App()

    @app.step("shop/greet")
    async def greet(ctx: Any, given: Any) -> Any:
        return f"hello from {len(pipelines)}"

    for each in pipelines:
        app.pipeline(each, ["shop/greet"])
    return app


async def test_an_app_is_served_and_leaves_with_its_process(settings: Config) -> None:
    async with serving(settings, app=app_of("greeting")) as running:
        engine = running.node.engine
        (node,) = await engine.nodes.all()
        assert "shop/greet" in node.serves
        assert engine.host is not None
        assert engine.host.node_id == node.node_id
        started = await engine.starter.start("default", Order(type="greeting"))
        ended = await engine.transactions.get("default", started.id, wait_seconds=20)
        assert bytes(ended.data) == b'"hello from 1"'
    async with serving(settings) as running:
        engine = running.node.engine
        assert engine.host is None
        (node,) = await engine.nodes.all()
        assert not node.serves, "nobody counts on the one before for another minute"
        kept = await engine.transactions.get("default", started.id)
        assert kept.metadata.status == "success"
        waiting = await engine.starter.start("default", Order(type="greeting"))
        assert (await engine.why.explain("default", waiting.id)).code == "no_node_for_step"


async def test_an_app_that_has_changed_takes_the_place_of_the_one_before(
    settings: Config,
) -> None:
    async with serving(settings, app=app_of("greeting")) as running:
        engine = running.node.engine
        host = engine.host
        assert host is not None
        await host._change(app_of("greeting", "second"))
        started = await engine.starter.start("default", Order(type="second"))
        ended = await engine.transactions.get("default", started.id, wait_seconds=20)
        assert bytes(ended.data) == b'"hello from 2"'


async def test_a_step_that_the_app_does_not_have_is_told_by_name(
    settings: Config, caplog: pytest.LogCaptureFixture
) -> None:
    app = App()
    app.pipeline("odd", ["nobody/serves"])
    async with serving(settings, app=app):
        pass
    told = [record for record in caplog.records if "not served" in record.getMessage()]
    assert len(told) == 1


async def test_a_pipeline_of_a_node_group_without_nodes_is_told_by_name(
    settings: Config, caplog: pytest.LogCaptureFixture
) -> None:
    """The app has the step, but this process serves another node group."""
    app = app_of("greeting")
    app.pipeline("elsewhere", ["shop/greet"], group="payments")
    async with serving(settings, app=app):
        pass
    told = [each.__dict__["fields"] for each in caplog.records if "served" in each.getMessage()]
    problem = "Nobody in node group payments serves shop/greet, step 1 of pipeline elsewhere."
    assert told == [{"problem": problem}]


async def test_of_two_changes_in_a_row_the_last_one_counts(
    settings: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it takes to define what the first one has."""
    first, second = app_of("greeting"), app_of("greeting")
    first.pipeline("shared", ["shop/greet", "shop/greet"])
    wanted = second.pipeline("shared", ["shop/greet"])
    async with serving(settings, app=app_of("greeting")) as running:
        engine = running.node.engine
        assert engine.host is not None
        may_go_on, put = asyncio.Event(), engine.pipelines.put

        async def slow_put(project: str, pipeline: Pipeline) -> PipelineRow:
            if pipeline in first.pipelines[1:]:
                await may_go_on.wait()
            return await put(project, pipeline)

        monkeypatch.setattr(engine.pipelines, "put", slow_put)
        engine.host.change(first)
        await asyncio.sleep(0.05)
        engine.host.change(second)
        await asyncio.sleep(0.05)
        may_go_on.set()
        assert engine.host._changing is not None
        await engine.host._changing
        row = await engine.pipelines.get("default", "shared")
        assert row.active == wanted.version


async def test_a_process_without_steps_of_a_user_can_run_our_own(tmp_path: Path) -> None:
    wanted = quick_settings(str(tmp_path), transactions=TransactionConfig(app="built-in"))
    async with serving(wanted) as running:
        (node,) = await running.node.engine.nodes.all()
        assert "util/delay" in node.serves


async def test_an_app_that_is_none_stops_the_start_and_leaves_nothing_open(tmp_path: Path) -> None:
    wanted = quick_settings(str(tmp_path), transactions=TransactionConfig(app="no_module:app"))
    with pytest.raises(AppInvalidError, match="no_module"):
        async with serving(wanted):
            pass
    async with serving(quick_settings(str(tmp_path))):
        pass


async def test_another_number_of_cells_is_refused(tmp_path: Path) -> None:
    async with serving(quick_settings(str(tmp_path))):
        pass
    wanted = quick_settings(str(tmp_path), transactions=TransactionConfig(cells=2))
    with pytest.raises(StoreRefusedError, match="cells"):
        async with serving(wanted):
            pass


async def test_upkeep_finishes_a_change_of_a_pipeline_that_its_process_died_in(
    settings: Config,
) -> None:
    async with serving(settings, app=app_of("greeting")) as running:
        store = running.node.opened.store
        key = names.pipeline(0, "default", "greeting")
        await store.call("DEL", key)
        await running.node.engine.mend()
        assert await store.call("HGET", key, "active")


async def test_a_process_whose_claims_are_not_answered_is_not_ready(settings: Config) -> None:
    async with serving(settings, app=app_of("greeting")) as running:
        node = running.node
        deaf = Readiness(node.opened, node.catalogue, node.gate, list, working=lambda: False)
        assert await deaf.problems() == {"worker": "no claim was answered lately"}
        assert node.engine.host is not None
        assert node.engine.host.healthy
        assert await running.server._readiness.problems() == {}


async def test_a_deaf_worker_is_told_by_readyz(settings: Config) -> None:
    async with (
        serving(settings, app=app_of("greeting")) as running,
        aiohttp.ClientSession(running.url) as session,
    ):
        async with session.get("/readyz") as ready:
            assert ready.status == 200
        host = running.node.engine.host
        assert host is not None
        assert host._worker is not None
        claimer = host._worker._claimer
        await claimer.stop()
        claimer.answered_at -= 2 * settings.transactions.lease_seconds
        async with session.get("/readyz") as deaf:
            told = await deaf.json()
        assert (deaf.status, told["problems"]) == (503, {"worker": "no claim was answered lately"})
