"""SIGTERM and SIGINT under load: what was acknowledged is kept, what waits ends (F-34).

Every test stops a real `waystation serve` process, at durability `disk`, and looks at what its
clients were told, at its exit code, and at the data after a restart.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.helpers.http import (
    AsyncWire,
    async_ask,
    async_wire,
    async_wires,
    open_async_wire,
    request_bytes,
)
from tests.helpers.processes import StationProcess, station_process
from tests.helpers.waiting import eventually

GRACE_SECONDS = 2.0
#: What a stop may take beyond the grace time on a busy machine.
SLACK_SECONDS = 5.0
#: Polls of these tests would wait for so long if nobody stopped the server.
POLL_SECONDS = 30
PUBLISHERS = 8
POLLS = 20

SUBSCRIBER = "/channel/load/subscription/polling/me"
BOTH_SIGNALS = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])


class Publisher:
    """Publishes one message after the other until the server is gone; keeps what it was told."""

    def __init__(self, url: str, name: str) -> None:
        self._url = url
        self.name = name
        self.acknowledged: list[str] = []
        #: Replies other than 200. There must be none: what was begun is finished.
        self.refused: list[int] = []

    async def run(self) -> None:
        """Ends when the connection does: then nobody can know, and nothing was promised."""
        try:
            async with async_wire(self._url) as wire:
                for number in itertools.count():
                    message = f"{self.name}-{number}"
                    answer = await wire.ask("PUT", f"/channel/load/message/{message}", b"1")
                    if answer.status == 200:
                        self.acknowledged.append(message)
                    else:
                        self.refused.append(answer.status)
        except ConnectionError:
            return


async def fetch_all(url: str) -> list[str]:
    """Everything that the subscriber of channel `load` has not acknowledged."""
    async with async_wire(url) as wire:
        page = (await wire.ask("GET", f"{SUBSCRIBER}?max=10000")).json()
        assert page["moreMessages"] is False
        return [message["messageID"] for message in page["messages"]]


@asynccontextmanager
async def waiting_polls(url: str) -> AsyncIterator[list[AsyncWire]]:
    """Polls that find nothing, each on a channel of its own, once they all wait."""
    async with async_wires(url, POLLS) as polls:
        for number, wire in enumerate(polls):
            path = f"/channel/quiet-{number}/subscription/polling/me"
            assert (await wire.ask("PUT", path)).status == 200
            wire.send(request_bytes("GET", f"{path}?timeout={POLL_SECONDS}s"))
        await until_waiting(url, POLLS)
        yield polls


async def until_waiting(url: str, count: int) -> None:
    waiting = f"\nwaystation_channel_polls_waiting {count}.0".encode()
    async with async_wire(url) as control:

        async def is_reported() -> bool:
            return waiting in (await control.ask("GET", "/metrics")).body

        await eventually(is_reported, timeout=10)


@asynccontextmanager
async def begun(url: str, method: str, path: str, *, size: int) -> AsyncIterator[AsyncWire]:
    """A request whose body the server has asked for and does not have yet."""
    async with async_wire(url) as wire:
        head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {size}\r\n"
        wire.send(f"{head}expect: 100-continue\r\n\r\n".encode())
        assert (await wire.answer()).status == 100
        yield wire


async def stop(station: StationProcess, number: signal.Signals = signal.SIGTERM) -> float:
    """Stops the server; returns how long that took. It must end well, and say nothing bad."""
    begun = time.monotonic()
    station.signal(number)
    assert await station.exit_code() == 0
    assert "Traceback" not in station.log.read_text()
    return time.monotonic() - begun


@pytest.mark.slow
@BOTH_SIGNALS
async def test_what_was_acknowledged_under_load_is_there_after_the_restart(
    tmp_path: Path, number: signal.Signals
) -> None:
    data = tmp_path / "data"
    with station_process(data) as station:
        assert (await async_ask(station.url, "PUT", SUBSCRIBER)).status == 200
        publishers = [Publisher(station.url, f"p{name}") for name in range(PUBLISHERS)]
        running = asyncio.gather(*(publisher.run() for publisher in publishers))
        async with asyncio.timeout(30):
            while any(len(publisher.acknowledged) < 25 for publisher in publishers):
                await asyncio.sleep(0.005)

        took = await stop(station, number)
        await running

    assert took < SLACK_SECONDS
    assert [publisher.refused for publisher in publishers] == [[]] * PUBLISHERS
    with station_process(data) as station:
        assert station.said["notes"] == []
        kept = await fetch_all(station.url)
    assert len(kept) == len(set(kept))
    for publisher in publishers:
        own = [message for message in kept if message.startswith(f"{publisher.name}-")]
        # In order, nothing missing; at most the one that was under way comes on top.
        assert own[: len(publisher.acknowledged)] == publisher.acknowledged
        assert len(own) <= len(publisher.acknowledged) + 1


@pytest.mark.slow
@BOTH_SIGNALS
async def test_waiting_polls_end_with_an_empty_reply_long_before_their_time(
    tmp_path: Path, number: signal.Signals
) -> None:
    with station_process(tmp_path / "data") as station:
        async with waiting_polls(station.url) as polls:
            begun = time.monotonic()
            station.signal(number)
            answers = await asyncio.gather(*(wire.answer() for wire in polls))

            assert time.monotonic() - begun < SLACK_SECONDS < POLL_SECONDS
        for channel, answer in enumerate(answers):
            assert answer.status == 200
            assert answer.json() == {
                "channelID": f"quiet-{channel}",
                "messages": [],
                "moreMessages": False,
            }
        assert await station.exit_code() == 0


@pytest.mark.slow
async def test_a_publish_that_was_under_way_is_finished_and_nothing_new_is_begun(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    with station_process(data) as station:
        assert (await async_ask(station.url, "PUT", SUBSCRIBER)).status == 200
        async with (
            async_wire(station.url) as idle,
            begun(station.url, "PUT", "/channel/load/message/late", size=6) as publish,
        ):
            assert (await idle.ask("GET", "/livez")).status == 200

            station.signal(signal.SIGTERM)
            # The server has begun to stop when it hangs up on those who ask nothing.
            assert await idle.closed()
            with pytest.raises(ConnectionError):
                await open_async_wire(station.url)
            publish.send(b'"late"')

            assert (await publish.answer()).status == 200
            assert await publish.closed()
        assert await station.exit_code() == 0
    with station_process(data) as station:
        assert await fetch_all(station.url) == ["late"]


@pytest.mark.slow
async def test_a_request_that_never_ends_holds_a_stop_up_for_the_grace_time_only(
    tmp_path: Path,
) -> None:
    with station_process(
        tmp_path / "data", WAYSTATION_HTTP_GRACE_SECONDS=str(GRACE_SECONDS)
    ) as station:
        async with (
            begun(station.url, "PUT", "/channel/load/message/m", size=6) as publish,
            begun(station.url, "POST", "/v1/keys", size=9) as wide,
        ):
            took = await stop(station)

            assert GRACE_SECONDS <= took < GRACE_SECONDS + SLACK_SECONDS
            dsps, problem = await publish.answer(), await wide.answer()
        assert (dsps.status, problem.status) == (503, 503)
        assert dsps.json()["code"] == problem.json()["code"] == "store.outcome-unknown"
        assert dsps.header("content-type") == "application/json"
        assert problem.header("content-type") == "application/problem+json"


@pytest.mark.slow
async def test_more_signals_while_it_stops_do_no_harm(tmp_path: Path) -> None:
    """Up to the very last moment: also when the event loop is gone and the interpreter ends."""
    data = tmp_path / "data"
    with station_process(data) as station:
        assert (await async_ask(station.url, "PUT", SUBSCRIBER)).status == 200
        publisher = Publisher(station.url, "p0")
        running = asyncio.create_task(publisher.run())
        async with asyncio.timeout(30):
            while not publisher.acknowledged:
                await asyncio.sleep(0.005)

        for number in itertools.cycle((signal.SIGTERM, signal.SIGINT)):
            if not station.alive:
                break
            station.signal(number)
            await asyncio.sleep(0.001)

        assert await station.exit_code() == 0
        await running
        assert "Traceback" not in station.log.read_text()
    with station_process(data) as station:
        kept = await fetch_all(station.url)
        assert kept[: len(publisher.acknowledged)] == publisher.acknowledged


@pytest.mark.slow
async def test_readiness_says_that_the_process_is_stopping(tmp_path: Path) -> None:
    """A load balancer that keeps its connection learns it; one that connects anew is refused."""
    with station_process(tmp_path / "data") as station:
        async with async_wire(station.url) as wire:
            # Pipelined behind a poll, so that it is answered after the stop has begun.
            assert (await wire.ask("PUT", SUBSCRIBER)).status == 200
            wire.send(request_bytes("GET", f"{SUBSCRIBER}?timeout={POLL_SECONDS}s"))
            wire.send(request_bytes("GET", "/readyz"))
            await until_waiting(station.url, 1)

            station.signal(signal.SIGTERM)

            assert (await wire.answer()).json()["messages"] == []
            answer = await wire.answer()
            assert answer.status == 503
            assert answer.json()["problems"] == {"process": "it is stopping"}
        assert await station.exit_code() == 0
