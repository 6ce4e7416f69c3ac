"""`util/http` against real sockets: whose answer counts, what is asked again, what never leaves."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.transactions.engine_helpers import Machine, open_machine
from tests.transactions.helpers import TERMS
from waystation import App
from waystation.delivery.addresses import AddressGuard
from waystation.delivery.sender import Sender
from waystation.errors import CallbackUsedError, PipelineInvalidError
from waystation.messages.envelope import Envelope
from waystation.runtime.ids import RandomIds
from waystation.store.embedded.server import EmbeddedServer
from waystation.testing.endpoint import Answer, FakeEndpoint, ReceivedRequest
from waystation.transactions.builtins.http import REPLY_BYTES_MAX
from waystation.transactions.callbacks import Callbacks, CallbackUrls
from waystation.transactions.pipeline import define
from waystation.transactions.pipelines import Pipelines
from waystation.transactions.services import Services
from waystation.transactions.states import State, Status
from waystation.transactions.wanted import Wanted

PUBLIC = "http://127.0.0.1:1"


async def nowhere(*_: object) -> None:
    raise AssertionError("neither channel, topic nor pool")


async def no_produce(_: str, __: str, ___: Envelope) -> None:
    raise AssertionError("no topic")


@asynccontextmanager
async def reaching(
    guard: AddressGuard | None = None, public_url: str = PUBLIC
) -> AsyncIterator[Services]:
    """Services whose sender is real; what these steps do not use is not there."""
    guard = guard or AddressGuard(loopback=True)
    sender, urls = Sender(guard), CallbackUrls(b"s" * 32, public_url)

    async def check(wanted: Wanted) -> None:
        guard.check_url(wanted.webhook)

    try:
        yield Services(sender.send, nowhere, no_produce, check, urls, nowhere, urls.ticket)
    finally:
        await sender.close()


@asynccontextmanager
async def asking(
    server: EmbeddedServer, folder: Path, url: str, *, workers: int = 1, **options: Any
) -> AsyncIterator[Machine]:
    """A machine with pipeline `ask`, which has one step."""
    app = App()
    app.pipeline("ask", [("util/http", {"url": url, **options})])
    async with (
        reaching() as services,
        open_machine(server.address, app, folder, services=services, workers=workers) as machine,
    ):
        yield machine


async def call_back(machine: Machine, request: ReceivedRequest, body: bytes) -> None:
    """What the server does that was asked."""
    url = request.headers["waystation-callback"]
    transaction_id, place, token = url.split("/")[-3:]
    urls = CallbackUrls(b"s" * 32, PUBLIC)
    callbacks = Callbacks(machine.signals, urls, terms=TERMS, identity=RandomIds())
    await callbacks.use(transaction_id, place, token, body)


# -- The answer ------------------------------------------------------------------------------


async def test_the_answer_of_the_server_is_the_output(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    reply = b'{"paid": 12.50, "n": 1.0}'
    async with FakeEndpoint(plan=[Answer(201, body=reply)]) as endpoint:
        headers = {"X-Shop": "7", "Content-Type": "application/vnd.shop+json"}
        async with asking(
            store_server, tmp_path, endpoint.url + "?a=b", headers=headers
        ) as machine:
            end = await machine.run("ask", {"cents": 1})
            (got,) = endpoint.received
            assert end.status is Status.SUCCESS
            assert end.state.output == reply
            assert (got.method, got.path, got.body) == ("POST", "/hook?a=b", b'{"cents":1}')
            assert got.headers["x-shop"] == "7"
            assert got.headers["content-type"] == "application/vnd.shop+json"
            key = hashlib.sha256(f"{end.found.id} 1".encode()).hexdigest()
            assert got.headers["webhook-id"] == key
            assert "waystation-callback" not in got.headers


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        ({"method": "GET"}, b""),
        ({"method": "DELETE", "body": "input"}, b"7"),
        ({"method": "PUT"}, b"7"),
        ({"body": "none"}, b""),
    ],
)
async def test_the_input_is_the_body_where_the_method_has_one(
    store_server: EmbeddedServer, tmp_path: Path, options: dict[str, Any], sent: bytes
) -> None:
    async with (
        FakeEndpoint(plan=[Answer(204, body=b"")]) as endpoint,
        asking(store_server, tmp_path, endpoint.url, **options) as machine,
    ):
        end = await machine.run("ask", 7)
        assert end.output is None, "no content is null"
        assert end.status is Status.SUCCESS
        assert endpoint.received[0].body == sent
        assert endpoint.received[0].method == options.get("method", "POST")


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (Answer(200, body=b"<html>"), "The answer is no JSON."),
        (Answer(200, body=b"\xff"), "The answer is no JSON."),
        (Answer(200, body=b"[" * 60_000), "The answer is no JSON."),
        (Answer(200, body=b'"' + b"x" * REPLY_BYTES_MAX + b'"'), "The answer has more than"),
        (Answer(200, endless=True), "The answer has more than"),
        (Answer(302, headers=(("location", "http://127.0.0.1:9/"),)), "answered 302, attempt 1"),
        (Answer(404, body=b"{}"), "the endpoint answered 404, attempt 1 of 5"),
        (Answer(202, body=b"later"), "The answer is no JSON."),
    ],
)
async def test_an_answer_that_cannot_be_used_fails_at_once(
    store_server: EmbeddedServer, tmp_path: Path, answer: Answer, told: str
) -> None:
    """S-07: of an endless answer no more is read than could be kept."""
    async with (
        FakeEndpoint(plan=[answer]) as endpoint,
        asking(store_server, tmp_path, endpoint.url) as machine,
    ):
        end = await machine.run("ask")
        assert end.status is Status.FAILED
        assert told in end.output["error"]
        assert len(endpoint.received) == 1


# -- Again -----------------------------------------------------------------------------------


async def test_a_server_that_cannot_now_is_asked_again_when_it_says(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    busy = Answer(429, headers=(("retry-after", "7200"),))
    plan = [Answer(reset=True), busy, Answer(503), Answer(200, body=b"1")]
    async with (
        FakeEndpoint(plan=plan) as endpoint,
        asking(store_server, tmp_path, endpoint.url) as machine,
    ):
        transaction_id = await machine.start("ask")
        for count in range(1, 4):
            await endpoint.until(count)
            found = await machine.reached(transaction_id, State.SLEEPING)
            seconds = (found.head.wake - found.head.since) / 1000
            # On a busy machine a short sleep may end, and the next request come, before this look.
            assert (seconds >= 7200) == (len(endpoint.received) == 2)
            await machine.time.advance(seconds + 1)
        end = await machine.ended(transaction_id)
        assert end.output == 1
        assert end.outcomes("1") == ["retry", "retry", "retry", "success"]
        assert [each.note for each in end.journal("1").last[1:3]] == [
            "the endpoint answered 429",
            "the endpoint answered 503",
        ]
        assert len({each.headers["webhook-id"] for each in endpoint.received}) == 1


async def test_a_server_that_never_answers_is_given_up_after_so_many_attempts(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """S-07"""
    async with (
        FakeEndpoint(plan=[Answer(hang=True)]) as endpoint,
        asking(store_server, tmp_path, endpoint.url, timeout="1s", attempts=2) as machine,
    ):
        transaction_id = await machine.start("ask")
        await machine.reached(transaction_id, State.SLEEPING)
        await machine.time.advance(60)
        end = await machine.ended(transaction_id)
        assert end.status is Status.FAILED
        assert end.output["error"] == "the endpoint took too long, attempt 2 of 2"
        assert len(endpoint.received) == 2


# -- Called back -----------------------------------------------------------------------------


async def test_an_answer_after_the_sleep_is_the_output(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with (
        FakeEndpoint(plan=[202]) as endpoint,
        asking(store_server, tmp_path, endpoint.url, callback=True) as machine,
    ):
        transaction_id = await machine.start("ask", 7)
        (got,) = await endpoint.until(1)
        await machine.reached(transaction_id, State.WAITING_SWITCH)
        # Now and then it looks, and neither asks again nor gives up.
        await machine.signals.wake("default", transaction_id)
        await machine.reached(transaction_id, State.WAITING_SWITCH)
        await call_back(machine, got, b'{"done": 1.0}')
        end = await machine.ended(transaction_id)
        assert end.state.output == b'{"done": 1.0}'
        assert len(endpoint.received) == 1
        assert not [each for each in end.found.extras if each.startswith((b"callback", b"once"))]
        with pytest.raises(CallbackUsedError):
            await call_back(machine, got, b"2")


async def test_an_answer_before_the_202_is_the_output(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """The token is good before the request leaves."""
    async with (
        FakeEndpoint(plan=[Answer(202, delay_seconds=2)]) as endpoint,
        asking(store_server, tmp_path, endpoint.url, callback="1h") as machine,
    ):
        transaction_id = await machine.start("ask")
        (got,) = await endpoint.until(1)
        await call_back(machine, got, b"1")
        assert (await machine.found(transaction_id)).head.state is State.RUNNING
        end = await machine.ended(transaction_id)
        assert end.output == 1
        assert len(endpoint.received) == 1


async def test_another_2xx_is_the_answer_itself_and_closes_the_callback(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with (
        FakeEndpoint(plan=[Answer(200, body=b"1")]) as endpoint,
        asking(store_server, tmp_path, endpoint.url, callback=True) as machine,
    ):
        end = await machine.run("ask")
        assert end.output == 1
        with pytest.raises(CallbackUsedError):
            await call_back(machine, endpoint.received[0], b"2")


async def test_an_answer_that_takes_too_long_fails_and_is_refused_later(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with (
        FakeEndpoint(plan=[202]) as endpoint,
        asking(store_server, tmp_path, endpoint.url, callback="1h") as machine,
    ):
        transaction_id = await machine.start("ask")
        await machine.reached(transaction_id, State.WAITING_SWITCH)
        await machine.time.advance(3601)
        end = await machine.ended(transaction_id)
        assert end.output == {"error": "Nobody called back in time."}
        with pytest.raises(CallbackUsedError):
            await call_back(machine, endpoint.received[0], b"2")


async def test_a_death_between_the_202_and_its_record_asks_again_with_the_same_token(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """To the store it is dead: it was rescued while the 202 was on its way, and is refused."""
    plan = [Answer(202, delay_seconds=2), Answer(202)]
    async with (
        FakeEndpoint(plan=plan) as endpoint,
        asking(store_server, tmp_path, endpoint.url, callback=True) as machine,
    ):
        transaction_id = await machine.start("ask")
        await endpoint.until(1)
        await machine.rescue(transaction_id)
        first, second = await endpoint.until(2)
        assert first.headers["waystation-callback"] == second.headers["waystation-callback"]
        assert first.headers["webhook-id"] == second.headers["webhook-id"]
        await machine.reached(transaction_id, State.WAITING_SWITCH)
        await call_back(machine, first, b'"of the first"')
        assert (await machine.ended(transaction_id)).output == "of the first"
        with pytest.raises(CallbackUsedError):
            await call_back(machine, second, b'"of the second"')
        assert len(endpoint.received) == 2


async def test_two_steps_that_wait_one_after_the_other_get_each_its_own_answer(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with FakeEndpoint(plan=[202]) as endpoint, reaching() as services:
        step = ("util/http", {"url": endpoint.url, "callback": True})
        app = App()
        app.pipeline("twice", [step, step])
        app.pipeline("ask", [("util/child", {"pipeline": "twice"}), step])
        async with open_machine(store_server.address, app, tmp_path, services=services) as machine:
            transaction_id = await machine.start("ask", 0)
            for count in range(1, 4):
                got = (await endpoint.until(count))[-1]
                assert got.body == b"%d" % (count - 1)
                await call_back(machine, got, b"%d" % count)
                for earlier in endpoint.received[: count - 1]:
                    with pytest.raises(CallbackUsedError):
                        await call_back(machine, earlier, b"99")
            assert (await machine.ended(transaction_id)).output == 3
            places = [
                each.headers["waystation-callback"].split("/")[-2] for each in endpoint.received
            ]
            assert places == ["1.1", "1.2", "2"]


async def test_without_a_public_url_nobody_is_asked_to_call_back(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with FakeEndpoint() as endpoint, reaching(public_url="") as services:
        app = App()
        app.pipeline("ask", [("util/http", {"url": endpoint.url, "callback": True})])
        async with open_machine(store_server.address, app, tmp_path, services=services) as machine:
            end = await machine.run("ask")
            assert "http.public_url is not set" in end.output["error"]
            assert endpoint.received == []


# -- What never leaves -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1/", "http://169.254.169.254/", "http://0x7f.1/", "http://[::1]/"]
)
async def test_a_forbidden_address_is_refused_at_definition_and_at_sending(
    store_server: EmbeddedServer, tmp_path: Path, url: str
) -> None:
    """S-01"""
    app = App()
    app.pipeline("ask", [("util/http", {"url": url})])
    async with (
        reaching(AddressGuard()) as services,
        open_machine(store_server.address, app, tmp_path, services=services) as machine,
    ):
        book = Pipelines(
            machine.pipelines._catalogue,
            machine.store,
            cells=1,
            terms=TERMS,
            clock=machine.clock,
            check=services.check,
        )
        with pytest.raises(PipelineInvalidError, match=r"Step 1 .*not allowed"):
            await book.put("default", define("other", [("util/http", {"url": url})]))
        # One that was defined when the settings were others.
        end = await machine.run("ask")
        assert end.status is Status.FAILED
        assert "the endpoint's address is not allowed, attempt 1" in end.output["error"]


@pytest.mark.parametrize(
    "options",
    [
        {"url": "ftp://example.com/"},
        {"url": "http://user:secret@example.com/"},
        {"url": "http://example.com/\r\nx: y"},
        {"headers": {"host": "internal"}},
        {"headers": {"webhook-id": "1"}},
        {"headers": {"Waystation-Callback": "http://elsewhere"}},
        {"headers": {"content-length": "0"}},
        {"headers": {"authorization": "Bearer x"}},
        {"headers": {"x-a": "1\r\nx-b: 2"}},
        {"headers": {"x-a\n": "1"}},
        {"headers": {"x-a": "\x00"}},
        {"method": "POST / HTTP/1.1\r\n"},
        {"method": "HEAD"},
        {"timeout": "11m"},
        {"timeout": 0},
        {"attempts": 0},
        {"callback": "soon"},
        {"body": "template"},
        {"more": 1},
    ],
)
def test_options_that_cannot_be_sent_are_refused_at_definition(options: dict[str, Any]) -> None:
    """S-05"""
    with pytest.raises(PipelineInvalidError, match="Step 1 of pipeline ask"):
        define("ask", [("util/http", {"url": "https://example.com/", **options})])
