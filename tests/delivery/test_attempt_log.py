"""The log of attempts: none is settled without being written down, and none waits for history."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.delivery.delivering import LANE, delivering
from tests.helpers.store_faults import store_at
from waystation.delivery import attempt_log
from waystation.delivery.attempt_log import LOG, open_attempt_log, unpack
from waystation.delivery.outbox import Item, Outbox
from waystation.delivery.request import Outcome
from waystation.delivery.schedule import Decision, Verdict
from waystation.errors import OutcomeUnknownError
from waystation.logs.protocol import Retention
from waystation.logs.streams import StreamLogs
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.telemetry import metrics
from waystation.testing import CrashPoint, crash_points
from waystation.testing.endpoint import FakeEndpoint

ITEM = Item(url="http://crm.example/")
DONE, RETRY = Decision(Verdict.DONE), Decision(Verdict.RETRY, 0.0, "busy")


async def recorded(store: Store) -> list[tuple[str, str, int]]:
    """Lane, id and attempt of all that is in the log."""
    logs, found = StreamLogs(store), []
    for partition in range(4):
        entries = (await logs.read(LOG, partition, 0, limit=1000)).entries()
        found += [
            (lane, each.id, each.attempt)
            for entry in entries
            for lane, each in unpack(entry.payload)
        ]
    return sorted(found)


@asynccontextmanager
async def recording_outbox(server: EmbeddedServer) -> AsyncIterator[Outbox]:
    async with store_at(server.address) as store:
        await store.call("FLUSHALL")
        yield Outbox(store, attempts=await open_attempt_log(StreamLogs(store)))


async def attempt(outbox: Outbox, decision: Decision, *, status: int, at_ms: int) -> None:
    claim = await outbox.claim(LANE, most=100, claim_ms=60_000, token=f"t{at_ms}")
    for claimed in claim.items:
        assert await outbox.settle(LANE, claimed, decision, Outcome(status=status), at_ms=at_ms)


async def test_every_attempt_is_in_the_log_in_its_order(store_server: EmbeddedServer) -> None:
    async with recording_outbox(store_server) as outbox:
        await outbox.add(LANE, "m-1", ITEM)
        await attempt(outbox, RETRY, status=503, at_ms=1)
        await attempt(outbox, DONE, status=200, at_ms=2)
        assert await recorded(outbox.store) == [(LANE, "m-1", 1), (LANE, "m-1", 2)]


async def test_what_was_released_is_no_attempt(store_server: EmbeddedServer) -> None:
    async with recording_outbox(store_server) as outbox:
        await outbox.add(LANE, "m-1", ITEM)
        claimed = (await outbox.claim(LANE, most=1, claim_ms=60_000, token="t")).items[0]
        assert await outbox.release(LANE, claimed)
        assert await recorded(outbox.store) == []


async def test_an_attempt_whose_claim_has_passed_to_another_was_made_all_the_same(
    store_server: EmbeddedServer,
) -> None:
    async with recording_outbox(store_server) as outbox:
        await outbox.add(LANE, "m-1", ITEM)
        late = (await outbox.claim(LANE, most=1, claim_ms=60_000, token="late")).items[0]
        await outbox.store.call("HSET", f"{LANE}.items", "m-1.token", "another")
        assert not await outbox.settle(LANE, late, DONE, Outcome(status=200), at_ms=1)
        assert await recorded(outbox.store) == [(LANE, "m-1", 1)]


async def test_a_settlement_that_is_repeated_is_written_down_once(
    store_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with recording_outbox(store_server) as outbox:
        await outbox.add(LANE, "m-1", ITEM)
        claimed = (await outbox.claim(LANE, most=1, claim_ms=60_000, token="t")).items[0]
        run = Store.run

        async def lost(store: Store, script: object, *given: object) -> object:
            if "settle" in repr(script):
                raise OutcomeUnknownError("the connection died")
            return await run(store, script, *given)  # type: ignore[arg-type]

        with monkeypatch.context() as patch:
            patch.setattr(Store, "run", lost)
            with pytest.raises(OutcomeUnknownError):
                await outbox.settle(LANE, claimed, DONE, Outcome(status=200), at_ms=1)
        assert await outbox.settle(LANE, claimed, DONE, Outcome(status=200), at_ms=1)
        assert await recorded(outbox.store) == [(LANE, "m-1", 1)]


async def test_an_attempt_that_is_settled_at_the_second_try_is_written_down_once(
    store_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the deliverer: whenever it is settled, the attempt has ended when it has ended."""
    async with FakeEndpoint() as endpoint, delivering(store_server, logged=True) as running:
        await running.outbox.add(LANE, "m-0", Item(url=endpoint.url))
        await running.until_empty()
        run, lost = Store.run, list[object]()

        async def lose_one(store: Store, script: object, *given: object) -> object:
            if "settle" in repr(script) and not lost:
                lost.append(script)
                raise OutcomeUnknownError("the connection died")
            return await run(store, script, *given)  # type: ignore[arg-type]

        monkeypatch.setattr(Store, "run", lose_one)
        await running.outbox.add(LANE, "m-1", Item(url=endpoint.url))
        await running.until_empty()

        assert len(lost) == 1
        assert await recorded(running.store) == [(LANE, "m-0", 1), (LANE, "m-1", 1)]


async def test_a_log_that_takes_nothing_keeps_no_delivery_waiting(
    store_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_log, "_RETENTION", Retention(max_bytes=1, policy="refuse"))
    async with recording_outbox(store_server) as outbox:
        await outbox.add(LANE, "m-1", ITEM)
        before = metrics.delivery_unrecorded._value.get()
        await attempt(outbox, DONE, status=200, at_ms=1)
        assert await outbox.waiting(LANE) == 0
        assert metrics.delivery_unrecorded._value.get() == before + 1


async def test_a_store_that_was_emptied_gets_its_log_again(store_server: EmbeddedServer) -> None:
    async with recording_outbox(store_server) as outbox:
        await outbox.store.call("FLUSHALL")
        await outbox.add(LANE, "m-1", ITEM)
        await attempt(outbox, DONE, status=200, at_ms=1)
        assert await recorded(outbox.store) == [(LANE, "m-1", 1)]


@pytest.mark.slow
def test_a_death_at_any_call_settles_nothing_that_is_not_written_down(
    store_server: EmbeddedServer,
) -> None:
    """F-03"""

    async def scenario(store: Store) -> None:
        outbox = Outbox(store, attempts=await open_attempt_log(StreamLogs(store)))
        for each in ("m-1", "m-2"):
            await outbox.add(LANE, each, ITEM)
        await attempt(outbox, DONE, status=200, at_ms=1)

    async def after(store: Store, point: CrashPoint) -> None:
        outbox = Outbox(store)
        settled = [(LANE, each.id, each.attempt) for each in await outbox.records(LANE)]
        assert set(settled) <= set(await recorded_if_there(store))

    points = crash_points(store_server.address, scenario, after)
    assert len(points) >= 10


async def recorded_if_there(store: Store) -> list[tuple[str, str, int]]:
    await open_attempt_log(StreamLogs(store))
    return await recorded(store)
