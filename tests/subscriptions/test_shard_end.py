"""The end of a shard: drained, lost, killed; and a store that is away for a while."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from tests.helpers.waiting import eventually
from tests.subscriptions.at_work import Hook, at_work
from waystation.errors import ShardLostError
from waystation.store.embedded.server import EmbeddedServer
from waystation.subscriptions.definition import RetryPolicy
from waystation.subscriptions.log_entry import unpack_attempt
from waystation.subscriptions.states import ShardState
from waystation.testing import private_server
from waystation.testing.endpoint import Answer, ReceivedRequest


async def test_a_shard_that_stops_lets_requests_end_and_writes_them_down(
    store_server: EmbeddedServer,
) -> None:
    """F-34"""
    hook = Hook(decide=lambda _: Answer(delay_seconds=2))
    async with hook, at_work(store_server, hook.url) as work:
        await work.produce("a", "b", "a")
        shard = await work.start()
        await hook.until(2)
        await work.stop(shard, grace_seconds=20)
        assert await work.low() == 2
        assert await work.count("taken") == 0
        assert len(hook.received) == 2, "nothing was begun any more"
        assert await work.hold_of() == 2


async def test_what_takes_longer_than_the_grace_time_is_given_back_uncounted(
    store_server: EmbeddedServer,
) -> None:
    """F-34: a head is due at once, under the number of attempts that it had."""
    answers: list[int | Answer] = [500, Answer(hang=True), 200]
    hook = Hook(decide=lambda _: answers.pop(0))
    async with hook, at_work(store_server, hook.url) as work:
        ids = await work.produce("a")
        shard = await work.start()
        await hook.until(2)
        await work.stop(shard, grace_seconds=0.05)
        assert await work.count("taken") == 0
        assert await work.store.call("ZRANGE", work.place.key("due"), 0, -1) == [b"r1.1"]
        (standing,) = work.standings.values()
        assert (standing.share.in_use, work.slots.under_way) == (0, 0)
        await work.start()
        await work.until_count("groups", 0)
        assert hook.ids() == ids * 3
        assert hook.received[-1].headers["waystation-attempt"] == "2"


async def test_after_a_death_the_next_owner_delivers_again_what_was_not_written_down(
    store_server: EmbeddedServer,
) -> None:
    """F-03: with the same id, under a new epoch; a death is no attempt."""
    hook = Hook(decide=lambda _: 200)
    async with hook, at_work(store_server, hook.url) as work:
        ids = await work.produce("a", "b", "a")

        async def never(*_: object, **__: object) -> object:
            await asyncio.Event().wait()

        means = work.means()
        means.commits.commit = never  # type: ignore[method-assign,assignment]
        shard = await work.start(commits=means.commits)
        await hook.until(2)
        await work.kill(shard)
        assert await work.low() == 0
        await work.start()
        await work.until_low(3)
        assert hook.of("a") == [ids[0], ids[0], ids[2]]
        facts = [fact for fact in await work.facts() if fact.kind == "attempt"]
        assert {fact.epoch for fact in facts} == {2}
        assert {fact.attempt for fact in facts} == {1}
        await work.check_order(["a", "b"])


async def test_a_head_that_was_under_way_at_a_death_is_due_for_the_next_owner(
    store_server: EmbeddedServer,
) -> None:
    answers: list[int | Answer] = [500, Answer(hang=True), 200]
    hook = Hook(decide=lambda _: answers.pop(0))
    async with hook, at_work(store_server, hook.url) as work:
        ids = await work.produce("a")
        shard = await work.start()
        await hook.until(2)
        await work.kill(shard)
        assert await work.count("taken") == 1
        await work.start()
        await work.until_count("groups", 0)
        assert hook.ids() == ids * 3
        assert hook.received[-1].headers["waystation-attempt"] == "2"


async def test_an_owner_that_is_refused_stops_at_once_and_drops_all(
    store_server: EmbeddedServer,
) -> None:
    """F-13: another has taken over; nothing of ours is written any more."""
    going = asyncio.Event()

    def decide(_: ReceivedRequest) -> Answer:
        return Answer(delay_seconds=2.0 if going.is_set() else 0.0)

    hook = Hook(decide=decide)
    async with hook, at_work(store_server, hook.url) as work:
        await work.produce("a")
        shard = await work.start()
        await work.until_low(1)
        going.set()
        await work.produce("a", "b")
        await hook.until(3)
        await work.store.call("HINCRBY", work.place.lease, "epoch", 1)
        async with asyncio.timeout(20):
            await shard.ended.wait()
        assert shard.lost
        assert shard.lost == ShardLostError.code
        assert shard.state is ShardState.UNOWNED
        seen = len(hook.received)
        await work.produce("c")
        await shard.stop(grace_seconds=5)
        assert (await work.low(), len(hook.received)) == (1, seen)
        assert work.slots.under_way == 0


async def test_a_frozen_shard_stops(store_server: EmbeddedServer) -> None:
    async with Hook() as hook, at_work(store_server, hook.url) as work:
        shard = await work.start()
        await work.store.call("HSET", work.place.key("head"), "frozen", "resharding")
        await work.produce("a")
        async with asyncio.timeout(5):
            await shard.ended.wait()
        assert shard.lost == "subscription.frozen"


async def test_an_owner_that_is_not_sure_begins_nothing(store_server: EmbeddedServer) -> None:
    """F-13: its lease was not renewed for longer than its length."""
    async with Hook() as hook, at_work(store_server, hook.url, lease_ms=400) as work:
        await work.produce("a")
        shard = await work.start()
        await work.until_low(1)
        (_, lease) = work.started[0]
        work.leases.renewer.close()

        async def is_unsure() -> bool:
            return not lease.sure

        await eventually(is_unsure)
        await work.produce("a", "b")

        async def has_read() -> bool:
            return shard._reader is not None and shard._reader.outstanding == 2

        await eventually(has_read)
        assert len(hook.received) == 1
        assert not shard.lost, "nobody has said that it is another's"


async def test_a_shard_of_another_incarnation_is_not_begun(store_server: EmbeddedServer) -> None:
    """A reset that has not come to this shard yet: it would read what it is to read again."""
    async with Hook() as hook, at_work(store_server, hook.url) as work:
        await work.produce("a")
        work.subscription = work.subscription.changed(incarnation=2)
        with pytest.raises(ShardLostError):
            await work.start()
        assert hook.received == []


async def test_a_store_that_is_away_for_a_while_costs_neither_order_nor_messages() -> None:
    """F-12: results wait in memory, and are written down when it is back."""
    hook = Hook(decide=lambda _: Answer(delay_seconds=0.05))
    patient = RetryPolicy(attempts=30, first_seconds=0.02)
    with private_server() as server:
        async with hook, at_work(server, hook.url, retry=patient, lease_ms=60_000) as work:
            ids = await work.produce(*"abcabcabcabc")
            shard = await work.start()
            await hook.until(3)
            os.kill(server.process_id, signal.SIGKILL)
            await work.until_low(12)
            assert not shard.lost
            for group in "abc":
                seen = list(dict.fromkeys(hook.of(group)))
                assert seen == [each for each in ids if each.startswith(group)]
            await work.check_order(["a", "b", "c"])


async def test_records_tell_who_attempted_what_and_when(store_server: EmbeddedServer) -> None:
    answers = [500, 200]
    hook = Hook(decide=lambda _: Answer(answers.pop(0), body=b"sorry"))
    async with hook, at_work(store_server, hook.url) as work:
        ids = await work.produce("a")
        await work.start()
        await work.until_low(1)
        await work.until_count("groups", 0)
        first, second = [fact for fact in await work.facts() if fact.kind == "attempt"]
        failed, done = (unpack_attempt(each.detail or b"") for each in (first, second))
        assert (first.verdict, first.now, second.was, second.now) == ("again", "r1", "r1", "-")
        assert (first.attempt, second.attempt) == (1, 2)
        assert (failed.id, failed.group, failed.failure) == (ids[0], "a", "500")
        assert (failed.excerpt, done.excerpt) == (b"sorry", b"")
        assert failed.node == "n1"
        assert failed.endpoint in work.standings
        assert 0 < failed.begun_ms <= failed.ended_ms <= done.begun_ms
        assert done.begun_after > failed.begun_after
