"""Channels over HTTP at their limits: damaged keys in the store, and deeply nested JSON."""

from __future__ import annotations

import contextlib
import json

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedError

from tests.helpers.http import async_ask, event_stream
from waystation.client import AsyncWaystation
from waystation.config import Config
from waystation.errors import JsonTooDeepError, StoreDamagedError
from waystation.runtime.json_text import JSON_DEPTH_MAX
from waystation.testing import serving
from waystation.testing.station import Serving

CLOCK = "c.{news}.clock"
SUBSCRIPTION = "/channel/news/subscription/polling/me"
EVENTS = "/v1/channels/news/subscribers/me/events"
SOCKET = "/v1/channels/news/subscribers/me/socket"

ROUTES = {
    "publish": ("PUT", "/channel/news/message/m-9", b"1"),
    "fetch": ("GET", SUBSCRIPTION, b""),
    "poll": ("GET", f"{SUBSCRIPTION}?timeout=5s", b""),
    "publish_many": (
        "POST",
        "/v1/channels/news/messages",
        b'{"messages":[{"id":"m-9","content":1}]}',
    ),
    "seek": ("POST", "/v1/channels/news/subscribers/me/seek", b'{"to":"end"}'),
    "list_channels": ("GET", "/v1/channels", b""),
    "list_subscribers": ("GET", "/v1/channels/news/subscribers", b""),
    "events": ("GET", EVENTS, b""),
}


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def socket(server: Serving) -> connect:
    """Return a connection of subscriber `me` to channel `news`, to be entered."""
    address = f"{server.url.replace('http', 'ws', 1)}{SOCKET}"
    return connect(address, proxy=None, max_size=None)


def publish_frame(message_id: str, content: bytes) -> str:
    """Return the frame by which a client publishes a message."""
    return f'{{"type":"publish","messageID":"{message_id}","content":{content.decode()}}}'


async def damage_clock(server: Serving) -> None:
    await server.node.channels.subscribe("default", "news", "me")
    await server.node.channels.publish("default", "news", "m-1", b"1")
    await server.node.opened.store.call("SET", CLOCK, "1.5")


async def test_damaged_clock_is_a_conflict_on_every_route(settings: Config) -> None:
    async with serving(settings) as server:
        await damage_clock(server)

        for method, path, body in ROUTES.values():
            reply = await async_ask(server.url, method, path, body=body)
            assert reply.status == 409, path
            assert reply.json()["code"] == "store.damaged"
            assert CLOCK in reply.body.decode()
            assert f"DEL {CLOCK}" in reply.body.decode()
        other = await async_ask(server.url, "PUT", "/channel/other/message/m-1", body=b"1")
        assert other.status == 200


async def test_damaged_clock_is_raised_by_client(settings: Config) -> None:
    async with serving(settings) as server, AsyncWaystation(server.url) as client:
        await damage_clock(server)

        with pytest.raises(StoreDamagedError, match=r"c\.\{news\}\.clock"):
            await client.channels.publish("news", 1)


async def test_clock_damaged_during_event_stream_ends_it_with_code(settings: Config) -> None:
    async with serving(settings) as server, event_stream(server.url, f"{EVENTS}?create=true") as at:
        await damage_clock(server)
        server.node.opened.wakeups.wake_all()

        *_, last = await at.end()
        assert last.name == "end"
        assert "store.damaged" in last.data


async def test_clock_damaged_during_socket_is_reported(settings: Config) -> None:
    async with serving(settings) as server:
        address = f"{server.url.replace('http', 'ws', 1)}{SOCKET}?create=true"
        async with connect(address, proxy=None) as connection:
            await damage_clock(server)
            await connection.send('{"type":"publish","messageID":"m-9","content":1}')

            # The publish is answered with an error, or the stream notices first and closes.
            codes = set()
            with contextlib.suppress(ConnectionClosedError):
                async for text in connection:
                    codes.add(json.loads(text).get("code"))
            assert connection.close_code == 4409
            assert connection.close_reason == "store.damaged"
            assert codes <= {None, "store.damaged"}


async def test_nested_content_up_to_limit_is_delivered_by_every_route(settings: Config) -> None:
    content = nested(JSON_DEPTH_MAX)
    async with serving(settings) as server, AsyncWaystation(server.url) as client:
        await client.channels.subscribe("news", "me")
        single = await async_ask(server.url, "PUT", "/channel/news/message/single", body=content)
        batch = await async_ask(
            server.url,
            "POST",
            "/v1/channels/news/messages",
            body=b'{"messages":[{"id":"batch","content":%b}]}' % content,
        )
        async with socket(server) as connection:
            await connection.send(publish_frame("socket", content))
            pushed = [await connection.recv() for _ in range(4)]

        assert (single.status, batch.status) == (200, 200)
        assert '{"type":"published","messageID":"socket"}' in pushed
        for message_id in ("single", "batch", "socket"):
            frame = f'"messageID":"{message_id}","content":{content.decode()}'
            assert any(frame in str(each) for each in pushed)
        fetched = await client.channels.fetch("news", "me", limit=10)
        assert [each.id for each in fetched.messages] == ["single", "batch", "socket"]
        assert {bytes(each.raw) for each in fetched.messages} == {content}


@pytest.mark.parametrize("depth", [JSON_DEPTH_MAX + 1, 1000, 100_000])
async def test_nested_content_above_limit_is_rejected_by_every_route(
    settings: Config, depth: int
) -> None:
    content = nested(depth)
    async with serving(settings) as server, AsyncWaystation(server.url) as client:
        await client.channels.subscribe("news", "me")
        single = await async_ask(server.url, "PUT", "/channel/news/message/single", body=content)
        batch = await async_ask(
            server.url,
            "POST",
            "/v1/channels/news/messages",
            body=b'{"messages":[{"id":"a","content":1},{"id":"b","content":%b}]}' % content,
        )
        async with socket(server) as connection:
            await connection.send(publish_frame("socket", content))
            refused = json.loads(await connection.recv())

        for reply in (single, batch):
            assert reply.status == 400
            assert reply.json()["code"] == "input.too-deep"
            assert f"the limit is {JSON_DEPTH_MAX} levels" in reply.body.decode()
        assert (refused["type"], refused["code"]) == ("error", "input.too-deep")
        with pytest.raises(JsonTooDeepError):
            await client.channels.publish("news", content)
        assert (await client.channels.fetch("news", "me")).messages == []


async def test_stored_content_above_limit_is_delivered_by_every_route(settings: Config) -> None:
    # DSPS accepts 10,000 levels, and a store can have its messages.
    content = nested(10_000)
    async with serving(settings) as server, AsyncWaystation(server.url) as client:
        await client.channels.subscribe("news", "me")
        await server.node.channels.publish("default", "news", "deep", content)

        fetched = await async_ask(server.url, "GET", SUBSCRIPTION)
        assert b'{"messageID":"deep","content":%b}' % content in fetched.body
        async with event_stream(server.url, EVENTS) as stream:
            assert content.decode() in (await stream.message()).data
        async with socket(server) as connection:
            assert content.decode() in str(await connection.recv())
        with pytest.raises(JsonTooDeepError):
            await client.channels.fetch("news", "me")
