"""Cross-origin requests: preflights answered, and only to origins that may come."""

from __future__ import annotations

import urllib.error
import urllib.request

import pytest

from tests.api.conftest import Guarded
from waystation.api.cors import Cors

PATH = "/channel/cors/subscription/polling/page"
PREFLIGHT = {
    "access-control-request-method": "PUT",
    "access-control-request-headers": "authorization",
}


def headers_of(url: str, method: str, **headers: str) -> tuple[int, dict[str, str]]:
    request = urllib.request.Request(
        url,
        method=method,
        headers={name.replace("_", "-"): value for name, value in headers.items()},
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return reply.status, {name.lower(): value for name, value in reply.headers.items()}
    except urllib.error.HTTPError as error:
        with error:
            return error.code, {name.lower(): value for name, value in error.headers.items()}


@pytest.mark.parametrize("origin", ["https://shop.example", "http://localhost:5173", "null"])
def test_where_keys_are_required_any_origin_may_come(guarded: Guarded, origin: str) -> None:
    status, headers = headers_of(guarded.url + PATH, "OPTIONS", Origin=origin, **PREFLIGHT)

    assert status == 204
    assert headers["access-control-allow-origin"] == "*"
    assert {"GET", "PUT", "DELETE"} <= set(headers["access-control-allow-methods"].split(", "))
    assert "authorization" in headers["access-control-allow-headers"]
    assert int(headers["access-control-max-age"]) > 0


def test_a_refusal_can_be_read_by_the_page_too(guarded: Guarded) -> None:
    status, headers = headers_of(guarded.url + PATH, "PUT", Origin="https://shop.example")

    assert status == 403
    assert headers["access-control-allow-origin"] == "*"


@pytest.mark.parametrize(
    "origin",
    ["http://localhost:5173", "http://127.0.0.1:8000", "https://localhost", "http://[::1]:1"],
)
def test_without_keys_pages_of_this_machine_may_come(open_url: str, origin: str) -> None:
    status, headers = headers_of(open_url + PATH, "OPTIONS", Origin=origin, **PREFLIGHT)

    assert status == 204
    assert headers["access-control-allow-origin"] == origin
    assert headers["vary"].lower() == "origin"


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "null",
        "http://localhost.evil.example",
        "http://127.0.0.1.evil.example",
        "http://evil.example#http://localhost",
    ],
)
def test_without_keys_pages_of_other_sites_may_not(open_url: str, origin: str) -> None:
    for method in ("OPTIONS", "GET"):
        _, headers = headers_of(open_url + PATH, method, Origin=origin, **PREFLIGHT)

        assert "access-control-allow-origin" not in headers
        assert "access-control-allow-methods" not in headers


def test_a_reply_shows_the_durability_to_the_page(open_url: str) -> None:
    _, headers = headers_of(open_url + PATH, "PUT", Origin="http://localhost")

    assert "waystation-durability" in headers["access-control-expose-headers"]


def test_named_origins_may_come_and_no_others() -> None:
    cors = Cors(["https://shop.example"], insecure=False)

    assert (b"access-control-allow-origin", b"https://shop.example") in cors.headers(
        b"https://shop.example"
    )
    assert b"access-control-allow-origin" not in dict(cors.headers(b"https://other.example"))


def test_without_an_origin_nothing_is_added(open_url: str) -> None:
    _, headers = headers_of(open_url + PATH, "PUT")

    assert not [name for name in headers if name.startswith("access-control")]
