"""Bad input: nothing that a client sends makes a 5xx, a partial write, or a server that is gone."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import pytest

from tests.helpers.http import Wire, ask, request_bytes, wire

LIVE = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
PUT = b"PUT /channel/bad/message/m HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(autouse=True)
def still_serving(open_url: str) -> Iterator[None]:
    """After each attack the server serves, and the channel that was attacked has no message."""
    subscription = "/channel/bad/subscription/polling/s"
    ask(open_url, "PUT", subscription)
    yield
    fetched = ask(open_url, "GET", subscription)
    assert (fetched.status, fetched.json()["messages"]) == (200, [])


def statuses(connection: Wire, count: int) -> list[int]:
    return [connection.answer().status for _ in range(count)]


# -- What is no HTTP -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\0" * 64,
        b"\xff" * 64,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"BLAH /livez HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"get /livez HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET livez HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET ?x HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET http://other HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"CONNECT a:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /li\0vez HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /li\rvez HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /\xc3\xbc HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /livez HTTP/9.9\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\nA: b\0c\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\nA : b\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\n: b\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\nA\r\n\r\n",
        b"GET /livez HTTP/1.1\nHost: a\n\n",
        PUT + b"Content-Length: -1\r\n\r\n1",
        PUT + b"Content-Length: +1\r\n\r\n1",
        PUT + b"Content-Length: 1, 1\r\n\r\n1",
        PUT + b"Content-Length: 0x1\r\n\r\n1",
        PUT + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n12",
        PUT + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n1",
        PUT + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n1\r\n0\r\n\r\n",
        PUT + b"Transfer-Encoding: gzip\r\n\r\n1",
        PUT + b"Transfer-Encoding: chunked, identity\r\n\r\n1",
        PUT + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n1\r\n0\r\n\r\n",
        PUT + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n1\r\n0\r\n\r\n",
        PUT + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 20 + b"\r\n1",
        PUT + b"Transfer-Encoding: chunked\r\n\r\n1\r\n12\r\n0\r\n\r\n",
    ],
    ids=lambda data: repr(data[:70])[2:-1],
)
def test_garbage_is_400_and_the_connection_is_closed(open_url: str, data: bytes) -> None:
    with wire(open_url) as connection:
        connection.send(data)
        assert connection.answer().status == 400
        assert connection.closed()


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/channel/%/message/m", 400),
        ("/channel/%2/message/m", 400),
        ("/channel/%zz/message/m", 400),
        ("/channel/%00/message/m", 400),
        ("/channel/odd%0d%0aSet-Cookie:x/message/m", 400),
        ("/channel/%c0%ae/message/m", 400),
        ("/channel/%ed%a0%80/message/m", 400),
        ("/channel/odd%2Fmessage/m", 200),
        ("/channel/%6fdd/message/m", 200),
        ("/channel/odd/message/m?%", 200),
        ("/channel/odd/message/m?%=%&&&===", 200),
        ("/channel/odd/message/m?a=%ff%00", 200),
        ("/channel/odd/message/../m", 404),
        ("//channel/odd/message/m", 404),
        ("/channel/odd/message/m;x", 400),
        ("/v1/%00%0d%0a%ff", 404),
        ("/v1/../v1/keys/%2e%2e", 404),
        ("*", 404),
    ],
)
def test_odd_targets_are_read_strictly_or_not_at_all(
    open_url: str, target: str, status: int
) -> None:
    answer = ask(open_url, "PUT", target, b"1")
    assert answer.status == status
    assert answer.header("set-cookie") is None


@pytest.mark.parametrize(
    ("request_id", "kept"),
    [("abc-1._Z", True), ("a b", False), ("", False), ("x" * 65, False), ("ü", False)],
)
def test_only_a_plain_request_id_is_taken_over(open_url: str, request_id: str, kept: bool) -> None:
    answer = ask(open_url, "GET", "/livez", headers={"X-Request-Id": request_id})
    assert (answer.header("x-request-id") == request_id) is kept
    assert answer.header("x-request-id")


# -- Heads -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /livez?" + b"a" * 40_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\nA: " + b"b" * 40_000 + b"\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 8_000 + b"\r\n",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\nA: " + b"b" * 400_000,
    ],
    ids=["path", "query", "one header", "many headers", "no end"],
)
@pytest.mark.parametrize("piece", [1_000_000, 10_000], ids=["at once", "in pieces"])
def test_an_oversize_head_is_431_and_the_connection_is_closed(
    open_url: str, head: bytes, piece: int
) -> None:
    with wire(open_url) as connection:
        try:
            for start in range(0, len(head), piece):
                connection.send(head[start : start + piece])
        except ConnectionError:
            pass  # It need not wait for the rest.
        assert connection.answer().status == 431
        assert connection.closed()


def test_a_head_below_the_limit_is_served_whatever_comes_with_it(open_url: str) -> None:
    content = b'"' + b"x" * 200_000 + b'"'
    headers = {"X-Long": "b" * 30_000}
    with wire(open_url) as connection:
        for number in range(3):
            target = f"/channel/large/message/m{number}"
            connection.send(request_bytes("PUT", target, content, headers))
        assert statuses(connection, 3) == [200, 200, 200]


# -- Bodies ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b"NaN",
        b"Infinity",
        b'"\\ud80"',
        b'"\xed\xa0\x80"',
        b"\xff\xfe",
        b"",
    ],
    ids=lambda content: repr(content[:10])[2:-1],
)
@pytest.mark.parametrize(
    ("method", "target"),
    [("PUT", "/channel/bad/message/m"), ("POST", "/v1/keys"), ("POST", "/v1/projects")],
)
def test_a_body_that_is_no_sane_json_is_400(
    open_url: str, method: str, target: str, content: bytes
) -> None:
    headers = {"Content-Type": "application/json"}
    assert ask(open_url, method, target, content, headers).status == 400


def test_a_gzip_bomb_is_not_inflated(open_url: str) -> None:
    bomb = gzip.compress(b"[" + b" " * 10_000_000 + b"]")
    answer = ask(open_url, "PUT", "/channel/bad/message/m", bomb, {"Content-Encoding": "gzip"})
    assert (answer.status, answer.json()["error"]) == (400, "Request body is not JSON")


def test_an_integer_of_twenty_digits_survives(open_url: str) -> None:
    subscription = "/channel/digits/subscription/polling/s"
    content = b'{"n":12345678901234567890,"m":-0.10000000000000000000000001}'
    ask(open_url, "PUT", subscription)
    assert ask(open_url, "PUT", "/channel/digits/message/m", content).status == 200
    assert b'"content":' + content in ask(open_url, "GET", subscription).body


@pytest.mark.parametrize(
    ("method", "target"), [("PUT", "/channel/bad/message/m"), ("POST", "/v1/keys")]
)
@pytest.mark.parametrize("size", [1_048_577, 100_000_000, 2**63 - 1])
def test_an_announced_body_over_the_limit_is_413_before_it_is_sent(
    open_url: str, method: str, target: str, size: int
) -> None:
    with wire(open_url) as connection:
        head = f"Host: localhost\r\nContent-Length: {size}"
        connection.send(f"{method} {target} HTTP/1.1\r\n{head}\r\n\r\n".encode())
        answer = connection.answer()
        assert (answer.status, answer.json()["code"]) == (413, "input.too-large")


def test_a_client_that_sends_all_before_it_reads_gets_its_413_too(open_url: str) -> None:
    with wire(open_url) as connection:
        for _ in range(2):
            answer = connection.ask("PUT", "/channel/bad/message/m", b"1" * 5_000_000)
            assert answer.status == 413
        assert connection.ask("GET", "/livez").status == 200


def test_a_body_at_the_limit_is_accepted_and_one_byte_more_is_not(open_url: str) -> None:
    content = b'"' + b"x" * (1_048_576 - 2) + b'"'
    assert ask(open_url, "PUT", "/channel/limit/message/m1", content).status == 200
    assert ask(open_url, "PUT", "/channel/limit/message/m2", content + b" ").status == 413


def test_a_client_that_asks_first_is_told_before_it_sends(open_url: str) -> None:
    with wire(open_url) as connection:
        connection.send(PUT + b"Expect: 100-continue\r\nContent-Length: 5000000\r\n\r\n")
        assert connection.answer().status == 413
    with wire(open_url) as connection:
        head = b"PUT /channel/expect/message/m HTTP/1.1\r\nHost: localhost\r\n"
        connection.send(head + b"Expect: 100-continue\r\nContent-Length: 1\r\n\r\n")
        assert connection.answer().status == 100
        connection.send(b"1")
        assert connection.answer().status == 200


def test_a_body_that_ends_early_is_never_taken_for_the_whole(open_url: str) -> None:
    with wire(open_url) as connection:
        connection.send(PUT + b"Content-Length: 10\r\n\r\n123")
    with wire(open_url) as connection:
        connection.send(PUT + b"Transfer-Encoding: chunked\r\n\r\n3\r\n123\r\n")


# -- Connections -----------------------------------------------------------------------------


def test_pipelined_requests_are_answered_in_order(open_url: str) -> None:
    with wire(open_url) as connection:
        connection.send(
            LIVE
            + request_bytes("PUT", "/channel/pipe/message/m", b"1")
            + request_bytes("PUT", "/channel/pipe/message/m2", b"{")
            + PUT.replace(b"bad/message/m", b"pipe/message/m3")
            + b"Transfer-Encoding: chunked\r\n\r\n"
            + b"1\r\n[\r\n1;ext=1\r\n]\r\n0\r\nTrailer: x\r\n\r\n"
            + b"\r\n\r\n"
            + request_bytes("GET", "/v1/nothing")
            + LIVE * 50
        )
        assert statuses(connection, 55) == [200, 200, 400, 200, 404, *([200] * 50)]


def test_garbage_after_a_request_spoils_only_what_follows(open_url: str) -> None:
    with wire(open_url) as connection:
        connection.send(LIVE)
        assert connection.answer().status == 200
        connection.send(b"\xff\xff\xff\xff\r\n\r\n")
        assert connection.answer().status == 400
        assert connection.closed()


@pytest.mark.parametrize("upgrade", ["h2c", "websocket"])
def test_an_offer_to_upgrade_is_ignored_and_the_body_is_read(open_url: str, upgrade: str) -> None:
    """Java's own client offers HTTP/2 with each request, bodies included."""
    offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": upgrade, "HTTP2-Settings": "AAM"}
    with wire(open_url) as connection:
        for number in range(2):
            target = f"/channel/upgrade/message/{upgrade}-{number}"
            assert connection.ask("PUT", target, b'{"a": 1}', offer).status == 200


# -- Headers that must be there once ------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "headers", "status"),
    [
        ("1.1", "", 400),
        ("1.1", "Host: localhost\r\nHost: localhost\r\n", 400),
        ("1.1", "Host: localhost\r\nAuthorization: Bearer a\r\nauthorization: Bearer b\r\n", 400),
        ("1.1", "Host: localhost\r\nAuthorization: Bearer a\r\nAuthorization: Bearer a\r\n", 400),
        ("1.0", "Host: localhost\r\nHost: localhost\r\n", 400),
        ("1.1", "Host: localhost\r\n", 200),
        ("1.0", "", 200),
    ],
)
def test_request_without_one_host_or_with_two_authorizations_is_400(
    open_url: str, version: str, headers: str, status: int
) -> None:
    with wire(open_url) as connection:
        connection.send(f"GET /livez HTTP/{version}\r\n{headers}\r\n".encode())
        assert connection.answer().status == status
        if status == 400:
            assert connection.closed()
