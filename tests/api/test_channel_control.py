"""`/v1/channels`: lists with lag, batches in order, seeking, and a bounded backlog."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from msgspec.structs import replace

from tests.api.conftest import Guarded
from tests.helpers import http
from tests.helpers.server import background_station
from waystation import AsyncWaystation, Waystation
from waystation.config import ChannelConfig, ChannelRule, Config, WebhookRule
from waystation.testing import Station, serving
from waystation.testing.endpoint import FakeEndpoint

BATCH = "/v1/channels/orders/messages"


def ask(url: str, path: str, body: object = None) -> tuple[int, Any]:
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    answer = http.ask(url, "GET" if body is None else "POST", path, data)
    return answer.status, answer.json()


def numbered(count: int) -> dict[str, Any]:
    return {"messages": [{"id": f"m-{number}", "content": number} for number in range(count)]}


def contents(client: Waystation, channel: str, subscriber: str = "me") -> list[Any]:
    return [each.content for each in client.channels.fetch(channel, subscriber).messages]


def test_channels_and_subscribers_are_listed_with_their_lag(station: Station) -> None:
    with Waystation(station.url) as client:
        for name in ("alpha", "beta"):
            client.channels.subscribe(name, "slow")
            client.channels.subscribe(name, "quick")
            for number in range(3):
                client.channels.publish(name, number)
        batch = client.channels.fetch("alpha", "quick")
        client.channels.ack("alpha", "quick", batch.handle)

    _, page = ask(station.url, "/v1/channels")
    _, subscribers = ask(station.url, "/v1/channels/alpha/subscribers")

    assert [(each["name"], each["clock"]) for each in page["channels"]] == [
        ("alpha", 3),
        ("beta", 3),
    ]
    assert page["cursor"] == ""
    lags = {each["name"]: each["lag"] for each in subscribers["subscribers"]}
    assert lags == {"quick": 0, "slow": 3}


def test_a_long_list_comes_in_pages(station: Station) -> None:
    with Waystation(station.url) as client:
        for number in range(60):
            client.channels.subscribe(f"many-{number}", "me")
    found: list[str] = []
    cursor, pages = "", 0
    while True:
        _, page = ask(station.url, f"/v1/channels?limit=10&cursor={cursor}")
        found += [each["name"] for each in page["channels"]]
        pages += 1
        cursor = page["cursor"]
        if not cursor:
            break

    assert len(set(found)) == 60


def test_a_batch_is_published_in_its_order_byte_for_byte(station: Station) -> None:
    body = b'{"messages": [{"id": "b", "content": 1.0}, {"id": "a", "content": {"x": [ ]}},'
    body += b'{"id": "b", "content": 2}]}'
    with Waystation(station.url) as client:
        client.channels.subscribe("orders", "me")
        status, told = ask(station.url, "/v1/channels/orders/messages", body)

        assert status == 200
        assert [(each["id"], each["outcome"], each["clock"]) for each in told["messages"]] == [
            ("b", "accepted", 1),
            ("a", "accepted", 2),
            ("b", "duplicate", 1),
        ]
        raw = [bytes(each.raw) for each in client.channels.fetch("orders", "me").messages]
        assert raw == [b"1.0", b'{"x": [ ]}']


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "A JSON body is needed."),
        (b"{", "truncated"),
        (b"[]", "object"),
        (b'{"messages": []}', "length >= 1"),
        (b'{"messages": 1}', "$.messages"),
        (b'{"messages": [{"id": "a", "content": 1}], "more": 1}', "more"),
        (b'{"messages": [{"id": "a"}]}', "content"),
        (b'{"messages": [{"content": 1}]}', "id"),
        (b'{"messages": [{"id": "a", "content": 1}, {"id": "A", "content": 1}]}', "messages[1]"),
        (b'{"messages": [{"id": "a\\n", "content": 1}]}', "messages[0].id"),
        (b'{"messages": [{"id": "a", "content": 1}, {"id": "b", "content": "\xff"}]}', "byte 65"),
        (b'{"messages": [{"id": "\\ud800", "content": 1}]}', "lone surrogate"),
        (b'{"messages": [{"id": "a", "content": nan}]}', "malformed"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_malformed_batch_is_told_where_and_publishes_nothing(
    station: Station, body: bytes, told: str
) -> None:
    status, problem = ask(station.url, BATCH, body)

    assert (status, problem["code"]) == (400, "input.invalid")
    assert told in json.dumps(problem)
    assert ask(station.url, "/v1/channels")[1]["channels"] == []


def test_a_batch_has_a_thousand_messages_at_most(station: Station) -> None:
    status, problem = ask(station.url, BATCH, numbered(1001))
    assert (status, problem["code"]) == (400, "input.invalid")
    assert "1000" in problem["detail"]
    assert ask(station.url, "/v1/channels")[1]["channels"] == []

    status, told = ask(station.url, BATCH, numbered(1000))
    assert status == 200
    assert [each["clock"] for each in told["messages"]] == list(range(1, 1001))


def test_a_batch_over_the_size_of_a_body_is_refused_whole(station: Station) -> None:
    messages = [{"id": f"m-{number}", "content": "x" * 100_000} for number in range(11)]

    status, problem = ask(station.url, BATCH, {"messages": messages})

    assert (status, problem["code"]) == (413, "input.too-large")
    assert ask(station.url, "/v1/channels")[1]["channels"] == []


async def test_each_accepted_message_of_a_batch_is_sent_to_the_webhook_once(
    settings: Config,
) -> None:
    async with FakeEndpoint() as endpoint:
        webhook = WebhookRule(name="crm", url=endpoint.url)
        rule = ChannelRule(pattern="orders", webhooks=(webhook,), backlog_max=3)
        settings = replace(settings, channels=ChannelConfig(rules=(rule,)))
        async with serving(settings) as running, AsyncWaystation(running.url) as client:
            messages = [("a", 1), ("b", 2.0), ("a", 3), ("c", 4), ("d", 5)]
            first = await client.channels.publish_many("orders", messages)
            again = await client.channels.publish_many("orders", messages)
            await endpoint.until(3)
            await asyncio.sleep(0.2)

        outcomes = [each.outcome for each in first]
        assert outcomes == ["accepted", "accepted", "duplicate", "accepted", "full"]
        assert [each.outcome for each in again] == ["duplicate"] * 4 + ["full"]
        sent = sorted(json.loads(each.body)["messageID"] for each in endpoint.received)
        assert sent == ["a", "b", "c"]


def test_a_key_sees_and_moves_what_is_its_own_projects(guarded: Guarded, channel: str) -> None:
    ours, theirs = guarded.keys.write, guarded.keys.shop_write
    subscriber = f"/channel/{channel}/subscription/polling/ours"
    http.ask(guarded.url, "PUT", subscriber, b"", key=ours)
    batch = json.dumps(numbered(2)).encode()
    http.ask(guarded.url, "POST", f"/v1/channels/{channel}/messages", batch, key=ours)

    def names(key: str, path: str) -> list[str]:
        (rows,) = (
            rows
            for rows in http.ask(guarded.url, "GET", path, key=key).json().values()
            if isinstance(rows, list)
        )
        return [row["name"] for row in rows]

    assert channel in names(ours, "/v1/channels?limit=1000")
    assert channel not in names(theirs, "/v1/channels?limit=1000")
    assert names(ours, f"/v1/channels/{channel}/subscribers") == ["ours"]
    assert names(theirs, f"/v1/channels/{channel}/subscribers") == []
    seek = f"/v1/channels/{channel}/subscribers/ours/seek"
    moved = [
        http.ask(guarded.url, "POST", seek, b'{"to": "end"}', key=key).status
        for key in (theirs, ours)
    ]
    assert moved == [404, 200]


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1001", "limit=x", "limit=-1", "cursor=x", "cursor=" + "9" * 20]
)
def test_a_bad_page_is_refused(station: Station, query: str) -> None:
    for path in ("/v1/channels", "/v1/channels/orders/subscribers"):
        status, problem = ask(station.url, f"{path}?{query}")
        assert (status, problem["code"]) == (400, "input.invalid")
        assert query.partition("=")[0] in json.dumps(problem)


def test_a_subscriber_is_moved_to_either_end_a_clock_or_a_time(station: Station) -> None:
    seek = "/v1/channels/orders/subscribers/me/seek"
    with Waystation(station.url) as client:
        client.channels.subscribe("orders", "me")
        for number in range(5):
            client.channels.publish("orders", number)
        station.advance(minutes=10)
        _, moved = ask(station.url, "/v1/time/advance", {"seconds": 1})
        middle_ms = moved["now_ms"]
        for number in range(5, 8):
            client.channels.publish("orders", number)

        assert ask(station.url, seek, {"to": "end"}) == (200, {"cursor": 8, "unread": 0})
        assert contents(client, "orders") == []
        assert ask(station.url, seek, {"to": "beginning"}) == (200, {"cursor": 0, "unread": 8})
        assert contents(client, "orders") == list(range(8))
        assert ask(station.url, seek, {"clock": 6}) == (200, {"cursor": 6, "unread": 2})
        assert contents(client, "orders") == [6, 7]
        assert ask(station.url, seek, {"time_ms": middle_ms - 500})[1]["unread"] == 3
        assert contents(client, "orders") == [5, 6, 7]
        status, problem = ask(station.url, seek, {"clock": 99})
        assert (status, problem["errors"][0]["field"]) == (400, "clock")
        assert "clock from 0 to 8" in problem["detail"]
        nobody = "/v1/channels/orders/subscribers/nobody/seek"
        status, problem = ask(station.url, nobody, {"to": "end"})
        assert (status, problem["code"]) == (404, "dsps.storage.subscription-not-found")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"to": "end", "clock": 1},
        {"to": "middle"},
        {"to": None},
        {"clock": "1"},
        {"clock": 1.5},
        {"clock": 2**53},
        {"time_ms": -1},
        {"time_ms": 1e300},
        {"elsewhere": 1},
        [],
    ],
    ids=str,
)
def test_a_malformed_seek_moves_nothing(station: Station, body: object) -> None:
    with Waystation(station.url) as client:
        client.channels.subscribe("orders", "me")
        client.channels.publish("orders", 1)

        status, problem = ask(station.url, "/v1/channels/orders/subscribers/me/seek", body)

        assert (status, problem["code"]) == (400, "input.invalid")
        assert contents(client, "orders") == [1]


def test_seeking_to_the_beginning_means_what_is_still_kept(station: Station) -> None:
    with Waystation(station.url) as client:
        client.channels.subscribe("orders", "me")
        client.channels.publish("orders", "old")
        station.advance(minutes=20)
        client.channels.subscribe("orders", "me")
        client.channels.publish("orders", "new")
        station.advance(minutes=20)

        _, told = ask(station.url, "/v1/channels/orders/subscribers/me/seek", {"to": "beginning"})

        assert told["unread"] == 1
        assert contents(client, "orders") == ["new"]


def test_a_full_channel_refuses_or_drops_the_oldest_as_its_rule_says(settings: Config) -> None:
    rules = (
        ChannelRule(pattern="strict", backlog_max=3),
        ChannelRule(pattern="loose", backlog_max=3, backlog_policy="drop_oldest"),
    )
    with (
        background_station(replace(settings, channels=ChannelConfig(rules=rules))) as station,
        Waystation(station.url) as client,
    ):
        for name in ("strict", "loose"):
            client.channels.subscribe(name, "me")
        _, strict = ask(station.url, "/v1/channels/strict/messages", numbered(5))
        _, loose = ask(station.url, "/v1/channels/loose/messages", numbered(5))

        told = [(each["outcome"], each["clock"]) for each in strict["messages"]]
        assert told == [("accepted", 1), ("accepted", 2), ("accepted", 3), *[("full", None)] * 2]
        assert contents(client, "strict") == [0, 1, 2]
        assert [each["outcome"] for each in loose["messages"]] == ["accepted"] * 5
        batch = client.channels.fetch("loose", "me")
        assert [each.content for each in batch.messages] == [2, 3, 4]
        assert batch.lost == 2

        # When there is room for nothing at all, both manners say so with the same code
        one = {"messages": [{"id": "late", "content": 1}]}
        status, problem = ask(station.url, "/v1/channels/strict/messages", one)
        assert (status, problem["code"], problem["title"]) == (507, "channel.full", "Full")
        assert "at most 3 messages" in problem["detail"]
        alone = http.ask(station.url, "PUT", "/channel/strict/message/late", b"1")
        assert (alone.status, alone.json()["code"]) == (507, "channel.full")
        assert alone.header("retry-after") == "1"
        known = http.ask(station.url, "PUT", "/channel/strict/message/m-1", b"1")
        assert known.status == 200, "a message that is known needs no room"
