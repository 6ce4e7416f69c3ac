"""Heads: one of a group on its way, whatever operations do meanwhile; and what follows them."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.helpers.waiting import eventually
from tests.subscriptions.at_work import Hook, at_work
from waystation.errors import ConflictError
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.pubsub import RECHECK_S
from waystation.subscriptions.definition import RetryPolicy
from waystation.subscriptions.held import Due
from waystation.subscriptions.operating import Operating, RedriveStep
from waystation.subscriptions.shard_store import ShardStore
from waystation.subscriptions.slots import Slots
from waystation.subscriptions.states import ShardState
from waystation.testing.endpoint import Answer, ReceivedRequest

PATIENT = RetryPolicy(attempts=30, first_seconds=0.01, max_seconds=0.02, jitter=0)


async def test_what_comes_after_a_skipped_head_waits_for_the_request_that_is_under_way(
    store_server: EmbeddedServer,
) -> None:
    """The group is clean in the store, but its head is still on its way to the endpoint."""

    def decide(request: ReceivedRequest) -> int | Answer:
        if request.headers["waystation-id"] == "a-00001":
            return 500 if len(hook.received) == 1 else Answer(delay_seconds=3)
        return 200

    hook = Hook(decide=decide)
    async with hook, at_work(store_server, hook.url, retry=PATIENT) as work:
        await work.produce("a")
        await work.start()
        await hook.until(2)
        operating = Operating(work.store, dataset="ds-1")
        assert await operating.skip(work.place, "op", "a", "r1") == "done"
        assert await work.count("groups") == 0
        later = await work.produce("a", "b")
        await hook.until(4)
        await work.until_low(3)
        await work.until_count("groups", 0)
        assert hook.of("a")[2:] == [later[0]]
        first = next(
            each for each in hook.received[1:] if each.headers["waystation-id"] == "a-00001"
        )
        second = next(each for each in hook.received if each.headers["waystation-id"] == later[0])
        assert second.at - first.at >= 2.9, "it waited for the one before it to end"
        assert hook.of("b") == [later[1]], "nobody else waited"


async def test_a_long_group_follows_its_dead_letter_in_order(store_server: EmbeddedServer) -> None:
    """More than one commit may move: the rest follows by steps, without attempts."""
    hook = Hook(decide=lambda r: 500 if r.headers["waystation-group"] == "a" else 200)
    slow = RetryPolicy(attempts=1, first_seconds=1.0, jitter=0)
    async with hook, at_work(store_server, hook.url, retry=slow) as work:
        ids = await work.produce(*["a"] * 320)
        await work.start()
        await work.until_low(320)
        await work.until_count("dead", 320)
        letters = await work.records("dead")
        assert [each.position.offset for each in letters] == list(range(320))
        assert hook.of("a") == ids[:1] * 2
        await work.until_count("due", 0)
        assert await work.count("failed") == 1


async def test_two_shards_of_one_subscription_share_a_standing_and_their_bounds(
    store_server: EmbeddedServer,
) -> None:
    hook = Hook(decide=lambda _: Answer(delay_seconds=0.005))
    options = {"partitions": 2, "shards": 2, "concurrency_max": 4}
    async with hook, at_work(store_server, hook.url, **options) as work:
        for partition in range(2):
            some = [f"p{partition}-{i}" for i in range(40)]
            await work.produce(*some, partition=partition)
        shards = [await work.start(each) for each in range(2)]
        await hook.until(80)

        async def are_done() -> bool:
            return not any(each.in_flight for each in shards)

        await eventually(are_done)
        assert len(set(hook.ids())) == 80
        (standing,) = work.standings.values()
        assert standing.share.in_use == 0
        assert len(standing.lanes) == 2


async def test_an_incarnation_belongs_to_the_shard_that_was_opened_under_it(
    store_server: EmbeddedServer,
) -> None:
    """A reset that has not come to the shard yet: what is delivered until then is no repetition."""
    async with Hook() as hook, at_work(store_server, hook.url) as work:
        shard = await work.start()
        shard.use(work.subscription.changed(incarnation=2))
        ids = await work.produce("a")
        await work.until_low(1)
        assert hook.ids() == ids, "not yet under the name of what is delivered again"
        assert shard.state is ShardState.RUNNING


async def test_an_operation_that_breaks_stops_no_delivery(store_server: EmbeddedServer) -> None:
    class Breaking:
        asked = asyncio.Event()

        async def step(self, *_: object) -> float:
            self.asked.set()
            raise ConflictError("no")

    async with Hook() as hook, at_work(store_server, hook.url) as work:
        breaking = Breaking()
        shard = await work.start(operations=breaking)
        await breaking.asked.wait()
        await work.produce("a")
        await work.until_low(1)
        assert not shard.lost
        assert len(hook.received) == 1


class Overtaken(ShardStore):
    """Its replies to what is due arrive late, once that is wanted."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.late = False
        self.answered, self.arrives = asyncio.Event(), asyncio.Event()

    async def due(self, *given: Any, **named: Any) -> Due:
        found = await super().due(*given, **named)
        if self.late:
            self.answered.set()
            await self.arrives.wait()
        return found


async def test_a_hint_that_overtakes_the_reply_to_what_is_due_is_not_forgotten(
    store_server: EmbeddedServer,
) -> None:
    """Nothing is due, says the store; before that is heard, something is, and its hint comes."""
    status = 400
    hook = Hook(decide=lambda _: status)
    async with hook, at_work(store_server, hook.url) as work:
        store = Overtaken(work.store)
        shard = await work.start(store=store)
        ids = await work.produce("a")
        await work.until_count("dead", 1)
        status = 200

        async def is_idle() -> bool:
            return shard._heads.next_at > work.clock.monotonic()

        await eventually(is_idle)
        store.late = True
        shard._on_hint(None)
        await store.answered.wait()
        redrive = RedriveStep(operation="op", failed_before_ms=0)
        assert (
            await Operating(work.store, dataset="ds-1").redrive(work.place, redrive)
        ).groups == 1

        async def is_expected() -> bool:
            return not await is_idle()

        await eventually(is_expected)
        store.late = False
        store.arrives.set()

        # Sooner than who looks again without having heard anything
        async def is_delivered() -> bool:
            return hook.ids(status=200) == ids

        await eventually(is_delivered, timeout=RECHECK_S / 2)


def test_a_process_has_so_many_slots_and_an_endpoint_without_any_gets_one() -> None:
    slots = Slots(2)
    assert slots.take("x", "a", most=9, alone=False)
    assert slots.take("x", "a", most=9, alone=False)
    assert not slots.take("x", "a", most=9, alone=False)
    assert slots.take("y", "b", most=9, alone=True)
    assert not slots.take("y", "b", most=1, alone=True)


def test_who_waits_longest_for_a_slot_has_the_next_one() -> None:
    slots, called = Slots(1), []
    assert slots.take("x", "a", most=9, alone=False)
    slots.wait("y", "a", lambda: called.append("y"))
    slots.wait("z", "b", lambda: called.append("z"))
    slots.wait("y", "a", lambda: called.append("again"))
    slots.give_back("a")
    assert called == ["y"]
    assert not slots.take("x", "a", most=9, alone=False), "it is kept for the one that was called"
    assert slots.take("y", "a", most=9, alone=False)
    slots.give_back("a")
    assert called == ["y", "z"]
    slots.leave("z")
    assert slots.take("x", "a", most=9, alone=False)
    slots.give_back("a")
    assert slots.under_way == 0
