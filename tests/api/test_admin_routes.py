"""DSPS's routes for administrators: who may use them, and what they do."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
import redis
from msgspec.structs import replace

from tests.api.conftest import Guarded
from tests.helpers.http import Answer, ask
from tests.helpers.server import background_station, make_keys
from waystation.api.admin_routes import CATEGORIES
from waystation.api.client_address import ClientAddresses, Networks
from waystation.api.request import Request
from waystation.api.server import ApiServer
from waystation.channels.tokens import EXPIRY_MAX
from waystation.config import (
    PRIVATE_NETWORKS,
    AdminConfig,
    AuthConfig,
    ChannelConfig,
    ChannelRule,
    Config,
    HttpConfig,
    TokenRule,
)
from waystation.errors import SettingsError
from waystation.node import open_node
from waystation.runtime.logging import sources
from waystation.testing.station import Serving, quick_settings

FIRST, SECOND = "first-bearer-of-16", "second-bearer-of-16"
REVOKE, LEVEL = "/admin/jwt/revoke?jti=t-1&exp=4000000000", "/admin/log/level?category=*&level=info"
SKEW = 42


def settings_with(settings: Config, **options: Any) -> Config:
    rule = ChannelRule(
        pattern=".+",
        tokens=TokenRule(issuers=("me",), allow_none=True, clock_skew_seconds=SKEW),
    )
    defaults: dict[str, Any] = {
        "admin": AdminConfig(bearer=[FIRST, SECOND]),
        "auth": AuthConfig(insecure=False),
        "channels": ChannelConfig(rules=(rule,)),
    }
    return replace(settings, **{**defaults, **options})


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("admin")


@pytest.fixture(scope="module")
def station(data: Path) -> Iterator[Serving]:
    """A station with two bearers, keys, and a token rule with a skew of its own."""
    make_keys(data)
    with background_station(settings_with(quick_settings(str(data)))) as running:
        yield running


@pytest.fixture
def _levels() -> Iterator[None]:
    """Puts the levels of log lines back."""
    names = ["waystation", *(f"waystation.{name}" for name in sources())]
    before = {name: logging.getLogger(name).level for name in names}
    yield
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)


def put(url: str, path: str, bearer: str = FIRST, **headers: str) -> Answer:
    return ask(url, "PUT", path, b"", headers, key=bearer)


def assert_refused(answer: Answer) -> None:
    assert (answer.status, answer.json()) == (403, {"error": ""})
    assert answer.header("content-type") == "application/json"


# -- Who -------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [REVOKE, LEVEL])
@pytest.mark.usefixtures("_levels")
def test_each_bearer_opens_them_and_nothing_else_does(station: Serving, path: str) -> None:
    for bearer in (FIRST, SECOND):
        assert put(station.url, path, bearer).status in (200, 204)
    for bearer in ("", "x", FIRST[:-1], f"{FIRST}x", FIRST.upper(), f"{FIRST},{SECOND}", "ü" * 16):
        assert_refused(put(station.url, path, bearer))
    for header in (f"bearer {FIRST}", f"Bearer  {FIRST}", f"Basic {FIRST}", FIRST):
        assert_refused(ask(station.url, "PUT", path, b"", {"authorization": header}))
    assert_refused(ask(station.url, "PUT", f"{path}&access_token={FIRST}", b""))


@pytest.mark.usefixtures("_levels")
def test_an_admin_key_of_the_operator_opens_them_without_any_bearer(guarded: Guarded) -> None:
    keys = guarded.keys
    for path in (REVOKE, LEVEL):
        assert put(guarded.url, path, keys.admin).status in (200, 204)
        for key in (keys.write, keys.read, keys.shop_admin, keys.revoked, keys.expired):
            assert_refused(put(guarded.url, path, key))
        assert_refused(put(guarded.url, path, keys.unknown))


def test_on_a_station_without_keys_only_a_bearer_counts(settings: Config, open_url: str) -> None:
    """A station that lets everyone in must not let everyone revoke."""
    keys = make_keys(settings.data_dir)
    for key in ("", keys.admin, keys.unknown):
        assert_refused(put(open_url, REVOKE, key))
    with background_station(settings_with(settings, auth=AuthConfig(insecure=True))) as running:
        assert put(running.url, REVOKE).status == 200
        for key in ("", keys.admin, keys.unknown):
            assert_refused(put(running.url, REVOKE, key))


def test_they_answer_in_their_networks_alone(settings: Config) -> None:
    make_keys(settings.data_dir)
    elsewhere = AdminConfig(bearer=[FIRST], networks=["10.0.0.0/8", "fc00::/7"])
    behind = HttpConfig(port=0, real_ip_header="X-Forwarded-For", trusted_proxies=["127.0.0.1/32"])
    with background_station(settings_with(settings, admin=elsewhere)) as running:
        assert_refused(put(running.url, REVOKE))
        told = {"x-forwarded-for": "10.0.0.1", "forwarded": "for=10.0.0.1", "x-real-ip": "10.0.0.1"}
        assert_refused(put(running.url, REVOKE, **told))
    with background_station(settings_with(settings, admin=elsewhere, http=behind)) as running:
        assert put(running.url, REVOKE, **{"x-forwarded-for": "10.0.0.1"}).status == 200
        assert_refused(put(running.url, REVOKE, **{"x-forwarded-for": "10.0.0.1, 8.8.8.8"}))
        assert_refused(put(running.url, REVOKE))


@pytest.mark.parametrize(
    ("peer", "told", "found"),
    [
        ("127.0.0.1", (), "127.0.0.1"),
        ("127.0.0.1", ("10.0.0.1",), "10.0.0.1"),
        ("127.0.0.1", (" 10.0.0.1 ",), "10.0.0.1"),
        ("127.0.0.1", ("8.8.8.8, 10.0.0.1",), "10.0.0.1"),
        ("127.0.0.1", ("10.0.0.1, 8.8.8.8, 127.0.0.2",), "8.8.8.8"),
        ("127.0.0.1", ("10.0.0.1", "8.8.8.8"), "8.8.8.8"),
        ("127.0.0.1", ("127.0.0.3, 127.0.0.2",), "127.0.0.3"),
        ("127.0.0.1", ("10.0.0.1, unknown",), None),
        ("127.0.0.1", ("10.0.0.1,",), None),
        ("127.0.0.1", ("fd00::1",), "fd00::1"),
        ("127.0.0.1", ("::ffff:10.0.0.1",), "10.0.0.1"),
        ("::ffff:127.0.0.1", ("10.0.0.1",), "10.0.0.1"),
        ("8.8.8.8", ("10.0.0.1",), "8.8.8.8"),
        ("fe80::1%eth0", (), "fe80::1%eth0"),
        (None, ("10.0.0.1",), None),
        ("a socket", (), None),
    ],
)
def test_the_address_is_that_of_the_connection_or_what_a_trusted_proxy_says(
    peer: str | None, told: tuple[str, ...], found: str | None
) -> None:
    addresses = ClientAddresses("X-Forwarded-For", Networks(["127.0.0.0/8"], setting="x"))
    headers = [(b"x-forwarded-for", each.encode()) for each in told]
    scope = {"client": (peer, 1) if peer else None, "headers": headers}

    async def nothing() -> Any: ...

    address = addresses.of(Request(scope, nothing, body_bytes_max=1))

    assert (str(address) if address else None) == found


def test_the_networks_of_ones_own_are_those_of_dsps() -> None:
    networks = Networks(PRIVATE_NETWORKS, setting="x")
    addresses = ClientAddresses("", networks)

    def is_own(peer: str) -> bool:
        async def nothing() -> Any: ...

        scope = {"client": (peer, 1), "headers": []}
        address = addresses.of(Request(scope, nothing, body_bytes_max=1))
        return address is not None and address in networks

    for peer in ("10.255.0.1", "172.31.0.1", "192.168.1.1", "fd12::1", "127.9.9.9", "169.254.1.1"):
        assert is_own(peer), peer
    for peer in ("::1", "fe80::1", "::ffff:10.0.0.1"):
        assert is_own(peer), peer
    for peer in (
        "8.8.8.8",
        "172.32.0.1",
        "11.0.0.1",
        "2001:db8::1",
        "::ffff:8.8.8.8",
        "100.64.0.1",
    ):
        assert not is_own(peer), peer


@pytest.mark.parametrize("bad", ["10.0.0.1/8", "ten", "10.0.0.0/33", ""])
async def test_a_network_that_is_none_is_told_at_start(settings: Config, bad: str) -> None:
    for setting, options in (
        ("admin.networks", {"admin": AdminConfig(networks=[bad])}),
        ("http.trusted_proxies", {"http": HttpConfig(port=0, trusted_proxies=[bad])}),
    ):
        node = await open_node(replace(settings, **options))
        try:
            with pytest.raises(SettingsError, match=f"Setting {setting}"):
                ApiServer(node)
        finally:
            await node.close()


# -- Revoking --------------------------------------------------------------------------------


def test_a_revocation_tells_the_expiry_with_the_widest_skew(station: Serving) -> None:
    answer = put(station.url, "/admin/jwt/revoke?jti=t-2&exp=4000000000&jti=other&x=y")

    assert answer.status == 200
    assert answer.body == b'{"jti":"t-2","exp":%d}\n' % (4_000_000_000 + SKEW)
    with store_of(station) as store:
        assert store.get("jwt.{t-2}.revoke") == b"%d" % (4_000_000_000 + SKEW)
        assert store.expiretime("jwt.{t-2}.revoke") == 4_000_000_000 + SKEW


def store_of(station: Serving) -> redis.Redis:
    return redis.Redis(unix_socket_path=station.node.opened.store.address.path)


@pytest.mark.parametrize("exp", ["0", "1", "-5", "+7", str(-EXPIRY_MAX), "1000000000"])
def test_a_token_that_has_expired_needs_no_revoking(station: Serving, exp: str) -> None:
    answer = put(station.url, f"/admin/jwt/revoke?jti=past&exp={exp.replace('+', '%2B')}")

    assert answer.status == 200
    assert answer.json() == {"jti": "past", "exp": int(exp) + SKEW}
    with store_of(station) as store:
        assert store.exists("jwt.{past}.revoke") == 0


def test_the_last_second_that_can_be_counted_is_good(station: Serving) -> None:
    answer = put(station.url, f"/admin/jwt/revoke?jti=late&exp={EXPIRY_MAX}")

    assert answer.json() == {"jti": "late", "exp": EXPIRY_MAX}
    with store_of(station) as store:
        assert store.exists("jwt.{late}.revoke") == 1


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("", 'Missing "jti" parameter'),
        ("jti=&exp=1", 'Missing "jti" parameter'),
        ("exp=4000000000", 'Missing "jti" parameter'),
        ("jti=t", 'Invalid "exp" parameter'),
        ("jti=t&exp=", 'Invalid "exp" parameter'),
        ("jti=t&exp=soon", 'Invalid "exp" parameter'),
        ("jti=t&exp=1.5", 'Invalid "exp" parameter'),
        ("jti=t&exp=1e9", 'Invalid "exp" parameter'),
        ("jti=t&exp=%D9%A3", 'Invalid "exp" parameter'),
        (f"jti=t&exp={EXPIRY_MAX + 1}", 'Invalid "exp" parameter'),
        (f"jti=t&exp={'9' * 5000}", 'Invalid "exp" parameter'),
    ],
    ids=lambda text: text[:30],
)
def test_a_revocation_needs_an_id_and_an_expiry(station: Serving, query: str, told: str) -> None:
    path = f"/admin/jwt/revoke?{query}"

    answer = put(station.url, path)

    assert (answer.status, answer.json()) == (400, {"error": told})
    assert_refused(put(station.url, path, "nobody's bearer"))


def test_a_second_revocation_never_shortens_the_first(station: Serving) -> None:
    now = int(time.time())
    for exp in (now + 1000, now + 10, 1, now + 500):
        path = f"/admin/jwt/revoke?jti=twice&exp={exp}"
        assert put(station.url, path).json()["exp"] == exp + SKEW
    with store_of(station) as store:
        assert store.expiretime("jwt.{twice}.revoke") == now + 1000 + SKEW
        assert put(station.url, f"/admin/jwt/revoke?jti=twice&exp={now + 2000}").status == 200
        assert store.expiretime("jwt.{twice}.revoke") == now + 2000 + SKEW


async def test_revocations_at_once_leave_the_longest(station: Serving) -> None:
    now = int(time.time())
    paths = [f"/admin/jwt/revoke?jti=many&exp={now + seconds}" for seconds in range(100, 120)]

    answers = await asyncio.gather(*(asyncio.to_thread(put, station.url, each) for each in paths))

    assert {answer.status for answer in answers} == {200}
    with store_of(station) as store:
        assert store.expiretime("jwt.{many}.revoke") == now + 119 + SKEW


def test_a_revoked_token_is_refused_from_the_next_request_on(station: Serving) -> None:
    shown = jwt.encode({"iss": "me", "jti": "next"}, None, algorithm="none")
    subscriber = "/channel/c/subscription/polling/s"
    for _ in range(2):
        assert ask(station.url, "PUT", subscriber, b"", key=shown).status == 200

    assert put(station.url, "/admin/jwt/revoke?jti=next&exp=4000000000").status == 200

    assert ask(station.url, "PUT", subscriber, b"", key=shown).status == 403


# -- Levels of log lines ---------------------------------------------------------------------


def enabled(part: str, level: int = logging.DEBUG) -> bool:
    return logging.getLogger(f"waystation.{part}").isEnabledFor(level)


@pytest.mark.usefixtures("_levels")
@pytest.mark.parametrize(
    ("category", "part"),
    [("storage", "store"), ("auth", "access"), ("webhook-out", "delivery"), ("http", "http")],
)
def test_the_level_of_one_category_is_set_at_once_and_others_stay(
    station: Serving, category: str, part: str
) -> None:
    assert put(station.url, "/admin/log/level?category=*&level=WARN").status == 204
    assert not enabled(part, logging.INFO)

    answer = put(station.url, f"/admin/log/level?category={category}&level=Debug")

    assert (answer.status, answer.body) == (204, b"")
    assert enabled(part)
    assert not enabled("node")
    assert put(station.url, "/admin/log/level?category=*&level=ERROR").status == 204
    assert not enabled(part, logging.WARNING)


@pytest.mark.usefixtures("_levels")
@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("DEBUG", logging.DEBUG),
        ("info", logging.INFO),
        ("Warn", logging.WARNING),
        ("WARNING", logging.WARNING),
        ("error", logging.ERROR),
        ("FATAL", logging.CRITICAL),
    ],
)
def test_levels_have_the_names_of_dsps_in_any_case(station: Serving, text: str, level: int) -> None:
    assert put(station.url, f"/admin/log/level?category=*&level={text}").status == 204

    assert enabled("store", level)
    assert not enabled("store", level - 1)


@pytest.mark.usefixtures("_levels")
def test_every_category_of_dsps_and_every_part_of_ours_is_known(station: Serving) -> None:
    for category in (*CATEGORIES, *sources()):
        answer = put(station.url, f"/admin/log/level?category={category}&level=warn")
        assert answer.status == 204, category
    mapped = {part for parts in CATEGORIES.values() for part in parts}
    assert mapped <= {*sources(), "station"}, "parts that exist"


def test_a_category_that_has_nothing_here_changes_nothing(station: Serving) -> None:
    before = {name: logging.getLogger(f"waystation.{name}").level for name in (*sources(), "")}
    for category in ("tracing", "logger"):
        assert put(station.url, f"/admin/log/level?category={category}&level=fatal").status == 204
    assert before == {
        name: logging.getLogger(f"waystation.{name}").level for name in (*sources(), "")
    }


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("level=debug", 'Missing "category" parameter'),
        ("category=&level=debug", 'Missing "category" parameter'),
        ("category=http", 'Invalid "level" parameter'),
        ("category=http&level=loud", 'Invalid "level" parameter'),
        ("category=http&level=10", 'Invalid "level" parameter'),
        ("category=http&level=notset", 'Invalid "level" parameter'),
        ("category=nothing&level=debug", 'Invalid "category" parameter'),
        ("category=HTTP&level=debug", 'Invalid "category" parameter'),
    ],
)
def test_a_level_needs_a_category_and_a_name(station: Serving, query: str, told: str) -> None:
    answer = put(station.url, f"/admin/log/level?{query}")

    assert (answer.status, answer.json()) == (400, {"error": told})


# -- Manners ---------------------------------------------------------------------------------


def test_paths_and_methods_have_the_manners_of_dsps(station: Serving) -> None:
    unknown = ask(station.url, "PUT", "/admin/nothing", b"", key=FIRST)
    wrong = ask(station.url, "GET", "/admin/jwt/revoke", key=FIRST)

    assert (unknown.status, unknown.body) == (404, b"404 page not found")
    assert (wrong.status, wrong.header("allow")) == (405, "PUT")
