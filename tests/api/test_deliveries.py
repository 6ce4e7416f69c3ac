"""`/v1/deliveries`: an operator sees what failed and why, and sets it going again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.helpers.waiting import eventually
from waystation import AsyncWaystation
from waystation.access import Scope
from waystation.access.keys import new_key
from waystation.catalogue import ProjectRecord, SqliteCatalogue
from waystation.config import AuthConfig, ChannelConfig, ChannelRule, Config, WebhookRule
from waystation.errors import (
    InvalidInputError,
    NotFoundError,
    UnauthenticatedError,
    WaystationError,
)
from waystation.runtime.ids import RandomIds
from waystation.testing import serving
from waystation.testing.endpoint import FakeEndpoint


async def keys_for(folder: Path) -> dict[str, str]:
    """Keys by what they are for: two projects' admins, and one who may write only."""
    catalogue = SqliteCatalogue(folder / "catalogue.db")
    await catalogue.open()
    made = {}
    await catalogue.add_project(ProjectRecord(name="shop", created_ms=0))
    for name, project, scope in (
        ("operator", "default", Scope.ADMIN),
        ("shop", "shop", Scope.ADMIN),
        ("writer", "default", Scope.WRITE),
    ):
        made[name], record = new_key(RandomIds(), project=project, scope=scope, label="", now_ms=0)
        await catalogue.add_key(record)
    await catalogue.close()
    return made


@asynccontextmanager
async def stations(
    settings: Config, *webhooks: WebhookRule
) -> AsyncIterator[dict[str, AsyncWaystation]]:
    """Clients of one station, by key."""
    rule = ChannelRule(pattern="(?P<name>.+)", webhooks=webhooks)
    texts = await keys_for(settings.data_dir)
    settings = replace(
        settings,
        auth=AuthConfig(insecure=False),
        channels=ChannelConfig(rules=(rule,)),
    )
    async with serving(settings) as running:
        clients = {name: AsyncWaystation(running.url, key=text) for name, text in texts.items()}
        try:
            yield clients
        finally:
            for client in clients.values():
                await client.aclose()


async def failed_ids(client: AsyncWaystation, **which: str) -> list[str]:
    return [each.id async for each in client.deliveries.failed(**which)]


async def test_failed_deliveries_are_seen_with_their_attempts_and_redriven_one_or_all(
    settings: Config,
) -> None:
    async with (
        FakeEndpoint(plan=[401]) as endpoint,
        stations(settings, WebhookRule(name="crm", url=endpoint.url)) as clients,
    ):
        operator = clients["operator"]
        for channel in ("a", "b"):
            for number in range(3):
                await operator.channels.publish(channel, number, message_id=f"m-{number}")

        async def all_failed() -> bool:
            return len(await failed_ids(operator)) == 6

        await eventually(all_failed)
        (row,) = await operator.deliveries.endpoints()
        assert (row.endpoint, row.state, row.failed, row.waiting) == ("crm", "enabled", 6, 0)
        assert row.channels == 2
        first, *_ = [each async for each in operator.deliveries.failed(channel="b")]
        assert (first.endpoint, first.channel, first.attempts) == ("crm", "b", 1)
        assert first.cause == "the endpoint answered 401"
        attempts = await operator.deliveries.attempts("crm", "b", item_id=first.id)
        assert [(each.status, each.verdict, each.reply) for each in attempts] == [
            (401, "failed", "ok")
        ]

        # When one is redriven, then all others
        endpoint.plan = [200]
        assert await operator.deliveries.redrive("crm", channel="b", item_id=first.id) == 1
        assert await operator.deliveries.redrive("crm") == 5
        await endpoint.until(12)

        async def none_failed() -> bool:
            (row,) = await operator.deliveries.endpoints()
            return row.failed == row.waiting == 0

        await eventually(none_failed)
        with pytest.raises(NotFoundError):
            await operator.deliveries.redrive("crm", channel="b", item_id=first.id)


async def test_a_long_list_of_failures_comes_in_pages(settings: Config) -> None:
    async with (
        FakeEndpoint(plan=[401]) as endpoint,
        stations(settings, WebhookRule(name="crm", url=endpoint.url)) as clients,
    ):
        operator = clients["operator"]
        for channel in ("a", "b", "c"):
            pairs = [(f"m-{number}", number) for number in range(5)]
            await operator.channels.publish_many(channel, pairs)

        async def all_failed() -> bool:
            return len(await failed_ids(operator)) == 15

        await eventually(all_failed)
        found: list[str] = []
        cursor, pages = "", 0
        while cursor or not pages:
            query = {"limit": "4", "cursor": cursor}
            page = await operator.deliveries._get("/failed", query, dict)
            found += [f"{each['channel']}/{each['id']}" for each in page["failed"]]
            cursor, pages = page["cursor"], pages + 1
            assert len(page["failed"]) <= 4

        assert len(found) == len(set(found)) == 15
        assert pages == 4


async def test_a_disabled_endpoint_is_seen_and_enabled_by_the_operator_alone(
    settings: Config,
) -> None:
    async with (
        FakeEndpoint(plan=[410, 200]) as endpoint,
        stations(settings, WebhookRule(name="crm", url=endpoint.url)) as clients,
    ):
        operator, shop = clients["operator"], clients["shop"]
        await operator.channels.publish("a", 1)

        async def is_disabled() -> bool:
            return (await operator.deliveries.endpoints())[0].state == "disabled"

        await eventually(is_disabled)
        await shop.channels.publish("a", 2)
        (row,) = await operator.deliveries.endpoints()
        assert (row.cause, row.waiting) == ("the endpoint answered 410", 1)
        assert row.since_ms > 0
        (notice,) = await operator.deliveries._get("/notices", {}, list)
        assert (notice["kind"], notice["endpoint"]) == ("disabled", "crm")
        with pytest.raises(NotFoundError):
            await shop.deliveries.enable("crm")
        with pytest.raises(NotFoundError):
            await shop.deliveries._get("/notices", {}, list)

        assert (await operator.deliveries.enable("crm")).state == "enabled"

        await endpoint.until(3)
        with pytest.raises(NotFoundError):
            await operator.deliveries.enable("nobody")


async def test_a_project_sees_and_moves_its_own_deliveries_alone(settings: Config) -> None:
    """P10"""
    async with (
        FakeEndpoint(plan=[401]) as endpoint,
        stations(settings, WebhookRule(name="crm", url=endpoint.url)) as clients,
    ):
        operator, shop = clients["operator"], clients["shop"]
        await operator.channels.publish("a", 1)
        await shop.channels.publish("a", 2)

        async def both_failed() -> bool:
            return bool(await failed_ids(operator)) and bool(await failed_ids(shop))

        await eventually(both_failed)
        (mine,), (theirs,) = await failed_ids(operator), await failed_ids(shop)
        assert mine.startswith("a.")
        assert theirs.startswith("shop.a.")
        assert (await shop.deliveries.endpoints())[0].failed == 1
        with pytest.raises(NotFoundError):
            await shop.deliveries.redrive("crm", channel="a", item_id=mine)
        assert await shop.deliveries.discard("crm") == 1
        assert await failed_ids(shop) == []
        assert await failed_ids(operator) == [mine]
        attempts = await shop.deliveries.attempts("crm", "a", item_id=mine)
        assert attempts == []


async def test_it_takes_an_admin_key_and_well_formed_input(settings: Config) -> None:
    async with stations(settings, WebhookRule(name="crm", url="http://127.0.0.1:1/")) as clients:
        with pytest.raises(WaystationError) as raised:
            await clients["writer"].deliveries.endpoints()
        assert raised.value.code == "auth.forbidden"
        with pytest.raises(UnauthenticatedError):
            async with AsyncWaystation(clients["writer"].url, key="ws_bad") as stranger:
                await stranger.deliveries.endpoints()
        deliveries = clients["operator"].deliveries
        for bad in (
            deliveries.redrive("NO"),
            deliveries.redrive("crm", item_id="x"),
            deliveries.attempts("crm", "{}"),
            deliveries._get("/failed", {"cursor": "junk"}, dict),
            deliveries._get("/failed", {"limit": "0"}, dict),
        ):
            with pytest.raises(InvalidInputError):
                await bad
