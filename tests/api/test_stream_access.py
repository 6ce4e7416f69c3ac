"""Who may open a live stream, by which way in, for how long; and that no log line has the way."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import jwt
import pytest
from msgspec.structs import replace
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.helpers.http import async_ask, event_stream
from tests.helpers.server import Keys, make_keys
from waystation.api.streams import Streams
from waystation.channels.tokens import RevocationList
from waystation.config import (
    AuthConfig,
    ChannelConfig,
    ChannelRule,
    Config,
    HttpConfig,
    TokenRule,
)
from waystation.errors import UnauthenticatedError
from waystation.testing import serving
from waystation.testing.station import Serving

SECRET = b"a shared secret that is long enough for everybody"
#: What a revoked credential may still take to end a stream.
REVOKED_WITHIN_SECONDS = 5.0
ROOM = "/v1/channels/room-7/subscribers/me"
OPEN = "/v1/channels/open-1/subscribers/me"
HANDSHAKE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


def token(room: str = "7", **claims: object) -> str:
    return jwt.encode({"iss": "chat", "room": room, **claims}, SECRET, algorithm="HS256")


def rules(data: Path) -> ChannelConfig:
    (data / "secret").write_bytes(SECRET)
    asked = TokenRule(
        algorithms=("HS256",),
        key_files=(str(data / "secret"),),
        issuers=("chat",),
        claims={"room": ("{{.channel.room}}",)},
        clock_skew_seconds=0,
    )
    return ChannelConfig(
        rules=(
            ChannelRule(pattern="room-(?P<room>[0-9]+)", tokens=asked),
            ChannelRule(pattern="open-.*"),
        )
    )


@asynccontextmanager
async def guarded_station(
    settings: Config, **http: list[str]
) -> AsyncIterator[tuple[Serving, Keys]]:
    """A station that asks for keys, and on some channels for tokens."""
    keys = await asyncio.to_thread(make_keys, settings.data_dir)
    settings = replace(
        settings,
        auth=AuthConfig(insecure=False),
        channels=rules(settings.data_dir),
        http=HttpConfig(port=0, **http),  # type: ignore[arg-type]
    )
    async with serving(settings) as server:
        yield server, keys


def socket_url(server: Serving, path: str, query: str = "create=true") -> str:
    return f"{server.url.replace('http', 'ws', 1)}{path}/socket?{query}"


async def refused(server: Serving, path: str, *, key: str = "", **headers: str) -> tuple[int, str]:
    """How both kinds of streams refuse; they must agree."""
    told = set()
    for kind, extra in (("events", {}), ("socket", HANDSHAKE)):
        target = path.replace("?", f"/{kind}?") if "?" in path else f"{path}/{kind}"
        answer = await async_ask(server.url, "GET", target, None, {**extra, **headers}, key=key)
        told.add((answer.status, answer.json()["code"]))
    (only,) = told
    return only


async def test_a_key_opens_streams_in_the_header_and_in_the_address(settings: Config) -> None:
    async with guarded_station(settings) as (server, keys):
        create = f"{OPEN}/events?create=true"
        async with event_stream(server.url, create, key=keys.write) as stream:
            assert stream.status == 200
        async with event_stream(server.url, f"{create}&access_token={keys.write}") as stream:
            assert stream.status == 200
            assert stream.headers["cache-control"].startswith("no-cache, no-store")
        header = {"Authorization": f"Bearer {keys.write}"}
        async with connect(socket_url(server, OPEN), proxy=None, additional_headers=header):
            pass
        query = f"create=true&access_token={keys.write}"
        async with connect(socket_url(server, OPEN, query), proxy=None):
            pass


async def test_a_socket_takes_a_credential_as_a_subprotocol_and_never_answers_it(
    settings: Config,
) -> None:
    async with guarded_station(settings) as (server, keys):
        for path, shown in ((OPEN, keys.write), (ROOM, token()), (ROOM, keys.write)):
            offer = ["waystation", f"bearer.{shown}"]
            async with connect(
                socket_url(server, path),
                proxy=None,
                subprotocols=offer,  # type: ignore[arg-type]
            ) as client:
                assert client.subprotocol == "waystation"
                assert client.response is not None
                assert shown not in str(client.response.headers)


async def test_a_token_opens_the_channel_that_it_names_and_no_other(settings: Config) -> None:
    async with guarded_station(settings) as (server, _):
        target = f"{ROOM}/events?create=true&access_token={token()}"
        async with event_stream(server.url, target) as stream:
            await server.node.channels.publish("default", "room-7", "a", b"1")
            assert await stream.ids(1) == ["a"]
        for wrong in (token("8"), token(exp=1), "nonsense", ""):
            query = f"{ROOM}?create=true&access_token={wrong}"
            assert await refused(server, query) == (403, "dsps.auth.rejected")


async def test_tokens_work_on_a_station_without_keys_too(settings: Config) -> None:
    settings = replace(settings, channels=rules(settings.data_dir))
    async with serving(settings) as server:
        assert await refused(server, f"{ROOM}?create=true") == (403, "dsps.auth.rejected")
        target = f"{ROOM}/events?create=true&access_token={token()}"
        async with event_stream(server.url, target) as stream:
            assert stream.status == 200
        async with connect(
            socket_url(server, ROOM, f"create=true&access_token={token()}"), proxy=None
        ) as client:
            await client.send('{"type":"publish","messageID":"m","content":1}')
            assert "m" in str(await client.recv())


async def test_what_no_key_opens_stays_shut(settings: Config) -> None:
    async with guarded_station(settings) as (server, keys):
        assert await refused(server, f"{OPEN}?create=true") == (401, "auth.required")
        for wrong in (keys.unknown, keys.revoked, keys.expired, "x"):
            target = f"{OPEN}?create=true&access_token={wrong}"
            assert await refused(server, target) == (401, "auth.required")
        assert await refused(server, "/v1/channels/none/subscribers/me") == (
            400,
            "dsps.storage.invalid-channel",
        )
        # A key of another project sees another channel of that name.
        await server.node.channels.subscribe("default", "open-1", "me")
        assert await refused(server, OPEN, key=keys.shop_write) == (
            404,
            "dsps.storage.subscription-not-found",
        )


async def test_two_credentials_are_one_too_many(settings: Config) -> None:
    async with guarded_station(settings) as (server, keys):
        target = f"{OPEN}?create=true&access_token={keys.write}"
        assert await refused(server, target, key=keys.write) == (400, "input.invalid")


async def test_a_credential_in_the_address_opens_no_other_route(settings: Config) -> None:
    async with guarded_station(settings) as (server, keys):
        for target in (
            "/channel/open-1/subscription/polling/me",
            "/v1/channels",
            "/v1/channels/open-1/subscribers",
            "/metrics",
        ):
            answer = await async_ask(server.url, "GET", f"{target}?access_token={keys.admin}")
            assert answer.status in (401, 403), target


async def test_a_key_that_may_only_read_moves_nothing(settings: Config) -> None:
    async with guarded_station(settings) as (server, keys):
        channels = server.node.channels
        assert await refused(server, f"{OPEN}?create=true", key=keys.read) == (
            403,
            "auth.forbidden",
        )
        await channels.subscribe("default", "open-1", "me")
        for name in ("a", "b", "c"):
            await channels.publish("default", "open-1", name, b"1")
        async with event_stream(server.url, f"{OPEN}/events", key=keys.read) as stream:
            seen = await stream.message()
        async with event_stream(
            server.url, f"{OPEN}/events", key=keys.read, Last_Event_ID=seen.id
        ) as stream:
            assert await stream.ids(2) == ["b", "c"]
        header = {"Authorization": f"Bearer {keys.read}"}
        async with connect(
            socket_url(server, OPEN, ""), proxy=None, additional_headers=header
        ) as client:
            first = json.loads(await client.recv())
            assert first["messageID"] == "a"
            await client.send(json.dumps({"type": "ack", "ackHandle": first["ackHandle"]}))
            await client.send('{"type":"publish","messageID":"d","content":1}')
            frames = [json.loads(await client.recv()) for _ in range(4)]
            errors = [frame["code"] for frame in frames if frame["type"] == "error"]
            assert errors == ["auth.forbidden", "auth.forbidden"]
        fetched = await channels.fetch("default", "open-1", "me", limit=9)
        assert [message.id for message in fetched.messages] == ["a", "b", "c"]


@pytest.mark.slow
async def test_revoking_a_key_ends_its_streams_in_time(settings: Config) -> None:
    async with guarded_station(settings) as (server, keys):
        target = f"{OPEN}/events?create=true"
        header = {"Authorization": f"Bearer {keys.write}"}
        async with (
            event_stream(server.url, target, key=keys.write) as stream,
            event_stream(server.url, target, key=keys.admin) as other,
            connect(socket_url(server, OPEN), proxy=None, additional_headers=header) as client,
        ):
            await stream.event()
            await other.event()
            key_id = keys.write.split("_")[1]
            answer = await async_ask(server.url, "DELETE", f"/v1/keys/{key_id}", key=keys.admin)
            assert answer.status == 204
            began = time.monotonic()

            (last,) = await stream.end()
            await asyncio.wait_for(client.wait_closed(), 10)

            assert time.monotonic() - began < REVOKED_WITHIN_SECONDS
            assert (last.name, last.json()) == ("end", {"code": "auth.required"})
            assert (client.close_code, client.close_reason) == (4401, "auth.required")
            await server.node.channels.publish("default", "open-1", "m", b"1")
            assert await other.ids(1) == ["m"]


async def test_a_stream_that_cannot_be_checked_ends_and_the_others_are_still_looked_at() -> None:
    async def broken() -> None:
        raise ZeroDivisionError

    async def revoked() -> None:
        raise UnauthenticatedError("revoked")

    streams = Streams(seconds_max=60)
    checking = asyncio.create_task(streams.keep_checking())
    reasons = []
    for check in (broken, revoked):
        async with streams.running("events", check) as running:
            await asyncio.wait_for(asyncio.Event().wait(), 10)
        assert running.reason is not None
        reasons.append(running.reason.code)
    checking.cancel()
    assert reasons == ["catalogue.unavailable", "auth.required"]


@pytest.mark.slow
async def test_a_token_that_is_revoked_or_expires_ends_its_streams_in_time(
    settings: Config,
) -> None:
    async with guarded_station(settings) as (server, _):
        revoked = token(jti="t-1")
        short = token(exp=int(time.time()) + 6)
        target = f"{ROOM}/events?create=true&access_token="
        async with (
            event_stream(server.url, target + revoked) as first,
            event_stream(server.url, target + short) as second,
        ):
            assert (first.status, second.status) == (200, 200)
            began = time.monotonic()
            revocation = RevocationList(server.node.opened.store, server.node.clock)
            await revocation.revoke("t-1", int(time.time()) + 1000)
            for stream in (first, second):
                (last,) = await stream.end()
                assert last.json() == {"code": "dsps.auth.rejected"}
            assert time.monotonic() - began < REVOKED_WITHIN_SECONDS + 6


async def test_named_origins_are_kept_to_where_keys_are_asked_for(settings: Config) -> None:
    """A WebSocket has no CORS; the list of origins holds for it all the same."""
    async with guarded_station(settings, cors_origins=["https://app.example"]) as (server, keys):
        header = {"Authorization": f"Bearer {keys.write}"}
        url = socket_url(server, OPEN)
        for origin in ("https://app.example", server.url):
            async with connect(
                url,
                proxy=None,
                additional_headers=header,
                origin=origin,  # type: ignore[arg-type]
            ):
                pass
        with pytest.raises(InvalidStatus, match="403"):
            await connect(
                url,
                proxy=None,
                additional_headers=header,
                origin="https://evil.example",  # type: ignore[arg-type]
            )


async def test_a_refusal_is_no_error_in_the_log(
    settings: Config, caplog: pytest.LogCaptureFixture
) -> None:
    async with guarded_station(settings) as (server, _keys):
        assert await refused(server, f"{OPEN}?create=true") == (401, "auth.required")
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []


async def test_no_log_line_has_a_credential_of_an_address(
    settings: Config, caplog: pytest.LogCaptureFixture
) -> None:
    """Not even uvicorn's own, which tells addresses, and not at the loudest level."""
    caplog.set_level(logging.DEBUG)
    for name in ("uvicorn.error", "uvicorn.access", "websockets.server"):
        caplog.set_level(logging.DEBUG, logger=name)
    async with guarded_station(settings) as (server, keys):
        target = f"{OPEN}/events?create=true&access_token={keys.write}"
        async with event_stream(server.url, target) as stream:
            await stream.event()
        query = f"create=true&access_token={keys.write}"
        options = {"proxy": None, "logger": logging.Logger("silent")}
        async with connect(socket_url(server, OPEN, query), **options):  # type: ignore[arg-type]
            pass
        offer = {"subprotocols": ["waystation", f"bearer.{keys.admin}"]}
        async with connect(socket_url(server, OPEN), **options, **offer):  # type: ignore[arg-type]
            pass
        await refused(server, f"{OPEN}?access_token={keys.unknown}")
    for key in (keys.write, keys.admin, keys.unknown):
        assert key.split("_")[2] not in caplog.text
    assert "WebSocket" in caplog.text, "uvicorn tells of connections, so this can fail"
