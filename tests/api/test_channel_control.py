"""`/v1/channels`: lists with lag, batches in order, seeking, and a bounded backlog."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from waystation import Waystation
from waystation.channel_settings import ChannelRule
from waystation.settings import ChannelSettings
from waystation.testing import Station


def ask(url: str, path: str, body: object = None) -> tuple[int, Any]:
    data = (
        None if body is None else (body if isinstance(body, bytes) else json.dumps(body).encode())
    )
    request = urllib.request.Request(
        url + path, data=data, method="GET" if body is None else "POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


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
    "body",
    [
        b"",
        b"[]",
        b'{"messages": []}',
        b'{"messages": [{"id": "A", "content": 1}]}',
        b'{"messages": 1}',
    ],
)
def test_a_malformed_batch_publishes_nothing(station: Station, body: bytes) -> None:
    status, told = ask(station.url, "/v1/channels/orders/messages", body)

    assert status == 400
    assert told["code"] == "input.invalid"
    assert ask(station.url, "/v1/channels")[1]["channels"] == []


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
        assert ask(station.url, seek, {"clock": 99})[0] == 400
        assert ask(station.url, seek, {})[0] == 400
        assert ask(station.url, seek, {"to": "end", "clock": 1})[0] == 400
        nobody = "/v1/channels/orders/subscribers/nobody/seek"
        assert ask(station.url, nobody, {"to": "end"})[0] == 404


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


def test_a_full_channel_refuses_or_drops_the_oldest_as_its_rule_says() -> None:
    rules = (
        ChannelRule(pattern="strict", backlog_max=3),
        ChannelRule(pattern="loose", backlog_max=3, backlog_policy="drop_oldest"),
    )
    with (
        Station(time_machine=False, channels=ChannelSettings(rules=rules)) as station,
        Waystation(station.url) as client,
    ):
        for name in ("strict", "loose"):
            client.channels.subscribe(name, "me")
            messages = [{"id": f"m-{number}", "content": number} for number in range(5)]
            status, told = ask(station.url, f"/v1/channels/{name}/messages", {"messages": messages})
            assert status == 200
            outcomes = [each["outcome"] for each in told["messages"]]
            if name == "strict":
                assert outcomes == ["accepted"] * 3 + ["full"] * 2
                assert contents(client, name) == [0, 1, 2]
                again = ask(
                    station.url, f"/v1/channels/{name}/messages", {"messages": messages[4:]}
                )
                assert (again[0], again[1]["code"]) == (507, "channel.full")
            else:
                assert outcomes == ["accepted"] * 5
                assert contents(client, name) == [2, 3, 4]
                assert client.channels.fetch(name, "me").lost in (0, 2)
