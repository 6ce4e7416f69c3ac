"""Edges of the door: foreign pages, keys that die under a poll, odd requests, prefixes, HEAD."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request

import pytest
from msgspec.structs import replace

from tests.api.conftest import Guarded
from tests.helpers.server import background_station, make_keys
from waystation import Waystation
from waystation.api import request as request_module
from waystation.config import AuthConfig, Config, HttpConfig
from waystation.testing import Station, serving

PUBLISH = "/channel/edges/message/m"


def ask(
    url: str, method: str = "GET", body: bytes | None = None, **headers: str
) -> tuple[int, str]:
    request = urllib.request.Request(
        url, data=body, method=method, headers={k.replace("_", "-"): v for k, v in headers.items()}
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:7070", "localhost.evil.example", "10.0.0.1"]
)
def test_a_station_without_keys_refuses_a_foreign_host(open_url: str, host: str) -> None:
    status, text = ask(open_url + "/v1/keys", "POST", b'{"scope": "admin"}', Host=host)

    assert status == 403
    assert json.loads(text)["code"] == "auth.forbidden"
    assert ask(open_url + PUBLISH, "PUT", b"1", Host=host)[0] == 403


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1", "[::1]:7070", "LOCALHOST"])
def test_names_of_this_machine_are_served(open_url: str, host: str) -> None:
    assert ask(open_url + PUBLISH, "PUT", b"1", Host=host)[0] == 200


def test_a_page_of_another_site_cannot_write_without_asking_first(open_url: str) -> None:
    status, _ = ask(
        open_url + "/v1/projects",
        "POST",
        b'{"name": "borrowed"}',
        Origin="http://evil.example",
        Content_Type="text/plain",
    )

    assert status == 403
    assert "borrowed" not in ask(open_url + "/v1/projects")[1]


def test_where_keys_are_required_any_host_is_served(guarded: Guarded) -> None:
    bearer = f"Bearer {guarded.keys.write}"

    assert (
        ask(guarded.url + PUBLISH, "PUT", b"1", Host="shop.example", Authorization=bearer)[0] == 200
    )


@pytest.mark.slow
async def test_a_key_that_is_revoked_during_a_poll_gets_nothing_more(settings: Config) -> None:
    keys = await asyncio.to_thread(make_keys, settings.data_dir)
    settings = replace(settings, auth=AuthConfig(insecure=False))
    async with serving(settings) as running:
        channels, catalogue = running.node.channels, running.node.catalogue
        await channels.subscribe("default", "secret", "me")
        poll = asyncio.create_task(
            asyncio.to_thread(
                ask,
                f"{running.url}/channel/secret/subscription/polling/me?timeout=9s",
                Authorization=f"Bearer {keys.read}",
            )
        )
        await asyncio.sleep(0.3)
        key_id = keys.read.split("_")[1]
        assert await catalogue.revoke_key(None, key_id, now_ms=1)
        await asyncio.sleep(3)
        await channels.publish("default", "secret", "m", b'"for others"')
        status, text = await poll

    assert status == 403
    assert "for others" not in text


def test_a_project_name_with_a_newline_behind_it_is_no_name(open_url: str) -> None:
    assert ask(open_url + "/v1/projects", "POST", b'{"name": "shop\\n"}')[0] == 400


def test_head_is_answered_where_get_is_on_our_own_routes(open_url: str) -> None:
    for path in ("/livez", "/readyz", "/openapi.json", "/", "/metrics"):
        assert ask(open_url + path, "HEAD") == (200, "")


@pytest.mark.parametrize("written", ["api", "/api", "api/", "/api/"])
def test_a_prefix_is_the_same_however_it_is_written(settings: Config, written: str) -> None:
    settings = replace(settings, http=HttpConfig(port=0, path_prefix=written))
    with background_station(settings) as running:
        assert ask(running.url + "/api/livez")[0] == 200
        assert ask(running.url + "/livez")[0] == 404
        document = json.loads(ask(running.url + "/api/openapi.json")[1])

    assert document["servers"] == [{"url": "/api"}]


async def exchange(settings: Config, *pieces: bytes, pause: float = 0.05) -> bytes:
    async with serving(settings) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)
        async with asyncio.timeout(10):
            reply = await reader.read(65_536)
        writer.close()
        return reply


async def test_an_upgrade_that_comes_in_two_pieces_never_loses_a_body(settings: Config) -> None:
    reply = await exchange(
        settings,
        b"PUT /channel/a/message/b HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\nUpgra",
        b"de: h2c\r\nContent-Length: 1\r\n\r\n1",
    )

    # Refused as a whole, or served with its body; never served without it.
    assert reply.startswith((b"HTTP/1.1 200", b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0"))


async def test_a_refusal_to_a_client_that_asks_first_ends_the_connection(
    settings: Config,
) -> None:
    reply = await exchange(
        settings,
        b"PUT /channel/a/message/b HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
        b"Content-Length: 2000000\r\n\r\n",
    )

    assert reply.startswith(b"HTTP/1.1 413")
    assert b"connection: close" in reply.lower()


async def test_unfinished_bodies_have_a_bound_in_all(
    settings: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_module, "BODIES_BYTES_MAX", 300_000)
    async with serving(settings) as running:
        head = b"PUT /channel/a/message/b%d HTTP/1.1\r\nHost: localhost\r\n"
        head += b"Content-Length: 200000\r\n\r\n"
        writers, replies = [], []
        for number in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
            writer.write(head % number + b'"' + b"x" * 150_000)
            await writer.drain()
            writers.append((reader, writer))
        for reader, _ in writers:
            try:
                async with asyncio.timeout(1):
                    replies.append(await reader.read(100))
            except TimeoutError:
                replies.append(b"")
        shed = [reply for reply in replies if reply.startswith(b"HTTP/1.1 503")]
        for _, writer in writers:
            writer.close()
        async with asyncio.timeout(5):
            while request_module._Budget.used_bytes:
                await asyncio.sleep(0.01)
        after = await asyncio.to_thread(
            ask, running.url + PUBLISH, "PUT", b'"%b"' % (b"x" * 200_000)
        )

    assert shed
    assert after[0] == 200


def test_a_poll_tells_what_expired_before_it_and_while_it_waited(station: Station) -> None:
    with Waystation(station.url) as client:
        client.channels.subscribe("orders", "me")
        for number in range(3):
            client.channels.publish("orders", number)
        station.advance(minutes=20)
        client.channels.subscribe("orders", "me")
        station.advance(minutes=20)

        empty = client.channels.fetch("orders", "me", timeout=0.3)

        assert (empty.messages, empty.lost) == ([], 3)
        assert client.channels.fetch("orders", "me", timeout=0.1).lost == 0
