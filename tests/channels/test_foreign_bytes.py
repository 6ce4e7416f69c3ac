"""Foreign bytes: content that DSPS stored and that is not strict JSON, such as invalid UTF-8.

All readers receive such messages byte for byte.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.asyncio.client import connect

from tests.cli.conftest import clean_environment, command
from tests.helpers.http import SECONDS_MAX, async_ask, request_bytes
from waystation import AsyncWaystation, Waystation
from waystation.channels.reader import channel_lost
from waystation.config import ChannelConfig, ChannelRule, Config, WebhookRule
from waystation.store.client import Store
from waystation.testing import Station, serving
from waystation.testing.endpoint import FakeEndpoint
from waystation.testing.station import quick_settings

#: Lone surrogates as `JSON.stringify` writes them, next to other escapes and a complete pair.
LONE_SURROGATE = b'{"t":"\\ud83d","k\\uDE00\\\\ud83d":"\\ud83d\\ude00\\ud83dx"}'
#: Latin-1 instead of UTF-8. DSPS accepts it, because the JSON scanner of Go does.
INVALID_UTF8 = b'{"t":"caf\xe9 \xff\xfe","\xe9":1.0}'
#: Lone surrogates, invalid UTF-8, and the byte that `shield` uses to mark an escape.
BOTH = b'["\xff\\udbff\xff", 1e999, "\xffud83d"]'
BODIES = [LONE_SURROGATE, INVALID_UTF8, BOTH]
POLLING = "/channel/news/subscription/polling/me"
SUBSCRIBER = "/v1/channels/news/subscribers/me"


async def store_as_dsps(store: Store, *contents: bytes) -> None:
    """Write a subscriber and its unread messages with the commands and in the form of DSPS."""
    await store.call("SET", "c.{news}.r.me", "0", "EX", "900")
    for clock, content in enumerate(contents, start=1):
        body = b'{"id":"m%d","content":%b}' % (clock, content)
        await store.call("SET", f"c.{{news}}.m.{clock}", body, "EX", "900")
    await store.call("SET", "c.{news}.clock", str(len(contents)), "EX", "900")


@pytest.fixture(scope="module")
def own_station() -> Iterator[Station]:
    with Station() as opened:
        yield opened


@pytest.fixture
def station(own_station: Station) -> Station:
    own_station.flush()
    return own_station


def run(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command of `waystation`. Return its output and exit code."""
    return subprocess.run(
        command(*arguments), env=clean_environment(), capture_output=True, check=False
    )


async def test_fetch_of_foreign_bytes_returns_them_and_keeps_the_cursor(settings: Config) -> None:
    async with serving(settings) as server:
        store = server.node.opened.store
        await store_as_dsps(store, *BODIES)
        lost = channel_lost._value.get()

        answer = await async_ask(server.url, "GET", POLLING)

        messages = b",".join(
            b'{"messageID":"m%d","content":%b}' % (number, body)
            for number, body in enumerate(BODIES, start=1)
        )
        assert answer.body.startswith(b'{"channelID":"news","messages":[%b],' % messages)
        assert b"lostMessages" not in answer.body
        assert channel_lost._value.get() == lost
        assert await store.call("GET", "c.{news}.r.me") == b"0"


async def test_event_stream_of_foreign_bytes_sends_them(settings: Config) -> None:
    async with serving(settings) as server:
        await store_as_dsps(server.node.opened.store, *BODIES)

        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        with contextlib.closing(writer):
            writer.write(request_bytes("GET", f"{SUBSCRIBER}/events"))
            async with asyncio.timeout(SECONDS_MAX):
                for number, body in enumerate(BODIES, start=1):
                    await reader.readuntil(
                        b'data: {"messageID":"m%d","content":%b}\n\n' % (number, body)
                    )


async def test_socket_sends_foreign_bytes_as_binary_frames(
    settings: Config,
) -> None:
    async with serving(settings) as server:
        await store_as_dsps(server.node.opened.store, *BODIES, b"4")

        async with connect(
            f"{server.url.replace('http', 'ws', 1)}{SUBSCRIBER}/socket", proxy=None
        ) as client:
            frames = []
            for _ in range(4):
                async with asyncio.timeout(SECONDS_MAX):
                    frames.append(await client.recv())

        assert [type(frame) for frame in frames] == [str, bytes, bytes, str]
        for number, (frame, body) in enumerate(zip(frames, [*BODIES, b"4"], strict=True), start=1):
            raw = frame.encode() if isinstance(frame, str) else frame
            start = b'{"type":"message","messageID":"m%d","content":%b,"ackHandle":"' % (
                number,
                body,
            )
            assert raw.startswith(start)


async def test_socket_publish_with_a_lone_surrogate_keeps_its_bytes(settings: Config) -> None:
    async with serving(settings) as server:
        await server.node.channels.subscribe("default", "news", "me")

        address = f"{server.url.replace('http', 'ws', 1)}{SUBSCRIBER}/socket"
        async with connect(address, proxy=None) as client:
            frame = b'{"type":"publish","messageID":"a","content":%b}' % LONE_SURROGATE
            await client.send(frame.decode())
            async with asyncio.timeout(SECONDS_MAX):
                frames = [str(await client.recv()) for _ in range(2)]

        (message,) = [frame for frame in frames if '"message"' in frame]
        assert f'"content":{LONE_SURROGATE.decode()},' in message


@pytest.mark.parametrize("content", [LONE_SURROGATE, b'"\\udc00"'])
async def test_publish_of_a_lone_surrogate_is_accepted_and_fetched(
    settings: Config, content: bytes
) -> None:
    async with serving(settings) as server:
        await server.node.channels.subscribe("default", "news", "me")
        single = await async_ask(server.url, "PUT", "/channel/news/message/a", content)
        batch = b'{"messages":[{"id":"b","content":%b},{"id":"c","content":1}]}' % content
        several = await async_ask(server.url, "POST", "/v1/channels/news/messages", batch)

        fetched = await server.node.channels.fetch("default", "news", "me", limit=9)

        assert (single.status, several.status) == (200, 200)
        assert [bytes(each.content) for each in fetched.messages] == [content, content, b"1"]


async def test_batch_with_a_lone_surrogate_in_an_id_or_invalid_utf8_is_refused(
    settings: Config,
) -> None:
    async with serving(settings) as server:
        for body in (
            b'{"messages":[{"id":"\\ud83d","content":1}]}',
            b'{"messages":[{"id":"\xff","content":1}]}',
            b'{"messages":[{"id":"a","content":"\xff"}]}',
            b'{"messages":[{"id":"a","content":"\xff\\ud83d"}]}',
            b'{"messages":[{"id":"a","content":\\ud83d}]}',
            b'{"messages":[{"id":"a","content":' + b"[" * 100_000,
        ):
            answer = await async_ask(server.url, "POST", "/v1/channels/news/messages", body)
            assert answer.status == 400, (body[:60], answer)


async def test_webhook_of_foreign_bytes_sends_them(tmp_path: Path) -> None:
    async with FakeEndpoint() as endpoint:
        rule = ChannelRule(pattern="news", webhooks=(WebhookRule(name="crm", url=endpoint.url),))
        settings = quick_settings(str(tmp_path), channels=ChannelConfig(rules=(rule,)))
        async with serving(settings) as server:
            for number, body in enumerate(BODIES):
                # Publish without the checks of the HTTP routes, because these reject such content.
                await server.node.channels.publish("default", "news", f"m{number}", body)
            received = await endpoint.until(len(BODIES), seconds=SECONDS_MAX)

    sent = sorted(each.body for each in received)
    head = b'{"type":"dsps.channel.outgoing-webhook","channelID":"news","messageID":"m%d",'
    assert sent == [head % number + b'"content":%b}' % body for number, body in enumerate(BODIES)]


async def test_client_fetch_of_foreign_bytes_returns_raw_and_decoded_content(
    settings: Config,
) -> None:
    async with serving(settings) as server:
        await store_as_dsps(server.node.opened.store, *BODIES)

        async with AsyncWaystation(server.url) as client:
            batch = await client.channels.fetch("news", "me")

        assert [bytes(each.raw) for each in batch.messages] == BODIES
        surrogate, latin, both = (each.content for each in batch.messages)
        assert surrogate == {"t": "\ud83d", "k\ude00\\ud83d": "\U0001f600\ud83dx"}
        assert latin == {"t": "caf\ufffd \ufffd\ufffd", "\ufffd": 1.0}
        assert both == ["\ufffd\udbff\ufffd", float("inf"), "\ufffdud83d"]


def test_client_fetches_published_lone_surrogates_unchanged(station: Station) -> None:
    with Waystation(station.url) as client:
        client.channels.subscribe("news", "me")
        client.channels.publish("news", LONE_SURROGATE)
        client.channels.publish_many("news", [("", LONE_SURROGATE)])

        batch = client.channels.fetch("news", "me")

    assert [bytes(each.raw) for each in batch.messages] == [LONE_SURROGATE] * 2


def test_channel_commands_print_foreign_bytes(station: Station) -> None:
    station._await(store_as_dsps(station._running().node.opened.store, *BODIES))

    shown = run("channel", "fetch", "news", "me", "--url", station.url)
    piped = run("channel", "fetch", "news", "me", "--json", "--url", station.url)
    tailed = run("channel", "tail", "news", "--as", "me", "--count", "3", "--url", station.url)

    assert LONE_SURROGATE in shown.stdout
    assert rb'{"t":"caf\xe9 \xff\xfe","\xe9":1.0}' in shown.stdout
    assert all(b'"content":%b}' % body in piped.stdout for body in BODIES)
    assert rb'{"t":"caf\xe9 \xff\xfe","\xe9":1.0}' in tailed.stdout
    assert [shown.returncode, piped.returncode, tailed.returncode] == [0, 0, 0]


def test_channel_publish_command_accepts_lone_surrogates(station: Station) -> None:
    with Waystation(station.url) as client:
        client.channels.subscribe("news", "me")
        done = run("channel", "publish", "news", LONE_SURROGATE.decode(), "--url", station.url)
        batch = client.channels.fetch("news", "me")

    assert done.returncode == 0
    assert [bytes(each.raw) for each in batch.messages] == [LONE_SURROGATE]
