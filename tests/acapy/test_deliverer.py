"""The deliverer: every message arrives or is a dead letter, and nothing ends it."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import signal
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from tests.acapy.outbox_world import LIST, RETRY, Outbox, message, open_outbox
from tests.delivery.test_tls import NAME, certificate, tls_endpoint
from tests.helpers.store_faults import Fate, proxy_to
from tests.helpers.waiting import eventually
from waystation.acapy.deliverer import SCHEDULE
from waystation.acapy.outbound import OutboundQueue
from waystation.acapy.socket_sender import SocketSender
from waystation.delivery.addresses import AddressGuard
from waystation.delivery.request import Failure, Outcome, Outgoing
from waystation.delivery.resolver import Resolver
from waystation.delivery.schedule import Schedule
from waystation.errors import OutcomeUnknownError, StoreError
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.testing import Answer, FakeEndpoint, private_server

ONE_MORE = Schedule(attempts=2, first_seconds=0.02, jitter=0.0)


class Sockets:
    """A WebSocket server that notes what it gets, and may close in its own way."""

    def __init__(self) -> None:
        self.got: list[tuple[bytes, str | None]] = []
        self.close_codes: list[int] = []
        self.redirect = ""

    async def talk(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        async for each in connection:
            assert isinstance(each, bytes), "a message of an agent is a binary frame"
            self.got.append((each, connection.request.headers.get("x-api-key")))
            await connection.send(b"an answer that nobody asked for")
            if self.close_codes:
                await connection.close(self.close_codes.pop())

    def process(self, connection: ServerConnection, request: Request) -> Response | None:
        if not self.redirect:
            return None
        response = connection.respond(302, "elsewhere")
        response.headers["location"] = self.redirect
        return response


@asynccontextmanager
async def sockets(context: ssl.SSLContext | None = None) -> AsyncIterator[tuple[Sockets, int]]:
    """The server, and its port."""
    served = Sockets()
    async with serve(
        served.talk, "127.0.0.1", 0, ssl=context, process_request=served.process
    ) as server:
        yield served, next(iter(server.sockets)).getsockname()[1]


# -- Going out -------------------------------------------------------------------------------


async def test_a_message_is_posted_as_the_agent_wrote_it(store_server: EmbeddedServer) -> None:
    async with open_outbox(store_server) as outbox, FakeEndpoint() as endpoint:
        payload = bytes(range(256))
        headers = {"Content-Type": "application/ssi-agent-wire", "x-api-key": "k", "Host": "evil"}
        await outbox.push(message(endpoint.url + "?a=1#fragment", payload, headers=headers))
        async with outbox.delivering():
            (got,) = await endpoint.until(1)
            await outbox.until_settled()
        assert (got.method, got.path, got.body) == ("POST", "/hook?a=1", payload)
        assert got.headers["content-type"] == "application/ssi-agent-wire"
        assert got.headers["x-api-key"] == "k"
        assert got.headers["host"] == f"127.0.0.1:{endpoint.port}"
        assert await outbox.retries.dead() == []


async def test_headers_and_retries_may_be_missing_and_payloads_unpadded(
    store_server: EmbeddedServer,
) -> None:
    async with open_outbox(store_server) as outbox, FakeEndpoint() as endpoint:
        text = base64.urlsafe_b64encode(b"\xff\xfe!!").decode().rstrip("=")
        bare = {"service": {"url": endpoint.url}, "payload": text}
        await outbox.push(json.dumps(bare).encode(), json.dumps({**bare, "headers": None}).encode())
        async with outbox.delivering():
            got = await endpoint.until(2)
            await outbox.until_settled()
        assert [each.body for each in got] == [b"\xff\xfe!!"] * 2


async def test_https_goes_to_the_name_and_a_stranger_is_refused(
    store_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, asked = certificate(tmp_path), list[str | None]()
    async with open_outbox(store_server) as outbox, tls_endpoint(file, asked) as port:
        await outbox.push(message(f"https://{NAME}:{port}/"))
        async with outbox.delivering(schedule=ONE_MORE):
            (letter,) = await outbox.until_dead(1)
        assert letter.cause == "the endpoint's certificate could not be verified"
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
        assert await outbox.retries.redrive() == 1
        async with outbox.delivering():
            await outbox.until_settled()
        assert asked[-1] == NAME
        assert await outbox.retries.dead() == []


async def test_a_websocket_gets_one_binary_frame(store_server: EmbeddedServer) -> None:
    async with open_outbox(store_server) as outbox, sockets() as (served, port):
        await outbox.push(message(f"ws://127.0.0.1:{port}/", b"1", headers={"x-api-key": "k"}))
        async with outbox.delivering():
            await outbox.until_settled()
        assert served.got == [(b"1", "k")]
        assert await outbox.retries.dead() == []


async def test_wss_goes_to_the_name_and_a_stranger_is_refused(
    store_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate(tmp_path))
    async with open_outbox(store_server) as outbox, sockets(context) as (served, port):
        await outbox.push(message(f"wss://{NAME}:{port}/", b"1"))
        async with outbox.delivering(schedule=ONE_MORE):
            (letter,) = await outbox.until_dead(1)
        assert letter.cause == "the endpoint's certificate could not be verified"
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
        await outbox.retries.redrive()
        async with outbox.delivering():
            await outbox.until_settled()
        assert served.got == [(b"1", None)]


async def test_a_websocket_that_closes_with_an_error_has_not_taken_the_message(
    store_server: EmbeddedServer,
) -> None:
    async with open_outbox(store_server) as outbox, sockets() as (served, port):
        served.close_codes = [1011, 4400]
        await outbox.push(message(f"ws://127.0.0.1:{port}/", b"1"))
        async with outbox.delivering():
            await outbox.until_settled()
        assert [each[0] for each in served.got] == [b"1"] * 3
        assert await outbox.retries.dead() == []


async def test_a_redirect_is_followed_nowhere(store_server: EmbeddedServer) -> None:
    async with open_outbox(store_server) as outbox, sockets() as (served, port):
        async with sockets() as (other, elsewhere):
            served.redirect = f"ws://127.0.0.1:{elsewhere}/"
            moved = Answer(307, headers=(("location", f"http://127.0.0.1:{elsewhere}/"),))
            async with FakeEndpoint(plan=[moved]) as endpoint:
                await outbox.push(message(f"ws://127.0.0.1:{port}/"), message(endpoint.url))
                async with outbox.delivering(schedule=ONE_MORE):
                    letters = await outbox.until_dead(2)
            assert other.got == []
        causes = {each.cause for each in letters}
        assert causes == {"the endpoint answered 302", "the endpoint answered 307"}


# -- What fails ------------------------------------------------------------------------------

BAD = {
    "no JSON": b"{",
    "no UTF-8": b'{"service": "\xff"}',
    "nothing": b"",
    "an array": b"[]",
    "null": b"null",
    "no service": b'{"payload": ""}',
    "no url": b'{"service": {}, "payload": ""}',
    "a url that is a number": b'{"service": {"url": 1}, "payload": ""}',
    "no payload": b'{"service": {"url": "http://127.0.0.1/"}}',
    "no base64": message("http://127.0.0.1:1/").replace(b"aGVsbG8=", b"a$b"),
    "half of base64": message("http://127.0.0.1:1/").replace(b"aGVsbG8=", b"a"),
    "another scheme": message("ftp://127.0.0.1/"),
    "a file": message("file:///etc/passwd"),
    "no host": message("http:///"),
    "no address": message("http://[::1/"),
    "a bad port": message("http://127.0.0.1:99999/"),
    "a bad port of a socket": message("ws://127.0.0.1:99999/"),
    "a user": message("http://u:p@127.0.0.1/"),
    "a line break in a header": message("http://127.0.0.1:1/", headers={"x": "a\r\nb: c"}),
    "a header of strange letters": message("http://127.0.0.1:1/", headers={"ü": "1"}),
    "headers that are a list": message("http://127.0.0.1:1/", headers=["a"]),
    "retries that are text": message("http://127.0.0.1:1/", retries="x"),
    "deep": b'{"service":' + b"[" * 100_000,
}


async def test_a_bad_message_is_a_dead_letter_at_once_and_the_next_one_arrives(
    store_server: EmbeddedServer,
) -> None:
    async with open_outbox(store_server) as outbox, FakeEndpoint() as endpoint:
        for bad in BAD.values():
            await outbox.push(bad, message(endpoint.url))
        async with outbox.delivering() as deliverer:
            await endpoint.until(len(BAD))
            letters = await outbox.until_dead(len(BAD))
            await outbox.until_settled()
            assert deliverer.alive
        unread = [each.message for each in letters if not each.readable]
        assert set(unread) <= set(BAD.values()), "as they came, byte for byte"
        assert len(unread) >= 15
        assert len(letters) == len(BAD)
        assert all(each.cause for each in letters)


async def test_a_bad_member_of_the_retry_set_is_a_dead_letter_too(
    store_server: EmbeddedServer,
) -> None:
    async with open_outbox(store_server) as outbox, FakeEndpoint() as endpoint:
        await outbox.store.call("ZADD", RETRY, 1, b"{", 2, message(endpoint.url))
        async with outbox.delivering():
            await endpoint.until(1)
            (letter,) = await outbox.until_dead(1)
        assert (letter.message, letter.readable) == (b"{", False)


async def test_two_messages_that_are_alike_are_two_also_when_they_fail(
    store_server: EmbeddedServer,
) -> None:
    async with open_outbox(store_server) as outbox, FakeEndpoint(plan=[500]) as endpoint:
        await outbox.push(*[message(endpoint.url)] * 2)
        async with outbox.delivering(schedule=ONE_MORE):
            letters = await outbox.until_dead(2)
        assert sorted(each.id for each in letters) == ["o-1", "o-2"]
        assert len(endpoint.received) == 4
        assert await outbox.retries.redrive() == 2
        endpoint.plan = [200]
        async with outbox.delivering():
            await outbox.until_settled()
        assert len(endpoint.received) == 6


def test_the_schedule_is_that_of_the_plugin_whatever_the_status() -> None:
    rng, waits = random.Random(), []
    for status in (500, 404, 401, 410, 302):
        waits.append(
            [
                round(SCHEDULE.decide(Outcome(status=status), attempt=n, rng=rng).wait_seconds, 2)
                for n in range(1, 7)
            ]
        )
    assert waits == [[5.0, 7.48, 11.18, 16.72, 25.0, 0.0]] * 5


async def test_a_message_has_six_attempts_and_its_count_is_in_the_set(
    store_server: EmbeddedServer,
) -> None:
    async with open_outbox(store_server) as outbox, FakeEndpoint(plan=[503]) as endpoint:
        slow = Schedule(attempts=6, first_seconds=60.0)
        await outbox.push(message(endpoint.url, b"1", trace="kept"))
        async with outbox.delivering(schedule=slow):
            await eventually(lambda: outbox._is(0, 0, 1))
        (member,) = await outbox.store.call("ZRANGE", RETRY, 0, -1)
        fields = json.loads(member)
        assert (fields["retries"], fields["id"], fields["trace"]) == (1, "o-1", "kept")
        assert fields["service"] == {"url": endpoint.url}
        for retries in (4, 5):
            await outbox.store.call("FLUSHALL")
            await outbox.store.call("ZADD", RETRY, 1, message(endpoint.url, retries=retries))
            async with outbox.delivering(schedule=slow):
                await endpoint.until(len(endpoint.received) + 1)
                await eventually(lambda left=(0, 0, 5 - retries): outbox._is(*left))
        (letter,) = await outbox.retries.dead()
        assert (letter.attempts, letter.cause) == (6, "the endpoint answered 503")
        assert json.loads(letter.message)["retries"] == 0, "redriven, it has all its attempts"


async def test_an_address_that_must_not_be_reached_is_a_dead_letter_at_once(
    store_server: EmbeddedServer,
) -> None:
    async with open_outbox(store_server) as outbox, sockets() as (served, port):
        async with FakeEndpoint() as endpoint:
            await outbox.push(
                *(message(endpoint.url), message(f"ws://127.0.0.1:{port}/")),
                message(f"ws://inside.example:{port}/"),
            )
            async with outbox.delivering(loopback=False):
                letters = await outbox.until_dead(3)
            assert endpoint.connections == 0
        assert served.got == []
        assert {each.cause for each in letters} == {"the endpoint's address is not allowed"}


# -- Many at once ----------------------------------------------------------------------------


async def test_an_endpoint_that_hangs_holds_up_nobody(store_server: EmbeddedServer) -> None:
    """And what cannot be sent to it now is put off, uncounted."""
    async with open_outbox(store_server) as outbox, FakeEndpoint() as well:
        async with FakeEndpoint(plan=[Answer(hang=True)]) as hung:
            for i in range(300):
                await outbox.push(message(hung.url, b"%d" % i))
            await outbox.push(*(message(well.url, b"%d" % i) for i in range(50)))
            async with outbox.delivering(concurrency=16, timeout_seconds=30.0):
                await well.until(50, seconds=10.0)
                assert len(hung.received) <= 8
            first, taken, later = await outbox.left()
        assert (first + taken + later, taken) == (300, 0), "all of them, and nobody has one"


async def test_many_messages_to_one_endpoint_all_arrive_once(store_server: EmbeddedServer) -> None:
    async with open_outbox(store_server) as outbox, FakeEndpoint() as endpoint:
        await outbox.push(*(message(endpoint.url, b"%d" % i) for i in range(1000)))
        async with outbox.delivering():
            await endpoint.until(1000, seconds=30.0)
            await outbox.until_settled()
        assert sorted(int(each.body) for each in endpoint.received) == list(range(1000))


async def test_what_was_put_off_for_too_long_is_a_dead_letter(store_server: EmbeddedServer) -> None:
    async with open_outbox(store_server) as outbox:
        held = Answer(429, headers=(("retry-after", "60"),))
        async with FakeEndpoint(plan=[held]) as endpoint:
            await outbox.push(message(endpoint.url, b"first"))
            async with outbox.delivering(patience_seconds=0.5):
                await endpoint.until(1)
                await eventually(lambda: outbox._is(0, 0, 1))
                await outbox.push(message(endpoint.url, b"second"))
                (letter,) = await outbox.until_dead(1)
        assert letter.cause == "its endpoint was ill or busy for too long"
        assert letter.attempts == 0


async def test_deliverer_retry_after_of_503_delays_its_message_and_no_other(
    store_server: EmbeddedServer,
) -> None:
    """A gateway answers 503 for one agent; the other agents behind it have the same origin."""
    async with open_outbox(store_server) as outbox:
        ill = Answer(503, headers=(("retry-after", "7200"),))
        async with FakeEndpoint(plan=[ill, 200]) as endpoint:
            await outbox.push(message(endpoint.url, b"first"))
            async with outbox.delivering(patience_seconds=30.0):
                await endpoint.until(1)
                await eventually(lambda: outbox._is(0, 0, 1))
                await outbox.push(*(message(endpoint.url, b"%d" % i) for i in range(20)))
                await endpoint.until(21)
                await eventually(lambda: outbox._is(0, 0, 1))
                assert await outbox.retries.dead() == []
                _, due = await outbox.store.call("ZRANGE", RETRY, 0, -1, "WITHSCORES")
                now, _ = await outbox.store.call("TIME")
                assert float(due) - int(now) > 7000, "the message waits as it was told"


# -- Ends and beginnings ---------------------------------------------------------------------


async def test_a_stop_gives_back_what_was_not_answered(store_server: EmbeddedServer) -> None:
    async with open_outbox(store_server) as outbox:
        async with FakeEndpoint(plan=[Answer(hang=True)]) as endpoint:
            await outbox.push(message(endpoint.url, b"1"))
            await outbox.store.call("ZADD", RETRY, 1, message(endpoint.url, b"2", retries=3))
            async with outbox.delivering():
                await endpoint.until(2)
        assert await outbox.left() == (1, 0, 1)
        (member,) = await outbox.retries.take(9, 1000)
        assert json.loads(member)["retries"] == 3, "not counted"


async def test_what_a_dead_deliverer_had_is_delivered_by_the_next(
    store_server: EmbeddedServer,
) -> None:
    async with open_outbox(store_server) as outbox, FakeEndpoint() as endpoint:
        await outbox.push(message(endpoint.url, b"1"))
        # As one leaves it that was killed: taken, under a lease that ends.
        await outbox.store.call("INCR", f"{{{LIST}}}.number")
        raw = await outbox.store.call("LPOP", LIST)
        await outbox.store.call("HSET", f"{{{LIST}}}.taken", 1, raw)
        await outbox.store.call("ZADD", f"{{{LIST}}}.leases", 1, 1)
        async with outbox.delivering():
            await endpoint.until(1)
            await outbox.until_settled()


async def test_a_list_of_another_type_ends_nothing(store_server: EmbeddedServer) -> None:
    async with open_outbox(store_server) as outbox, FakeEndpoint() as endpoint:
        await outbox.store.call("SET", LIST, "not a list")
        async with outbox.delivering() as deliverer:
            await outbox.store.call("ZADD", RETRY, 1, message(endpoint.url, b"1"))
            await endpoint.until(1)
            await outbox.store.call("DEL", LIST)
            await outbox.push(message(endpoint.url, b"2"))
            await endpoint.until(2)
            assert deliverer.alive


async def test_a_store_that_is_away_for_a_while_ends_nothing() -> None:
    with private_server() as server:
        store = Store(server.address, call_seconds_max=0.3)
        outbox = Outbox(store)
        async with FakeEndpoint(plan=[Answer(delay_seconds=0.5)]) as endpoint:
            await eventually(lambda: _pushed(outbox, message(endpoint.url, b"1")))
            async with outbox.delivering():
                await endpoint.until(1)
                await _restart(server)
                await eventually(lambda: _pushed(outbox, message(endpoint.url, b"2")))
                await eventually(lambda: _has(endpoint, b"2"))
        await store.close()


async def test_a_reply_that_was_lost_costs_a_lease_and_no_message(
    store_server: EmbeddedServer,
) -> None:
    async with open_outbox(store_server) as outbox, proxy_to(store_server.address) as proxy:
        store = Store(proxy.address, call_seconds_max=0.5)
        async with FakeEndpoint() as endpoint:
            await outbox.push(message(endpoint.url, b"1"))
            await store.connect()
            await proxy.set_fates(replies=Fate.CUT)
            with pytest.raises(OutcomeUnknownError):
                await OutboundQueue(store, LIST).take(1, 300)
            assert await outbox.left() == (0, 1, 0)
            async with outbox.delivering():
                await endpoint.until(1)
                await outbox.until_settled()
        await store.close()


async def _has(endpoint: FakeEndpoint, body: bytes) -> bool:
    return any(each.body == body for each in endpoint.received)


async def _pushed(outbox: Outbox, raw: bytes) -> bool:
    try:
        await outbox.push(raw)
    except StoreError:
        return False
    return True


async def _restart(server: EmbeddedServer) -> None:
    """Kill the server. Its supervisor restarts it."""
    probe = Store(server.address)
    info = (await probe.call("INFO", "server")).decode()
    await probe.close()
    os.kill(int(info.partition("process_id:")[2].split()[0]), signal.SIGKILL)


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n",
    ],
)
async def test_socket_sender_endpoint_without_a_websocket_fails(reply: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        await writer.drain()
        writer.close()

    guard = AddressGuard(loopback=True)
    resolver = Resolver(guard)
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        sender = SocketSender(guard, resolver)
        outcome = await sender.send(Outgoing(url=f"ws://127.0.0.1:{port}/", body=b"1"))
    resolver.close()

    assert (outcome.status, outcome.failure) == (0, Failure.CONNECTION)
