"""Cross-origin requests: which pages may use a station from a browser, and what they are told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from tests.api.conftest import Guarded
from tests.helpers.http import Answer, ask
from tests.helpers.server import background_station, make_keys
from waystation.config import AuthConfig, Config, HttpConfig

CHANNEL = "/channel/a/subscription/polling/s"
LOOPBACK = ["http://localhost", "http://localhost:5173", "http://127.0.0.1:8080", "https://[::1]:9"]
OTHERS = [
    "https://example.com",
    "http://localhost.example.com",
    "http://127.0.0.1.example.com",
    "http://example.com:80",
    "http://localhost:5173.example.com",
    "http://xlocalhost",
    "http://127.0.0.2",
    "file://localhost",
    "null",
    "http://localhost:123456",
    "",
]


def preflight(url: str, path: str, origin: str, method: str = "PUT") -> Answer:
    headers = {
        "Origin": origin,
        "Access-Control-Request-Method": method,
        "Access-Control-Request-Headers": "authorization, content-type",
    }
    return ask(url, "OPTIONS", path, headers=headers)


def assert_allowed(answer: Answer, origin: str) -> None:
    assert answer.header("access-control-allow-origin") == origin
    exposed = (answer.header("access-control-expose-headers") or "").split(", ")
    assert {"waystation-durability", "x-request-id", "retry-after"} <= set(exposed)
    assert answer.header("access-control-allow-credentials") is None


def assert_not_allowed(answer: Answer) -> None:
    assert not [name for name, _ in answer.headers if name.startswith("access-control")]
    assert answer.header("vary") == "origin"


# -- Without keys: this machine only ---------------------------------------------------------


@pytest.mark.parametrize("origin", LOOPBACK)
@pytest.mark.parametrize(
    ("path", "methods"),
    [
        (CHANNEL, {"DELETE", "GET", "PUT"}),
        ("/channel/a/message/m", {"PUT"}),
        (f"{CHANNEL}/message", {"DELETE"}),
        ("/readyz", {"GET"}),
        ("/v1/keys", {"DELETE", "GET", "POST", "PUT"}),
    ],
)
def test_a_page_of_this_machine_is_let_in(
    open_url: str, origin: str, path: str, methods: set[str]
) -> None:
    answer = preflight(open_url, path, origin)
    assert (answer.status, answer.body) == (204, b"")
    assert_allowed(answer, origin)
    assert set((answer.header("access-control-allow-methods") or "").split(", ")) == methods
    allowed = (answer.header("access-control-allow-headers") or "").split(", ")
    assert {"authorization", "content-type"} <= set(allowed)
    assert int(answer.header("access-control-max-age") or 0) > 0
    assert answer.header("vary") == "origin"


@pytest.mark.parametrize("origin", OTHERS)
def test_a_page_from_elsewhere_cannot_borrow_the_right_to_be_on_this_machine(
    open_url: str, origin: str
) -> None:
    for path in (CHANNEL, "/v1/keys"):
        assert_not_allowed(preflight(open_url, path, origin))
    assert_not_allowed(ask(open_url, "GET", "/readyz", headers={"Origin": origin}))


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/livez", 200),
        ("GET", CHANNEL, 404),
        ("PUT", "/channel/A/message/m", 400),
        ("GET", "/channel/a/nothing", 404),
        ("POST", CHANNEL, 405),
        ("GET", "/v1/keys", 200),
        ("GET", "/v1/nothing", 404),
        ("POST", "/v1/keys", 400),
    ],
)
def test_every_reply_to_an_allowed_page_can_be_read_errors_too(
    open_url: str, method: str, path: str, status: int
) -> None:
    answer = ask(open_url, method, path, headers={"Origin": LOOPBACK[0]})
    assert answer.status == status
    assert_allowed(answer, LOOPBACK[0])


def test_a_request_without_an_origin_is_no_business_of_cors(open_url: str) -> None:
    answer = ask(open_url, "GET", "/livez")
    assert not [name for name, _ in answer.headers if name.startswith(("access-", "vary"))]
    assert ask(open_url, "OPTIONS", CHANNEL).status == 405


# -- With keys: anywhere, since a page can do only what the key in its hands allows ------------


@pytest.mark.parametrize("origin", [LOOPBACK[0], "https://example.com", "null"])
def test_where_keys_are_needed_any_page_may_ask(guarded: Guarded, origin: str) -> None:
    asked = preflight(guarded.url, CHANNEL, origin)
    assert asked.status == 204
    assert_allowed(asked, "*")
    refused = ask(guarded.url, "PUT", CHANNEL, headers={"Origin": origin})
    assert (refused.status, refused.json()["code"]) == (403, "dsps.auth.rejected")
    assert_allowed(refused, "*")
    accepted = ask(guarded.url, "PUT", CHANNEL, headers={"Origin": origin}, key=guarded.keys.write)
    assert accepted.status == 200
    assert_allowed(accepted, "*")


# -- Named -----------------------------------------------------------------------------------


@pytest.fixture(params=[True, False], ids=["without keys", "with keys"])
def named(request: pytest.FixtureRequest, settings: Config) -> Iterator[str]:
    """A station whose settings name one origin."""
    make_keys(settings.data_dir)
    settings = replace(
        settings,
        http=HttpConfig(port=0, cors_origins=["https://shop.example"]),
        auth=AuthConfig(insecure=request.param),
    )
    with background_station(settings) as running:
        yield running.url


def test_only_the_named_pages_are_let_in(named: str) -> None:
    assert_allowed(preflight(named, CHANNEL, "https://shop.example"), "https://shop.example")
    for origin in ("https://shop.example.com", "http://shop.example", *LOOPBACK, "null"):
        assert_not_allowed(preflight(named, CHANNEL, origin))
