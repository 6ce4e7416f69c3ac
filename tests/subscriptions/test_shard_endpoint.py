"""A shard and its endpoint: what the endpoint asks for, and how much it gets."""

from __future__ import annotations

import asyncio

import pytest

from tests.helpers.waiting import eventually
from tests.subscriptions.at_work import Hook, at_work
from waystation.delivery import standing
from waystation.delivery.breaker import BreakerState
from waystation.store.embedded.server import EmbeddedServer
from waystation.subscriptions.definition import RetryPolicy
from waystation.subscriptions.states import ShardState, Verdict
from waystation.testing.endpoint import Answer, ReceivedRequest

PATIENT = RetryPolicy(attempts=30, first_seconds=0.02, max_seconds=0.05, jitter=0)


async def test_gone_disables_the_endpoint_and_everything_waits_until_it_is_enabled(
    store_server: EmbeddedServer,
) -> None:
    """F-17"""
    gone = True
    hook = Hook(decide=lambda _: 410 if gone else 200)
    async with hook, at_work(store_server, hook.url) as work:
        ids = await work.produce("a", "b", "a")
        shard = await work.start()
        (target,) = work.standings

        async def is_disabled() -> bool:
            return target in (await work.states.survey()).disabled

        await eventually(is_disabled)
        assert shard.state is ShardState.HELD
        assert await work.low() == 0, "what was in the topic is still there"
        assert await work.count("retry") == 0
        assert Verdict.AGAIN not in work.counts.attempts
        seen = len(hook.received)
        gone = False
        await work.states.enable(target)
        work.standings[target].update(disabled=False, held_until=0.0)
        await work.until_low(3)
        assert hook.ids(status=200)[-3:] != []
        assert sorted(hook.ids(status=200)) == sorted(ids)
        assert len(hook.received) == seen + 3
        await work.check_order(["a", "b"])


async def test_a_head_that_finds_the_endpoint_gone_is_released_uncounted(
    store_server: EmbeddedServer,
) -> None:
    """F-17"""
    answers = [500, 410, 200]
    hook = Hook(decide=lambda _: answers.pop(0))
    async with hook, at_work(store_server, hook.url) as work:
        await work.produce("a")
        await work.start()
        await hook.until(2)
        await work.until_count("due", 1)
        (member,) = await work.store.call("ZRANGE", work.place.key("due"), 0, -1)
        assert member == b"r1.1", "one attempt counts, the one that was gone does not"
        (standing,) = work.standings.values()

        async def is_told() -> bool:
            return standing.target in (await work.states.survey()).disabled

        await eventually(is_told)
        await work.states.enable(standing.target)
        standing.update(disabled=False, held_until=0.0)
        await work.until_count("groups", 0)
        assert hook.received[-1].headers["waystation-attempt"] == "2"


async def test_retry_after_of_429_stops_all_for_half_a_minute_and_its_group_for_all_of_it(
    store_server: EmbeddedServer,
) -> None:
    """F-17: and other processes hear of it."""
    asked = [Answer(429, headers=(("retry-after", "60"),))]
    hook = Hook(decide=lambda _: asked.pop() if asked else 200)
    async with hook, at_work(store_server, hook.url, concurrency_max=1) as work:
        await work.produce("a", "b", "a")
        shard = await work.start()
        await hook.until(1)
        (standing,) = work.standings.values()

        async def is_told() -> bool:
            return standing.target in (await work.states.survey()).held_ms

        await eventually(is_told)
        assert shard.state is ShardState.HELD
        await work.machine.advance(25)
        assert len(hook.received) == 1
        await work.machine.advance(6)

        async def others_are_delivered() -> bool:
            return len(hook.of("b", status=200)) == 1

        await eventually(others_are_delivered)
        await work.machine.advance(20)
        assert len(hook.received) == 2, "the group waits for all of its Retry-After"
        await work.machine.advance(11)
        await work.until_low(3)
        await work.until_count("groups", 0)
        assert len(hook.received) == 4


async def test_retry_after_of_429_stops_no_other_group_while_others_succeed(
    store_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every tenth group is limited for a day; nothing tells so about the endpoint."""
    # A busy machine may stall for longer than the ten seconds that a success counts.
    monkeypatch.setattr(standing, "_WELL_SECONDS", 120.0)
    groups = [f"g{number}" for number in range(200)]
    limited = frozenset(groups[9::10])
    too_many = Answer(429, headers=(("retry-after", "86400"),))

    def decide(request: ReceivedRequest) -> Answer | int:
        return too_many if request.headers["waystation-group"] in limited else 200

    hook = Hook(decide=decide)
    async with hook, at_work(store_server, hook.url) as work:
        await work.produce("healthy")
        await work.start()
        await work.until_low(1)
        await work.produce(*groups, *groups)

        async def is_delivered() -> bool:
            return len(hook.ids(status=200)) == 1 + 2 * (len(groups) - len(limited))

        await eventually(is_delivered, timeout=20)
        assert not (await work.states.survey()).held_ms
        # Each limited group was asked once, and is not asked again before its time.
        assert len(hook.received) == 1 + 2 * (len(groups) - len(limited)) + len(limited)


async def test_an_endpoint_that_keeps_failing_is_left_alone_then_probed(
    store_server: EmbeddedServer,
) -> None:
    """F-17: flapping 500 and 200; order is kept through all of it."""
    ill = True
    hook = Hook(decide=lambda _: 500 if ill else 200)
    async with hook, at_work(store_server, hook.url, retry=PATIENT) as work:
        groups = [f"g{number}" for number in range(12)]
        await work.produce(*groups, *groups, *groups)
        shard = await work.start()
        (standing,) = work.standings.values()

        async def is_open() -> bool:
            return standing.breaker.state is BreakerState.OPEN

        await eventually(is_open)
        assert shard.state is ShardState.HELD
        await asyncio.sleep(0)
        ill = False
        await work.machine.advance(60)
        await work.until_low(36)
        await work.until_count("groups", 0)
        assert standing.breaker.state is BreakerState.CLOSED
        await work.check_order(groups)


@pytest.mark.parametrize("status", [500, 502, 429])
async def test_breaker_groups_that_fail_once_hold_up_no_other_group(
    store_server: EmbeddedServer, status: int
) -> None:
    """The first 20 of 200 groups fail at each first attempt, and answer 200 to the second."""
    groups = [f"g{number}" for number in range(200)]
    failing = frozenset(groups[:20])

    def decide(request: ReceivedRequest) -> int:
        is_first = request.headers["waystation-attempt"] == "1"
        return status if is_first and request.headers["waystation-group"] in failing else 200

    hook = Hook(decide=decide)
    retry = RetryPolicy(attempts=30, first_seconds=0.05, multiplier=1.0, jitter=0)
    async with hook, at_work(store_server, hook.url, retry=retry) as work:
        ids = await work.produce(*groups, *groups, *groups)
        await work.start()
        await work.until_low(len(ids))
        await work.until_count("groups", 0)
        assert sorted(hook.ids(status=200)) == sorted(ids)
        await work.check_order(groups)
        # The failing groups were attempted twice per message, and the others once.
        assert len(hook.received) == len(ids) + 3 * len(failing)
        (standing,) = work.standings.values()
        assert standing.share.slots > 8, "most requests succeeded: the endpoint earned slots"


async def test_breaker_groups_that_answer_503_with_retry_after_hold_up_no_other_group(
    store_server: EmbeddedServer,
) -> None:
    """The first 20 of 200 groups are in maintenance for ten minutes; the others are delivered."""
    groups = [f"g{number}" for number in range(200)]
    failing = frozenset(groups[:20])
    maintenance = Answer(503, headers=(("retry-after", "600"),))

    def decide(request: ReceivedRequest) -> Answer | int:
        return maintenance if request.headers["waystation-group"] in failing else 200

    hook = Hook(decide=decide)
    async with hook, at_work(store_server, hook.url) as work:
        await work.produce(*groups, *groups, *groups)
        await work.start()

        async def is_delivered() -> bool:
            return len(hook.ids(status=200)) == 3 * (len(groups) - len(failing))

        await eventually(is_delivered, timeout=10)
        # Each failing group was asked once, and is not asked again before its time.
        assert len(hook.received) == 3 * (len(groups) - len(failing)) + len(failing)


async def test_breaker_probe_takes_a_message_of_a_group_that_has_not_failed(
    store_server: EmbeddedServer,
) -> None:
    """Groups that always fail open the breaker; a healthy message that comes later closes it."""
    hook = Hook(decide=lambda request: 200 if request.headers["waystation-group"] == "ok" else 500)
    retry = RetryPolicy(attempts=1000, first_seconds=0.02, multiplier=1.0, jitter=0)
    async with hook, at_work(store_server, hook.url, retry=retry) as work:
        await work.produce(*[f"bad{number}" for number in range(40)])
        await work.start()
        (standing,) = work.standings.values()

        async def is_open() -> bool:
            return standing.breaker.state is not BreakerState.CLOSED

        for number in range(3):
            await eventually(is_open)
            await work.machine.advance(60)
            await eventually(is_open)
            await work.produce("ok")
            # Not one pause after the other, each longer than the last, for the retries before it.
            await work.machine.advance(60)

            async def is_through(wanted: int = number + 1) -> bool:
                return len(hook.of("ok", status=200)) == wanted

            await eventually(is_through, timeout=5)


async def test_breaker_probe_that_hangs_does_not_hold_up_a_healthy_group(
    store_server: EmbeddedServer,
) -> None:
    def decide(request: ReceivedRequest) -> Answer:
        if request.headers["waystation-group"] == "ok":
            return Answer()
        is_first = request.headers["waystation-attempt"] == "1"
        return Answer(reset=is_first, hang=not is_first)

    hook = Hook(decide=decide)
    retry = RetryPolicy(attempts=30, first_seconds=0.05, multiplier=1.0, jitter=0)
    async with hook, at_work(store_server, hook.url, retry=retry) as work:
        await work.produce(*[f"bad{number}" for number in range(8)])
        shard = await work.start()
        (standing,) = work.standings.values()

        async def hangs() -> bool:
            return standing.breaker.is_probing and shard.in_flight > 0

        await eventually(hangs)
        await work.produce("ok")

        async def is_through() -> bool:
            return bool(hook.of("ok", status=200))

        # The probe that hangs is given up after 30 s.
        await eventually(is_through, timeout=15)


async def test_a_redirect_is_a_failure(store_server: EmbeddedServer) -> None:
    """F-17"""
    answers = [Answer(301, headers=(("location", "http://127.0.0.1:9/"),))]
    hook = Hook(decide=lambda _: answers.pop() if answers else 200)
    async with hook, at_work(store_server, hook.url) as work:
        ids = await work.produce("a")
        await work.start()
        await hook.until(2)
        await work.until_count("groups", 0)
        assert hook.ids() == ids * 2


async def test_a_subscription_has_no_more_requests_under_way_than_it_may(
    store_server: EmbeddedServer,
) -> None:
    most = 0

    def decide(_: ReceivedRequest) -> Answer:
        nonlocal most
        most = max(most, work.slots.under_way)
        return Answer(delay_seconds=0.005)

    hook = Hook(decide=decide)
    async with hook, at_work(store_server, hook.url, concurrency_max=3) as work:
        await work.produce(*[f"g{i}" for i in range(60)])
        await work.start()
        await work.until_low(60)
        assert most == 3
        assert work.slots.under_way == 0
        (standing,) = work.standings.values()
        assert standing.share.in_use == 0


async def test_a_rate_is_kept(store_server: EmbeddedServer) -> None:
    async with Hook() as hook, at_work(store_server, hook.url, rate=20.0) as work:
        await work.produce(*[f"g{i}" for i in range(30)])
        begun = work.clock.monotonic()
        await work.start()
        await work.until_low(30)
        # One second's worth at once, the other ten in half a second.
        assert work.clock.monotonic() - begun > 0.45


async def test_a_rate_of_thousands_waits_for_less_than_a_clock_can_tell(
    store_server: EmbeddedServer,
) -> None:
    """A timer of uvloop that is due at once knows no time: it must not be asked for it."""
    async with Hook() as hook, at_work(store_server, hook.url, rate=600.0) as work:
        await work.produce(*[f"g{i}" for i in range(900)])
        shard = await work.start()
        await work.until_low(900)
        assert not shard.lost


async def test_failures_are_throttled_and_keep_their_slots(store_server: EmbeddedServer) -> None:
    """One in a second is let through where nothing is delivered."""
    hook = Hook(decide=lambda _: 500)
    options = {"error_percent": 1.0, "concurrency_max": 2, "retry": RetryPolicy(attempts=0)}
    async with hook, at_work(store_server, hook.url, **options) as work:
        await work.produce(*[f"g{i}" for i in range(20)])
        await work.start()
        await hook.until(3)
        assert len(hook.received) == 3, "one was let through, two keep their slots"
        assert work.slots.under_way == 2
        await hook.until(4)
        assert await work.count("dead") >= 1, "what has failed is written down at once"


async def test_an_endpoint_that_moves_is_followed_without_a_restart(
    store_server: EmbeddedServer,
) -> None:
    async with Hook() as old, Hook() as new, at_work(store_server, old.url) as work:
        await work.produce("a")
        shard = await work.start()
        await old.until(1)
        await work.until_low(1)
        work.subscription = work.subscription.changed(endpoint=new.url)
        shard.use(work.subscription)

        async def is_there() -> bool:
            await work.produce("a")
            return bool(new.received)

        await eventually(is_there)
        assert shard.version == 2


async def test_heads_that_are_always_due_leave_half_of_the_slots_to_others(
    store_server: EmbeddedServer,
) -> None:
    def decide(request: ReceivedRequest) -> int:
        return 404 if request.headers["waystation-group"].startswith("bad") else 200

    hook = Hook(decide=decide)
    options = {"concurrency_max": 8, "retry": RetryPolicy(attempts=100, first_seconds=0, jitter=0)}
    async with hook, at_work(store_server, hook.url, **options) as work:
        await work.produce(*[f"bad{i}" for i in range(30)])
        await work.start()
        await hook.until(60)
        good = await work.produce(*[f"good{i}" for i in range(30)])

        async def through() -> bool:
            return len(hook.ids(status=200)) == 30

        await eventually(through)
        assert sorted(hook.ids(status=200)) == sorted(good)
        seen = len(hook.received)
        await hook.until(seen + 30)
