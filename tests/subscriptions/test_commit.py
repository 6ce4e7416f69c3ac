"""The commit: each row of the table of verdicts, with all that it leaves in the slot."""

from __future__ import annotations

import pytest

from tests.subscriptions.shard_slot import (
    PLACE,
    ShardSlot,
    ended,
    main,
    open_shard_slot,
    record_for,
)
from waystation.errors import ShardFrozenError, ShardLostError, StoreError
from waystation.store.embedded.server import EmbeddedServer
from waystation.subscriptions.held import Settled
from waystation.subscriptions.operating import RedriveStep
from waystation.subscriptions.states import TRANSITIONS, GroupState

CLEAN, RETRYING, PARKED, REDRIVING = GroupState


def words(entry: str) -> list[str]:
    return entry.split(" ")


async def entry(slot: ShardSlot, group: str = "g") -> str:
    return (await slot.hash("groups"))[group]


# -- From the topic itself -------------------------------------------------------------------


async def test_what_was_delivered_is_acknowledged_and_leaves_nothing(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        before = await slot.slot()
        assert await slot.one(main(0, detail=b"\x90")) == Settled("done", CLEAN, None)
        after = await slot.slot()
        assert after.pop("pos") == {"0.0": "1"}
        assert before.pop("pos") == {"0.0": "0"}
        assert after == before
        fact = (await slot.facts())[-1]
        assert (fact.kind, fact.was, fact.now, fact.verdict) == ("attempt", "m0.0.0", "-", "done")
        assert (fact.epoch, fact.incarnation, fact.attempt, fact.policy) == (1, 1, 1, "park")
        assert fact.detail == b"\x90"


async def test_a_failed_one_is_the_head_of_its_group_and_due_after_its_wait(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        assert (await slot.one(main(5, verdict="again", wait_ms=3000))).state is RETRYING
        # c is just below the head, not at nothing: what another group settled does not count.
        assert await entry(slot) == "1 0 1 1 0 0 0 0 1 0 0"
        due = await slot.due()
        assert due.heads == []
        assert 2900 < due.next_ms <= 3000
        await slot.machine.advance(3)
        (head,) = await slot.heads()
        assert (head.member, head.group, head.tries) == ("r1.1", "g", 1)
        assert head.record == record_for("g", 5)
        assert (await slot.low(), await slot.acks()) == (0, [5])
        assert (await slot.hash("head"))["retry_bytes"] == str(len(head.record))


async def test_a_delayed_one_waits_for_its_time_and_counts_no_attempt(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        due = await slot.due()
        at = due.now_ms + 60_000
        assert (await slot.one(main(0, verdict="late", wait_ms=at))).state is RETRYING
        assert await slot.scores("due") == {"r1.0": at}
        assert (await slot.facts())[-1].kind == "late"


async def test_what_comes_behind_goes_to_the_end_of_retry_then_of_dead_letters(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.retrying(3)
        assert await entry(slot) == "3 0 1 3 0 0 0 0 1 0 0"
        assert await slot.hash("rnext") == {"1": "2", "2": "3"}
        await slot.parked(3, "p", first=10)
        assert words(await entry(slot, "p"))[4:8] == ["3", "0", "1", "3"]
        assert await slot.hash("dnext") == {"1": "2", "2": "3"}
        assert list(await slot.scores("failed")) == ["1 p"]


async def test_behind_in_a_group_that_is_clean_by_now_is_due_at_once(
    store_server: EmbeddedServer,
) -> None:
    """An operation made it clean; its owner did not know yet."""
    async with open_shard_slot(store_server) as slot:
        assert (await slot.one(main(0, verdict="behind"))).state is RETRYING
        assert [each.member for each in await slot.heads()] == ["r1.0"]


async def test_one_that_dies_at_once_parks_its_group_or_stands_alone(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        assert (await slot.one(main(0, verdict="dead"))).state is PARKED
        assert await entry(slot) == "0 0 0 0 1 0 1 1 0 0 0"
        slot.use(policy="skip")
        assert (await slot.one(main(1, "other", "dead"))).state is CLEAN
        assert (await slot.one(main(2, "", "dead"))).state is CLEAN
        assert set(await slot.hash("groups")) == {"g"}
        assert set(await slot.scores("failed")) == {"1 g", "2", "3"}
        kinds = [fact.kind for fact in (await slot.facts())[-3:]]
        assert kinds == ["parked", "dead", "dead"]


# -- Heads -----------------------------------------------------------------------------------


async def test_a_delivered_head_brings_the_next_one_and_the_last_leaves_nothing(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        empty = await slot.slot()
        await slot.retrying(3)
        (head,) = await slot.heads()
        seen = []
        while head is not None:
            settled = await slot.one(ended(head.member))
            seen.append((head.member, settled.state))
            assert settled.next is None or settled.next.group == "g"
            head = settled.next  # type: ignore[assignment]
        assert seen == [("r1.1", RETRYING), ("r2.0", RETRYING), ("r3.0", CLEAN)]
        after = await slot.slot()
        assert set(after) == set(empty)
        counters = {key: value for key, value in after["head"].items() if value != "0"}
        assert counters == empty["head"] | {"y": "3"}
        assert await slot.low() == 3


async def test_without_a_number_the_next_head_is_due_and_not_taken(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.retrying(2)
        (head,) = await slot.heads()
        assert (await slot.one(ended(head.member), heads=False)).next is None
        assert list(await slot.scores("due")) == ["r2.0"]
        assert await slot.scores("taken") == {}


async def test_a_head_that_fails_stays_the_head(store_server: EmbeddedServer) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.retrying(2)
        (head,) = await slot.heads()
        assert (await slot.one(ended(head.member, verdict="again"))).state is RETRYING
        assert await entry(slot) == "2 0 1 2 0 0 0 0 2 0 0"
        assert [each.member for each in await slot.heads()] == ["r1.2"]
        fact = (await slot.facts())[-1]
        assert (fact.was, fact.now, fact.attempt) == ("r1", "r1", 2)


@pytest.mark.parametrize("verdict", ["release", "late"])
async def test_a_head_that_was_not_attempted_is_not_counted_and_not_recorded(
    store_server: EmbeddedServer, verdict: str
) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.retrying(2)
        (head,) = await slot.heads()
        known = await slot.facts()
        await slot.one(ended(head.member, verdict=verdict, wait_ms=5))
        assert list(await slot.scores("due")) == ["r1.1"]
        assert await slot.facts() == known


async def test_a_dead_head_parks_its_group_and_the_rest_follows_in_order(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.retrying(4)
        (head,) = await slot.heads()
        died = record_for("g", 0, size=9)
        settled = await slot.one(ended(head.member, verdict="dead", record=died))
        assert settled == Settled("done", PARKED, None)
        assert await entry(slot) == "4 4 0 0 4 0 1 4 0 0 0"
        assert await slot.hash("dnext") == {"1": "2", "2": "3", "3": "4"}
        assert (await slot.slot()).keys() == {"head", "pos", "groups", "dead", "dnext", "failed"}
        assert await slot.store.call("HGET", slot.key("dead"), 1) == died
        followed = [fact for fact in await slot.facts() if fact.kind == "followed"]
        hops = [(fact.was, fact.now) for fact in followed]
        assert hops == [("r2", "d2"), ("r3", "d3"), ("r4", "d4")]


async def test_a_dead_head_that_is_alone_in_its_group_parks_it(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.retrying(1)
        (head,) = await slot.heads()
        assert (await slot.one(ended(head.member, verdict="dead"))).state is PARKED
        assert await entry(slot) == "1 1 0 0 1 0 1 1 0 0 0"
        assert list(await slot.scores("failed")) == ["1 g"]


async def test_a_long_group_follows_by_steps_and_new_ones_go_into_retry_meanwhile(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.retrying(300)
        (head,) = await slot.heads()
        assert (await slot.one(ended(head.member, verdict="dead"))).state is RETRYING
        assert words(await entry(slot))[3] == "249"
        (head,) = await slot.heads()
        assert (head.member, head.group, head.follow) == ("f52", "g", True)
        assert await slot.heads() == [head], "it stays due until all has followed"
        assert (await slot.one(main(300, verdict="behind"))).state is RETRYING
        left = [await slot.shard.follow(PLACE, slot.terms, "g") for _ in range(4)]
        assert left == [150, 50, 0, 0]
        assert words(await entry(slot))[3:8] == ["0", "301", "0", "1", "301"]
        assert (await slot.slot()).keys() == {"head", "pos", "groups", "dead", "dnext", "failed"}
        assert [fact.was for fact in await slot.facts() if fact.kind == "followed"] == [
            f"r{y}" for y in range(2, 302)
        ]


async def test_under_skip_a_dead_head_stands_alone_and_the_next_goes_on(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.retrying(2)
        (head,) = await slot.heads()
        slot.use(policy="skip")
        settled = await slot.one(ended(head.member, verdict="dead"))
        assert settled.state is RETRYING
        assert settled.next is not None
        assert settled.next.member == "r2.0"
        assert (await slot.one(ended("r2.0"))).state is CLEAN
        assert set(await slot.scores("failed")) == {"1"}
        assert await slot.store.call("HGET", slot.key("dead"), 1) == record_for("g", 0)


async def test_messages_without_a_group_retry_and_die_without_an_entry(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.commit(main(0, "", "again"), main(1, "", "again"), main(2, "", "behind"))
        heads = await slot.heads()
        assert {each.member for each in heads} == {"r1.1", "r2.1", "r3.0"}
        assert {each.group for each in heads} == {""}
        done, again, dead = await slot.commit(
            ended("r1.1", ""), ended("r2.1", "", "again"), ended("r3.0", "", "dead")
        )
        assert {done.state, again.state, dead.state} == {CLEAN}
        assert list(await slot.scores("due")) == ["r2.2"]
        assert list(await slot.scores("failed")) == ["1"]
        assert "groups" not in await slot.slot()


# -- Redriven --------------------------------------------------------------------------------


async def test_a_redriven_group_goes_on_until_nothing_is_left(store_server: EmbeddedServer) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.parked(2)
        await slot.redriven()
        (head,) = await slot.heads()
        assert head.member == "d1.0"
        settled = await slot.one(ended("d1.0"))
        assert settled.state is REDRIVING
        assert settled.next is not None
        assert (await slot.one(ended(settled.next.member))).state is CLEAN
        assert (await slot.slot()).keys() == {"head", "pos", "ops"}
        counts = {"op:open": "0", "op:settled": "2", "op:groups": "1", "op:marked": "2"}
        assert await slot.hash("ops") == counts


async def test_a_redrive_ends_where_it_was_asked_to(store_server: EmbeddedServer) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.parked(2)
        await slot.redriven(upto=1)
        await slot.heads()
        assert await slot.one(ended("d1.0")) == Settled("done", PARKED, None)
        assert await entry(slot) == "0 0 0 0 2 1 2 1 0 0 0"
        assert list(await slot.scores("failed")) == ["2 g"]
        assert (await slot.hash("ops"))["op:open"] == "0"


@pytest.mark.parametrize("policy", ["park", "skip"])
async def test_redriven_and_exhausted_again_parks_in_place_whatever_the_policy_is(
    store_server: EmbeddedServer, policy: str
) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.parked(2)
        await slot.redriven()
        await slot.heads()
        slot.use(policy=policy)
        assert (await slot.one(ended("d1.0", verdict="again"))).state is REDRIVING
        assert [each.member for each in await slot.heads()] == ["d1.1"]
        died = record_for("g", 0, size=30)
        settled = await slot.one(ended("d1.1", verdict="dead", record=died))
        assert settled == Settled("done", PARKED, None)
        assert await entry(slot) == "0 0 0 0 2 0 1 2 0 0 0"
        assert await slot.store.call("HGET", slot.key("dead"), 1) == died
        assert list(await slot.scores("failed")) == ["1 g"]
        counts = {"op:open": "0", "op:parked_again": "1", "op:groups": "1", "op:marked": "2"}
        assert await slot.hash("ops") == counts
        held = len(died) + len(record_for("g", 1))
        assert (await slot.hash("head"))["dead_bytes"] == str(held)


async def test_while_dead_letters_are_redriven_new_ones_go_behind_them(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.parked(1)
        await slot.redriven()
        assert (await slot.one(main(1, verdict="behind"))).state is REDRIVING
        assert words(await entry(slot))[4:8] == ["2", "0", "1", "2"]


async def test_a_dead_letter_that_stands_alone_is_redriven_alone(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        slot.use(policy="skip")
        await slot.commit(main(0, verdict="dead"), main(1, verdict="dead"))
        slot.use(policy="park")
        # Meanwhile its group has dead letters that it is not one of.
        await slot.parked(1, first=2)
        for z in (1, 2):
            step = RedriveStep(operation="op", upto=z, failed_before_ms=0)
            assert (await slot.operating.redrive(PLACE, step)).messages == 1
        await slot.heads()
        done, died = await slot.commit(ended("d1.0"), ended("d2.0", verdict="dead"))
        assert (done.outcome, done.state, died.state) == ("done", PARKED, PARKED)
        assert set(await slot.scores("failed")) == {"2", "3 g"}
        assert set(await slot.hash("dead")) == {"2", "3"}
        assert await slot.hash("ops") == {
            "op:settled": "1",
            "op:parked_again": "1",
            "op:open": "0",
            "op:groups": "2",
            "op:marked": "2",
        }
        assert "alone" not in await slot.slot()


# -- What is refused, and what is full -------------------------------------------------------


async def test_an_older_epoch_a_frozen_shard_and_none_at_all_are_refused_without_a_write(
    store_server: EmbeddedServer,
) -> None:
    """F-13: who was taken for dead writes nothing."""
    async with open_shard_slot(store_server) as slot:
        await slot.retrying(1)
        (head,) = await slot.heads()
        await slot.acquire("other")
        before = await slot.everything()
        slot.use(epoch=1)
        shard = slot.shard
        for call in (
            lambda: slot.one(ended(head.member)),
            slot.due,
            lambda: shard.open(PLACE, slot.terms),
            lambda: shard.follow(PLACE, slot.terms, "g"),
            lambda: shard.pass_over(PLACE, slot.terms, "0.0", 1, 5, "trimmed"),
            lambda: shard.give_back(PLACE, slot.terms, [head.member]),
            lambda: shard.offer(PLACE, slot.terms, ["m0.0.1"], most=1, seen=0),
        ):
            with pytest.raises(ShardLostError):
                await call()
        assert await slot.everything() == before
        await slot.store.call("HSET", slot.key("head"), "frozen", "copied")
        slot.use(epoch=2)
        with pytest.raises(ShardFrozenError):
            await slot.one(ended(head.member))
        with pytest.raises(ShardFrozenError):
            await shard.take(PLACE, most=1, lease_ms=1, token="t")
        await slot.store.call("UNLINK", slot.key("head"))
        with pytest.raises(ShardLostError):
            await slot.one(ended(head.member))


@pytest.mark.parametrize(
    "item",
    [
        ended("x1.0"),
        ended("r1"),
        ended("m0.0"),
        ended("r1.0", verdict="behind"),
        ended("m0.0.1", verdict="release"),
        ended("m0.0.1", verdict="again"),
    ],
    ids=lambda item: f"{item.member} {item.verdict}",
)
async def test_a_bad_item_is_an_error_before_anything_is_written(
    store_server: EmbeddedServer, item: object
) -> None:
    """F-19."""
    async with open_shard_slot(store_server) as slot:
        before = await slot.everything()
        with pytest.raises(StoreError):
            await slot.commit(main(0, verdict="again"), item)  # type: ignore[arg-type]
        assert await slot.everything() == before


async def test_without_its_record_log_a_commit_writes_nothing(store_server: EmbeddedServer) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.store.call("UNLINK", f"{PLACE.log}:head")
        before = await slot.slot()
        with pytest.raises(StoreError, match="record log"):
            await slot.commit(main(0, verdict="again"), main(1))
        assert await slot.slot() == before


async def test_where_losses_are_allowed_the_oldest_that_stand_alone_are_dropped_and_counted(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.parked(1, "p")
        size = len(record_for("p", 0)) + 2 * len(record_for("", 1))
        slot.use(dead_bytes_max=size + 1, dead_full_policy="drop_and_count")
        for offset in range(1, 5):
            await slot.one(main(offset, "", "dead"))
        assert set(await slot.hash("dead")) == {"1", "4", "5"}, "a parked group stays"
        assert (await slot.hash("head"))["dropped"] == "2"
        dropped = [fact.was for fact in await slot.facts() if fact.kind == "dropped"]
        assert dropped == ["d2", "d3"]


async def test_the_reply_tells_how_full_the_shard_is(store_server: EmbeddedServer) -> None:
    async with open_shard_slot(store_server) as slot:
        items = [main(0, verdict="again"), main(1, "p", "dead")]
        committed = await slot.commits.commit(PLACE, slot.terms, items, call=0)
        assert committed.retry_bytes == len(items[0].record)
        assert committed.dead_bytes == len(items[1].record)
        assert committed.log_end == (await slot.logs.state(PLACE.record_log, 0)).end


async def test_who_waits_is_told_when_something_is_due_earlier(
    store_server: EmbeddedServer,
) -> None:
    async with open_shard_slot(store_server) as slot:
        await slot.store.call("CONFIG", "RESETSTAT")

        async def published() -> int:
            told = (await slot.store.call("INFO", "commandstats")).decode()
            lines = [line for line in told.splitlines() if line.startswith("cmdstat_publish:")]
            return int(lines[0].partition("calls=")[2].partition(",")[0]) if lines else 0

        await slot.one(main(0, "a", "again", wait_ms=5000))
        assert await published() == 1
        await slot.one(main(1, "b", "again", wait_ms=9000))
        assert await published() == 1
        await slot.one(main(2, "c", "again", wait_ms=1000))
        assert await published() == 2


def test_every_state_of_a_group_has_a_way_in_and_a_way_out() -> None:
    for state in GroupState:
        assert [row for row in TRANSITIONS if row.from_ is state]
        assert [row for row in TRANSITIONS if row.to is state]
