"""Replies of transactions over HTTP: what waits, what was given up, and how it goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from tests.helpers.http import Answer, async_ask
from tests.helpers.server import make_keys
from tests.helpers.waiting import eventually
from waystation import App
from waystation.config import AuthConfig, Config, DeliveryConfig, TransactionConfig, WebhookConfig
from waystation.delivery.notices import Notice
from waystation.delivery.states import EndpointStates
from waystation.telemetry import metrics
from waystation.testing.endpoint import FakeEndpoint
from waystation.testing.station import Serving, serving
from waystation.transactions import names

#: Two attempts, one right after the other.
QUICK = WebhookConfig(attempts=2, first_wait_seconds=0.01, fail_limit=0)
#: What has ended leaves the store soon; what came back stays for longer than an attempt takes.
SOON = TransactionConfig(
    archive_delay_seconds=0.01, archive_pause_idle_seconds=0.02, cache_seconds=0.3
)
NOBODY = "tx-0000" + "f" * 36


class Client:
    """Asks one station from its own event loop."""

    def __init__(self, running: Serving) -> None:
        self.running = running

    async def ask(self, method: str, path: str, content: Any = None) -> Answer:
        body = None if content is None else json.dumps(content).encode()
        return await async_ask(self.running.url, method, path, body)

    async def ended(self, **metadata: Any) -> str:
        order = {"type": "pay", "data": 5, "metadata": metadata}
        answer = await self.ask("POST", "/v1/transactions", order)
        assert answer.status == 201, answer
        transaction_id = str(answer.json()["metadata"]["txId"])
        waiting = self.running.node.engine.waiting
        assert await waiting.ended(transaction_id, 15), "by a wait that tells nobody"
        return transaction_id

    async def standing(self, transaction_id: str) -> Any:
        answer = await self.ask("GET", f"/v1/transactions/{transaction_id}/webhook")
        assert answer.status == 200, answer
        return answer.json()

    async def replies(self, state: str = "failed") -> list[Any]:
        answer = await self.ask("GET", f"/v1/webhooks?state={state}")
        assert answer.status == 200, answer
        found: list[Any] = answer.json()["replies"]
        return found


@asynccontextmanager
async def station(settings: Config, **sections: Any) -> AsyncIterator[Client]:
    app = App()
    app.pipeline("pay", ["util/checkpoint"])
    given = {"webhooks": QUICK, **sections}
    async with serving(replace(settings, **given), app=app) as running:
        yield Client(running)


async def test_a_webhook_that_arrived_is_told_with_its_attempts(settings: Config) -> None:
    async with FakeEndpoint(plan=[503, 200]) as receiver, station(settings) as client:
        transaction_id = await client.ended(webhook=f"{receiver.url}?token=secret")

        async def delivered() -> bool:
            return bool((await client.standing(transaction_id))["status"] == "delivered")

        await eventually(delivered)
        found = await client.standing(transaction_id)
        assert found["notified_ms"] is not None
        (row,) = found["receivers"]
        assert (row["kind"], row["state"]) == ("webhook", "idle")
        assert "secret" not in row["where"], "what is in the query may be a secret"
        assert row["where"] == receiver.url
        told = [(each["attempt"], each["verdict"], each["status"]) for each in found["attempts"]]
        assert told == [(1, "retry", 503), (2, "done", 200)]
        assert await client.replies("failed") == []


async def test_attempts_and_waits_are_counted(settings: Config) -> None:
    before = {each: attempts_told(each) for each in ("retry", "done")}
    async with FakeEndpoint(plan=[503, 200]) as receiver, station(settings) as client:
        transaction_id = await client.ended(webhook=receiver.url)

        async def delivered() -> bool:
            return bool((await client.standing(transaction_id))["status"] == "delivered")

        await eventually(delivered)

        async def counted() -> bool:
            return attempts_told("done") == before["done"] + 1

        await eventually(counted)
        assert attempts_told("retry") == before["retry"] + 1
        order = {"type": "pay", "metadata": {"startAt": "1h"}}
        waits = (await client.ask("POST", "/v1/transactions", order)).json()["metadata"]["txId"]
        gauge, waiting = "waystation_transaction_waiters", client.running.node.engine.waiting
        idle = metrics.registry.get_sample_value(gauge)
        wait = asyncio.create_task(client.ask("GET", f"/v1/transactions/{waits}?wait=20s"))

        async def waited_for() -> bool:
            await asyncio.sleep(0)
            return metrics.registry.get_sample_value(gauge) == (idle or 0) + 1

        await eventually(waited_for)
        waiting.end_waits()
        assert (await wait).status == 200
        assert metrics.registry.get_sample_value(gauge) == idle


def attempts_told(verdict: str) -> float:
    labels = {"kind": "webhook", "event": "complete", "verdict": verdict}
    return metrics.registry.get_sample_value("waystation_replies_total", labels) or 0.0


async def test_what_was_given_up_is_listed_redriven_and_arrives(settings: Config) -> None:
    plan = [500, 500, 500, 500, 200]
    async with FakeEndpoint(plan=plan) as receiver, station(settings) as client:
        ids = {await client.ended(webhook=receiver.url), await client.ended(webhook=receiver.url)}

        async def both_failed() -> bool:
            return {each["transaction_id"] for each in await client.replies()} == ids

        await eventually(both_failed)
        one = min(ids)
        found = await client.standing(one)
        assert (found["status"], found["receivers"][0]["state"]) == ("failed", "failed")
        assert found["receivers"][0]["attempts"] == 2
        redriven = await client.ask("POST", f"/v1/transactions/{one}/webhook/redrive")
        assert (redriven.status, redriven.json()) == (200, {"count": 1})

        async def delivered() -> bool:
            return bool((await client.standing(one))["status"] == "delivered")

        await eventually(delivered)
        again = await client.ask("POST", f"/v1/transactions/{one}/webhook/redrive")
        assert again.json() == {"count": 0}, "nothing of it was given up any more"
        rest = await client.ask("POST", "/v1/webhooks/redrive")
        assert rest.json() == {"count": 1}

        async def none_failed() -> bool:
            return not await client.replies() and not await client.replies("waiting")

        await eventually(none_failed)


async def test_a_webhook_that_waits_is_shown_and_can_be_taken_back(settings: Config) -> None:
    nobody_sends = WebhookConfig(workers=0)
    async with station(settings, webhooks=nobody_sends) as client:
        await client.ask("POST", "/v1/topics", {"name": "events"})
        transaction_id = await client.ended(webhook="http://127.0.0.1:9/hook", topic="events")
        waiting = await client.replies("waiting")
        assert {each["event"] for each in waiting} == {"complete"}
        assert len(waiting) == 2
        found = await client.standing(transaction_id)
        assert {(each["kind"], each["where"], each["state"]) for each in found["receivers"]} == {
            ("webhook", "http://127.0.0.1:9/hook", "waiting"),
            ("topic", "events", "waiting"),
        }
        discarded = await client.ask("DELETE", f"/v1/transactions/{transaction_id}/webhook")
        assert (discarded.status, discarded.json()) == (200, {"count": 2})
        assert await client.replies("waiting") == []
        again = await client.ask("DELETE", f"/v1/transactions/{transaction_id}/webhook")
        assert again.json() == {"count": 0}


async def test_a_node_group_is_told_to_send_and_does(settings: Config) -> None:
    nobody_sends = WebhookConfig(workers=0)
    async with (
        FakeEndpoint(plan=[200]) as receiver,
        station(settings, webhooks=nobody_sends) as client,
    ):
        await client.ended(webhook=receiver.url)
        (waits,) = await client.replies("waiting")
        assert (waits["attempts"], receiver.received) == (0, [])
        told = {"setting": "webhook_workers", "value": 5}
        assert (await client.ask("PUT", "/v1/nodes/master/settings", told)).status == 200
        await receiver.until(1)


async def test_a_webhook_outlives_the_state_in_the_store(settings: Config) -> None:
    """Archived and gone before the receiver is back: it is told from the archive."""
    patient = WebhookConfig(first_wait_seconds=2.0, fail_limit=0)
    sections = {"webhooks": patient, "transactions": SOON}
    async with FakeEndpoint(plan=[503]) as receiver, station(settings, **sections) as client:
        transaction_id = await client.ended(webhook=receiver.url)
        store = client.running.node.opened.store

        async def left_the_store() -> bool:
            return not await store.call("EXISTS", names.state(transaction_id))

        await eventually(left_the_store)
        assert {each.status for each in receiver.received} <= {503}, "it is not told yet"
        receiver.plan = [200]

        async def delivered() -> bool:
            return bool((await client.standing(transaction_id))["status"] == "delivered")

        await eventually(delivered)
        told = json.loads(receiver.received[-1].body)
        assert (told["metadata"]["status"], told["data"]) == ("success", 5)


@pytest.mark.slow
async def test_a_receiver_that_is_gone_is_disabled_and_can_be_enabled_again(
    settings: Config,
) -> None:
    async with FakeEndpoint(plan=[410, 200]) as receiver, station(settings) as client:
        transaction_id = await client.ended(webhook=receiver.url)

        async def disabled() -> bool:
            (row,) = (await client.standing(transaction_id))["receivers"]
            return bool(row["standing"] == "disabled")

        await eventually(disabled)
        (row,) = (await client.standing(transaction_id))["receivers"]
        assert row["state"] == "waiting", "it is not lost"
        listed = (await client.ask("GET", "/v1/deliveries")).json()
        assert [(each["endpoint"], each["state"]) for each in listed] == [
            (row["receiver"], "disabled")
        ]
        body = {"endpoint": row["receiver"]}
        assert (await client.ask("POST", "/v1/deliveries/enable", body)).status == 200

        async def delivered() -> bool:
            return bool((await client.standing(transaction_id))["status"] == "delivered")

        await eventually(delivered)


async def test_a_project_enables_its_own_receivers_and_sees_no_others(settings: Config) -> None:
    keys = await asyncio.to_thread(make_keys, settings.data_dir)
    settings = replace(settings, auth=AuthConfig(insecure=False))
    async with serving(settings) as running:
        states = EndpointStates(running.node.opened.store)
        for each in ("w.shop.0123456789abcdef", "w.default.0123456789abcdef"):
            notice = Notice(kind="disabled", endpoint=each, lane="", cause="410", at_ms=1)
            assert await states.disable(each, notice)

        async def ask(method: str, path: str, content: Any = None) -> Answer:
            body = None if content is None else json.dumps(content).encode()
            return await async_ask(running.url, method, path, body, key=keys.shop_admin)

        listed = (await ask("GET", "/v1/deliveries")).json()
        assert [each["endpoint"] for each in listed] == ["w.shop.0123456789abcdef"]
        for each, status in (("w.shop.0123456789abcdef", 200), ("w.default.0123456789abcdef", 404)):
            answer = await ask("POST", "/v1/deliveries/enable", {"endpoint": each})
            assert answer.status == status, answer
        assert set((await states.survey()).disabled) == {"w.default.0123456789abcdef"}


@pytest.mark.parametrize("transaction_id", [NOBODY, "junk"])
async def test_replies_of_what_is_not_there_are_unknown(
    settings: Config, transaction_id: str
) -> None:
    async with station(settings) as client:
        path = f"/v1/transactions/{transaction_id}/webhook"
        for method, where in (("GET", path), ("POST", f"{path}/redrive"), ("DELETE", path)):
            answer = await client.ask(method, where)
            assert (answer.status, answer.json()["code"]) == (404, "transaction.unknown")


async def test_a_list_of_replies_is_asked_for_rightly_or_refused(settings: Config) -> None:
    async with station(settings, delivery=DeliveryConfig(loopback=True)) as client:
        for query in ("state=done", "limit=0", "limit=x", "cursor=x"):
            answer = await client.ask("GET", f"/v1/webhooks?{query}")
            assert (answer.status, answer.json()["code"]) == (400, "input.invalid"), query
