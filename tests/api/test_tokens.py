"""Tokens on the wire: what opens a channel that asks for them, and what a revocation ends."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import jwt
import pytest

from tests.kit.background import background_station
from tests.kit.keys import Keys, make_keys
from waystation.channel_settings import ChannelRule, TokenRule
from waystation.settings import AuthSettings, ChannelSettings
from waystation.testing.station import quick_settings

SECRET = b"a shared secret that is long enough for everybody"


@pytest.fixture(scope="module")
def station(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Keys]]:
    data: Path = tmp_path_factory.mktemp("tokens")
    (data / "secret").write_bytes(SECRET)
    rules = (
        ChannelRule(
            pattern="room-(?P<room>[0-9]+)",
            tokens=TokenRule(
                algorithms=("HS256",),
                key_files=(str(data / "secret"),),
                issuers=("chat",),
                claims={"room": ("{{.channel.room}}",)},
            ),
        ),
        ChannelRule(pattern="open-.*"),
    )
    keys = make_keys(data)
    settings = quick_settings(
        str(data), auth=AuthSettings(insecure=False), channels=ChannelSettings(rules=rules)
    )
    with background_station(settings) as running:
        yield running.url, keys


def put(url: str, channel: str, bearer: str = "") -> tuple[int, str]:
    request = urllib.request.Request(
        f"{url}/channel/{channel}/subscription/polling/me",
        method="PUT",
        headers={"Authorization": f"Bearer {bearer}"} if bearer else {},
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return reply.status, ""
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def token(room: str = "7", **claims: object) -> str:
    return jwt.encode({"iss": "chat", "room": room, **claims}, SECRET, algorithm="HS256")


def test_a_token_opens_the_channel_that_its_claims_name_and_no_other(
    station: tuple[str, Keys],
) -> None:
    url, _ = station

    assert put(url, "room-7", token())[0] == 200
    assert put(url, "room-8", token())[0] == 403


@pytest.mark.parametrize("bearer", ["", "garbage", token(exp=1), token(iss="other")])
def test_without_a_good_token_it_stays_shut_in_the_shape_of_dsps(
    station: tuple[str, Keys], bearer: str
) -> None:
    status, text = put(station[0], "room-7", bearer)

    assert status == 403
    assert "dsps.auth.rejected" in text


def test_a_key_opens_it_too(station: tuple[str, Keys]) -> None:
    url, keys = station

    assert put(url, "room-7", keys.write)[0] == 200
    assert put(url, "room-7", keys.read)[0] == 403


def test_a_channel_without_token_rules_asks_for_a_key(station: tuple[str, Keys]) -> None:
    url, keys = station

    assert put(url, "open-1", token())[0] == 403
    assert put(url, "open-1", keys.write)[0] == 200


def test_a_name_that_no_rule_allows_is_told_before_the_key_is_looked_at(
    station: tuple[str, Keys],
) -> None:
    status, text = put(station[0], "elsewhere")

    assert status == 400
    assert "dsps.storage.invalid-channel" in text


def test_tokens_have_the_skew_that_the_rule_gives(station: tuple[str, Keys]) -> None:
    now = int(time.time())

    assert put(station[0], "room-7", token(exp=now - 60))[0] == 200
    assert put(station[0], "room-7", token(exp=now - 600))[0] == 403
