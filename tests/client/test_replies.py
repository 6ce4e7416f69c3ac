"""Replies, progress, external ids and the archive in both clients, against a real station."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from tests.helpers.server import background_station
from tests.helpers.waiting import eventually, eventually_sync
from waystation import App, AsyncWaystation, Wait, Waystation
from waystation.client.async_archive import AsyncArchive
from waystation.client.async_webhooks import AsyncWebhooks
from waystation.client.sync_archive import Archive
from waystation.client.sync_webhooks import Webhooks
from waystation.config import Config, TransactionConfig, WebhookConfig
from waystation.errors import TransactionUnknownError
from waystation.testing.endpoint import FakeEndpoint
from waystation.testing.station import Serving
from waystation.transactions.cells import CELLS_DEFAULT

#: What has ended, or sleeps, leaves the store at once.
AT_ONCE = TransactionConfig(
    archive_delay_seconds=0.01, archive_pause_idle_seconds=0.02, cache_seconds=0.01
)


def app_of_tests() -> App:
    app = App()

    @app.step("shop/pack")
    async def pack(ctx: Any, given: Any) -> Any:
        packed = ctx.switch("packed") or 0
        if packed:
            await ctx.progress({"packed": packed})
        return given if packed == 3 else Wait("packed")

    @app.step("shop/approve")
    async def approve(ctx: Any, given: Any) -> Any:
        return given if ctx.switch("approved") else Wait("approved")

    app.pipeline("packing", ["shop/pack"])
    app.pipeline("approval", ["shop/approve"])
    app.pipeline("at-once", ["util/checkpoint"])
    return app


@pytest.fixture(scope="module")
def station(module_store_settings: Config) -> Iterator[Serving]:
    webhooks = WebhookConfig(attempts=1, fail_limit=0)
    settings = replace(module_store_settings, transactions=AT_ONCE, webhooks=webhooks)
    with background_station(settings, app=app_of_tests()) as running:
        yield running


@pytest.fixture
def ws(station: Serving) -> Iterator[Waystation]:
    with Waystation(station.url) as opened:
        yield opened


def test_both_clients_have_the_same_verbs() -> None:
    for ours, theirs in ((AsyncArchive, Archive), (AsyncWebhooks, Webhooks)):
        assert _verbs(ours) == _verbs(theirs)


def _verbs(kind: type) -> list[str]:
    return [name for name, _ in inspect.getmembers(kind, inspect.isfunction) if name[0] != "_"]


def test_a_wait_tells_progress_as_it_comes_and_each_report_once(ws: Waystation) -> None:
    tx = ws.transactions.start("packing")
    seen: list[Any] = []

    def told(report: Any) -> None:
        seen.append(report)
        if report["packed"] < 3:
            tx.set_switch("packed", report["packed"] + 1)

    tx.set_switch("packed", 1)
    ended = tx.wait("30s", progress=told)
    assert ended.status == "success"
    # The last report may be followed by the end before anybody asks again.
    assert seen[:2] == [{"packed": 1}, {"packed": 2}]
    assert seen[2:] in ([], [{"packed": 3}])
    assert ended.metadata.sequence_of_update > 1


def test_a_wait_that_tells_progress_ends_in_time(ws: Waystation) -> None:
    tx = ws.transactions.start("packing")
    tx.set_switch("packed", 1)
    eventually_sync(lambda: tx.get().progress == {"packed": 1})
    seen: list[Any] = []
    late = tx.wait("2s", progress=seen.append)
    assert (late.ended, seen) == (False, [{"packed": 1}]), "the same report is not told again"


@pytest.mark.parametrize("external_id", ["order 1", "orders/2", "..", "ü?&=#%"])
def test_an_external_id_leads_to_its_transaction(ws: Waystation, external_id: str) -> None:
    tx = ws.transactions.start("at-once", 7, external_id=external_id)
    assert tx.wait("30s").status == "success"
    found = ws.transactions.by_external_id(external_id)
    assert (found.id, found.summary.output) == (tx.id, 7)
    with pytest.raises(TransactionUnknownError):
        ws.transactions.by_external_id(f"{external_id}/nobody")


def test_what_has_ended_is_found_in_the_archive(ws: Waystation) -> None:
    tx = ws.transactions.start("at-once", 7)
    tx.wait("30s")
    archived = ws.transactions.archived
    eventually_sync(lambda: tx.id in {each.id for each in archived(status="success", since="1h")})
    hour_ago = datetime.now(UTC) - timedelta(hours=1)
    for since in (hour_ago, timedelta(hours=1)):
        assert tx.id in {each.id for each in ws.transactions.archived(since=since)}
    assert tx.id not in {each.id for each in ws.transactions.archived(status="failed")}
    assert tx.get().output == 7


def test_a_sleeper_that_left_the_store_comes_back_by_its_switch(ws: Waystation) -> None:
    tx = ws.transactions.start("approval", 7)
    eventually_sync(lambda: tx.why().code == "archived")
    assert tx.set_switch("approved", True).outcome == "woken"
    assert tx.wait("30s").output == 7


def test_operators_see_who_archives(ws: Waystation) -> None:
    ws.transactions.start("at-once").wait("30s")
    found = ws.archive.status()
    assert [each.cell for each in found.cells] == list(range(CELLS_DEFAULT))
    assert all(each.archiver.startswith("nodeId-") for each in found.cells)
    assert list(ws.archive.set_aside()) == []
    assert ws.archive.retry() == 0


async def test_a_webhook_that_was_given_up_is_redriven_and_arrives(station: Serving) -> None:
    async with FakeEndpoint(plan=[500, 500, 200]) as receiver, AsyncWaystation(station.url) as ws:
        asked = {"webhook": receiver.url}
        tx = await ws.transactions.start("at-once", metadata=asked)
        await receiver.until(1)

        async def given_up() -> list[tuple[str, str]]:
            return [(each.transaction_id, each.event) async for each in ws.webhooks.failed()]

        async def delivered() -> bool:
            return (await tx.webhook()).status == "delivered"

        await eventually(given_up)
        assert await given_up() == [(tx.id, "complete")]
        found = await tx.webhook()
        assert (found.status, found.receivers[0].state) == ("failed", "failed")
        assert await ws.webhooks.redrive() == 1
        await receiver.until(2)
        await eventually(lambda: ws.transactions.redrive_webhook(tx.id))
        await receiver.until(3)
        await eventually(delivered)
        assert await ws.transactions.discard_webhook(tx.id) == 0
        assert [each async for each in ws.webhooks.waiting()] == []
