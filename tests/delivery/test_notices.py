"""The operator is told of every delivery that is given up, also when we die before we can tell."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.delivery.delivering import LANE, Delivering, delivering
from tests.helpers.waiting import eventually
from waystation.delivery import notices as notices_module
from waystation.delivery.notices import latest_notices
from waystation.delivery.outbox import Item, Outbox
from waystation.delivery.request import Outcome
from waystation.delivery.schedule import Decision, Verdict
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.telemetry import metrics
from waystation.testing import CrashPoint, crash_points
from waystation.testing.endpoint import Answer, FakeEndpoint

FAILED = Decision(Verdict.FAILED, 0.0, "the endpoint answered 500")


async def notices_of(running: Delivering) -> list[Any]:
    return await latest_notices(running.store, most=100)


async def nothing_untold(running: Delivering) -> bool:
    failed = await running.store.call("EXISTS", f"{LANE}.failed")
    return failed == 1 and await running.store.call("EXISTS", f"{LANE}.untold") == 0


async def test_a_failure_is_an_event_a_log_line_and_a_request(
    store_server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    given_up = metrics.registry.get_sample_value("waystation_delivery_given_up_total") or 0
    async with (
        FakeEndpoint(plan=[401]) as endpoint,
        FakeEndpoint() as office,
        delivering(store_server, notice_url=office.url) as running,
    ):
        await running.outbox.add(LANE, "m-1", Item(url=endpoint.url, body=b"secret content"))
        await eventually(lambda: nothing_untold(running))
        await office.until(1)

        (event,) = await notices_of(running)
        assert (event.kind, event.endpoint, event.id) == ("failed", "crm", "m-1")
        assert (event.attempts, event.cause) == (1, "the endpoint answered 401")
        (told,) = office.received
        body = json.loads(told.body)
        assert body["type"] == "waystation.delivery.failed"
        assert (body["id"], body["lane"]) == ("m-1", LANE)
        assert b"secret content" not in told.body
    assert "a delivery was given up" in caplog.text
    now = metrics.registry.get_sample_value("waystation_delivery_given_up_total")
    assert now == given_up + 1


async def test_a_notice_that_cannot_be_sent_causes_no_other(
    store_server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        FakeEndpoint(plan=[401]) as endpoint,
        FakeEndpoint(plan=[500]) as office,
        delivering(store_server, notice_url=office.url) as running,
    ):
        await running.outbox.add(LANE, "m-1", Item(url=endpoint.url))
        await eventually(lambda: nothing_untold(running))

        async def is_logged() -> bool:
            return "a notice could not be sent" in caplog.text

        await eventually(is_logged)
        assert len(office.received) == 1
        assert len(await notices_of(running)) == 1


async def test_a_notice_url_that_hangs_costs_bounded_requests_and_repeats_no_event(
    store_server: EmbeddedServer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each event is in the stream once, and only so many wait for the URL."""
    monkeypatch.setattr(notices_module, "_REQUESTS_WAITING_MAX", 20)
    async with (
        FakeEndpoint(plan=[401]) as endpoint,
        FakeEndpoint(plan=[Answer(hang=True)]) as office,
        delivering(store_server, notice_url=office.url) as running,
    ):
        for number in range(30):
            await running.outbox.add(LANE, f"m-{number}", Item(url=endpoint.url))
        await running.until_empty()
        # Then all is told while not one of the requests has ended: nobody tells it again
        await eventually(lambda: nothing_untold(running), timeout=5)
        await office.until(16)
        assert len(await notices_of(running)) == 30
        assert len(office.received) == 16
    assert caplog.text.count("a notice is not sent to its URL") == 10


async def test_a_disabled_endpoint_is_told_of_once(store_server: EmbeddedServer) -> None:
    async with (
        FakeEndpoint(plan=[410]) as endpoint,
        FakeEndpoint() as office,
        delivering(store_server, notice_url=office.url) as running,
    ):
        for number in range(5):
            await running.outbox.add(LANE, f"m-{number}", Item(url=endpoint.url))
        await office.until(1)

        async def is_disabled() -> bool:
            return bool((await running.states.survey()).disabled)

        await eventually(is_disabled)
        (event,) = await notices_of(running)
        assert (event.kind, event.endpoint) == ("disabled", "crm")
        assert len(office.received) == 1


async def test_a_failure_whose_teller_died_is_told_by_the_next_deliverer(
    store_server: EmbeddedServer,
) -> None:
    store = Store(store_server.address)
    await store.call("FLUSHALL")
    outbox = Outbox(store)
    # Given a failure that was settled by one who died before telling
    await outbox.add(LANE, "m-1", Item(url="http://crm.example/"))
    (claimed,) = (await outbox.claim(LANE, most=1, claim_ms=1000, token="dead")).items
    await outbox.settle(LANE, claimed, FAILED, Outcome(status=500), at_ms=0)
    assert await latest_notices(store, most=10) == []
    # And whose time to tell is over
    await store.call("ZADD", f"{LANE}.untold", 1, "m-1")
    await store.close()

    async with delivering(store_server, flush=False) as running:
        await eventually(lambda: nothing_untold(running))

        (event,) = await notices_of(running)
        assert (event.kind, event.id, event.attempts) == ("failed", "m-1", 1)


def test_a_death_at_any_call_of_giving_up_leaves_a_failure_that_will_be_told_of(
    store_server: EmbeddedServer,
) -> None:
    async def prepare(store: Store) -> None:
        await Outbox(store).add(LANE, "m-1", Item(url="http://crm.example/"))

    async def scenario(store: Store) -> None:
        outbox = Outbox(store)
        (claimed,) = (await outbox.claim(LANE, most=1, claim_ms=60_000, token="dying")).items
        await outbox.settle(LANE, claimed, FAILED, Outcome(status=500), at_ms=0)

    async def after(store: Store, point: CrashPoint) -> None:
        outbox = Outbox(store)
        waiting = await outbox.waiting(LANE)
        failed = [each.id for each in await outbox.failed(LANE)]
        untold = await store.call("ZRANGE", f"{LANE}.untold", 0, -1)
        assert (waiting, failed, untold) in [(1, [], []), (0, ["m-1"], [b"m-1"])]

    crash_points(store_server.address, scenario, after, prepare=prepare)


@pytest.mark.slow
async def test_what_finds_no_room_is_counted_and_told(store_server: EmbeddedServer) -> None:
    """F-16: the backlog of a slow endpoint is bounded."""
    async with FakeEndpoint(plan=[500]) as endpoint, delivering(store_server) as running:
        later = 60_000
        for number in range(2):
            item = Item(url=endpoint.url)
            assert await running.outbox.add(LANE, f"m-{number}", item, wait_ms=later, most=2)

        async def is_known() -> bool:
            return running.deliverer.standing("crm") is not None

        await eventually(is_known)
        for number in range(2, 5):
            item = Item(url=endpoint.url)
            assert not await running.outbox.add(LANE, f"m-{number}", item, most=2)

        async def is_told() -> bool:
            return bool(await notices_of(running))

        await eventually(is_told)
        assert {each.kind for each in await notices_of(running)} == {"dropped"}
        assert await running.outbox.counts([LANE]) == [(2, 0, 3)]
