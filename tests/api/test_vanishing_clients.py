"""A client that hangs up in the middle of a poll leaves nothing behind, whatever it sent before."""

from __future__ import annotations

import pytest

from tests.helpers.http import async_wire, request_bytes
from tests.helpers.waiting import eventually
from waystation.channels.reader import channel_polls_waiting
from waystation.config import Config
from waystation.runtime.metrics import exposition
from waystation.testing.station import Serving, serving

SUBSCRIPTION = "/channel/ch/subscription/polling/s"
POLL = request_bytes("GET", f"{SUBSCRIPTION}?timeout=30s")
LIVE = request_bytes("GET", "/livez")
#: Far less than the poll would take by itself.
SOON_SECONDS = 5.0


async def until_waiters(running: Serving, count: int) -> None:
    await eventually(
        lambda: f" {count} waiters" in repr(running.node.opened.wakeups), timeout=SOON_SECONDS
    )


async def until_in_flight(count: int) -> None:
    """Wait until the server answers exactly `count` requests."""
    line = b"\nwaystation_http_requests_in_flight %d.0\n" % count
    await eventually(lambda: line in exposition(), timeout=SOON_SECONDS)


@pytest.mark.parametrize(
    "sent",
    [
        POLL,
        POLL + LIVE,
        POLL + LIVE * 20,
        LIVE * 20 + POLL,
        POLL + POLL,
        POLL + b"GET /livez HTT",
        request_bytes("GET", f"{SUBSCRIPTION}?timeout=30s", b'{"a": "body"}'),
    ],
    ids=["poll", "poll, live", "poll, 20 live", "20 live, poll", "polls", "poll, half", "body"],
)
async def test_a_poll_ends_when_its_client_hangs_up(settings: Config, sent: bytes) -> None:
    async with serving(settings) as running:
        async with async_wire(running.url) as connection:
            await connection.ask("PUT", SUBSCRIPTION)
            connection.send(sent)
            await until_waiters(running, 1)
            connection.vanish()
        await until_waiters(running, 0)
        await until_in_flight(0)
        assert channel_polls_waiting._value.get() == 0


async def test_what_is_pipelined_behind_a_poll_is_answered_after_it(settings: Config) -> None:
    async with serving(settings) as running, async_wire(running.url) as connection:
        await connection.ask("PUT", SUBSCRIPTION)
        connection.send(POLL + LIVE)
        await until_waiters(running, 1)

        await running.node.channels.publish("default", "ch", "m", b"1")

        assert (await connection.answer()).json()["messages"][0]["messageID"] == "m"
        assert (await connection.answer()).json() == {"alive": True}


async def test_a_client_that_vanishes_while_it_sends_is_no_error_of_ours(
    settings: Config, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(settings) as running:
        for start in (
            b"PUT /channel/ch/message/m HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n12",
            b"POST /v1/keys HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{",
        ):
            async with async_wire(running.url) as connection:
                connection.send(start)
                await until_in_flight(1)
                connection.vanish()
            await until_in_flight(0)
        assert not await running.node.opened.store.call("KEYS", "c.*")
        assert [record.getMessage() for record in caplog.records] == []
