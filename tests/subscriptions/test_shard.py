"""A shard at work: what it delivers, in which order, and what becomes of what it cannot."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

import pytest

from tests.helpers.waiting import eventually
from tests.subscriptions.at_work import QUICK, AtWork, Hook, at_work
from waystation.delivery.request import Outcome
from waystation.store.embedded.server import EmbeddedServer
from waystation.subscriptions.definition import RetryPolicy
from waystation.subscriptions.endpoints.protocol import Parcel
from waystation.subscriptions.log_entry import unpack_attempt
from waystation.subscriptions.states import Verdict
from waystation.testing.endpoint import Answer, ReceivedRequest

PATIENT = RetryPolicy(attempts=30, first_seconds=0.02, max_seconds=0.1, jitter=0.5)


def failing(times: dict[str, int], status: int = 500) -> Callable[[ReceivedRequest], int]:
    """Answers so often with a status that a message fails, then that it is fine."""
    left = dict(times)

    def decide(request: ReceivedRequest) -> int:
        key = request.headers["waystation-id"]
        left[key] = left.get(key, 0) - 1
        return status if left[key] >= 0 else 200

    return decide


async def redrive(work: AtWork, group: str) -> None:
    """Marks a parked group as an operation does."""
    words = (await work.store.call("HGET", work.place.key("groups"), group)).decode().split(" ")
    words[8:] = ["0", "-", "op"]
    await work.store.call("HSET", work.place.key("groups"), group, " ".join(words))
    await work.store.call("ZREM", work.place.key("failed"), f"{words[6]} {group}")
    await work.store.call("ZADD", work.place.key("due"), 0, f"d{words[6]}.0")
    await work.store.call("PUBLISH", work.place.due_hint, "")


async def test_what_is_produced_is_delivered_and_acknowledged(store_server: EmbeddedServer) -> None:
    async with Hook() as hook, at_work(store_server, hook.url) as work:
        ids = await work.produce("a", "b", "a")
        await work.start()
        await hook.until(3)
        await work.until_low(3)
        assert sorted(hook.ids()) == sorted(ids)
        assert hook.of("a") == [ids[0], ids[2]]
        ids += await work.produce("a", "c")
        await hook.until(5)
        await work.until_low(5)
        assert await work.count("acks:0.0") == 0
        await work.check_order(["a", "b", "c"])
        assert work.counts.attempts == [Verdict.DONE] * 5


async def test_a_group_that_fails_waits_for_its_head_and_the_others_do_not(
    store_server: EmbeddedServer,
) -> None:
    hook = Hook(decide=failing({"a-00001": 2}))
    async with hook, at_work(store_server, hook.url) as work:
        ids = await work.produce("a", "b", "a", "a", "b")
        await work.start()
        await hook.until(7)
        await work.until_low(5)
        await work.until_count("retry", 0)
        assert hook.of("a", status=200) == [ids[0], ids[2], ids[3]]
        assert hook.of("a")[:3] == [ids[0]] * 3
        assert hook.of("b") == [ids[1], ids[4]]
        assert await work.count("groups") == 0
        await work.check_order(["a", "b"])


@pytest.mark.parametrize("seed", [1, 2])
async def test_order_holds_through_failures_of_every_kind(
    store_server: EmbeddedServer, seed: int
) -> None:
    """Codes, resets and slow replies by a seeded plan; from the endpoint's log and from records."""
    rng = random.Random(seed)

    def decide(request: ReceivedRequest) -> int | Answer:
        drawn = rng.random()
        if drawn < 0.06:
            return rng.choice((500, 503, 404))
        if drawn < 0.07:
            return Answer(reset=True)
        return Answer(delay_seconds=0.02) if drawn < 0.15 else 200

    groups = [f"g{i}" for i in range(20)]
    hook = Hook(decide=decide)
    async with hook, at_work(store_server, hook.url, partitions=2, retry=PATIENT) as work:
        ids: list[str] = []
        for _ in range(15):
            for partition in range(2):
                some = rng.sample(groups[partition * 10 : partition * 10 + 10], 6)
                ids += await work.produce(*some, partition=partition)
        await work.start()
        for partition in range(2):
            await work.until_low(len(ids) // 2, f"0.{partition}")
        await work.until_count("retry", 0)
        for group in groups:
            delivered = hook.of(group, status=200)
            wanted = [each for each in ids if each.startswith(f"{group}-")]
            assert list(dict.fromkeys(delivered)) == wanted, f"seed {seed}"
            assert delivered == sorted(delivered), f"seed {seed}"
        await work.check_order(groups)
        assert await work.count("due") == 0
        assert await work.count("taken") == 0


async def test_an_ungrouped_one_that_fails_keeps_nobody(store_server: EmbeddedServer) -> None:
    hook = Hook(decide=failing({"None-00001": 1}))
    async with hook, at_work(store_server, hook.url, grouped=False) as work:
        ids = await work.produce(*[None] * 20)
        await work.start()
        await hook.until(21)
        await work.until_low(20)
        await work.until_count("retry", 0)
        assert sorted(hook.ids(status=200)) == sorted(ids)
        assert await work.count("groups") == 0


async def test_a_grouped_topic_can_be_delivered_without_order(store_server: EmbeddedServer) -> None:
    hook = Hook(decide=failing({"a-00001": 100}))
    async with hook, at_work(store_server, hook.url, grouped=True) as work:
        work.change(grouped=False)
        ids = await work.produce("a", "a", "a")
        await work.start()
        await work.until_low(3)
        await work.until_count("dead", 1)
        assert sorted(hook.ids(status=200)) == ids[1:]


class Gathering(Hook):
    """An endpoint that answers nobody before so many requests are there at once."""

    _barrier: asyncio.Barrier | None = None

    def gather(self, count: int) -> None:
        """From now on."""
        self._barrier = asyncio.Barrier(count)

    async def note(self) -> None:
        await super().note()
        if self._barrier is not None:
            await self._barrier.wait()


@pytest.mark.parametrize("group", [None, "a"], ids=["without a group", "without order"])
async def test_messages_that_keep_no_order_are_under_way_at_the_same_time(
    store_server: EmbeddedServer, group: str | None
) -> None:
    """As many as the endpoint has slots; more, when it has done well."""
    hook = Gathering()
    async with hook, at_work(store_server, hook.url, grouped=group is not None) as work:
        if group is not None:
            work.change(grouped=False)
        await work.start()
        hook.gather(8)
        ids = await work.produce(*[group] * 160)
        await work.until_low(160)
        hook.gather(16)
        ids += await work.produce(*[group] * 32)
        await work.until_low(192)
        assert sorted(hook.ids(status=200)) == ids
        assert len(hook.received) == 192


# -- Poison --------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_message_that_fails_for_ever_parks_its_group_with_all_that_comes(
    store_server: EmbeddedServer,
) -> None:
    """F-18: a dead letter with its cause after the maximum; attempts are retries and the first."""
    broken = True

    def decide(request: ReceivedRequest) -> int | Answer:
        return Answer(500, body=b"no stock") if broken else 200

    hook = Hook(decide=decide)
    async with hook, at_work(store_server, hook.url) as work:
        ids = await work.produce("a", "a", "a")
        await work.start()
        await work.until_count("dead", 3)
        assert hook.ids() == [ids[0]] * (QUICK.attempts + 1)
        first, *behind = await work.records("dead")
        assert (first.attempts, first.failure) == (QUICK.attempts + 1, "500")
        assert "500" in first.cause
        assert first.excerpt == b"no stock"
        assert 0 < first.first_failure_ms < first.last_failure_ms
        assert [each.attempts for each in behind] == [0, 0]
        late = await work.produce("a", "b")
        await work.until_count("dead", 4)
        broken = False
        await redrive(work, "a")
        await work.until_count("dead", 0)
        await until_clean(work)
        assert hook.of("a", status=200) == [*ids, late[0]]


async def until_clean(work: AtWork) -> None:
    await work.until_count("groups", 0)
    assert await work.count("due") == 0
    assert await work.count("taken") == 0


async def test_a_dead_letter_tells_its_attempts_its_first_and_last_failure_and_the_reply(
    store_server: EmbeddedServer,
) -> None:
    """Also one that waited behind another before it failed for the first time."""
    ills = {"a-00001": 1, "a-00002": 100}
    codes = failing(ills)
    hook = Hook(decide=lambda request: Answer(codes(request), body=b"out of paper"))
    async with hook, at_work(store_server, hook.url) as work:
        await work.produce("a", "a")
        await work.start()
        await work.until_count("dead", 1)
        (record,) = await work.records("dead")
        facts = [each for each in await work.facts() if each.kind in ("attempt", "parked")]
        told = [unpack_attempt(each.detail or b"") for each in facts]
        ended = [each.ended_ms for each in told if each.id == "a-00002" and each.ended_ms]
        assert (record.attempts, len(ended)) == (QUICK.attempts + 1,) * 2
        assert (record.first_failure_ms, record.last_failure_ms) == (ended[0], ended[-1])
        assert (record.failure, record.excerpt, record.policy) == ("500", b"out of paper", "park")
        assert "500" in record.cause


async def test_under_skip_the_group_goes_on_without_its_dead_letter(
    store_server: EmbeddedServer,
) -> None:
    hook = Hook(decide=failing({"a-00001": 100, "a-00003": 100}))
    async with hook, at_work(store_server, hook.url, poison="skip") as work:
        ids = await work.produce("a", "a", "a", "a")
        await work.start()
        await work.until_count("dead", 2)
        await until_clean(work)
        assert hook.of("a", status=200) == [ids[1], ids[3]]
        await work.check_order(["a"])


async def test_a_fatal_code_is_not_tried_again(store_server: EmbeddedServer) -> None:
    hook = Hook(decide=failing({"a-00001": 1}, status=403))
    async with hook, at_work(store_server, hook.url) as work:
        ids = await work.produce("a", "b")
        await work.start()
        await work.until_count("dead", 1)
        await work.until_low(2)
        assert hook.of("a") == ids[:1]
        (letter,) = await work.records("dead")
        assert (letter.attempts, letter.failure) == (1, "403")


class Raising:
    """An endpoint that breaks on some messages."""

    target, batch_max = "raising", 1

    def __init__(self, *bad: str) -> None:
        self.bad = bad
        self.sent: list[str] = []

    async def send(self, parcels: Sequence[Parcel]) -> list[Outcome]:
        (parcel,) = parcels
        self.sent.append(parcel.message.id)
        if parcel.message.id in self.bad:
            raise RuntimeError("the handler raises")
        return [Outcome(status=200)]


async def test_what_breaks_its_endpoint_is_a_dead_letter_in_the_end_and_harms_nobody(
    store_server: EmbeddedServer,
) -> None:
    """F-18"""
    async with at_work(store_server) as work:
        work.endpoint = endpoint = Raising("a-00001")
        await work.produce("a", "b", "a", "b")
        shard = await work.start()
        await work.until_count("dead", 2)
        await work.until_low(4)
        assert endpoint.sent.count("a-00001") == QUICK.attempts + 1
        assert not shard.lost
        letter, _ = await work.records("dead")
        assert letter.failure == "broken"


async def test_a_message_that_cannot_be_read_is_a_dead_letter_and_stops_nobody(
    store_server: EmbeddedServer,
) -> None:
    async with Hook() as hook, at_work(store_server, hook.url) as work:
        first = await work.produce("a")
        await work.logs.append(work.topic.log_of(0), 0, [b"\xc1 no envelope"])
        last = await work.produce("a")
        shard = await work.start()
        await work.until_low(3)
        assert hook.ids() == [*first, *last]
        (letter,) = await work.records("dead")
        assert letter.envelope == b"\xc1 no envelope"
        assert letter.failure == "unreadable"
        assert letter.cause
        # Redriven by somebody, it is dead again, and nothing goes round.
        await work.store.call("ZREM", work.place.key("failed"), "1")
        await work.store.call("ZADD", work.place.key("due"), 0, "d1.0")
        await work.store.call("PUBLISH", work.place.due_hint, "")
        await work.until_count("failed", 1)
        assert not shard.lost


async def test_a_record_of_a_newer_release_waits_and_the_others_go_on(
    store_server: EmbeddedServer,
) -> None:
    hook = Hook(decide=failing({"a-00001": 1, "b-00002": 1}))
    async with hook, at_work(store_server, hook.url, retry=PATIENT) as work:
        await work.produce("a", "b")
        await work.store.call("HSET", work.place.key("head"), "y", 10)
        await work.store.call("HSET", work.place.key("retry"), 5, b"\x92\x09\xa1x")
        await work.store.call("ZADD", work.place.key("due"), 0, "r5.1")
        shard = await work.start()
        await hook.until(4)
        await work.until_count("retry", 1)
        assert not shard.lost
        score = await work.store.call("ZSCORE", work.place.key("due"), "r5.1")
        assert int(score) > work.clock.now_ms() + 30_000, "it is put off, uncounted"


# -- Time ----------------------------------------------------------------------------------------


async def test_a_delayed_message_comes_at_its_time_and_its_group_waits_behind_it(
    store_server: EmbeddedServer,
) -> None:
    async with Hook() as hook, at_work(store_server, hook.url) as work:
        at = work.clock.now_ms() + 3_600_000
        (late,) = await work.produce("a", not_before_ms=at)
        behind, other = await work.produce("a", "b")
        await work.start()
        await work.until_low(3)
        assert hook.ids() == [other]
        first, _ = await work.records("retry")
        assert (first.attempts, first.due_ms) == (0, at)
        await work.machine.advance(3599)
        assert hook.ids() == [other]
        await work.machine.advance(2)
        await hook.until(3)
        assert hook.of("a") == [late, behind]
        await until_clean(work)


async def test_a_delayed_message_behind_others_waits_for_its_own_time_too(
    store_server: EmbeddedServer,
) -> None:
    async with Hook() as hook, at_work(store_server, hook.url) as work:
        hour, now = 3_600_000, work.clock.now_ms()
        (first,) = await work.produce("a", not_before_ms=now + hour)
        (second,) = await work.produce("a", not_before_ms=now + 2 * hour)
        (third,) = await work.produce("a")
        await work.start()
        await work.until_low(3)
        await work.machine.advance(3601)
        await hook.until(1)
        await work.until_count("retry", 2)

        async def put_off() -> bool:
            # The next one is the head by now: neither attempted nor counted.
            due = await work.store.call("ZSCORE", work.place.key("due"), "r2.0")
            return due is not None and int(float(due)) == now + 2 * hour

        await eventually(put_off)
        await work.machine.advance(3590)
        assert hook.of("a") == [first]
        await work.machine.advance(11)
        await hook.until(3)
        assert hook.of("a") == [first, second, third]
        await until_clean(work)


async def test_a_retry_waits_for_the_time_of_the_store(store_server: EmbeddedServer) -> None:
    """F-15: and is counted by it, not by ours."""
    hour = RetryPolicy(attempts=3, first_seconds=3600, jitter=0)
    hook = Hook(decide=failing({"a-00001": 1}))
    async with hook, at_work(store_server, hook.url, retry=hour) as work:
        await work.produce("a")
        await work.start()
        await work.until_count("due", 1)
        await work.machine.advance(3590)
        assert len(hook.received) == 1
        await work.machine.advance(11)
        await hook.until(2)
        await until_clean(work)


# -- Many at a time ------------------------------------------------------------------------------


class Batching:
    """An endpoint that takes many at a time."""

    target, batch_max = "batching", 10

    def __init__(self) -> None:
        self.batches: list[list[Parcel]] = []

    async def send(self, parcels: Sequence[Parcel]) -> list[Outcome]:
        self.batches.append(list(parcels))
        return [Outcome(status=500 if each.attempt == 1 else 200) for each in parcels]


async def test_a_batch_has_messages_of_different_groups_alone(store_server: EmbeddedServer) -> None:
    async with at_work(store_server) as work:
        work.endpoint = endpoint = Batching()
        groups = [f"g{i % 7}" for i in range(70)]
        await work.produce(*groups)
        await work.start()
        await work.until_low(70)
        await until_clean(work)
        assert max(map(len, endpoint.batches)) > 1
        for batch in endpoint.batches:
            names = [each.message.group for each in batch]
            assert len(names) == len(set(names))
        await work.check_order([f"g{i}" for i in range(7)])


async def test_one_long_group_hides_nobody_behind_it(store_server: EmbeddedServer) -> None:
    """Its bodies are let go of and read again in their turn; the others come through."""

    def decide(request: ReceivedRequest) -> int | Answer:
        if request.headers["waystation-group"] == "slow":
            return Answer(delay_seconds=0.01)
        return 200

    hook = Hook(decide=decide)
    async with hook, at_work(store_server, hook.url, in_flight_messages=20) as work:
        slow = await work.produce(*["slow"] * 100)
        quick = await work.produce(*[f"q{i}" for i in range(10)])
        await work.start()

        async def quick_ones() -> bool:
            return set(quick) <= set(hook.ids())

        await eventually(quick_ones)
        assert len(hook.of("slow")) < 100
        await work.until_low(110)
        assert hook.of("slow") == slow
