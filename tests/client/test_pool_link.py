"""What a worker of a pool says while it registers anew: nothing it hears of its past ends it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from waystation.client.async_background import AsyncFlag
from waystation.client.async_caller import AsyncCaller
from waystation.client.async_pool_link import AsyncPoolLink
from waystation.client.async_transport import AsyncTransport
from waystation.client.pool_messages import Takings
from waystation.errors import StationUnreachableError, WorkerUnknownError
from waystation.runtime.ids import CountingIds
from waystation.testing.endpoint import Answer, FakeEndpoint

UNKNOWN = Answer(
    404,
    (("content-type", "application/problem+json"),),
    json.dumps({"status": 404, "code": "pool.worker-unknown", "detail": "no such worker"}).encode(),
)
TAKEN = Answer(200, body=b'{"state": "live", "items": []}')


def registered(session: int, *, delay_seconds: float = 0.0) -> Answer:
    told = {"uid": "w", "session": session, "lease_seconds": 30, "stale_seconds": 30}
    return Answer(200, body=json.dumps(told).encode(), delay_seconds=delay_seconds)


@asynccontextmanager
async def linked(url: str) -> AsyncIterator[tuple[AsyncPoolLink, AsyncFlag]]:
    """A worker that speaks to a station, or to what plays one."""
    transport, ended = AsyncTransport(url, ""), AsyncFlag()
    try:
        yield (
            AsyncPoolLink(AsyncCaller(transport), "pool", "w", CountingIds(), ended=ended),
            ended,
        )
    finally:
        await transport.aclose()


async def test_what_is_refused_while_it_registers_is_said_again_under_the_new_session() -> None:
    """The station knows the new session before the worker does."""
    plan = [registered(1), registered(2, delay_seconds=0.5), UNKNOWN, TAKEN]
    async with FakeEndpoint(plan=plan) as station, linked(station.url) as (link, _):
        await link.register()
        anew = asyncio.ensure_future(link.register_anew())
        await station.until(2)
        takings = await link.say("take", Takings, {})
        await anew

        assert takings.state == "live"
        sessions = [json.loads(each.body).get("session") for each in station.received]
        assert sessions == [None, None, 1, 2]


async def test_what_is_refused_under_the_session_that_holds_is_told() -> None:
    async with (
        FakeEndpoint(plan=[registered(1), UNKNOWN]) as station,
        linked(station.url) as (link, _),
    ):
        await link.register()
        with pytest.raises(WorkerUnknownError):
            await link.say("take", Takings, {})


async def test_a_station_that_is_away_is_asked_for_a_new_session_until_it_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("waystation.client.async_caller._PAUSES_SECONDS", ())
    resets = [Answer(reset=True)] * 2
    async with (
        FakeEndpoint(plan=[registered(1), *resets, registered(2), *resets]) as station,
        linked(station.url) as (link, ended),
    ):
        await link.register()
        await link.register_anew()
        assert len(station.received) == 4
        # Unless the worker ends meanwhile.
        ended.set()
        with pytest.raises(StationUnreachableError):
            await link.register_anew()
