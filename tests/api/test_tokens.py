"""Tokens on the wire: what opens a channel that asks for them, and what ends that.

S-08 and S-09 for tokens: absent, forged, expired, revoked, of another channel, of another project.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jwt
import pytest
import redis
from msgspec.structs import replace

from tests.helpers.http import Answer, AsyncWire, ask, async_ask, async_wire, request_bytes
from tests.helpers.server import Keys, background_station, make_keys
from waystation.config import (
    AdminConfig,
    AuthConfig,
    ChannelConfig,
    ChannelRule,
    Config,
    StoreConfig,
    TokenRule,
)
from waystation.testing.station import Serving, quick_settings, serving

SECRET = b"a shared secret that is long enough for everybody"
BEARER = "bearer-of-an-administrator"
REJECTED = {"code": "dsps.auth.rejected", "error": "Unauthorized"}
POLL = "/channel/room-7/subscription/polling/me"
REVOKED_WITHIN_SECONDS = 5.0


def rules(data: Path, *, skew: float = 300) -> tuple[ChannelRule, ...]:
    (data / "secret").write_bytes(SECRET)
    tokens = TokenRule(
        algorithms=("HS256",),
        key_files=(str(data / "secret"),),
        issuers=("chat",),
        claims={"room": ("{{.channel.room}}", "any")},
        clock_skew_seconds=skew,
    )
    return (
        ChannelRule(pattern="room-(?P<room>[0-9]+)", tokens=tokens),
        ChannelRule(pattern="open-.*"),
    )


def token(room: str = "7", **claims: object) -> str:
    return jwt.encode({"iss": "chat", "room": room, **claims}, SECRET, algorithm="HS256")


def without_keys(data: Path, *, skew: float = 300, **options: Any) -> Config:
    """A station that lets everyone in where no token is asked for, as DSPS does."""
    return quick_settings(
        str(data),
        admin=AdminConfig(bearer=[BEARER]),
        channels=ChannelConfig(rules=rules(data, skew=skew)),
        **options,
    )


@dataclass(frozen=True)
class Opened:
    """A running station, the keys that it knows, and its store."""

    serving: Serving
    keys: Keys

    @property
    def url(self) -> str:
        return self.serving.url

    def put(self, channel: str, bearer: str = "", *, subscriber: str = "me") -> Answer:
        path = f"/channel/{channel}/subscription/polling/{subscriber}"
        return ask(self.url, "PUT", path, b"", key=bearer)

    def store(self) -> redis.Redis:
        return redis.Redis(unix_socket_path=self.serving.node.opened.store.address.path)


@pytest.fixture(scope="module")
def station(module_store_settings: Config) -> Iterator[Opened]:
    """A station that asks for keys, and for tokens in rooms."""
    data = module_store_settings.data_dir
    keys = make_keys(data)
    settings = replace(
        module_store_settings,
        auth=AuthConfig(insecure=False),
        channels=ChannelConfig(rules=rules(data), disclose_rejections=True),
    )
    with background_station(settings) as running:
        yield Opened(running, keys)


@pytest.fixture(scope="module")
def keyless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """A station that asks for no keys, but for tokens in rooms."""
    data = tmp_path_factory.mktemp("keyless")
    keys = make_keys(data)
    with background_station(without_keys(data)) as running:
        yield Opened(running, keys)


# -- What opens ------------------------------------------------------------------------------


def test_a_token_opens_the_channel_that_its_claims_name_and_no_other(station: Opened) -> None:
    assert station.put("room-7", token()).status == 200
    assert station.put("room-8", token()).status == 403
    assert station.put("room-8", token("any")).status == 200


def test_a_token_publishes_fetches_acknowledges_and_leaves(station: Opened) -> None:
    key = token("70")
    path = "/channel/room-70/subscription/polling/me"
    steps = [
        ("PUT", path, b"", 200),
        ("PUT", "/channel/room-70/message/m", b"1", 200),
        ("GET", path, None, 200),
        ("DELETE", f"{path}/message?ackHandle=e30=", None, 204),
        ("DELETE", path, None, 200),
    ]
    for method, target, body, status in steps:
        assert ask(station.url, method, target, body).status == 403, (method, target)
        assert ask(station.url, method, target, body, key=key).status == status, (method, target)


BAD = {
    "nothing": ("", "A token is needed"),
    "garbage": ("garbage", "A token is needed"),
    "an expired one": (token(exp=1), "expired"),
    "one that is not valid yet": (token(nbf=2**40), "not valid yet"),
    "another issuer": (token(iss="other"), "issuer"),
    "another room": (token("8"), "claim 'room'"),
    "another key": (
        jwt.encode({"iss": "chat", "room": "7"}, SECRET[::-1], algorithm="HS256"),
        "signature",
    ),
    "no signature": (jwt.encode({"iss": "chat", "room": "7"}, None, algorithm="none"), "signature"),
    "an extension": (
        jwt.encode({"iss": "chat", "room": "7"}, SECRET, headers={"crit": ["x"]}),
        "extension",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_without_a_good_token_it_stays_shut_in_the_shape_of_dsps(
    station: Opened, keyless: Opened, kind: str
) -> None:
    bearer, reason = BAD[kind]
    told, silent = station.put("room-7", bearer), keyless.put("room-7", bearer)

    assert (told.status, silent.status) == (403, 403)
    assert silent.json() == REJECTED
    assert {**told.json(), "reason": ""} == {**REJECTED, "reason": ""}
    assert reason in told.json()["reason"]
    assert told.header("content-type") == "application/json"


@pytest.mark.parametrize(
    "header",
    ["bearer {}", "BEARER {}", "Bearer  {}", "Token {}", "{}", "Bearer {},x"],
)
def test_the_header_is_written_as_dsps_wants_it(keyless: Opened, header: str) -> None:
    headers = {"authorization": header.format(token())}

    assert ask(keyless.url, "PUT", POLL, b"", headers).status == 403
    assert keyless.put("room-7", token()).status == 200


def test_a_key_of_the_station_opens_it_too(station: Opened) -> None:
    assert station.put("room-7", station.keys.write).status == 200
    assert station.put("room-7", station.keys.read).status == 403
    assert station.put("room-7", station.keys.unknown).status == 403
    assert station.put("room-7", station.keys.revoked).status == 403


def test_a_channel_without_token_rules_asks_for_a_key(station: Opened) -> None:
    assert station.put("open-1", token()).status == 403
    assert station.put("open-1", station.keys.write).status == 200


def test_a_token_opens_channels_of_the_default_project_alone(station: Opened) -> None:
    room = "/channel/room-71/subscription/polling"
    for name, key in (("d", station.keys.write), ("s", station.keys.shop_write)):
        assert ask(station.url, "PUT", f"{room}/{name}", b"", key=key).status == 200

    sent = ask(station.url, "PUT", "/channel/room-71/message/m", b"1", key=token("71"))

    assert sent.status == 200
    default = ask(station.url, "GET", f"{room}/d", key=station.keys.read)
    shop = ask(station.url, "GET", f"{room}/s", key=station.keys.shop_write)
    assert [each["messageID"] for each in default.json()["messages"]] == ["m"]
    assert shop.json()["messages"] == []


def test_a_token_is_no_key_of_the_management_routes(station: Opened) -> None:
    for method, path in (("GET", "/v1/keys"), ("GET", "/v1/channels"), ("GET", "/metrics")):
        assert ask(station.url, method, path, key=token("any")).status == 401


def test_the_name_comes_before_the_token_and_the_token_before_the_parameters(
    station: Opened,
) -> None:
    for name in ("Room-7", "elsewhere", "room-"):
        answer = station.put(name, "garbage")
        assert answer.status == 400
        assert answer.json()["error"] == 'Invalid "channelID" parameter'
    assert station.put("elsewhere").json()["code"] == "dsps.storage.invalid-channel"
    assert station.put("room-7", "garbage", subscriber="NO").status == 403
    assert station.put("room-7", token(), subscriber="NO").status == 400
    assert ask(station.url, "GET", f"{POLL}?max=-1", key="garbage").status == 403
    assert ask(station.url, "GET", f"{POLL}?max=-1", key=token()).status == 400


def test_tokens_have_the_skew_that_the_rule_gives(station: Opened) -> None:
    now = int(time.time())

    assert station.put("room-7", token(exp=now - 60)).status == 200
    assert station.put("room-7", token(exp=now - 600)).status == 403


# -- Stations without keys -------------------------------------------------------------------


def test_where_no_keys_are_asked_for_only_a_token_opens_a_channel_that_wants_one(
    keyless: Opened,
) -> None:
    assert keyless.put("open-1").status == 200
    assert keyless.put("room-7", token()).status == 200
    for bearer in ("", keyless.keys.unknown, keyless.keys.admin, "ws_"):
        assert keyless.put("room-7", bearer).status == 403, bearer


def test_where_no_keys_are_asked_for_the_wide_routes_are_no_way_around_tokens(
    keyless: Opened,
) -> None:
    body = json.dumps({"messages": [{"id": "m", "content": 1}]}).encode()
    for channel, bearer, status in (
        ("open-1", "", 200),
        ("room-7", "", 403),
        ("room-7", keyless.keys.admin, 403),
        ("room-7", token("8"), 403),
        ("room-7", token(), 200),
    ):
        path = f"/v1/channels/{channel}"
        sent = ask(keyless.url, "POST", f"{path}/messages", body, key=bearer)
        listed = ask(keyless.url, "GET", f"{path}/subscribers", key=bearer)
        assert (sent.status, listed.status) == (status, status), (channel, bearer, sent)


# -- Revocation ------------------------------------------------------------------------------


def revoke(url: str, jti: str, *, seconds: int = 600) -> Answer:
    path = f"/admin/jwt/revoke?jti={jti}&exp={int(time.time()) + seconds}"
    answer = ask(url, "PUT", path, b"", key=BEARER)
    assert answer.status == 200, answer
    return answer


def test_a_revoked_token_opens_nothing_any_more_not_even_what_asks_for_no_token(
    keyless: Opened,
) -> None:
    revoked, other = token(jti="r-1"), token(jti="r-2")
    for channel in ("room-7", "open-1"):
        assert keyless.put(channel, revoked).status == 200

    revoke(keyless.url, "r-1")

    for channel in ("room-7", "open-1"):
        refused = keyless.put(channel, revoked)
        assert (refused.status, refused.json()) == (403, REJECTED)
        assert keyless.put(channel, other).status == 200
        assert keyless.put(channel, token()).status == 200
    # And neither does another token with that id, whoever wrote it
    forged = jwt.encode({"jti": "r-1"}, b"somebody else's key, as long as is needed")
    assert keyless.put("open-1", forged).status == 403


@pytest.mark.parametrize(
    "jti", ["{a}b{c}", "a b+c", "ü€😀", "%7D", "x" * 10_000, "a\x00\r\nb", "7"]
)
def test_an_id_may_be_any_text(keyless: Opened, jti: str) -> None:
    shown = token(jti=jti)
    assert keyless.put("room-7", shown).status == 200

    assert revoke(keyless.url, quote(jti, safe="")).json()["jti"] == jti

    assert keyless.put("room-7", shown).status == 403
    with keyless.store() as store:
        assert all(len(key) < 1000 for key in store.keys("jwt.*"))


def test_a_revocation_by_another_process_counts_within_five_seconds(keyless: Opened) -> None:
    """As a DSPS server on the same store would write it."""
    shown = token(jti="r-3")
    assert keyless.put("room-7", shown).status == 200
    with keyless.store() as store:
        store.set("jwt.{r-3}.revoke", str(int(time.time()) + 600), ex=600)

    until = time.monotonic() + REVOKED_WITHIN_SECONDS
    while keyless.put("room-7", shown).status == 200:
        assert time.monotonic() < until, "the token still works"
        time.sleep(0.02)


def test_many_requests_with_one_token_ask_the_store_once_about_it(keyless: Opened) -> None:
    shown = token(jti="r-4")
    with keyless.store() as store:
        before = int(store.info("commandstats").get("cmdstat_exists", {}).get("calls", 0))
        begun = time.monotonic()
        for _ in range(100):
            assert keyless.put("room-7", shown).status == 200
        looks = int(store.info("commandstats")["cmdstat_exists"]["calls"]) - before

    assert 1 <= looks <= 2 + (time.monotonic() - begun) / 2


def test_when_the_store_cannot_tell_nobody_comes_in(tmp_path: Path) -> None:
    hasty = StoreConfig(durability="memory", call_seconds_max=1)
    with background_station(without_keys(tmp_path, store=hasty)) as running:
        opened = Opened(running, make_keys(tmp_path))
        with opened.store() as store:
            store.execute_command("CLIENT", "PAUSE", 6000, "ALL")

        answer = opened.put("open-1", token(jti="r-5"))

        assert answer.status == 503
        assert answer.header("retry-after")


# -- Polls that outlive their token ----------------------------------------------------------


async def waiting_poll(running: Serving, wire: AsyncWire, bearer: str) -> None:
    """Returns once a poll waits."""
    assert (await async_ask(running.url, "PUT", POLL, b"", key=bearer)).status == 200
    wire.send(request_bytes("GET", f"{POLL}?timeout=20s", key=bearer))
    store = running.node.opened.store
    while not (await store.call("PUBSUB", "NUMSUB", "dsps.c.{room-7}"))[1]:
        await asyncio.sleep(0.005)


async def advance(running: Serving, seconds: float) -> None:
    machine = running.node.opened.time_machine
    assert machine is not None
    await machine.advance(seconds)


async def publish(running: Serving) -> None:
    sent = await async_ask(running.url, "PUT", "/channel/room-7/message/m", b"1", key=token())
    assert sent.status == 200


async def test_a_poll_that_waited_long_gets_its_messages_with_its_token(tmp_path: Path) -> None:
    async with (
        serving(without_keys(tmp_path, time_machine=True)) as running,
        async_wire(running.url) as wire,
    ):
        await waiting_poll(running, wire, token(jti="p"))
        await advance(running, 5)
        await publish(running)

        answer = await wire.answer()

    assert answer.status == 200
    assert [each["messageID"] for each in answer.json()["messages"]] == ["m"]


async def test_a_poll_gets_nothing_once_its_token_was_revoked(tmp_path: Path) -> None:
    async with (
        serving(without_keys(tmp_path, time_machine=True)) as running,
        async_wire(running.url) as wire,
    ):
        await waiting_poll(running, wire, token(jti="p"))
        await advance(running, 5)
        path = f"/admin/jwt/revoke?jti=p&exp={int(time.time()) + 3600}"
        assert (await async_ask(running.url, "PUT", path, b"", key=BEARER)).status == 200
        await publish(running)

        answer = await wire.answer()

    assert (answer.status, answer.json()) == (403, REJECTED)


async def test_a_poll_gets_nothing_once_its_token_has_expired(tmp_path: Path) -> None:
    async with (
        serving(without_keys(tmp_path, skew=0, time_machine=True)) as running,
        async_wire(running.url) as wire,
    ):
        await waiting_poll(running, wire, token(exp=int(time.time()) + 10))
        await advance(running, 15)
        await publish(running)

        answer = await wire.answer()

    assert (answer.status, answer.json()) == (403, REJECTED)


async def test_a_revocation_lasts_as_long_as_the_token_and_its_skew(tmp_path: Path) -> None:
    async with serving(without_keys(tmp_path, skew=60, time_machine=True)) as running:
        await advance(running, 86_400)
        now = running.node.clock.now_ms() // 1000
        path = f"/admin/jwt/revoke?jti=p&exp={now + 100}"
        answer = await async_ask(running.url, "PUT", path, b"", key=BEARER)
        assert answer.json() == {"jti": "p", "exp": now + 160}
        store = running.node.opened.store

        await advance(running, 150)
        assert await store.call("GET", "jwt.{p}.revoke") == b"%d" % (now + 160)
        await advance(running, 15)
        assert await store.call("EXISTS", "jwt.{p}.revoke") == 0
