"""Test kit of users: crash points and the fake endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from waystation.delivery.addresses import AddressGuard
from waystation.delivery.request import Failure, Outcome, Outgoing
from waystation.delivery.sender import Sender
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.testing import CrashPoint, Moment, crash_points
from waystation.testing.endpoint import Answer, FakeEndpoint

PLAN: tuple[int | Answer, ...] = (200, 429, 500, Answer(reset=True), Answer(delay_seconds=0.01))


async def two_writes(store: Store) -> None:
    await store.call("SET", "first", "1")
    await store.call("SET", "second", "1")


def test_crash_points_of_two_calls_cover_three_moments_each(store_server: EmbeddedServer) -> None:
    seen: dict[CrashPoint, tuple[bool, bool]] = {}

    async def after(store: Store, point: CrashPoint) -> None:
        first = await store.call("EXISTS", "first")
        second = await store.call("EXISTS", "second")
        seen[point] = (bool(first), bool(second))

    points = crash_points(store_server.address, two_writes, after)

    assert points == list(seen)
    assert seen == {
        CrashPoint(1, Moment.BEFORE_SEND): (False, False),
        CrashPoint(1, Moment.AFTER_SEND): (True, False),
        CrashPoint(1, Moment.AFTER_REPLY): (True, False),
        CrashPoint(2, Moment.BEFORE_SEND): (True, False),
        CrashPoint(2, Moment.AFTER_SEND): (True, True),
        CrashPoint(2, Moment.AFTER_REPLY): (True, True),
    }


def test_crash_points_with_broken_promise_report_the_point(store_server: EmbeddedServer) -> None:
    async def after(store: Store, point: CrashPoint) -> None:
        both = await store.call("EXISTS", "first", "second")
        assert both in (0, 2), "half written"

    with pytest.raises(AssertionError, match=r"call 1, after send.*half written"):
        crash_points(store_server.address, two_writes, after)


async def outcomes(
    plan: Sequence[int | Answer], count: int, seed: int | None = None
) -> list[Outcome]:
    """Return the outcomes of `count` requests to an endpoint with this plan."""
    sender = Sender(AddressGuard(loopback=True))
    try:
        async with FakeEndpoint(plan=plan, seed=seed) as endpoint:
            request = Outgoing(url=endpoint.url, body=b"{}", total_seconds_max=3.0)
            found = [await sender.send(request) for _ in range(count)]
            assert [each.body for each in endpoint.received] == [b"{}"] * len(endpoint.received)
            return found
    finally:
        await sender.close()


def results(found: Sequence[Outcome]) -> list[int | Failure | None]:
    return [each.status or each.failure for each in found]


async def test_fake_endpoint_follows_plan_and_repeats_last_entry() -> None:
    found = await outcomes([500, Answer(503, headers=(("retry-after", "7"),)), 200], 5)
    assert results(found) == [500, 503, 200, 200, 200]
    assert found[1].retry_after == 7


async def test_fake_endpoint_can_reset_hang_and_delay() -> None:
    plan = [Answer(reset=True), Answer(hang=True), Answer(delay_seconds=0.2)]
    reset, hung, slow = await outcomes(plan, 3)
    assert reset.failure is Failure.CONNECTION
    assert hung.failure is Failure.TIMEOUT
    assert (slow.status, slow.seconds >= 0.2) == (200, True)


async def test_fake_endpoint_with_same_seed_draws_same_plan() -> None:
    first, again, other = await asyncio.gather(
        outcomes(PLAN, 40, 7), outcomes(PLAN, 40, 7), outcomes(PLAN, 40, 8)
    )
    assert results(first) == results(again) != results(other)
    assert {429, 500, 200, Failure.CONNECTION} == set(results(first))
