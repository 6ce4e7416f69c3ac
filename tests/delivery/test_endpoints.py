"""How an endpoint is treated by all its lanes and all processes: F-17 over real HTTP."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from tests.delivery.delivering import LANE, QUICK, Delivering, delivering
from tests.helpers.waiting import eventually
from waystation.delivery import deliverer as deliverer_module
from waystation.delivery import standing as standing_module
from waystation.delivery.breaker import Breaker, BreakerState
from waystation.delivery.endpoint import Destination, Endpoint
from waystation.delivery.notices import Notice
from waystation.delivery.outbox import Item
from waystation.delivery.schedule import Schedule
from waystation.store.embedded.server import EmbeddedServer
from waystation.testing.endpoint import Answer, FakeEndpoint

PATIENT = Schedule(attempts=100, first_seconds=0.01, maximum_seconds=0.01, jitter=0)


async def add(running: Delivering, endpoint: FakeEndpoint, *ids: str, lane: str = LANE) -> None:
    for each in ids:
        assert await running.outbox.add(lane, each, Item(url=endpoint.url))


async def is_disabled(running: Delivering) -> bool:
    return "crm" in (await running.states.survey()).disabled


async def knows_disabled(running: Delivering) -> bool:
    standing = running.deliverer.standing("crm")
    return standing is not None and standing.disabled


async def test_410_disables_the_endpoint_for_all_processes_and_over_restarts_and_loses_nothing(
    store_server: EmbeddedServer,
) -> None:
    async with FakeEndpoint(plan=[410, 200]) as endpoint:
        async with delivering(store_server) as first:
            await add(first, endpoint, "m-1")
            await eventually(lambda: is_disabled(first))
            async with delivering(store_server, flush=False) as second:
                # Given a process that was there, and one that has just begun
                await add(second, endpoint, "m-2", "m-3")
                await eventually(lambda: knows_disabled(second))
                await asyncio.sleep(0.2)
                assert len(endpoint.received) == 1, "not a single request more"
        async with delivering(store_server, flush=False) as restarted:
            await eventually(lambda: knows_disabled(restarted))
            assert len(endpoint.received) == 1
            why = (await restarted.states.survey()).disabled["crm"]
            assert why.cause == "the endpoint answered 410"
            assert why.at_ms > 0
            assert await restarted.outbox.waiting(LANE) == 3, "all of them wait"

            # When somebody enables it
            assert await restarted.states.enable("crm")

            # Then everything is sent, the one that was answered 410 included
            await restarted.until_empty()
            assert len(endpoint.received) == 4
            records = await restarted.outbox.records(LANE)
            assert [each.verdict for each in records] == ["disable", "done", "done", "done"]


async def test_after_a_410_only_what_was_under_way_is_still_answered(
    store_server: EmbeddedServer,
) -> None:
    async with FakeEndpoint(plan=[410]) as endpoint, delivering(store_server) as running:
        lanes = [f"{{unit-{number}}}.out.crm" for number in range(5)]
        for lane in lanes:
            await add(running, endpoint, *(f"m-{number}" for number in range(10)), lane=lane)
        await eventually(lambda: knows_disabled(running))
        await asyncio.sleep(0.7)  # Longer than a look at the states takes to come.

        assert len(endpoint.received) <= 8, "the slots of the endpoint, over all its lanes"
        assert sum([await running.outbox.waiting(lane) for lane in lanes]) == 50


async def test_a_template_s_destinations_are_disabled_one_by_one(
    store_server: EmbeddedServer,
) -> None:
    async with FakeEndpoint(plan=[410]) as gone, FakeEndpoint() as well:
        urls = {"{gone}.out.crm": gone.url, "{well}.out.crm": well.url}
        crm = Endpoint(
            name="crm",
            schedule=QUICK,
            locate=lambda lane: Destination(url=urls[lane]),
            varies=True,
        )
        async with delivering(store_server, crm) as running:
            await running.outbox.add("{gone}.out.crm", "m-1", Item())
            await gone.until(1)

            async def anything_disabled() -> bool:
                return bool((await running.states.survey()).disabled)

            await eventually(anything_disabled)
            await running.outbox.add("{well}.out.crm", "m-2", Item())
            await well.until(1)

            assert set((await running.states.survey()).disabled) == {crm.target("{gone}.out.crm")}


async def test_after_retry_after_nothing_at_all_is_sent_before_it_has_passed(
    store_server: EmbeddedServer,
) -> None:
    """F-17: not to any lane of the endpoint, not by another process, not after a restart."""
    plan = [Answer(429, headers=(("retry-after", "2"),)), 200]
    async with FakeEndpoint(plan=plan) as endpoint:
        async with delivering(store_server) as running:
            await add(running, endpoint, "m-1")

            async def is_held() -> bool:
                return "crm" in (await running.states.survey()).held_ms

            await eventually(is_held)
            await add(running, endpoint, "m-2")
            await add(running, endpoint, "m-3", lane="{other}.out.crm")
        async with delivering(store_server, flush=False) as other:
            await other.until_empty()
            await other.until_empty("{other}.out.crm")

        first, *rest = endpoint.received
        assert len(rest) == 3
        assert all(each.at - first.at >= 1.9 for each in rest)


async def test_other_processes_hear_at_once_of_a_hold_a_disabling_and_its_end(
    store_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-17: not only when they look at the register the next time."""
    async with FakeEndpoint() as endpoint, delivering(store_server) as running:
        await add(running, endpoint, "m-1")
        await running.until_empty()
        standing = running.deliverer.standing("crm")
        assert standing is not None
        monkeypatch.setattr(deliverer_module, "_LOOK_SECONDS", 60.0)
        await asyncio.sleep(0.6)  # The wait that has begun is still of the usual length.
        loop = asyncio.get_running_loop()
        begun = loop.time()

        async def is_held() -> bool:
            return standing.held_until > running.clock.monotonic()

        async def is_free() -> bool:
            return not standing.held_until

        await running.states.hold("crm", 3600)
        await eventually(is_held)
        await running.states.enable("crm")
        await eventually(is_free)
        notice = Notice(kind="disabled", endpoint="crm", lane=LANE, cause="gone", at_ms=1)
        await running.states.disable("crm", notice)
        await eventually(lambda: knows_disabled(running))

        assert loop.time() - begun < 5, "a lost call would cost 10 s each"


@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_of_one_message_stops_the_others_for_half_a_minute_at_most(
    store_server: EmbeddedServer, status: int
) -> None:
    """A 503 stops no other message; other processes know of the hold of a 429."""
    plan = [Answer(status, headers=(("retry-after", "86400"),)), 200]
    async with FakeEndpoint(plan=plan) as endpoint, delivering(store_server) as running:
        await add(running, endpoint, "m-1")

        async def is_settled() -> bool:
            return bool(await running.outbox.records(LANE))

        await eventually(is_settled)
        held_ms = (await running.states.survey()).held_ms
        assert ("crm" in held_ms) == (status == 429)
        assert held_ms.get("crm", 0) <= 30_000
        await add(running, endpoint, "m-2", "m-3")
        if status == 429:
            await asyncio.sleep(0.2)
            assert len(endpoint.received) == 1
            await running.states.enable("crm")
        await endpoint.until(3)

        async def only_the_first_waits() -> bool:
            return await running.outbox.waiting(LANE) == 1

        await eventually(only_the_first_waits)
        assert len(endpoint.received) == 3, "it waits for all of its Retry-After"


async def test_a_hold_can_be_lifted(store_server: EmbeddedServer) -> None:
    plan = [Answer(429, headers=(("retry-after", "3600"),)), 200]
    async with FakeEndpoint(plan=plan) as endpoint, delivering(store_server) as running:
        await add(running, endpoint, "m-1")

        async def is_held() -> bool:
            return "crm" in (await running.states.survey()).held_ms

        await eventually(is_held)
        await asyncio.sleep(0.6)  # Longer than a look at the states takes to come.
        await add(running, endpoint, "m-2")

        await running.states.enable("crm")

        await endpoint.until(2)


async def test_an_endpoint_that_keeps_failing_is_left_alone_then_probed_once_at_a_time(
    store_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-17: over all lanes of the endpoint."""
    # Pauses that are over when the test says so, however long the machine stands still.
    monkeypatch.setattr(standing_module, "Breaker", partial(Breaker, pause_seconds=60.0))
    lanes = [f"{{unit-{number}}}.out.crm" for number in range(10)]
    crm = Endpoint(name="crm", schedule=PATIENT)
    async with FakeEndpoint(plan=[500]) as endpoint, delivering(store_server, crm) as running:
        for lane in lanes:
            await add(running, endpoint, "m-1", "m-2", lane=lane)

        async def is_open() -> bool:
            standing = running.deliverer.standing("crm")
            return (
                standing is not None
                and standing.breaker.state is BreakerState.OPEN
                and not standing.share.in_use
            )

        await eventually(is_open)
        at_opening = len(endpoint.received)
        assert at_opening <= 200 + 8, "the limit, and what was under way by then"

        # When its pause is over, and it still fails
        for probes in (1, 2):
            running.clock.shift_to(running.clock.shift_ms + 300_000)
            await endpoint.until(at_opening + probes)
            await eventually(is_open)
            assert len(endpoint.received) == at_opening + probes, "one probe"

        # When it has recovered
        endpoint.plan = [200]
        running.clock.shift_to(running.clock.shift_ms + 300_000)
        for lane in lanes:
            await running.until_empty(lane)
        answered = [each.status for each in endpoint.received[at_opening + 2 :]]
        assert answered == [200] * 20


async def test_a_flapping_endpoint_gets_everything_in_the_end(
    store_server: EmbeddedServer,
) -> None:
    """F-17"""
    crm = Endpoint(name="crm", schedule=PATIENT)
    async with (
        FakeEndpoint(plan=[500, 200], seed=7) as endpoint,
        delivering(store_server, crm) as running,
    ):
        ids = [f"m-{number}" for number in range(40)]
        await add(running, endpoint, *ids)

        async def is_empty() -> bool:
            # Should the breaker have opened, its pause is over at once.
            running.clock.shift_to(running.clock.shift_ms + 1000)
            return not await running.outbox.waiting(LANE)

        await eventually(is_empty)
        records = await running.outbox.records(LANE)

    assert sorted(each.id for each in records if each.verdict == "done") == sorted(ids)


async def test_a_redirect_is_a_failure_like_any_other(store_server: EmbeddedServer) -> None:
    """F-17, S-03"""
    async with FakeEndpoint() as inner:
        plan = [Answer(301, headers=(("location", inner.url),))]
        async with FakeEndpoint(plan=plan) as endpoint, delivering(store_server) as running:
            await add(running, endpoint, "m-1")
            await running.until_empty()

            (failed,) = await running.outbox.failed(LANE)
            assert (failed.attempts, failed.cause) == (3, "the endpoint answered 301")
        assert inner.received == []


async def test_items_of_an_endpoint_that_is_not_configured_wait_untouched(
    store_server: EmbeddedServer,
) -> None:
    lane = "{unit}.out.removed"
    async with FakeEndpoint() as endpoint:
        async with delivering(store_server) as running:
            await add(running, endpoint, "m-1", lane=lane)
            await add(running, endpoint, "m-2")
            await running.until_empty()

            assert [each.path for each in endpoint.received] == ["/hook"], "that of crm"
            assert await running.outbox.waiting(lane) == 1
            assert await running.outbox.records(lane) == []
        removed = Endpoint(name="removed", schedule=QUICK)
        async with delivering(store_server, removed, flush=False) as again:
            await again.until_empty(lane)

        assert len(endpoint.received) == 2
