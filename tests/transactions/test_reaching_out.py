"""Steps that reach channels, topics and other servers, through a whole station."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.helpers.http import async_ask
from tests.helpers.server import make_keys
from tests.transactions.calling import call, step_call
from waystation import App
from waystation.config import (
    AuthConfig,
    ChannelConfig,
    ChannelRule,
    Config,
    HttpConfig,
    TransactionConfig,
)
from waystation.errors import InvalidInputError, SettingsError
from waystation.node import Node
from waystation.reach import Reach
from waystation.testing.endpoint import FakeEndpoint
from waystation.testing.station import Serving, quick_settings, serving
from waystation.topics.producer import CheckedProducer
from waystation.transactions import names
from waystation.transactions.order import Order
from waystation.transactions.outcomes import Failure, Outcome, Pause, Success
from waystation.transactions.services import Services
from waystation.transactions.step_call import TransactionFacts
from waystation.transactions.wanted import Wanted
from waystation.types.topic import RateLimit, TopicOptions

TRACE = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"
REMEMBERING = TopicOptions(dedup_seconds=60)


def services_of(node: Node) -> Services:
    within = CheckedProducer(node.topics, node.producer, node.schemas, node.limits, 1000)
    guard = node.channels._guard
    parts = (guard, node.delivery.sender, node.channels, within, node.engine.urls)
    return Reach(*parts, node.pools.pools).services()


async def run(node: Node, step_type: str, given: bytes, **options: Any) -> Outcome:
    """A call of the first step of one and the same transaction."""
    facts = TransactionFacts(
        id="tx-0000" + "0" * 36, type="p", project="default", traceparent=TRACE
    )
    in_call = step_call(services=services_of(node), transaction=facts)
    return await call(App(), step_type, given, options, in_call=in_call)


async def produced(node: Node, topic: str) -> list[Any]:
    page = await node.topic_queries.messages_in_partition("default", topic, storage=0, partition=0)
    return [each.message for each in page.messages]


async def ended(station: Serving, transaction_id: str) -> dict[str, Any]:
    path = f"/v1/transactions/{transaction_id}?wait=20s"
    told: dict[str, Any] = (await async_ask(station.url, "GET", path)).json()
    return told


# -- Topics ----------------------------------------------------------------------------------


async def test_a_message_of_a_step_is_there_once_however_often_it_is_called(
    settings: Config,
) -> None:
    """What a death between the message and its commit leads to."""
    async with serving(settings) as station:
        node = station.node
        await node.topics.create("default", "orders", partitions=1, options=REMEMBERING)
        given = b'{"customer": {"id": 7}, "total": 1.0}'
        for _ in range(2):
            outcome = await run(
                node,
                "util/produce",
                given,
                topic="orders",
                group="customer.id",
                headers={"X-Kind": "paid"},
            )
            assert outcome == Success(given)
        (message,) = await produced(node, "orders")
        assert len(message.id) == 64
        assert (message.group, message.cause) == ("7", "tx-0000" + "0" * 36)
        assert message.traceparent == TRACE
        assert message.content_type == "application/json"
        assert dict(message.headers) == {"x-kind": "paid"}


@pytest.mark.parametrize(
    ("options", "given", "told"),
    [
        ({"topic": "nowhere"}, b"{}", "nowhere"),
        ({"topic": "grouped"}, b"{}", "has no group"),
        ({"topic": "grouped", "group": "who"}, b"{}", "Field who of the input"),
        ({"topic": "grouped", "group": "who"}, b'{"who": [1]}', "is no text"),
        ({"topic": "grouped", "group": "who"}, b'{"who": ""}', "group must have 1 to 100"),
        ({"topic": "strict"}, b"{}", "match"),
        ({"topic": "plain"}, b'"' + b"x" * 2000 + b'"', "limit is 1,000"),
        ({"topic": "plain", "headers": {"cookie": "1"}}, b"{}", "do not keep the header cookie"),
        ({"topic": "plain", "headers": {"x-a": "1\n"}}, b"{}", "control characters"),
    ],
)
async def test_a_message_that_a_client_could_not_produce_fails(
    settings: Config, options: dict[str, Any], given: bytes, told: str
) -> None:
    async with serving(settings) as station:
        node = station.node
        schema = TopicOptions(json_schema={"type": "object", "required": ["a"]})
        await node.topics.create("default", "grouped", options=TopicOptions(grouped=True))
        await node.topics.create("default", "strict", partitions=1, options=schema)
        await node.topics.create("default", "plain", partitions=1)
        outcome = await run(node, "util/produce", given, **options)
        assert isinstance(outcome, Failure), outcome
        assert outcome.status == "failed"
        assert told in outcome.note
        assert await produced(node, "strict") == await produced(node, "plain") == []


async def test_a_topic_that_takes_nothing_now_is_asked_again(settings: Config) -> None:
    async with serving(settings) as station:
        node = station.node
        await node.topics.create("default", "shut", partitions=1)
        await node.topics.block("default", "shut")
        outcome = await run(node, "util/produce", b"{}", topic="shut")
        assert isinstance(outcome, Pause)
        assert 800 <= (outcome.delay_ms or 0) <= 1200
        rate = RateLimit(mode="enforced", qps=1)
        options = TopicOptions(rate=rate)
        await node.topics.create("default", "slow", partitions=1, options=options)
        outcomes = [await run(node, "util/produce", b"{}", topic="slow") for _ in range(5)]
        assert any(isinstance(each, Pause) for each in outcomes)


# -- Channels --------------------------------------------------------------------------------


async def test_what_is_published_is_there_once_and_is_the_field_that_was_named(
    settings: Config,
) -> None:
    async with serving(settings) as station:
        node = station.node
        await node.channels.subscribe("default", "news", "me")
        given = b'{"news": {"n": 1.0}, "secret": 1}'
        for _ in range(2):
            outcome = await run(node, "util/publish", given, channel="news", content="news")
            assert outcome == Success(given)
        fetched = await node.channels.fetch("default", "news", "me", limit=10)
        assert [bytes(each.content) for each in fetched.messages] == [b'{"n": 1.0}']
        assert len(fetched.messages[0].id) == 40
        missing = await run(node, "util/publish", given, channel="news", content="gone")
        assert isinstance(missing, Failure)


async def test_a_channel_that_no_rule_allows_fails_and_a_full_one_is_asked_again(
    settings: Config,
) -> None:
    rule = ChannelRule(pattern="news", backlog_max=1, backlog_policy="refuse")
    settings = msgspec.structs.replace(settings, channels=ChannelConfig(rules=(rule,)))
    async with serving(settings) as station:
        node = station.node
        outcome = await run(node, "util/publish", b"1", channel="other")
        assert isinstance(outcome, Failure)
        assert "No channel rule allows" in outcome.note
        # A backlog is what somebody has not read yet.
        await node.channels.subscribe("default", "news", "me")
        await node.channels.publish("default", "news", "first", b"1")
        assert isinstance(await run(node, "util/publish", b"1", channel="news"), Pause)


# -- What replies ask for --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        (Wanted(project="default", webhook="ftp://example.com"), "webhook"),
        (Wanted(project="default", webhook="http://10.0.0.1/"), "webhook"),
        (Wanted(project="default", channel="other"), "channel"),
        (Wanted(project="default", channel="Not a name"), "channel"),
        (Wanted(project="default", topic="nowhere"), "topic"),
        (Wanted(project="another", topic="orders"), "topic"),
    ],
)
async def test_what_cannot_be_reached_is_refused_with_its_field(
    settings: Config, wanted: Wanted, field: str
) -> None:
    """S-01"""
    rule = ChannelRule(pattern="news")
    settings = msgspec.structs.replace(settings, channels=ChannelConfig(rules=(rule,)))
    async with serving(settings) as station:
        await station.node.topics.create("default", "orders", partitions=1)
        check = services_of(station.node).check
        fine = Wanted(
            project="default", webhook="http://127.0.0.1:9/x", channel="news", topic="orders"
        )
        await check(fine)
        with pytest.raises(InvalidInputError) as refused:
            await check(wanted)
        assert refused.value.field == field


# -- Over HTTP -------------------------------------------------------------------------------


def asking(url: str) -> App:
    app = App()
    app.pipeline("ask", [("util/http", {"url": url, "callback": "1h"})])
    return app


async def test_a_server_calls_back_over_http(settings: Config) -> None:
    async with (
        FakeEndpoint(plan=[202]) as endpoint,
        serving(settings, app=asking(endpoint.url)) as station,
    ):
        starter = station.node.engine.starter
        receipt = await starter.start("default", Order(type="ask", data=b"1"))
        (got,) = await endpoint.until(1)
        url = got.headers["waystation-callback"]
        assert url.startswith(f"{station.url}/v1/callbacks/{receipt.id}/1/")
        async with asyncio.timeout(20):
            while True:
                why = (await async_ask(station.url, "GET", f"/v1/why/{receipt.id}")).json()
                if why["code"] == "waiting_switch":
                    break
        assert "It waits to be called back in step 1" in json.dumps(why)
        path = url.removeprefix(station.url)
        forged = path[:-1] + ("0" if path[-1] != "0" else "1")

        async def post(target: str, body: bytes) -> tuple[int, str]:
            answer = await async_ask(station.url, "POST", target, body)
            return answer.status, answer.json().get("code", "")

        assert await post(forged, b"1") == (404, "callback.unknown")
        assert await post(path.replace("/1/", "/2/"), b"1") == (404, "callback.unknown")
        assert await post(path, b"<xml>") == (422, "callback.invalid")
        assert await post(path, b'"' + b"x" * 1_100_000 + b'"') == (413, "input.too-large")
        assert await post(path, b'{"paid": 1.0}') == (200, "")
        assert await post(path, b'{"paid": 2.0}') == (409, "callback.used")
        told = await ended(station, receipt.id)
        assert told["data"] == {"paid": 1.0}
        assert await post(path, b"3") == (409, "callback.used")


async def test_an_answer_finds_a_transaction_that_was_archived_meanwhile(
    settings: Config,
) -> None:
    quick = TransactionConfig(archive_delay_seconds=0)
    settings = msgspec.structs.replace(settings, transactions=quick)
    async with (
        FakeEndpoint(plan=[202]) as endpoint,
        serving(settings, app=asking(endpoint.url)) as station,
    ):
        node = station.node
        receipt = await node.engine.starter.start("default", Order(type="ask"))
        (got,) = await endpoint.until(1)
        async with asyncio.timeout(30):
            while await node.opened.store.call("EXISTS", names.state(receipt.id)):
                await asyncio.sleep(0.01)
        way = got.headers["waystation-callback"].removeprefix(station.url)
        assert (await async_ask(station.url, "POST", way, b"[1.0]")).status == 200
        assert (await async_ask(station.url, "POST", way, b"[2.0]")).status == 409
        assert (await ended(station, receipt.id))["data"] == [1.0]


async def test_nobody_needs_a_key_to_call_back(tmp_path: Path) -> None:
    """The URL is the key; a station with keys asks for no other."""
    keys = await asyncio.to_thread(make_keys, tmp_path)
    settings = quick_settings(str(tmp_path), auth=AuthConfig())
    async with (
        FakeEndpoint(plan=[202]) as endpoint,
        serving(settings, app=asking(endpoint.url)) as station,
    ):
        order = b'{"type": "ask"}'
        path = "/v1/transactions"
        assert (await async_ask(station.url, "POST", path, order)).status == 401
        started = await async_ask(station.url, "POST", path, order, key=keys.write)
        assert started.status == 201
        (got,) = await endpoint.until(1)
        way = got.headers["waystation-callback"].removeprefix(station.url)
        assert (await async_ask(station.url, "POST", way, b"1")).status == 200


async def test_a_public_url_that_is_none_is_told_at_start(settings: Config) -> None:
    for text in ("example.com", "ftp://example.com", "https://a b"):
        wrong = msgspec.structs.replace(settings, http=HttpConfig(port=0, public_url=text))
        with pytest.raises(SettingsError, match=r"http\.public_url"):
            async with serving(wrong):
                pass
    right = HttpConfig(port=0, public_url="https://example.com/station/")
    async with serving(msgspec.structs.replace(settings, http=right)) as station:
        url = station.node.engine.urls("tx-1", "1")
        assert url.startswith("https://example.com/station/v1/callbacks/tx-1/1/")
