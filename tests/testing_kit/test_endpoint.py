"""The fake endpoint: it keeps its plan, and a seed draws the same plan again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from waystation.delivery.addresses import AddressGuard
from waystation.delivery.request import Failure, Outcome, Outgoing
from waystation.delivery.sender import Sender
from waystation.testing.endpoint import Answer, FakeEndpoint

PLAN: tuple[int | Answer, ...] = (200, 429, 500, Answer(reset=True), Answer(delay_seconds=0.01))


async def outcomes(
    plan: Sequence[int | Answer], count: int, seed: int | None = None
) -> list[Outcome]:
    """What one who sends so often sees."""
    sender = Sender(AddressGuard(loopback=True))
    try:
        async with FakeEndpoint(plan=plan, seed=seed) as endpoint:
            request = Outgoing(url=endpoint.url, body=b"{}", total_seconds_max=3.0)
            found = [await sender.send(request) for _ in range(count)]
            assert [each.body for each in endpoint.received] == [b"{}"] * len(endpoint.received)
            return found
    finally:
        await sender.close()


def told(found: Sequence[Outcome]) -> list[int | Failure | None]:
    return [each.status or each.failure for each in found]


async def test_a_plan_is_followed_in_order_and_its_last_entry_stays() -> None:
    found = await outcomes([500, Answer(503, headers=(("retry-after", "7"),)), 200], 5)
    assert told(found) == [500, 503, 200, 200, 200]
    assert found[1].retry_after == 7


async def test_it_resets_hangs_and_answers_slowly() -> None:
    plan = [Answer(reset=True), Answer(hang=True), Answer(delay_seconds=0.2)]
    reset, hung, slow = await outcomes(plan, 3)
    assert reset.failure is Failure.CONNECTION
    assert hung.failure is Failure.TIMEOUT
    assert (slow.status, slow.seconds >= 0.2) == (200, True)


async def test_a_seed_draws_the_same_plan_again_and_another_seed_another() -> None:
    first, again, other = await asyncio.gather(
        outcomes(PLAN, 40, 7), outcomes(PLAN, 40, 7), outcomes(PLAN, 40, 8)
    )
    assert told(first) == told(again) != told(other)
    assert {429, 500, 200, Failure.CONNECTION} == set(told(first))
