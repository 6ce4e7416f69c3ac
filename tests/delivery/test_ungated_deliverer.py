"""A deliverer at lanes without gates: failures in a row, pauses, fairness, who hears of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from tests.delivery.delivering import Delivering
from tests.delivery.ungated import LANE, LAYOUT, RECEIVER, delivering_ungated, put, sending_to
from tests.helpers.waiting import eventually
from waystation.delivery.breaker import BreakerLimits
from waystation.delivery.items import Claimed
from waystation.delivery.notices import Notice, latest_notices
from waystation.delivery.request import Failure, Outcome
from waystation.delivery.schedule import Schedule, Verdict
from waystation.delivery.settlement import Conclusion
from waystation.delivery.workshop import Pauses
from waystation.errors import StoreError
from waystation.store.embedded.server import EmbeddedServer
from waystation.testing.endpoint import Answer, FakeEndpoint
from waystation.transactions.reply_lanes import lane_of

PATIENT = Schedule(attempts=100, first_seconds=0.01, maximum_seconds=0.01, jitter=0)
LIMITS = BreakerLimits(failed_min=4, pause_seconds_max=0.4)


async def notices(running: Delivering, kind: str) -> list[Notice]:
    return [each for each in await latest_notices(running.store, most=99) if each.kind == kind]


async def is_held(running: Delivering) -> bool:
    return RECEIVER in (await running.states.survey()).held_ms


async def test_an_event_that_a_receiver_refuses_at_first_comes_in_the_end(
    store_server: EmbeddedServer,
) -> None:
    plan = [Answer(reset=True), 500, 200]
    async with (
        FakeEndpoint(plan=plan) as receiver,
        delivering_ungated(store_server, sending_to(receiver.url)) as running,
    ):
        await put(running.store, "tx-1", "complete 7")
        await running.until_empty(LANE)

        assert [each.body for each in receiver.received] == [b"complete 7"] * 3
        assert {each.headers["webhook-id"] for each in receiver.received} == {"tx-1"}
        records = await running.outbox.records(LANE)
        assert [each.verdict for each in records] == ["retry", "retry", "done"]


async def test_410_disables_the_receiver_in_all_cells_until_it_is_enabled_and_loses_nothing(
    store_server: EmbeddedServer,
) -> None:
    other = lane_of(1, RECEIVER)
    async with (
        FakeEndpoint(plan=[410, 200]) as receiver,
        delivering_ungated(store_server, sending_to(receiver.url)) as running,
    ):
        await put(running.store, "tx-1")

        async def is_disabled() -> bool:
            return RECEIVER in (await running.states.survey()).disabled

        await eventually(is_disabled)
        await put(running.store, "tx-2", lane=other)
        await asyncio.sleep(0.7)  # Longer than a look at the register takes to come.
        assert len(receiver.received) == 1

        await running.states.enable(RECEIVER)

        await running.until_empty(LANE)
        await running.until_empty(other)
        assert len(receiver.received) == 3


async def test_nothing_is_sent_before_retry_after_has_passed(store_server: EmbeddedServer) -> None:
    """F-17"""
    plan = [Answer(429, headers=(("retry-after", "1"),)), 200]
    async with (
        FakeEndpoint(plan=plan) as receiver,
        delivering_ungated(store_server, sending_to(receiver.url)) as running,
    ):
        await put(running.store, "tx-1")
        await running.until_empty(LANE)

        first, second = receiver.received
        assert second.at - first.at >= 0.95


async def test_the_last_failure_is_in_the_failed_list_and_told_once(
    store_server: EmbeddedServer,
) -> None:
    async with (
        FakeEndpoint(plan=[500]) as receiver,
        delivering_ungated(store_server, sending_to(receiver.url)) as running,
    ):
        await put(running.store, "tx-1")

        async def is_told() -> bool:
            return bool(await notices(running, "failed"))

        await eventually(is_told)
        (failed,) = await running.outbox.failed(LANE)
        assert (failed.id, failed.attempts) == ("tx-1", 3)
        (notice,) = await notices(running, "failed")
        assert (notice.endpoint, notice.id, notice.attempts) == (RECEIVER, "tx-1", 3)
        # And a lane whose items have all failed is retired like any empty one

        async def is_retired() -> bool:
            running.clock.shift_to(running.clock.shift_ms + 6_000)
            return not await running.outbox.lanes()

        await eventually(is_retired)
        assert len(await notices(running, "failed")) == 1


# -- A receiver that fails -------------------------------------------------------------------


async def test_deliverer_with_a_failing_receiver_pauses_it_probes_it_and_tells_it_once(
    store_server: EmbeddedServer,
) -> None:
    book = {"breaker": LIMITS, "schedule": PATIENT}
    async with (
        FakeEndpoint(plan=[500]) as receiver,
        delivering_ungated(store_server, sending_to(receiver.url, **book)) as running,
    ):
        for number in range(8):
            await put(running.store, f"tx-{number}")

        async def is_told() -> bool:
            return bool(await notices(running, "resting"))

        await eventually(is_told)
        tried = len(receiver.received)
        await asyncio.sleep(1.2)

        assert 1 <= len(receiver.received) - tried <= 4, "probes alone are sent"
        assert await running.outbox.waiting(LANE) == 8, "and no reply is given up for it"
        assert list(running.deliverer.open_breakers) == [RECEIVER]
        (report,) = (await running.states.survey()).breakers.values()
        assert 0 <= report[RECEIVER] <= 400
        (notice,) = await notices(running, "resting")
        assert notice.endpoint == RECEIVER
        assert notice.cause == "4 messages failed and none succeeded; a probe every 0.4 s"
        # And the first probe that succeeds ends the pause, without an operator.
        receiver.plan = [200]
        await running.until_empty(LANE)

        async def is_unreported() -> bool:
            return not (await running.states.survey()).breakers

        await eventually(is_unreported)
        assert running.deliverer.open_breakers == {}


async def test_deliverer_with_a_paused_receiver_sends_at_once_after_an_operator_enables_it(
    store_server: EmbeddedServer,
) -> None:
    limits = BreakerLimits(failed_min=4, pause_seconds_max=600)
    async with (
        FakeEndpoint(plan=[500]) as receiver,
        delivering_ungated(
            store_server, sending_to(receiver.url, breaker=limits, schedule=PATIENT)
        ) as running,
    ):
        for number in range(8):
            await put(running.store, f"tx-{number}")

        async def is_paused() -> bool:
            return max(running.deliverer.open_breakers.values(), default=0) > 1000

        await eventually(is_paused)
        receiver.plan = [200]
        await running.states.enable(RECEIVER)
        await running.until_empty(LANE)


async def test_deliverer_with_one_failing_reply_pauses_nobody(store_server: EmbeddedServer) -> None:
    book = {"breaker": LIMITS, "schedule": PATIENT}
    async with (
        FakeEndpoint(plan=[500] * 20 + [200]) as receiver,
        delivering_ungated(store_server, sending_to(receiver.url, **book)) as running,
    ):
        await put(running.store, "tx-1")
        await running.until_empty(LANE)

        assert len(receiver.received) == 21
        assert await notices(running, "resting") == []


# -- Pace ------------------------------------------------------------------------------------


async def test_one_slow_receiver_of_a_hundred_holds_up_none_of_the_others(
    store_server: EmbeddedServer,
) -> None:
    """F-16"""
    slow = lane_of(0, "w.default.5100000000000000")
    async with FakeEndpoint(plan=[Answer(hang=True)]) as hangs, FakeEndpoint() as answers:
        to_slow, to_others = sending_to(hangs.url, seconds_max=60), sending_to(answers.url)
        async with delivering_ungated(
            store_server,
            lambda sender: lambda lane: (to_slow if lane == slow else to_others)(sender)(lane),
        ) as running:
            for number in range(200):
                await put(running.store, f"slow-{number}", lane=slow)
            await hangs.until(1)
            lanes = [lane_of(n % 2, f"w.default.{n:016x}") for n in range(99)]
            begun = time.monotonic()
            for number in range(5):
                for lane in lanes:
                    await put(running.store, f"{lane[-6:]}-{number}", lane=lane)
            for lane in lanes:
                await running.until_empty(lane)
            spent = time.monotonic() - begun

            assert len(answers.received) == 5 * 99
            assert len(hangs.received) <= 8, "its share"
            assert spent < 30, "nobody waited for an attempt of the slow one, which takes 60 s"
            assert await running.outbox.waiting(slow) == 200


async def test_a_process_told_to_have_no_attempts_claims_nothing_until_told_otherwise(
    store_server: EmbeddedServer,
) -> None:
    async with (
        FakeEndpoint() as receiver,
        delivering_ungated(store_server, sending_to(receiver.url), attempts_max=0) as running,
    ):
        await put(running.store, "tx-1")
        await asyncio.sleep(0.7)
        assert receiver.received == []

        running.deliverer.pace(attempts_max=10, pauses=Pauses())

        await running.until_empty(LANE)


async def test_a_pause_between_claims_is_kept(store_server: EmbeddedServer) -> None:
    pauses = Pauses(claim_seconds=1.0)
    async with (
        FakeEndpoint() as receiver,
        delivering_ungated(store_server, sending_to(receiver.url), pauses=pauses) as running,
    ):
        for number in range(4):
            await put(running.store, f"tx-{number}")
            await receiver.until(number + 1)

        times = [each.at for each in receiver.received]
        # The pause is between claims, and any of them may be late to arrive.
        assert all(later - sooner >= 0.5 for sooner, later in pairwise(times[1:]))


async def test_a_process_that_is_busy_looks_again_after_its_pause(
    store_server: EmbeddedServer,
) -> None:
    pauses = Pauses(busy_seconds=2.0)
    plan = [Answer(delay_seconds=0.5), 200]
    async with (
        FakeEndpoint(plan=plan) as receiver,
        delivering_ungated(
            store_server, sending_to(receiver.url), attempts_max=1, pauses=pauses
        ) as running,
    ):
        await put(running.store, "tx-1")
        await put(running.store, "tx-2")
        first, second = await receiver.until(2)
        assert second.at - first.at >= 1, "not as soon as there was room"


async def test_what_came_without_a_hint_is_found_after_the_longest_sleep(
    store_server: EmbeddedServer,
) -> None:
    pauses = Pauses(idle_seconds=0.2)
    async with (
        FakeEndpoint() as receiver,
        delivering_ungated(
            store_server, sending_to(receiver.url), pauses=pauses, idle_seconds=60.0
        ) as running,
    ):
        await put(running.store, "tx-1")
        await running.until_empty(LANE)
        keys = LAYOUT.keys(LANE)
        await running.store.call("HSET", keys.items, "tx-2", "complete 1")
        await running.store.call("ZADD", keys.due, 1, "tx-2")
        begun = time.monotonic()
        await receiver.until(2, seconds=30)
        assert time.monotonic() - begun < 20, "it would be a minute"


# -- Hearing what came of it -----------------------------------------------------------------


async def test_whoever_wants_to_hear_is_told_before_it_is_settled_and_again_if_the_store_was_away(
    store_server: EmbeddedServer,
) -> None:
    told: list[tuple[str, str, int]] = []
    running: Delivering

    async def concluded(lane: str, conclusions: Sequence[Conclusion]) -> None:
        waiting = await running.outbox.waiting(lane)
        for claimed, decision, _ in conclusions:
            told.append((claimed.id, decision.verdict.value, waiting))
        if len(told) == 1:
            raise StoreError("away")

    async with (
        FakeEndpoint() as receiver,
        delivering_ungated(store_server, sending_to(receiver.url, concluded=concluded)) as running,
    ):
        await put(running.store, "tx-1")
        await running.until_empty(LANE)

    assert told == [("tx-1", "done", 1)] * 2
    assert len(receiver.received) == 1


async def test_a_defect_of_who_hears_it_keeps_nothing_from_being_settled(
    store_server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def concluded(*_: Any) -> None:
        raise ZeroDivisionError

    async with (
        FakeEndpoint() as receiver,
        delivering_ungated(store_server, sending_to(receiver.url, concluded=concluded)) as running,
    ):
        await put(running.store, "tx-1")
        await running.until_empty(LANE)

    assert len(receiver.received) == 1
    assert "concluding attempts broke" in caplog.text


async def test_what_we_need_ourselves_is_away_and_the_lane_does_not_spin(
    store_server: EmbeddedServer,
) -> None:
    attempts: list[str] = []
    away = True

    async def deliver(lane: str, claimed: Claimed) -> Outcome:
        attempts.append(claimed.id)
        if away:
            return Outcome(failure=Failure.CANCELLED, retry_after=0.5)
        return Outcome(status=200)

    async with delivering_ungated(store_server, sending_to("", deliver=deliver)) as running:
        for number in range(100):
            await put(running.store, f"tx-{number}")
        await asyncio.sleep(1.2)
        tried, away = len(attempts), False

        assert tried <= 8 * 4, "its slots, and a round of them each half second"
        await running.until_empty(LANE)
        records = await running.outbox.records(LANE)
        assert {each.attempt for each in records} == {1}, "none of it was an attempt"
        assert {each.verdict for each in records} == {Verdict.DONE.value}
