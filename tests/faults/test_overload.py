"""What the server does when descriptors or connection places run out (F-33).

It sheds with a reply that a client understands, serves those who have a place as before, and takes
new ones as soon as the flood is gone. Each test has a server process of its own, which must live.
"""

from __future__ import annotations

import asyncio
import re
import resource
from collections import Counter
from pathlib import Path

import pytest

from tests.helpers.http import Answer, AsyncWire, async_ask, async_wire, async_wires
from tests.helpers.processes import StationProcess, station_process
from tests.helpers.store_faults import store_at

PLACES = 8
#: So many more are let in to be told that there is no place; see `Bounds`.
MARGIN = 16
SOON_SECONDS = 10.0


async def serves(wire: AsyncWire) -> bool:
    """Whether a held connection still reaches the store, the catalogue and its own handlers."""
    published = await wire.ask("PUT", "/channel/held/message/m", b'{"n":1}')
    ready = await wire.ask("GET", "/readyz")
    return (published.status, ready.status) == (200, 200)


async def outcome(wire: AsyncWire) -> str:
    """What a request on this connection gets: a status, or no reply at all."""
    try:
        return str((await wire.ask("GET", "/livez")).status)
    except ConnectionError:
        return "ended"


async def serves_newcomers_again(station: StationProcess) -> None:
    """Returns once a new connection is served; the server notices hang-ups in its own time."""
    async with asyncio.timeout(SOON_SECONDS):
        while True:
            async with async_wire(station.url) as wire:
                if await outcome(wire) == "200":
                    return


async def shed_count(wire: AsyncWire) -> int:
    exposition = (await wire.ask("GET", "/metrics")).body.decode()
    found = re.search(r"^waystation_http_requests_shed_total (\d+)", exposition, re.MULTILINE)
    assert found, exposition
    return int(found.group(1))


def assert_asks_to_come_back(answer: Answer) -> None:
    assert answer.status == 503
    assert answer.header("retry-after") == "1"
    assert answer.header("connection") == "close"


async def test_a_request_without_a_place_is_shed_in_the_shape_of_its_route(
    tmp_path: Path,
) -> None:
    with station_process(tmp_path / "data", WAYSTATION_HTTP_CONNECTIONS_MAX=str(PLACES)) as station:
        async with async_wires(station.url, PLACES) as held:
            assert [await outcome(wire) for wire in held] == ["200"] * PLACES

            ours = await async_ask(station.url, "GET", "/livez")
            assert_asks_to_come_back(ours)
            assert ours.header("content-type") == "application/problem+json"
            assert ours.json()["code"] == "busy"
            assert ours.json()["retry_after_s"] == 1

            dsps = await async_ask(station.url, "PUT", "/channel/c/message/m", b"1")
            assert_asks_to_come_back(dsps)
            assert dsps.header("content-type") == "application/json"
            assert dsps.json() == {
                "code": "busy",
                "error": "The server has as many connections as it can serve.",
            }

            wide = await async_ask(station.url, "GET", "/v1/keys")
            assert_asks_to_come_back(wide)
            assert wide.header("content-type") == "application/problem+json"

            assert [await serves(wire) for wire in held] == [True] * PLACES
            assert await shed_count(held[0]) == 3
        await serves_newcomers_again(station)


async def test_a_place_that_is_given_up_goes_to_the_next_who_asks(tmp_path: Path) -> None:
    with station_process(tmp_path / "data", WAYSTATION_HTTP_CONNECTIONS_MAX=str(PLACES)) as station:
        async with (
            async_wires(station.url, PLACES) as held,
            async_wires(station.url, 2) as (early, late),
        ):
            assert await serves(held[-1])
            assert await outcome(early) == "503"
            assert await early.closed()

            with_all = station.descriptors()
            held[0].close()
            async with asyncio.timeout(SOON_SECONDS):
                while station.descriptors() >= with_all:
                    await asyncio.sleep(0.005)

            # It came while all places were taken, and asks now that one is free.
            assert await outcome(late) == "200"
            assert await outcome(late) == "200"


@pytest.mark.slow
async def test_a_flood_of_idle_connections_costs_nobody_a_place(tmp_path: Path) -> None:
    with station_process(tmp_path / "data", WAYSTATION_HTTP_CONNECTIONS_MAX=str(PLACES)) as station:
        async with async_wires(station.url, PLACES) as held:
            assert [await serves(wire) for wire in held] == [True] * PLACES

            async with async_wires(station.url, 300) as flood:
                # Too many even to be told so: ended at once, without a reply.
                assert await flood[-1].closed()
                assert station.descriptors() < PLACES + MARGIN + 64
                assert [await serves(wire) for wire in held] == [True] * PLACES
                assert await shed_count(held[0]) == 300 - MARGIN
            assert [await serves(wire) for wire in held] == [True] * PLACES
        await serves_newcomers_again(station)
        assert station.alive


@pytest.mark.slow
async def test_a_low_limit_of_descriptors_sheds_with_503_before_it_is_reached(
    tmp_path: Path,
) -> None:
    limit = 160
    with station_process(tmp_path / "data", descriptors_max=limit) as station:
        async with async_wires(station.url, 4) as held:
            assert [await serves(wire) for wire in held] == [True] * 4

            async with async_wires(station.url, 300) as flood:
                outcomes = Counter(await asyncio.gather(*map(outcome, flood)))
                assert set(outcomes) <= {"200", "503", "ended"}, outcomes
                assert outcomes["200"] > 0
                assert outcomes["503"] >= MARGIN
                assert station.descriptors() < limit

                # What is kept in reserve suffices to reach the store anew.
                async with store_at(station.store) as store:
                    await store.call("CLIENT", "KILL", "TYPE", "normal")
                    await store.call("CLIENT", "KILL", "TYPE", "pubsub")
                assert [await serves(wire) for wire in held] == [True] * 4
        await serves_newcomers_again(station)
        assert station.alive


@pytest.mark.slow
async def test_when_not_one_descriptor_is_left_those_connected_are_served(
    tmp_path: Path,
) -> None:
    """The limit is lowered under a running server, so that accepting itself fails."""
    with station_process(tmp_path / "data") as station:
        async with async_wires(station.url, 4) as held:
            assert [await serves(wire) for wire in held] == [True] * 4
            _, hard = resource.prlimit(station.id, resource.RLIMIT_NOFILE)
            left = station.descriptors() + 2
            resource.prlimit(station.id, resource.RLIMIT_NOFILE, (left, hard))

            async with async_wires(station.url, 40) as flood:
                outcomes = Counter(await asyncio.gather(*map(outcome, flood)))
                assert outcomes["ended"] >= 38
                assert [await serves(wire) for wire in held] == [True] * 4
            await serves_newcomers_again(station)
            assert [await serves(wire) for wire in held] == [True] * 4
        assert station.alive


@pytest.mark.slow
async def test_more_places_than_descriptors_are_not_promised(tmp_path: Path) -> None:
    with station_process(
        tmp_path / "data", descriptors_max=128, WAYSTATION_HTTP_CONNECTIONS_MAX="100000"
    ) as station:
        assert "fewer connections than set" in station.log.read_text()

        async with async_wires(station.url, 200) as flood:
            outcomes = Counter(await asyncio.gather(*map(outcome, flood)))
            assert outcomes["503"] >= MARGIN
        await serves_newcomers_again(station)
