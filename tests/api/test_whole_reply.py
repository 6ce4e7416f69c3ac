"""A reply is written whole where it can be, and nobody can tell which way it went."""

from __future__ import annotations

import asyncio

from waystation.config import Config
from waystation.testing.station import serving

PUT = b"PUT /channel/ch/message/m%d HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 2\r\n%b\r\n{}"


async def exchange(port: int, request: bytes, *, replies: int = 1) -> bytes:
    """Sends all at once; reads until so many bodies have come, or the server hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    received = b""
    async with asyncio.timeout(5):
        while received.count(b'"messageID"') < replies:
            piece = await reader.read(65536)
            if not piece:
                break
            received += piece
    writer.close()
    await writer.wait_closed()
    return received


def headers(reply: bytes) -> dict[bytes, bytes]:
    """The head without what differs from request to request, and what only CORS adds."""
    head = reply.partition(b"\r\n\r\n")[0]
    pairs = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:])
    changing = {b"date", b"x-request-id", b"connection", b"vary"}
    return {
        name: value
        for name, value in pairs.items()
        if name not in changing and not name.startswith(b"access-control-")
    }


async def test_a_whole_reply_has_the_headers_and_body_of_one_that_took_the_long_way(
    settings: Config,
) -> None:
    async with serving(settings) as station:
        # Given the same request on a connection that stays, on one that ends, and from a web page
        whole = await exchange(station.port, PUT % (1, b""))
        ended = await exchange(station.port, PUT % (1, b"connection: close\r\n"))
        paged = await exchange(station.port, PUT % (1, b"origin: http://localhost\r\n"))

    # Then only what differs for a reason differs
    assert whole.startswith(b"HTTP/1.1 200 OK\r\n")
    assert headers(whole) == headers(ended) == headers(paged)
    assert {b"content-type", b"content-length", b"cache-control"} <= headers(whole).keys()
    bodies = {reply.partition(b"\r\n\r\n")[2] for reply in (whole, ended, paged)}
    assert bodies == {b'{"channelID":"ch","messageID":"m1"}\n'}
    assert b"connection: close" in ended
    assert b"access-control-allow-origin: http://localhost" in paged


async def test_pipelined_requests_are_answered_completely_and_in_order(settings: Config) -> None:
    async with serving(settings) as station:
        requests = b"".join(PUT % (number, b"") for number in range(20))
        received = await exchange(station.port, requests, replies=20)
    assert received.count(b"HTTP/1.1 200 OK") == 20
    places = [received.index(b'"m%d"' % number) for number in range(20)]
    assert places == sorted(places)


async def test_a_reply_without_a_body_leaves_the_connection_in_step(settings: Config) -> None:
    # Given an ack, which is answered 204, and a publish behind it on the same connection
    base = b"/channel/ch/subscription/polling/s"
    requests = [
        b"PUT %b HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" % base,
        b"DELETE %b/message?ackHandle=e30= HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" % base,
        PUT % (7, b""),
    ]
    async with serving(settings) as station:
        received = await exchange(station.port, b"".join(requests))
    # Then the 204 has neither a length nor a body, and the next reply follows at once
    head, _, rest = received.partition(b"HTTP/1.1 204 No Content\r\n")[2].partition(b"\r\n\r\n")
    assert b"content-length" not in head
    assert rest.startswith(b"HTTP/1.1 200 OK\r\n")
    assert received.endswith(b'{"channelID":"ch","messageID":"m7"}\n')


async def test_a_client_of_http_1_0_is_answered_and_let_go(settings: Config) -> None:
    async with serving(settings) as station:
        reader, writer = await asyncio.open_connection("127.0.0.1", station.port)
        writer.write((PUT % (1, b"")).replace(b"HTTP/1.1", b"HTTP/1.0"))
        async with asyncio.timeout(5):
            received = await reader.read()
        writer.close()
        await writer.wait_closed()
    assert received.endswith(b'{"channelID":"ch","messageID":"m1"}\n')
