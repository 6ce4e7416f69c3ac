"""Clients that send too slowly, too much or for ever, or never read: bounded in time and memory."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from tests.api.conftest import Guarded
from tests.helpers.http import Wire, ask, request_bytes, wire
from tests.helpers.processes import StationProcess, station_process
from tests.helpers.server import background_station
from waystation.api.connection import HEADERS_MAX, PIPELINED_MAX, TRAILERS_MAX
from waystation.config import Config, HttpConfig
from waystation.testing.station import Serving

#: Well above one body and its copies, far below the 100 MB that are sent.
GROWTH_BYTES_MAX = 30_000_000
MEGABYTE = b"1" * 1_000_000
READ_SECONDS_MAX = 1.0
HEAD = b"PUT /channel/slow/message/m HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def impatient(module_store_settings: Config) -> Iterator[Serving]:
    """A station that does not wait long for a request to be sent."""
    http = HttpConfig(port=0, read_seconds_max=READ_SECONDS_MAX)
    with background_station(replace(module_store_settings, http=http)) as running:
        yield running


# -- Slow ------------------------------------------------------------------------------------


def drip(connection: Wire, byte: bytes) -> None:
    """Sends a byte now and then until the server has had enough."""
    connection.socket.settimeout(0.1)
    until = time.monotonic() + 15
    while time.monotonic() < until:
        try:
            connection.socket.sendall(byte)
            connection.socket.recv(1, socket.MSG_PEEK)
            break
        except TimeoutError:
            continue
        except ConnectionError:
            break
    connection.socket.settimeout(15)


def keep_sending(connection: Wire) -> None:
    """Sends blank lines, which are nothing, for a while."""
    for _ in range(150):
        time.sleep(0.1)
        connection.send(b"\r\n")


@pytest.mark.parametrize(
    ("start", "byte"),
    [
        (b"GE", b""),
        (HEAD, b"a"),
        (HEAD + b"Content-Length: 1000\r\n\r\n", b""),
        (HEAD + b"Content-Length: 1000\r\n\r\n[", b"1"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    ],
    ids=["a start", "a head", "no body", "a body", "chunks"],
)
def test_a_request_that_is_not_sent_in_time_is_408_and_the_connection_is_closed(
    impatient: Serving, start: bytes, byte: bytes
) -> None:
    with wire(impatient.url) as connection:
        begun = time.monotonic()
        connection.send(start)
        drip(connection, byte)
        answer = connection.answer()
        assert (answer.status, answer.header("connection")) == (408, "close")
        assert connection.closed()
        assert READ_SECONDS_MAX <= time.monotonic() - begun < 10


def test_a_connection_on_which_nothing_ever_comes_is_closed_without_a_word(
    impatient: Serving,
) -> None:
    with wire(impatient.url) as connection:
        assert connection.closed()


def test_the_second_request_of_a_connection_has_the_same_deadline(impatient: Serving) -> None:
    with wire(impatient.url) as connection:
        assert connection.ask("GET", "/livez").status == 200
        connection.send(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n")
        assert connection.answer().status == 408


def test_an_idle_connection_and_a_long_poll_are_not_slow_requests(impatient: Serving) -> None:
    subscription = "/channel/patient/subscription/polling/s"
    with wire(impatient.url) as idle:
        assert idle.ask("PUT", subscription).status == 200
        with wire(impatient.url) as connection:
            begun = time.monotonic()
            answer = connection.ask("GET", f"{subscription}?timeout=2s")
        assert (answer.status, answer.json()["messages"]) == (200, [])
        assert time.monotonic() - begun >= 2
        assert idle.ask("GET", "/livez").status == 200


def test_a_body_that_is_answered_before_it_is_sent_is_not_waited_for_either(
    impatient: Serving,
) -> None:
    with wire(impatient.url) as connection:
        connection.send(HEAD.replace(b"slow", b"A") + b"Content-Length: 1000\r\n\r\n12")
        assert connection.answer().status == 400
        assert connection.closed(), "one request has one answer"


def test_a_client_that_never_reads_is_let_go(
    impatient: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waystation.api.connection.STALLED_SECONDS_MAX", 1.0)
    subscription = "/channel/unread/subscription/polling/s"
    ask(impatient.url, "PUT", subscription)
    for number in range(8):
        target = f"/channel/unread/message/m{number}"
        assert ask(impatient.url, "PUT", target, b'"%b"' % (b"x" * 1_000_000)).status == 200
    with wire(impatient.url) as connection:
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.send(request_bytes("GET", subscription))
        # Then the connection is reset: a send finds that out without reading
        with pytest.raises(ConnectionError):
            keep_sending(connection)


# -- Large -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StationProcess]:
    """A station whose memory is its own."""
    data = tmp_path_factory.mktemp("large") / "data"
    options = ("--insecure", "--durability", "memory")
    with station_process(data, *options, WAYSTATION_HTTP_READ_SECONDS_MAX="60") as running:
        url = running.said["url"]
        for number in range(10):  # what it needs for bodies at all, it needs from here on
            ask(url, "PUT", f"/channel/warm/message/m{number}", b'"%b"' % MEGABYTE)
        yield running


def send_until_refused(connection: Wire, pieces: Iterator[bytes]) -> int:
    """Sends until the server hangs up; returns how many bytes it took."""
    sent = 0
    try:
        for piece in pieces:
            connection.send(piece)
            sent += len(piece)
    except ConnectionError:
        pass
    return sent


def announced() -> Iterator[bytes]:
    yield HEAD + b"Content-Length: 100000000\r\n\r\n"
    for _ in range(100):
        yield MEGABYTE


def chunked() -> Iterator[bytes]:
    yield HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    for _ in range(100):
        yield b"%x\r\n%b\r\n" % (len(MEGABYTE), MEGABYTE)
    yield b"0\r\n\r\n"


def endless_chunks() -> Iterator[bytes]:
    yield HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    while True:
        yield b"1\r\n1\r\n" * 10_000


def one_endless_chunk() -> Iterator[bytes]:
    yield HEAD + b"Transfer-Encoding: chunked\r\n\r\n7fffffffffff\r\n"
    while True:
        yield MEGABYTE


def endless_extension() -> Iterator[bytes]:
    yield HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;a="
    while True:
        yield MEGABYTE


def endless_trailer() -> Iterator[bytes]:
    yield HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n1\r\n0\r\nA: "
    while True:
        yield MEGABYTE


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (announced, {413}),
        (chunked, {413}),
        (endless_chunks, {413}),
        (one_endless_chunk, {413}),
        (endless_extension, {413}),
        (endless_trailer, {413}),
    ],
)
def test_a_body_without_measure_is_refused_early_in_bounded_memory(
    process: StationProcess, pieces: type[Iterator[bytes]], expected: set[int]
) -> None:
    url = process.said["url"]
    before = process.resident_bytes()
    highest = before
    with wire(url) as connection:
        taken = send_until_refused(connection, pieces())
        highest = max(highest, process.resident_bytes())
        assert connection.answer().status in expected
    assert taken < 50_000_000
    assert highest - before < GROWTH_BYTES_MAX
    assert ask(url, "GET", "/readyz").status == 200
    assert process.alive


# -- Many small things -----------------------------------------------------------------------


def many_trailers() -> Iterator[bytes]:
    yield HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n1\r\n0\r\n"
    for _ in range(50):
        yield b"a:\r\n" * 250_000


def many_headers() -> Iterator[bytes]:
    yield HEAD
    for _ in range(50):
        yield b"a:\r\n" * 250_000


@pytest.mark.parametrize(
    ("pieces", "expected"), [(many_trailers, 431), (many_headers, 431), (endless_chunks, 413)]
)
def test_connection_with_countless_small_parts_is_refused_early(
    process: StationProcess, pieces: type[Iterator[bytes]], expected: int
) -> None:
    url = process.said["url"]
    before = process.resident_bytes()
    with wire(url) as connection:
        taken = send_until_refused(connection, pieces())
        growth = process.resident_bytes() - before
        assert connection.answer().status == expected
    # What the sockets' buffers hold is taken as well.
    assert taken < 12_000_000
    assert growth < GROWTH_BYTES_MAX
    assert ask(url, "GET", "/livez").status == 200


@pytest.mark.parametrize(
    ("count", "status"), [(HEADERS_MAX - 1, 200), (HEADERS_MAX, 431)], ids=["most", "too many"]
)
def test_request_headers_over_their_number_are_431(
    impatient: Serving, count: int, status: int
) -> None:
    request = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n" + b"a:\r\n" * count + b"\r\n"
    with wire(impatient.url) as connection:
        connection.send(request)
        assert connection.answer().status == status


@pytest.mark.parametrize(
    ("count", "status"), [(TRAILERS_MAX, 200), (TRAILERS_MAX + 1, 431)], ids=["most", "too many"]
)
def test_request_trailers_over_their_number_are_431(
    impatient: Serving, count: int, status: int
) -> None:
    # In pieces, so that the request is not answered before its trailers have come.
    with wire(impatient.url) as connection:
        connection.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n1\r\n0\r\n")
        connection.send(b"a:\r\n" * count)
        connection.send(b"\r\n")
        assert connection.answer().status == status


def test_request_trailers_over_their_bytes_are_431(impatient: Serving) -> None:
    with wire(impatient.url) as connection:
        connection.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n1\r\n0\r\n")
        connection.send((b"a: " + b"b" * 10_000 + b"\r\n") * 5)
        assert connection.answer().status == 431


def test_request_trailers_are_no_headers(guarded: Guarded) -> None:
    request = (
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n1\r\n0\r\nAuthorization: Bearer %b\r\n\r\n"
    )
    with wire(guarded.url) as connection:
        connection.send(request % guarded.keys.write.encode())
        assert connection.answer().status == 403


def test_pipelined_requests_over_their_number_end_the_connection(impatient: Serving) -> None:
    with wire(impatient.url) as connection:
        request = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
        connection.send(request * (PIPELINED_MAX + 1))
        assert [connection.answer().status for _ in range(PIPELINED_MAX + 1)]
    with wire(impatient.url) as connection:
        connection.send(request * 5_000)
        assert connection.closed()
    assert ask(impatient.url, "GET", "/livez").status == 200
