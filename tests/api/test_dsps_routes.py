"""The channel routes answer every id, parameter and body as DSPS's rules say."""

from __future__ import annotations

import pytest

from tests.api.conftest import Guarded
from tests.helpers.http import Answer, ask, wire

UUID = "0b5c8a1e-7d0f-4c52-9a53-5b8a2f7c1d11"
GOOD_NAMES = ["0", "a", "a" * 63, "a-b_c", "0-_", "1-0-2", f"msg-{UUID}", f"s-{UUID}"]
BAD_NAMES = [
    "A",
    "aB",
    "-a",
    "_a",
    "a" * 64,
    "a.b",
    "a%20b",
    "a+b",
    "%C3%BC",
    "%FF",
    "a%00",
    "a%0A",
    "a%0D%0Ax:1",
    "%7Ba%7D",
    "*",
    "a*",
    "a:b",
    "a%3Fb",
    "a%25",
    "..",
    "~",
    "a@b",
    "a=b",
    "%D9%A3",
]
DEFAULT_HEADERS = {
    "x-frame-options": "deny",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache, no-store, max-age=0, must-revalidate",
    "pragma": "no-cache",
    "expires": "0",
    "waystation-durability": "memory",
}
#: Method, path with a place for the channel, and the name of the other parameter in it.
ROUTES = [
    ("PUT", "/channel/{}/message/{}", "messageID"),
    ("PUT", "/channel/{}/subscription/polling/{}", "subscriberID"),
    ("DELETE", "/channel/{}/subscription/polling/{}", "subscriberID"),
    ("GET", "/channel/{}/subscription/polling/{}", "subscriberID"),
    ("DELETE", "/channel/{}/subscription/polling/{}/message", "subscriberID"),
]


def assert_error(answer: Answer, status: int, error: str, code: str | None = None) -> None:
    """The error shape of DSPS, with its headers."""
    assert answer.status == status
    assert answer.json() == ({"error": error, "code": code} if code else {"error": error})
    assert answer.header("content-type") == "application/json"
    assert answer.body.endswith(b"\n")
    assert_default_headers(answer)


def assert_default_headers(answer: Answer) -> None:
    for name, value in DEFAULT_HEADERS.items():
        assert answer.header(name) == value


# -- Ids -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GOOD_NAMES)
def test_a_name_within_the_rule_is_accepted_everywhere(open_url: str, name: str) -> None:
    polling = f"/channel/{name}/subscription/polling/{name}"
    with wire(open_url) as connection:
        created = connection.ask("PUT", polling)
        assert created.json() == {"channelID": name, "subscriberID": name}
        published = connection.ask("PUT", f"/channel/{name}/message/{name}", b"1")
        assert published.json() == {"channelID": name, "messageID": name}
        fetched = connection.ask("GET", polling).json()
        assert fetched["messages"] == [{"messageID": name, "content": 1}]
        acked = connection.ask("DELETE", f"{polling}/message?ackHandle={fetched['ackHandle']}")
        assert (acked.status, acked.body) == (204, b"")
        deleted = connection.ask("DELETE", polling)
        assert deleted.json() == {"channelID": name, "subscriberID": name}
        for answer in (created, published, acked, deleted):
            assert_default_headers(answer)


@pytest.mark.parametrize(("method", "path", "other"), ROUTES)
@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_outside_the_rule_is_400(
    open_url: str, method: str, path: str, other: str, name: str
) -> None:
    body = b"1" if method == "PUT" else None
    with wire(open_url) as connection:
        bad_channel = connection.ask(method, path.format(name, "ok"), body)
        assert_error(bad_channel, 400, 'Invalid "channelID" parameter')
        bad_other = connection.ask(method, path.format("ok", name), body)
        assert_error(bad_other, 400, f'Invalid "{other}" parameter')


# -- The order of checks ---------------------------------------------------------------------


@pytest.mark.parametrize(("method", "path", "other"), ROUTES)
def test_the_channel_is_checked_before_the_key_and_the_key_before_the_rest(
    guarded: Guarded, method: str, path: str, other: str
) -> None:
    url, key = guarded.url, guarded.keys.write
    junk = "?timeout=junk&max=junk"
    assert_error(
        ask(url, method, path.format("A", "A") + junk), 400, 'Invalid "channelID" parameter'
    )
    assert_error(
        ask(url, method, path.format("a", "A") + junk), 403, "Unauthorized", "dsps.auth.rejected"
    )
    assert_error(
        ask(url, method, path.format("a", "A") + junk, key=key), 400, f'Invalid "{other}" parameter'
    )


def test_a_body_that_nobody_may_send_is_not_waited_for(guarded: Guarded) -> None:
    with wire(guarded.url) as connection:
        connection.send(
            b"PUT /channel/a/message/b HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n"
        )
        assert connection.answer().status == 403


# -- Unknown paths and methods ---------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/channel",
        "/channel/",
        "/channel/a",
        "/channel/a/",
        "/channel//message/m",
        "/channel/a/message",
        "/channel/a/message/",
        "/channel/a/message/m/",
        "/channel/a/message/m/x",
        "/channel/a/Message/m",
        "/channel/a/subscription/s",
        "/channel/a/subscription/polling",
        "/channel/a/subscription/polling/s/",
        "/channel/a/subscription/polling/s/messages",
        "/channel/a/subscription/websocket/s",
        "/channel/a/../a/message/m",
        "/channel/a/./message/m",
        "/probe",
        "/probe/",
        "/probe/Liveness",
        "/probe/liveness/",
    ],
)
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "POST", "OPTIONS"])
def test_an_unknown_path_is_404_in_plain_text(open_url: str, method: str, path: str) -> None:
    answer = ask(open_url, method, path)
    assert (answer.status, answer.body) == (404, b"404 page not found")
    assert answer.header("content-type") == "text/plain; charset=utf-8"


@pytest.mark.parametrize(
    ("path", "allow"),
    [
        ("/channel/a/message/m", {"PUT"}),
        ("/channel/a/subscription/polling/s", {"DELETE", "GET", "PUT"}),
        ("/channel/a/subscription/polling/s/message", {"DELETE"}),
        ("/probe/liveness", {"GET"}),
        ("/probe/readiness", {"GET"}),
    ],
)
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "POST", "PATCH", "HEAD", "OPTIONS"])
def test_a_wrong_method_is_405_in_plain_text_and_says_which_are_right(
    open_url: str, method: str, path: str, allow: set[str]
) -> None:
    if method in allow:
        return
    answer = ask(open_url, method, path)
    assert answer.status == 405
    assert set((answer.header("allow") or "").split(", ")) == allow
    assert answer.header("content-type") == "text/plain; charset=utf-8"
    assert answer.body == (b"" if method == "HEAD" else b"405 method not allowed")
    assert_default_headers(answer)


# -- Probes ----------------------------------------------------------------------------------


def test_the_probes_answer_as_dsps_over_one_redis_does(open_url: str) -> None:
    live, ready = ask(open_url, "GET", "/probe/liveness"), ask(open_url, "GET", "/probe/readiness")

    assert (live.status, ready.status) == (200, 200)
    assert live.json() == {"storage": {"children": {"default": {}}}}
    assert ready.json() == {"storage": {"children": {"default": {"redis": "ping OK"}}}}
    assert_default_headers(live)


def test_the_probes_need_no_key(guarded: Guarded) -> None:
    for path in ("/probe/liveness", "/probe/readiness", "/livez", "/readyz"):
        assert ask(guarded.url, "GET", path).status == 200
