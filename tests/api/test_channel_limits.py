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
from waystation.errors import StoreDamagedError
from waystation.testing import serving
from waystation.testing.station import Serving

CLOCK = "c.{news}.clock"
SUBSCRIPTION = "/channel/news/subscription/polling/me"
EVENTS = "/v1/channels/news/subscribers/me/events"
SOCKET = "/v1/channels/news/subscribers/me/socket"
#: The parser's limit is about 1,000 levels, less the depth of the stack at the time.
DEPTHS = (500, *range(930, 1010), 5000)

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


async def test_deeply_nested_content_is_delivered_or_refused(settings: Config) -> None:
    async with serving(settings) as server:
        await server.node.channels.subscribe("default", "news", "me")
        accepted = {}
        for depth in DEPTHS:
            content = nested(depth)
            one = f"one-{depth}"
            reply = await async_ask(server.url, "PUT", f"/channel/news/message/{one}", body=content)
            assert reply.status in (200, 400), depth
            if reply.status == 200:
                accepted[one] = content
            batch = b'{"messages":[{"id":"many-%d","content":%b}]}' % (depth, content)
            reply = await async_ask(server.url, "POST", "/v1/channels/news/messages", body=batch)
            assert reply.status in (200, 400), depth
            if reply.status == 200:
                accepted[f"many-{depth}"] = content
        assert {"one-500", "many-500"} <= set(accepted)

        fetched = await async_ask(server.url, "GET", f"{SUBSCRIPTION}?max=1000")
        assert fetched.status == 200
        for message_id, content in accepted.items():
            assert (
                b'{"messageID":"%b","content":%b}' % (message_id.encode(), content) in fetched.body
            )
        assert b"lostMessages" not in fetched.body


async def test_deeply_nested_content_over_socket_is_delivered_or_refused(settings: Config) -> None:
    async with serving(settings) as server:
        address = f"{server.url.replace('http', 'ws', 1)}{SOCKET}?create=true"
        async with connect(address, proxy=None, max_size=None) as connection:
            for depth in DEPTHS:
                content = nested(depth).decode()
                frame = f'{{"type":"publish","messageID":"m-{depth}","content":{content}}}'
                await connection.send(frame)
                kinds = set()
                while not kinds & {"published", "error"}:
                    text = await connection.recv()
                    assert isinstance(text, str)
                    kinds.add(text[9 : text.index('"', 9)])
                if depth == 500:
                    assert "published" in kinds


async def test_deeply_nested_content_reaches_client(settings: Config) -> None:
    async with serving(settings) as server, AsyncWaystation(server.url) as client:
        await client.channels.subscribe("news", "me")
        deepest = 0
        for depth in DEPTHS:
            reply = await async_ask(
                server.url, "PUT", f"/channel/news/message/m-{depth}", body=nested(depth)
            )
            deepest = depth if reply.status == 200 else deepest

        batch = await client.channels.fetch("news", "me", limit=1000)
        assert bytes(batch.messages[-1].raw) == nested(deepest)
