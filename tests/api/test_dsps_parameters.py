"""Publish and fetch: parameters, bodies and replies, by the rules of DSPS."""

from __future__ import annotations

import time
from urllib.parse import quote

import pytest
from msgspec.structs import replace

from tests.helpers.http import Wire, ask, async_wire, wire
from waystation.config import ChannelConfig, Config, HttpConfig
from waystation.testing.station import serving

NOT_FOUND = "dsps.storage.subscription-not-found"


def polling(channel: str) -> str:
    return f"/channel/{channel}/subscription/polling/s"


def publish(connection: Wire, channel: str, count: int) -> None:
    for number in range(1, count + 1):
        assert connection.ask("PUT", f"/channel/{channel}/message/m{number}", b"1").status == 200


# -- Publish ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        b"null",
        b"1",
        b"1.0",
        b"-0.0",
        b"1E+2",
        b"1e999",
        b"12345678901234567890",
        b"-98765432109876543210.5",
        b'"x"',
        b'"<b>&amp;\\u003c"',
        '"ä😀\u2028"'.encode(),
        b"[]",
        b"{}",
        b'{"a" : [ 1,\t2 ],\n "a":3}',
        b"[" * 300 + b"]" * 300,
    ],
    ids=lambda content: content[:20],
)
def test_content_comes_out_byte_for_byte_as_it_went_in(
    open_url: str, channel: str, content: bytes
) -> None:
    with wire(open_url) as connection:
        connection.ask("PUT", polling(channel))
        published = connection.ask("PUT", f"/channel/{channel}/message/m", content)
        assert (published.status, published.body) == (
            200,
            b'{"channelID":"%b","messageID":"m"}\n' % channel.encode(),
        )

        fetched = connection.ask("GET", polling(channel))

        assert b'"messages":[{"messageID":"m","content":' + content + b"}]" in fetched.body
        assert fetched.body.endswith(b"}\n")


def test_white_space_around_the_content_is_no_part_of_it(open_url: str, channel: str) -> None:
    with wire(open_url) as connection:
        connection.ask("PUT", polling(channel))
        connection.ask("PUT", f"/channel/{channel}/message/m", b" \r\n\t[ 1 ]\n ")
        assert b'"content":[ 1 ]}]' in connection.ask("GET", polling(channel)).body


@pytest.mark.parametrize(
    "content",
    [None, b"", b" ", b"{", b"{}}", b"x", b"NaN", b"'a'", b"\xff", b"\0", b"1,2"],
)
def test_a_body_that_is_no_json_is_400(open_url: str, channel: str, content: bytes | None) -> None:
    answer = ask(open_url, "PUT", f"/channel/{channel}/message/m", content)
    assert answer.status == 400
    assert answer.json()["error"] == "Request body is not JSON"
    assert answer.json()["code"] == "dsps.storage.message-json-malformed"


@pytest.mark.parametrize(
    "content_type",
    [
        "application/x-www-form-urlencoded",
        "text/plain",
        "multipart/form-data; boundary=x",
        "application/json; charset=latin-1",
        "nonsense",
    ],
)
def test_the_content_type_of_a_request_is_ignored(
    open_url: str, channel: str, content_type: str
) -> None:
    headers = {"Content-Type": content_type}
    with wire(open_url) as connection:
        published = connection.ask("PUT", f"/channel/{channel}/message/m", b'{"a":1}', headers)
        subscribed = connection.ask("PUT", polling(channel), b"whatever", headers)
    assert (published.status, subscribed.status) == (200, 200)


def test_a_repeated_publish_answers_the_same_and_the_first_content_wins(
    open_url: str, channel: str
) -> None:
    with wire(open_url) as connection:
        connection.ask("PUT", polling(channel))
        first = connection.ask("PUT", f"/channel/{channel}/message/m", b'"first"')
        second = connection.ask("PUT", f"/channel/{channel}/message/m", b'"second"')
        assert (second.status, second.body) == (first.status, first.body)
        fetched = connection.ask("GET", polling(channel)).json()
        assert fetched["messages"] == [{"messageID": "m", "content": "first"}]


# -- Fetch -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "count", "more"),
    [
        ("", 5, False),
        ("max=3", 3, True),
        ("max=5", 5, False),
        ("max=64", 5, False),
        ("max=10000", 5, False),
        ("max=0", 0, True),
        ("max=-0", 0, True),
        ("max=%2B2", 2, True),
        ("max=002", 2, True),
        ("max=2&max=junk", 2, True),
        ("_=1&max=2&_=2", 2, True),
        ("foo&&=&max=2", 2, True),
        ("MAX=2", 5, False),
        ("max=2#x", 2, True),
    ],
)
def test_max_says_how_many_come(
    open_url: str, channel: str, query: str, count: int, more: bool
) -> None:
    with wire(open_url) as connection:
        connection.ask("PUT", polling(channel))
        publish(connection, channel, 5)

        fetched = connection.ask("GET", f"{polling(channel)}?{query}").json()

        ids = [message["messageID"] for message in fetched["messages"]]
        assert (ids, fetched["moreMessages"]) == ([f"m{n}" for n in range(1, count + 1)], more)
        assert ("ackHandle" in fetched) is bool(count)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "1_0",
        "+2",
        "%202",
        "2%00",
        "%D9%A3",
        "-1",
        "10001",
        "2147483648",
        "9" * 30,
        "-9999999999",
        "1.0",
        "1e2",
        "0x10",
        "junk",
    ],
)
def test_a_max_that_is_no_sensible_number_is_400(open_url: str, channel: str, value: str) -> None:
    with wire(open_url) as connection:
        connection.ask("PUT", polling(channel))
        answer = connection.ask("GET", f"{polling(channel)}?max={value}")
    assert (answer.status, answer.json()) == (400, {"error": 'Invalid "max" parameter'})


@pytest.mark.parametrize(
    "value",
    [
        "0",
        "0s",
        "-5s",
        "1ms",
        "1.5ms",
        "%2B1ms",
        "500us",
        "1%C2%B5s",
        "0h0m1ms",
        "-0",
        "1ms&timeout=x",
    ],
)
def test_a_timeout_in_the_form_of_go_is_accepted(open_url: str, channel: str, value: str) -> None:
    with wire(open_url) as connection:
        connection.ask("PUT", polling(channel))
        answer = connection.ask("GET", f"{polling(channel)}?timeout={value}")
    assert (answer.status, answer.json()) == (
        200,
        {"channelID": channel, "messages": [], "moreMessages": False},
    )


@pytest.mark.parametrize("value", ["", "30", "1", "s", "30S", "30 s", "1d", "junk", "1e3s"])
def test_a_timeout_without_a_unit_or_sense_is_400(open_url: str, channel: str, value: str) -> None:
    with wire(open_url) as connection:
        connection.ask("PUT", polling(channel))
        answer = connection.ask("GET", f"{polling(channel)}?timeout={quote(value)}")
    assert (answer.status, answer.json()) == (400, {"error": 'Invalid "timeout" parameter'})


async def test_a_longer_timeout_is_cut_silently(settings: Config) -> None:
    settings = replace(settings, http=HttpConfig(port=0, poll_seconds_max=0.2))
    async with serving(settings) as running, async_wire(running.url) as connection:
        await connection.ask("PUT", polling("ch"))
        begun = time.monotonic()

        answer = await connection.ask("GET", f"{polling('ch')}?timeout=2562047h")

        assert answer.json()["messages"] == []
        assert 0.2 <= time.monotonic() - begun < 10


async def test_the_most_messages_is_a_setting(settings: Config) -> None:
    settings = replace(settings, channels=ChannelConfig(fetch_messages_max=10))
    async with serving(settings) as running, async_wire(running.url) as connection:
        await connection.ask("PUT", polling("ch"))
        assert (await connection.ask("GET", f"{polling('ch')}?max=10")).status == 200
        assert (await connection.ask("GET", f"{polling('ch')}?max=11")).status == 400


def test_nothing_is_removed_by_fetching_and_the_default_is_64(open_url: str, channel: str) -> None:
    with wire(open_url) as connection:
        connection.ask("PUT", polling(channel))
        publish(connection, channel, 70)
        first, second = (connection.ask("GET", polling(channel)) for _ in range(2))
        assert first.body == second.body
        assert len(first.json()["messages"]) == 64
        assert first.json()["moreMessages"] is True


async def test_lost_messages_are_told_only_when_there_are_any(settings: Config) -> None:
    async with serving(settings) as running, async_wire(running.url) as connection:
        await connection.ask("PUT", polling("ch"))
        for number in (1, 2, 3):
            await connection.ask("PUT", f"/channel/ch/message/m{number}", b"1")
        await running.node.opened.store.call("DEL", "c.{ch}.m.1", "c.{ch}.m.2")

        first = (await connection.ask("GET", polling("ch"))).json()
        second = (await connection.ask("GET", polling("ch"))).json()

        assert (first["lostMessages"], len(first["messages"])) == (2, 1)
        assert set(second) == {"channelID", "messages", "moreMessages", "ackHandle"}


@pytest.mark.parametrize("query", ["", "?timeout=30s", "?max=0"])
def test_an_unknown_subscriber_is_404_at_once(open_url: str, channel: str, query: str) -> None:
    answer = ask(open_url, "GET", polling(channel) + query)
    assert (answer.status, answer.json()["code"]) == (404, NOT_FOUND)
    expected = f'FetchMessages failed on storage "default": {NOT_FOUND}'
    assert answer.json()["error"] == expected
