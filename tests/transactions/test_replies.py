"""Replies of a whole node: a webhook, a channel and a topic are told the same."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.helpers.http import async_ask, event_stream
from tests.helpers.waiting import eventually
from waystation import Wait
from waystation.config import (
    ChannelConfig,
    ChannelRule,
    Config,
    DeliveryConfig,
    WebhookConfig,
)
from waystation.delivery.notices import latest_notices
from waystation.delivery.workshop import Pauses
from waystation.testing.endpoint import FakeEndpoint
from waystation.testing.station import quick_settings, serving
from waystation.transactions.app import App
from waystation.transactions.order import Order
from waystation.transactions.wanted import Wanted
from waystation.transactions.watch import LOOK_SECONDS

CHANNELS = ChannelConfig(rules=(ChannelRule(pattern="refunds"),))


def app_that_greets() -> App:
    app = App()

    @app.step("shop/greet")
    async def greet(ctx: Any, given: Any) -> Any:
        return "hello"

    app.pipeline("greeting", ["shop/greet"])
    return app


def order_for(wanted: Wanted) -> Order:
    metadata = msgspec.json.encode({"webhook": wanted.webhook})
    return Order(type="greeting", metadata=metadata, wanted=wanted)


def settings_in(folder: Path, **webhooks: Any) -> Config:
    return quick_settings(
        str(folder),
        channels=CHANNELS,
        webhooks=WebhookConfig(first_wait_seconds=0.05, **webhooks),
    )


async def test_all_three_kinds_of_receivers_are_told_the_end(tmp_path: Path) -> None:
    async with (
        FakeEndpoint(plan=[503, 200]) as receiver,
        serving(settings_in(tmp_path), app=app_that_greets()) as running,
    ):
        node = running.node
        await node.topics.create("default", "events", partitions=1)
        await node.channels.subscribe("default", "refunds", "browser")
        wanted = Wanted(webhook=receiver.url, channel="refunds", topic="events")
        started = await node.engine.starter.start("default", order_for(wanted))

        _, second = await receiver.until(2)
        fetched = await node.channels.fetch("default", "refunds", "browser", limit=9, wait_s=10)
        (message,) = fetched.messages
        end = json.loads(second.body)
        assert (end["eventType"], end["data"]) == ("complete", "hello")
        told = json.loads(bytes(message.content))
        assert message.id == second.headers["webhook-id"]
        assert (told["metadata"]["txId"], told["data"]) == (started.id, "hello")

        async def produced() -> bool:
            topic = await node.topics.get("default", "events")
            return len(await node.logs.read(topic.log(topic.target), 0, 0, limit=9)) == 1

        await eventually(produced)

        async def is_noted() -> bool:
            summary = await node.engine.transactions.get("default", started.id)
            return summary.metadata.notified_time is not None

        await eventually(is_noted)


async def test_a_process_without_workers_sends_nothing_and_another_does(tmp_path: Path) -> None:
    async with FakeEndpoint() as receiver:
        wanted = Wanted(webhook=receiver.url)
        async with serving(settings_in(tmp_path, workers=0), app=app_that_greets()) as running:
            node = running.node
            started = await node.engine.starter.start("default", order_for(wanted))
            await node.engine.transactions.get("default", started.id, wait_seconds=20)
            rows, _ = await node.replies.desk.page("default", state="waiting", cursor="", limit=9)
            assert [each.transaction_id for each in rows] == [started.id]
        assert receiver.received == []
        async with serving(settings_in(tmp_path)):
            await receiver.until(1)


async def test_a_browser_follows_a_transaction_in_its_channel(tmp_path: Path) -> None:
    """Waiting, progress and the end, each as it happens, over the stream that pages read."""
    app, seen = App(), asyncio.Event()

    @app.step("shop/refund")
    async def refund(ctx: Any, given: Any) -> Any:
        if ctx.switch("approved") is None:
            return Wait("approved")
        await ctx.progress({"percent": 50})
        await seen.wait()
        return "refunded"

    app.pipeline("refund", ["shop/refund"])
    page = "/v1/channels/refunds/subscribers/page/events?create=true"
    async with (
        serving(settings_in(tmp_path), app=app) as running,
        event_stream(running.url, page) as stream,
    ):

        async def told(kind: str) -> Any:
            """The next event of that kind; of what happens fast the newest is enough."""
            while True:
                message = json.loads((await stream.message()).data)
                ids.append(message["messageID"])
                if message["content"]["eventType"] == kind:
                    return message["content"]

        ids: list[str] = []
        metadata = {"channel": "refunds", "progressReports": True, "statusChanges": True}
        order = json.dumps({"type": "refund", "metadata": metadata}).encode()
        answer = await async_ask(running.url, "POST", "/v1/transactions", order)
        one = answer.json()["metadata"]["txId"]
        while (await told("statusChange"))["metadata"]["status"] != "waiting_switch":
            pass
        await running.node.engine.transactions.set_switch("default", one, "approved", True)
        assert (await told("progressReport"))["progressReport"] == {"percent": 50}
        seen.set()
        end = await told("complete")
        assert (end["metadata"]["status"], end["data"]) == ("success", "refunded")
        versions = [int(each.removeprefix(f"{one}.")) for each in ids]
        assert versions == sorted(set(versions)), "in order, each once"


async def test_a_webhook_is_told_of_changes_of_state_where_they_were_asked_for(
    tmp_path: Path,
) -> None:
    app = App()

    @app.step("shop/approve")
    async def approve(ctx: Any, given: Any) -> Any:
        return Wait("approved") if ctx.switch("approved") is None else "approved"

    app.pipeline("approval", ["shop/approve"])
    async with (
        FakeEndpoint() as asking,
        FakeEndpoint() as silent,
        serving(settings_in(tmp_path), app=app) as running,
    ):

        async def started(**metadata: Any) -> str:
            order = json.dumps({"type": "approval", "metadata": metadata}).encode()
            answer = await async_ask(running.url, "POST", "/v1/transactions", order)
            return str(answer.json()["metadata"]["txId"])

        def told(receiver: FakeEndpoint) -> list[Any]:
            return [json.loads(each.body) for each in receiver.received]

        async def is_told_that_it_waits() -> bool:
            return any(each["metadata"]["status"] == "waiting_switch" for each in told(asking))

        plain = await started(webhook=silent.url)
        one = await started(webhook=asking.url, statusChanges=True)
        await eventually(is_told_that_it_waits)
        change = told(asking)[-1]
        assert (change["eventType"], change["metadata"]["txId"]) == ("statusChange", one)
        assert change["data"] is None
        for each in (one, plain):
            await running.node.engine.transactions.set_switch("default", each, "approved", True)

        async def both_have_ended() -> bool:
            ends = [told(each)[-1:] for each in (asking, silent)]
            return all(each and each[0]["eventType"] == "complete" for each in ends)

        await eventually(both_have_ended)
        *changes, end = told(asking)
        assert {each["eventType"] for each in changes} == {"statusChange"}
        assert (end["metadata"]["status"], end["data"]) == ("success", "approved")
        ids = [each.headers["webhook-id"] for each in asking.received]
        versions = [int(each.removeprefix(f"{one}.")) for each in ids]
        assert versions == sorted(set(versions)), "in order, each once"
        assert [each["eventType"] for each in told(silent)] == ["complete"], "it asked for no more"


async def test_pauses_come_from_the_settings_and_from_what_the_node_group_is_told(
    tmp_path: Path,
) -> None:
    given = {"pause_seconds": 0.1, "pause_busy_seconds": 0.2, "pause_idle_seconds": 0.3}
    async with serving(settings_in(tmp_path, **given), app=app_that_greets()) as running:
        shop = running.node.replies.deliverer._shop
        assert shop.pauses == Pauses(claim_seconds=0.1, busy_seconds=0.2, idle_seconds=0.3)

        async def tell(setting: str, value: int) -> None:
            body = json.dumps({"setting": setting, "value": value}).encode()
            path = "/v1/nodes/master/settings"
            assert (await async_ask(running.url, "PUT", path, body)).status == 200

        for setting, value, wanted in (
            ("webhook_pause_ms", 40, Pauses(0.04, 0.2, 0.3)),
            ("webhook_pause_busy_ms", 50, Pauses(0.04, 0.05, 0.3)),
            ("webhook_pause_idle_ms", 60, Pauses(0.04, 0.05, 0.06)),
        ):
            await tell(setting, value)

            async def paced(wanted: Pauses = wanted) -> bool:
                return shop.pauses == wanted

            await eventually(paced)
        assert shop.attempts_max == WebhookConfig().workers, "nothing was said of it"


async def test_a_node_group_is_told_of_a_pause_between_claims_and_keeps_it(
    tmp_path: Path,
) -> None:
    async with (
        FakeEndpoint() as receiver,
        serving(settings_in(tmp_path), app=app_that_greets()) as running,
    ):
        node = running.node
        await node.engine.nodes.tell("master", "webhook_pause_ms", 1000)

        async def paced() -> bool:
            return node.engine.archivist.following.value.webhook_pause_ms == 1000

        await eventually(paced)
        for number in range(4):
            await node.engine.starter.start("default", order_for(Wanted(webhook=receiver.url)))
            await receiver.until(number + 1)

        times = [each.at for each in receiver.received]
        # The pause is between claims, and any of them may be late to arrive.
        assert all(later - sooner >= 0.5 for sooner, later in pairwise(times[1:]))


async def test_readiness_says_that_nobody_sends_replies(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, workers=0)
    settings = msgspec.structs.replace(settings, time_machine=True)
    async with serving(settings, app=app_that_greets()) as running:
        node = running.node
        assert node.opened.time_machine is not None
        wanted = Wanted(webhook="http://127.0.0.1:9/")
        started = await node.engine.starter.start("default", order_for(wanted))
        await node.engine.transactions.get("default", started.id, wait_seconds=20)
        await node.opened.time_machine.advance(LOOK_SECONDS + 1)

        async def notes() -> list[str]:
            reply = (await async_ask(running.url, "GET", "/readyz")).json()
            assert reply["ready"], "it serves"
            return list(reply["notes"])

        async def is_noted() -> bool:
            return any("no living node sends any" in each for each in await notes())

        async def is_alerted() -> bool:
            return bool(await latest_notices(node.opened.store, most=9))

        await eventually(is_noted)
        # The watch alerts after it has noted the problem.
        await eventually(is_alerted)
        (notice,) = await latest_notices(node.opened.store, most=9)
        assert (notice.kind, notice.cause) == ("unsent", (await notes())[-1])


async def test_administrators_hear_of_a_webhook_that_was_given_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As an event, in the log, and at their URL."""
    async with FakeEndpoint(plan=[500]) as receiver, FakeEndpoint() as office:
        delivery = DeliveryConfig(loopback=True, notice_url=office.url)
        settings = msgspec.structs.replace(settings_in(tmp_path, attempts=2), delivery=delivery)
        async with serving(settings, app=app_that_greets()) as running:
            node = running.node
            wanted = Wanted(webhook=receiver.url)
            started = await node.engine.starter.start("default", order_for(wanted))
            (told,) = await office.until(1)
            (notice,) = await latest_notices(node.opened.store, most=9)
            assert (notice.kind, notice.id, notice.attempts) == ("failed", started.id, 2)
            assert json.loads(told.body)["id"] == started.id
            rows, _ = await node.replies.desk.page("default", state="failed", cursor="", limit=9)
            assert [each.transaction_id for each in rows] == [started.id]
    assert len(receiver.received) == 2
    assert "a delivery was given up" in caplog.text
