"""Replies as clients ask for them over HTTP: refused with the reason, put, polled, noted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from tests.helpers.http import Answer, ask
from tests.helpers.server import background_station
from tests.helpers.store_faults import store_at
from tests.transactions.engine_helpers import waiting_events
from waystation import App, Wait
from waystation.config import Config, DeliveryConfig, HttpConfig, WebhookConfig
from waystation.store.address import Address
from waystation.testing.station import Serving
from waystation.transactions.cells import CELLS_DEFAULT

HOOK = "https://hook.example/refunds?token=1"


def app_of_tests() -> App:
    app = App()

    @app.step("at-once")
    async def at_once(ctx: Any, given: Any) -> Any:
        return {"done": given}

    @app.step("slowly")
    async def slowly(ctx: Any, given: Any) -> Any:
        if (half := ctx.switch("half")) is not None:
            await ctx.progress({"half": half})
        return {"done": given} if ctx.switch("go") else Wait("go" if half else "half")

    app.pipeline("quick", ["at-once"])
    app.pipeline("slow", ["slowly"])
    return app


@dataclass(frozen=True)
class Client:
    """Asks one station."""

    running: Serving

    def ask(self, method: str, path: str, content: Any = None) -> Answer:
        body = None if content is None else json.dumps(content).encode()
        return ask(self.running.url, method, path, body)

    def start(self, type_: str = "quick", **metadata: Any) -> Answer:
        order = {"type": type_, "data": 7, "metadata": metadata}
        return self.ask("POST", "/v1/transactions", order)

    def started(self, type_: str = "quick", **metadata: Any) -> str:
        answer = self.start(type_, **metadata)
        assert answer.status in (200, 201), answer
        return str(answer.json()["metadata"]["txId"])

    def get(self, transaction_id: str, query: str = "") -> Any:
        answer = self.ask("GET", f"/v1/transactions/{transaction_id}{query}")
        assert answer.status == 200, answer
        return answer.json()

    def switch(self, transaction_id: str, name: str) -> None:
        path = f"/v1/transactions/{transaction_id}/switches/{name}"
        assert self.ask("PUT", path, {"value": True}).status == 200

    def events(self) -> dict[str, str]:
        """What waits to be told, of all transactions of this station."""
        address: Address = self.running.node.opened.store.address

        async def look() -> dict[str, str]:
            async with store_at(address) as store:
                pages = [await waiting_events(store, cell) for cell in range(CELLS_DEFAULT)]
                return {item: event for page in pages for item, event in page.items()}

        return asyncio.run(look())


@pytest.fixture(scope="module")
def client(module_store_settings: Config) -> Iterator[Client]:
    settings = replace(
        module_store_settings,
        http=HttpConfig(port=0, poll_seconds_max=20),
        delivery=DeliveryConfig(loopback=False),
        # Nothing is sent: what was put stays.
        webhooks=WebhookConfig(workers=0),
    )
    with background_station(settings, app=app_of_tests()) as running:
        client = Client(running)
        assert client.ask("POST", "/v1/topics", {"name": "refunds"}).status in (200, 201)
        yield client


# -- Refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metadata", "field", "reason"),
    [
        ({"webhook": "ftp://hook.example/"}, "webhook", "http"),
        ({"webhook": "http://"}, "webhook", "http"),
        ({"webhook": "not a url"}, "webhook", "ASCII"),
        ({"webhook": "http://u:p@hook.example/"}, "webhook", "password"),
        ({"webhook": "http://127.0.0.1/"}, "webhook", "not allowed"),
        ({"webhook": "http://169.254.169.254/latest"}, "webhook", "not allowed"),
        ({"webhook": "http://[::1]:6379/"}, "webhook", "not allowed"),
        ({"webhook": "http://0x7f.1/"}, "webhook", "not allowed"),
        ({"reply": "http://10.0.0.1/"}, "webhook", "not allowed"),
        ({"topic": "nowhere"}, "topic", "Topic"),
        ({"topic": "No Name"}, "topic", ""),
        ({"channel": "No Name"}, "channel", ""),
        ({"webhook": HOOK, "topic": "nowhere"}, "topic", "Topic"),
    ],
)
def test_a_reply_that_cannot_be_sent_is_refused_with_its_reason_and_starts_nothing(
    client: Client, metadata: dict[str, str], field: str, reason: str
) -> None:
    answer = client.start(externalId="refused", **metadata)
    assert (answer.status, answer.json()["code"]) == (422, "transaction.reply-invalid")
    (error,) = answer.json()["errors"]
    assert error["field"] == f"metadata.{field}"
    assert reason in error["detail"]
    found = client.ask("GET", "/v1/transactions?external_id=refused").json()
    assert found["transactions"] == [], "the external id is free"


def test_of_a_list_only_what_cannot_be_told_is_not_started(client: Client) -> None:
    orders = [
        {"type": "quick", "metadata": {"webhook": where}}
        for where in (HOOK, "http://127.0.0.1/", HOOK)
    ]
    answer = client.ask("POST", "/v1/transactions", {"transactions": orders})
    first, second, third = answer.json()["results"]
    assert second["error"]["code"] == "transaction.reply-invalid"
    assert "txId" in first["metadata"]
    assert "txId" in third["metadata"]


# -- Put and polled --------------------------------------------------------------------------


def test_what_was_asked_for_is_put_when_it_ends(client: Client) -> None:
    wanted = {"webhook": HOOK, "channel": "orders", "topic": "refunds"}
    transaction_id = client.started("slow", **wanted)
    before = client.events()
    assert not [each for each in before if each.startswith(transaction_id)]
    for name in ("half", "go"):
        client.switch(transaction_id, name)
    end = client.get(transaction_id, "?wait=20s")["metadata"]
    assert end["status"] == "success"
    ours = {each for each in client.events() if each.startswith(transaction_id)}
    assert ours == {transaction_id, f"{transaction_id}.c", f"{transaction_id}.t"}


def test_a_long_poll_takes_the_webhook_back_where_that_was_asked_for(client: Client) -> None:
    wanted = {"webhook": HOOK, "pollReplyCancelsWebhook": True}
    transaction_id = client.started("slow", **wanted)
    for name in ("half", "go"):
        client.switch(transaction_id, name)
    assert client.get(transaction_id, "?wait=20s")["metadata"]["notifiedTime"]
    assert transaction_id not in client.events()


def test_start_with_cancel_webhook_sends_no_webhook_after_a_long_poll(client: Client) -> None:
    """The name that DATP's design gives the option."""
    transaction_id = client.started("slow", webhook=HOOK, cancelWebhook=True)
    for name in ("half", "go"):
        client.switch(transaction_id, name)
    assert client.get(transaction_id, "?wait=20s")["metadata"]["notifiedTime"]
    assert transaction_id not in client.events()


def test_start_with_an_unknown_option_warns_in_the_reply(client: Client) -> None:
    warning = (
        "metadata.cancel_webhook is not an option and has no effect. Did you mean cancelWebhook?"
    )
    for status in (201, 200):
        answer = client.start(cancel_webhook=True, externalId="warned")
        assert (answer.status, answer.json()["warnings"]) == (status, [warning])
    polled = client.start(cancel_webhook=True, poll="long")
    assert (polled.json()["metadata"]["status"], polled.json()["warnings"]) == (
        "success",
        [warning],
    )
    assert "warnings" not in client.start(mine=1).json()


def test_a_start_with_a_long_poll_is_answered_with_the_end(client: Client) -> None:
    answer = client.start(poll="long", externalId="polled")
    summary = answer.json()
    assert (answer.status, summary["metadata"]["status"]) == (201, "success")
    assert summary["data"] == {"done": 7}
    assert summary["metadata"]["notifiedTime"]
    again = client.start(poll="long", externalId="polled")
    assert (again.status, again.json()["duplicate"]) == (200, True)
    assert again.json()["metadata"] == summary["metadata"]
    old = client.start(reply="longpoll")
    assert (old.status, old.json()["metadata"]["status"]) == (201, "success")


def test_start_again_with_another_webhook_is_409(client: Client) -> None:
    asked = {"externalId": "hooked", "webhook": HOOK, "progressReports": True}
    first = client.start(**asked)
    assert first.status == 201
    again = client.start(**asked)
    assert (again.status, again.json()["duplicate"]) == (200, True)
    for name, value in (("webhook", f"{HOOK}?v=2"), ("webhook", None), ("progressReports", False)):
        other = client.start(**{**asked, name: value})
        assert (other.status, other.json()["code"]) == (409, "transaction.duplicate")
        assert f"metadata.{name}" in other.json()["detail"]


def test_progress_ends_a_wait_that_asks_for_it(client: Client) -> None:
    transaction_id = client.started("slow")
    seen = client.get(transaction_id)["metadata"]["sequenceOfUpdate"]
    client.switch(transaction_id, "half")
    told = client.get(transaction_id, f"?wait=20s&after={seen}")
    assert told["progressReport"] == {"half": True}
    metadata = told["metadata"]
    assert (metadata["completionTime"], metadata["notifiedTime"]) == (None, None)
    seen = metadata["sequenceOfUpdate"]
    assert client.get(transaction_id, f"?wait=10ms&after={seen}")["progressReport"] is not None
    client.switch(transaction_id, "go")
    assert client.get(transaction_id, "?wait=20s&after=999999")["data"] == {"done": 7}


@pytest.mark.parametrize("after", ["x", "-1", "", "1.5", "9" * 40])
def test_what_is_no_version_is_refused(client: Client, after: str) -> None:
    transaction_id = client.started()
    answer = client.ask("GET", f"/v1/transactions/{transaction_id}?wait=1s&after={after}")
    assert (answer.status, answer.json()["errors"][0]["field"]) == (400, "after")


def test_a_list_is_not_waited_for(client: Client) -> None:
    orders = [{"type": "quick", "metadata": {"poll": "long"}}]
    answer = client.ask("POST", "/v1/transactions", {"transactions": orders})
    assert answer.status == 400
    assert answer.json()["errors"][0]["field"] == "transactions[0].metadata.poll"
