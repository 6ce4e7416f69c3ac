"""The sender against real sockets: deadlines, limits, the guard at the moment of connecting."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from tests.delivery.test_addresses import FORBIDDEN_ADDRESSES
from waystation.delivery.addresses import AddressGuard
from waystation.delivery.request import Failure, Outcome, Outgoing
from waystation.delivery.resolver import Resolver
from waystation.delivery.sender import EXCERPT_BYTES, Sender
from waystation.testing.endpoint import Answer, FakeEndpoint


@asynccontextmanager
async def sending(guard: AddressGuard | None = None) -> AsyncIterator[Sender]:
    sender = Sender(guard or AddressGuard(loopback=True))
    try:
        yield sender
    finally:
        await sender.close()


async def sent(answer: Answer, **options: float) -> Outcome:
    async with FakeEndpoint(plan=[answer]) as endpoint, sending() as sender:
        return await sender.send(Outgoing(url=endpoint.url, body=b"{}", **options))  # type: ignore[arg-type]


async def test_a_request_arrives_as_it_was_given() -> None:
    async with FakeEndpoint() as endpoint, sending() as sender:
        outcome = await sender.send(
            Outgoing(
                url=endpoint.url + "?a=b",
                method="PUT",
                headers=(("content-type", "application/json"), ("x-a", "1")),
                body=b'{"total": 1.0}',
            )
        )

        (got,) = endpoint.received
        assert outcome.status == 200
        assert outcome.excerpt == b"ok"
        assert (got.method, got.path, got.body) == ("PUT", "/hook?a=b", b'{"total": 1.0}')
        assert got.headers["host"] == endpoint.url.split("/")[2]
        assert got.headers["x-a"] == "1"
        assert "expect" not in got.headers
        assert got.headers["user-agent"] == "waystation"


async def test_an_empty_body_is_sent_as_such_after_one_that_was_not() -> None:
    async with FakeEndpoint() as endpoint, sending() as sender:
        await sender.send(Outgoing(url=endpoint.url, body=b"first", headers=(("x-a", "1"),)))
        await sender.send(Outgoing(url=endpoint.url, method="DELETE"))

    assert [each.body for each in endpoint.received] == [b"first", b""]
    assert "x-a" not in endpoint.received[1].headers


async def test_connections_are_kept_and_many_requests_run_at_once() -> None:
    async with FakeEndpoint(plan=[Answer(delay_seconds=0.2)]) as endpoint, sending() as sender:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        request = Outgoing(url=endpoint.url)
        outcomes = await asyncio.gather(*(sender.send(request) for _ in range(50)))

        assert all(outcome.succeeded for outcome in outcomes)
        assert loop.time() - begun < 50 * 0.2 / 2


async def test_a_large_body_is_let_go_when_it_was_sent() -> None:
    """Handles are kept for the next requests; hundreds of megabytes must not be kept with them."""
    body = b"x" * 1_000_000
    async with FakeEndpoint() as endpoint, sending() as sender:
        references = sys.getrefcount(body)
        for _ in range(3):
            assert (await sender.send(Outgoing(url=endpoint.url, body=body))).succeeded

        assert sys.getrefcount(body) == references
        assert endpoint.connections == 1, "the connection is kept all the same"


async def test_a_redirect_is_not_followed() -> None:
    """S-03"""
    async with FakeEndpoint() as inner:
        outcome = await sent(Answer(302, headers=(("location", inner.url),)))

    assert outcome.status == 302
    assert not outcome.succeeded
    assert inner.received == []


async def test_proxy_variables_are_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """S-03"""
    async with FakeEndpoint() as proxy, FakeEndpoint() as endpoint, sending() as sender:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        outcome = await sender.send(Outgoing(url=endpoint.url))

        assert outcome.succeeded
        assert proxy.received == []


async def test_a_hanging_endpoint_costs_its_deadline() -> None:
    outcome = await sent(Answer(hang=True), total_seconds_max=0.3)

    assert outcome.failure is Failure.TIMEOUT
    assert 0.2 < outcome.seconds < 20


async def test_a_connection_that_is_not_made_costs_its_own_deadline() -> None:
    """The endpoint's machine takes no more connections and says nothing."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, contextlib.ExitStack() as stack:
        port = full.getsockname()[1]
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.1", port))
        async with sending() as sender:
            begun = loop.time()
            outcome = await sender.send(
                Outgoing(
                    url=f"http://127.0.0.1:{port}/", connect_seconds_max=0.3, total_seconds_max=60.0
                )
            )
    assert outcome.failure is Failure.TIMEOUT
    assert 0.25 <= loop.time() - begun < 20


async def test_a_host_has_so_many_connections_and_others_have_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("waystation.delivery.sender._PER_HOST_MAX", 4)
    async with (
        FakeEndpoint(plan=[Answer(delay_seconds=0.5)]) as slow,
        FakeEndpoint() as other,
        sending() as sender,
    ):
        request = Outgoing(url=slow.url)
        waiting = [asyncio.ensure_future(sender.send(request)) for _ in range(12)]
        await slow.until(4)
        assert (await sender.send(Outgoing(url=other.url))).succeeded
        assert not all(each.done() for each in waiting), "it did not wait for these"
        outcomes = await asyncio.gather(*waiting)
        assert all(each.succeeded for each in outcomes)
        assert (len(slow.received), slow.connections) == (12, 4)


async def test_an_endless_reply_is_cut_and_its_beginning_kept() -> None:
    """S-07"""
    outcome = await sent(Answer(endless=True), total_seconds_max=10)

    assert outcome.status == 200
    assert outcome.excerpt == b"x" * EXCERPT_BYTES
    assert outcome.seconds < 5


async def test_a_reset_and_a_closed_port_are_connection_failures() -> None:
    outcome = await sent(Answer(reset=True))
    async with FakeEndpoint() as gone:
        url = gone.url
    async with sending() as sender:
        refused = await sender.send(Outgoing(url=url))

    assert outcome.failure is Failure.CONNECTION
    assert refused.failure is Failure.CONNECTION


async def test_retry_after_is_read_in_seconds() -> None:
    outcome = await sent(Answer(429, headers=(("retry-after", "17"),)))

    assert (outcome.status, outcome.retry_after) == (429, 17)


async def test_retry_after_is_read_as_a_date_too() -> None:
    at = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    outcome = await sent(Answer(503, headers=(("retry-after", at),)))

    assert outcome.retry_after is not None
    assert 20 < outcome.retry_after <= 31


async def test_kept_connections_are_used_again() -> None:
    async with FakeEndpoint(plan=[Answer(delay_seconds=0.01)]) as endpoint, sending() as sender:
        for _ in range(5):
            await asyncio.gather(*(sender.send(Outgoing(url=endpoint.url)) for _ in range(4)))

        assert len(endpoint.received) == 20
        assert endpoint.connections == 4


async def test_a_request_whose_kept_connection_ends_without_a_reply_is_sent_again() -> None:
    """It cannot be told whether the endpoint has read it: two requests may be one attempt."""
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError), contextlib.closing(writer):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                seen.append(await reader.readexactly(1))
                if seen == [b"1", b"2"]:
                    return
                writer.write(b"HTTP/1.1 200 X\r\ncontent-length: 0\r\n\r\n")

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, sending() as sender:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        outcomes = [await sender.send(Outgoing(url=url, body=body)) for body in (b"1", b"2")]

    assert [each.status for each in outcomes] == [200, 200]
    assert seen == [b"1", b"2", b"2"]


async def test_requests_are_of_http_1_1_and_a_reply_that_is_no_http_is_a_failure() -> None:
    seen = asyncio.Queue[bytes]()

    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await seen.put(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"hello, this is not HTTP\r\n")
        writer.close()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    async with server, sending() as sender:
        port = server.sockets[0].getsockname()[1]
        outcome = await sender.send(Outgoing(url=f"http://127.0.0.1:{port}/"))

    assert (await seen.get()).startswith(b"POST / HTTP/1.1\r\n")
    assert outcome.failure is Failure.CONNECTION


async def test_an_address_of_ipv6_is_reached() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 204 X\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "::1", 0)
    async with server, sending() as sender:
        port = server.sockets[0].getsockname()[1]
        outcome = await sender.send(Outgoing(url=f"http://[::1]:{port}/"))

    assert outcome.status == 204


async def test_a_reply_that_comes_in_drops_ends_with_the_total_deadline() -> None:
    """S-07"""
    ended = asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError), contextlib.closing(writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 X\r\ncontent-length: 100000\r\n\r\n")
            while True:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.02)
        ended.set()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    async with server, sending() as sender:
        port = server.sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}/"
        outcome = await sender.send(Outgoing(url=url, total_seconds_max=0.4))
        await ended.wait()

    assert outcome.failure is Failure.TIMEOUT
    assert outcome.seconds < 20


@pytest.mark.parametrize(
    "header",
    [("x-a\r\nx-b", "1"), ("x-a", "1\r\nx-b: 2"), ("x-a", "1\nx-b: 2"), ("x-a", "1\x00")],
    ids=repr,
)
async def test_a_header_that_would_break_out_of_its_line_is_never_sent(
    header: tuple[str, str],
) -> None:
    """S-05, behind the check at creation"""
    async with FakeEndpoint() as endpoint, sending() as sender:
        outcome = await sender.send(Outgoing(url=endpoint.url, headers=(header,)))

        assert outcome.failure is Failure.FORBIDDEN
        assert endpoint.received == []


async def test_a_header_with_an_empty_value_is_sent() -> None:
    async with FakeEndpoint() as endpoint, sending() as sender:
        await sender.send(Outgoing(url=endpoint.url, headers=(("x-empty", ""),)))

    assert endpoint.received[0].headers["x-empty"] == ""


@pytest.mark.parametrize("address", FORBIDDEN_ADDRESSES)
async def test_a_name_that_leads_to_a_forbidden_address_is_refused_at_connect(
    address: str,
) -> None:
    """S-01: the whole table, also when another answer of the same name is public."""
    guard = AddressGuard()
    for answer in ([address], ["8.8.8.8", address]):
        sender = Sender(guard, resolver=Resolver(guard, lookup=lambda _, answer=answer: answer))
        outcome = await sender.send(Outgoing(url="http://hooks.example.com/"))
        await sender.close()

        assert outcome.failure is Failure.FORBIDDEN
        assert outcome.detail == "the endpoint's address is not allowed"


async def test_a_name_that_is_rebound_later_is_connected_where_it_was_judged() -> None:
    """S-02: the answer is pinned; the next one is judged anew."""
    answers = [["127.0.0.1"], ["127.0.0.2"]]
    guard = AddressGuard(["127.0.0.1/32"])
    resolver = Resolver(guard, lookup=lambda _: answers.pop(0))
    async with FakeEndpoint() as endpoint:
        sender = Sender(guard, resolver=resolver)
        url = endpoint.url.replace("127.0.0.1", "hooks.example.com")

        first = await sender.send(Outgoing(url=url))
        second = await sender.send(Outgoing(url=url))
        assert first.succeeded
        assert second.succeeded
        assert answers == [["127.0.0.2"]], "libcurl asked nobody, and we asked once"

        resolver.forget()
        third = await sender.send(Outgoing(url=url))
        await sender.close()

        assert third.failure is Failure.FORBIDDEN
        assert len(endpoint.received) == 2


async def test_a_forbidden_address_is_never_connected_to() -> None:
    """S-01 at the moment of connecting"""
    async with FakeEndpoint() as endpoint, sending(AddressGuard()) as sender:
        outcome = await sender.send(Outgoing(url=endpoint.url))

        assert outcome.failure is Failure.FORBIDDEN
        assert endpoint.received == []


class _TurningResolver(Resolver):
    """A name service that vouches for what the guard has not seen: the rebinding attack."""

    async def resolve(self, host: str) -> list[str]:
        return ["127.0.0.1"]


async def test_an_address_that_changed_after_it_was_judged_is_refused_at_the_socket() -> None:
    """S-02"""
    guard = AddressGuard()
    async with FakeEndpoint() as endpoint:
        sender = Sender(guard, resolver=_TurningResolver(guard))
        url = endpoint.url.replace("127.0.0.1", "rebound.example.com")
        outcome = await sender.send(Outgoing(url=url))
        await sender.close()

        assert outcome.failure is Failure.FORBIDDEN
        assert endpoint.received == []


async def test_the_connection_goes_to_the_vetted_address_with_the_name_kept() -> None:
    """S-02: the resolution is pinned, Host is kept."""
    guard = AddressGuard(loopback=True)
    async with FakeEndpoint() as endpoint:
        sender = Sender(guard, resolver=_TurningResolver(guard))
        url = endpoint.url.replace("127.0.0.1", "hooks.example.com")
        outcome = await sender.send(Outgoing(url=url))
        await sender.close()

        assert outcome.succeeded
        assert endpoint.received[0].headers["host"] == f"hooks.example.com:{endpoint.port}"


async def test_a_failure_never_tells_an_address_that_a_name_resolved_to() -> None:
    """S-04"""
    guard = AddressGuard(loopback=True)
    async with FakeEndpoint() as gone:
        url = gone.url.replace("127.0.0.1", "hooks.example.com")
    sender = Sender(guard, resolver=_TurningResolver(guard))
    outcome = await sender.send(Outgoing(url=url))
    forbidden = await Sender(AddressGuard()).send(Outgoing(url="http://localhost/"))
    await sender.close()

    for told in (outcome.detail, forbidden.detail):
        assert told
        assert "127.0.0.1" not in told
        assert "::1" not in told


async def test_a_name_without_an_address_is_a_failure_that_may_pass() -> None:
    async with sending() as sender:
        outcome = await sender.send(Outgoing(url="http://nobody.invalid/"))

    assert outcome.failure is Failure.NAME


async def test_a_cancelled_request_leaves_nothing_behind() -> None:
    async with FakeEndpoint(plan=[Answer(hang=True), 200]) as endpoint, sending() as sender:
        task = asyncio.create_task(sender.send(Outgoing(url=endpoint.url)))
        await endpoint.until(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        assert repr(sender) == "<Sender [0 under way]>"
        assert (await sender.send(Outgoing(url=endpoint.url))).succeeded


async def test_closing_ends_what_is_under_way() -> None:
    async with FakeEndpoint(plan=[Answer(hang=True)]) as endpoint:
        sender = Sender(AddressGuard(loopback=True))
        task = asyncio.create_task(sender.send(Outgoing(url=endpoint.url)))
        await endpoint.until(1)
        await sender.close()

        assert (await task).failure is Failure.CANCELLED


# -- The body of a reply ---------------------------------------------------------------------


async def test_the_whole_reply_comes_back_to_who_asks_for_it() -> None:
    body = bytes(range(256)) * 2000
    whole = await sent(Answer(body=body), reply_bytes_max=len(body))
    assert (whole.body, whole.cut) == (body, False)
    assert whole.excerpt == body[:EXCERPT_BYTES]
    alone = await sent(Answer(body=b"short"))
    assert (alone.body, alone.cut, alone.excerpt) == (b"", False, b"short")


async def test_a_reply_that_is_longer_than_was_asked_for_is_cut_and_not_kept() -> None:
    """S-07"""
    for answer in (Answer(body=b"x" * 200_001), Answer(status=500, endless=True)):
        outcome = await sent(answer, reply_bytes_max=200_000)
        assert (outcome.status, outcome.body, outcome.cut) == (answer.status, b"", True)
        assert outcome.excerpt == b"x" * EXCERPT_BYTES


async def test_a_handle_that_is_kept_keeps_no_reply() -> None:
    plan = [Answer(body=b"1" * 100_000), Answer(body=b"2")]
    async with FakeEndpoint(plan=plan) as endpoint, sending() as sender:
        request = Outgoing(url=endpoint.url, reply_bytes_max=1_000_000)
        first, second = await sender.send(request), await sender.send(request)
        assert (first.body, second.body) == (b"1" * 100_000, b"2")
        assert all(not transfer.parts for transfer in sender._idle)


@asynccontextmanager
async def answering(reply: bytes) -> AsyncIterator[str]:
    """Read each request, send these bytes and close the connection."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n{}")
            writer.write(reply)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"


INCOMPLETE = {
    "status line without its end": b"HTTP/1.1 200 OK",
    "status line": b"HTTP/1.1 200 OK\r\n",
    "status line without a body to come": b"HTTP/1.1 204 No Content\r\n",
    "headers without their end": b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n",
    "half a header": b"HTTP/1.1 200 OK\r\ncontent-le",
    "headers after an interim reply": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n",
    "interim reply alone": b"HTTP/1.1 100 Continue\r\n\r\n",
    "refusal": b"HTTP/1.1 410 Gone\r\ncontent-length: 0\r\n",
    "body shorter than its length": b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc",
    "no byte of the body": b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n",
    "chunks without an end": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n",
    "half a chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\nabc",
}
COMPLETE = {
    "body until the close": b"HTTP/1.1 200 OK\r\n\r\nabc",
    "nothing until the close": b"HTTP/1.1 200 OK\r\n\r\n",
    "bare line feeds": b"HTTP/1.1 200 OK\ncontent-length: 3\n\nabc",
    "interim reply": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
    "trailers": (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nx-sum: 1\r\n\r\n"
    ),
}


@pytest.mark.parametrize("reply", INCOMPLETE.values(), ids=INCOMPLETE.keys())
async def test_sender_incomplete_reply_is_a_connection_failure(reply: bytes) -> None:
    async with answering(reply) as url, sending() as sender:
        for wanted in (0, 1000):
            request = Outgoing(url=url, body=b"{}", reply_bytes_max=wanted)
            outcome = await sender.send(request)
            assert not outcome.succeeded
            assert (outcome.status, outcome.failure) == (0, Failure.CONNECTION)


@pytest.mark.parametrize("reply", COMPLETE.values(), ids=COMPLETE.keys())
async def test_sender_complete_reply_that_ends_with_its_connection_succeeds(reply: bytes) -> None:
    async with answering(reply) as url, sending() as sender:
        outcome = await sender.send(Outgoing(url=url, body=b"{}"))
        assert outcome.succeeded, outcome
