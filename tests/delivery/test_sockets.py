"""Sockets under libcurl: connections are used again, closed ones forgotten, deadlines kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from waystation.delivery import sender as sender_module
from waystation.delivery.addresses import AddressGuard
from waystation.delivery.request import Failure, Outgoing
from waystation.delivery.sender import Sender
from waystation.delivery.sockets import EpollSockets, LoopSockets
from waystation.testing.endpoint import Answer, FakeEndpoint


@pytest.fixture(params=[EpollSockets, LoopSockets], autouse=True)
def sockets(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every promise holds for both kinds."""
    monkeypatch.setattr(sender_module, "Sockets", request.param)


@asynccontextmanager
async def sending() -> AsyncIterator[Sender]:
    sender = Sender(AddressGuard(loopback=True))
    try:
        yield sender
    finally:
        await sender.close()


def connections(endpoint: FakeEndpoint) -> set[object]:
    return set(endpoint._connections)


async def test_a_second_burst_goes_over_the_connections_of_the_first() -> None:
    async with FakeEndpoint(plan=[Answer(delay_seconds=0.05)]) as endpoint, sending() as sender:
        request = Outgoing(url=endpoint.url)
        await asyncio.gather(*(sender.send(request) for _ in range(20)))
        first = connections(endpoint)
        outcomes = await asyncio.gather(*(sender.send(request) for _ in range(20)))

        assert all(outcome.succeeded for outcome in outcomes)
        assert len(first) == 20
        assert connections(endpoint) == first


async def test_requests_with_other_options_do_not_inherit_those_before() -> None:
    async with FakeEndpoint() as endpoint, sending() as sender:
        requests = [
            Outgoing(url=f"{endpoint.url}/a", method="PUT", headers=(("x-a", "1"),), body=b"one"),
            Outgoing(url=f"{endpoint.url}/b", headers=(("x-b", "2"),), body=b"two and more"),
            Outgoing(url=f"{endpoint.url}/a", method="PUT", headers=(("x-a", "1"),), body=b"one"),
            Outgoing(url=f"{endpoint.url}/c", body=b""),
        ]
        for request in requests:
            assert (await sender.send(request)).succeeded

        seen = [
            (got.path, got.method, got.headers.get("x-a"), got.headers.get("x-b"), got.body)
            for got in endpoint.received
        ]
        assert seen == [
            ("/hook/a", "PUT", "1", None, b"one"),
            ("/hook/b", "POST", None, "2", b"two and more"),
            ("/hook/a", "PUT", "1", None, b"one"),
            ("/hook/c", "POST", None, None, b""),
        ]


async def test_connections_that_the_endpoint_closes_while_idle_are_replaced() -> None:
    # Given kept connections to an endpoint
    async with FakeEndpoint(plan=[Answer(delay_seconds=0.02)]) as endpoint, sending() as sender:
        request = Outgoing(url=endpoint.url)
        for _ in range(3):
            await asyncio.gather(*(sender.send(request) for _ in range(10)))

            # When it closes them all, again and again: new ones get the numbers of the old ones
            for connection in connections(endpoint):
                connection.close()  # type: ignore[attr-defined]
            while connections(endpoint):
                await asyncio.sleep(0)

            # Then every later request is answered all the same
            outcomes = await asyncio.gather(*(sender.send(request) for _ in range(10)))
            assert [outcome.status for outcome in outcomes] == [200] * 10


async def test_a_deadline_is_kept_while_many_other_requests_come_and_go() -> None:
    async with (
        FakeEndpoint(plan=[Answer(hang=True)]) as hanging,
        FakeEndpoint() as answering,
        sending() as sender,
    ):
        loop = asyncio.get_running_loop()
        begun = loop.time()
        late = asyncio.ensure_future(sender.send(Outgoing(url=hanging.url, total_seconds_max=0.4)))
        while not late.done():
            outcomes = await asyncio.gather(
                *(
                    sender.send(Outgoing(url=answering.url, total_seconds_max=60.0 + number))
                    for number in range(5)
                )
            )
            assert all(outcome.succeeded for outcome in outcomes)

        assert (await late).failure is Failure.TIMEOUT
        assert 0.3 < loop.time() - begun < 20


async def test_a_deadline_is_kept_when_nothing_else_happens() -> None:
    async with FakeEndpoint(plan=[200, Answer(hang=True)]) as endpoint, sending() as sender:
        assert (await sender.send(Outgoing(url=endpoint.url, total_seconds_max=60))).succeeded
        outcome = await sender.send(Outgoing(url=endpoint.url, total_seconds_max=0.2))

        assert outcome.failure is Failure.TIMEOUT
        assert outcome.seconds < 20


async def test_a_transfer_that_is_cancelled_before_it_began_leaves_names_known_to_others() -> None:
    async with FakeEndpoint() as endpoint, sending() as sender:
        url = endpoint.url.replace("127.0.0.1", "localhost")
        given_up = asyncio.ensure_future(sender.send(Outgoing(url=url)))
        while not sender._transfers:
            await asyncio.sleep(0)
        given_up.cancel()
        outcomes = await asyncio.gather(*(sender.send(Outgoing(url=url)) for _ in range(5)))

        assert all(outcome.succeeded for outcome in outcomes)
        with pytest.raises(asyncio.CancelledError):
            await given_up


async def test_a_sender_that_was_never_used_closes() -> None:
    async with sending() as sender:
        assert repr(sender) == "<Sender [0 under way]>"
