"""Operations: durable, counted over all shards, paused and cancelled, forgotten after a while."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.subscriptions.deaths import Deaths
from tests.subscriptions.shard_owner import ShardOwner, own
from tests.subscriptions.subscription_bench import (
    KEEP_MS,
    PROJECT,
    SubscriptionBench,
    open_bench,
)
from waystation.errors import (
    ConflictError,
    GroupCleanError,
    InvalidInputError,
    NotParkedError,
    OperationEndedError,
    OperationNotFoundError,
)
from waystation.store.embedded.server import EmbeddedServer
from waystation.subscriptions import operations as operations_module
from waystation.subscriptions.definition import Subscription
from waystation.subscriptions.means import RedriveLimit
from waystation.subscriptions.operation import Asked, Operation
from waystation.subscriptions.shards import shards_of_key
from waystation.subscriptions.states import OperationState, Verdict
from waystation.topics.router import Router


@dataclass
class Desk:
    """A subscription with two shards, both owned."""

    bench: SubscriptionBench
    subscription: Subscription
    owners: list[ShardOwner]

    async def begin(self, kind: str, **asked: Any) -> Operation:
        return await self.bench.operations.begin(PROJECT, "crm", Asked(kind=kind, **asked))

    async def get(self, operation: Operation) -> Operation:
        return await self.bench.operations.get(PROJECT, "crm", operation.id)

    def group(self, shard: int, n: int = 0) -> str:
        """The n-th group of a shard."""
        names = (f"g-{i}" for i in range(10_000))
        own_ones = (each for each in names if shards_of_key(each, [Router(2)], 2) == [shard])
        return next(each for i, each in enumerate(own_ones) if i == n)

    def owner_of(self, group: str) -> ShardOwner:
        return self.owners[shards_of_key(group, [Router(2)], 2)[0]]

    async def park(self, group: str, count: int = 1) -> list[str]:
        return await self.owner_of(group).park(group, count)


@asynccontextmanager
async def open_desk(server: EmbeddedServer, folder: Path, **options: Any) -> AsyncIterator[Desk]:
    async with open_bench(server, folder) as bench:
        await bench.topics.create(PROJECT, "orders", partitions=2)
        made = await bench.create(options=options)
        assert made.shards == 2
        yield Desk(bench, made, [await own(bench, made, shard) for shard in range(2)])


async def past(desk: Desk) -> None:
    """Waits for the store's clock to show another millisecond."""
    start = await desk.bench.store.call("TIME")
    while (await desk.bench.store.call("TIME"))[1][:-3] == start[1][:-3]:
        await asyncio.sleep(0)


# -- One group, one message ------------------------------------------------------------------


async def test_a_redrive_of_a_group_is_marked_when_the_call_returns_and_done_with_its_last_message(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_desk(store_server, tmp_path) as desk:
        group = desk.group(1)
        await desk.park(group, 3)
        dry = await desk.begin("redrive", group=group, dry_run=True)
        assert (dry.id, dry.count, dry.matched) == ("", 3, 1)
        assert [each.record.group for each in dry.sample] == [group]
        begun = await desk.begin("redrive", group=group)
        assert (begun.state, begun.count, begun.open) == (OperationState.BEGUN, 3, 1)
        assert await desk.owners[1].deliver(most=2) == ["d1.0", "d2.0"]
        assert (await desk.get(begun)).state is OperationState.BEGUN
        assert await desk.owners[1].deliver() == ["d3.0"]
        done = await desk.get(begun)
        assert (done.state, done.settled, done.open) == (OperationState.DONE, 3, 0)
        assert done.ended_ms >= done.begun_ms > 0
        assert await desk.get(begun) == done


async def test_a_dry_run_writes_nothing(store_server: EmbeddedServer, tmp_path: Path) -> None:
    async with open_desk(store_server, tmp_path) as desk:
        for shard in range(2):
            await desk.park(desk.group(shard), 2)

        async def dump() -> dict[str, bytes]:
            keys = await desk.bench.keys()
            return {key: await desk.bench.store.call("DUMP", key) for key in keys}

        before = await dump()
        for kind, asked in (
            ("redrive", {}),
            ("purge", {}),
            ("skip", {"group": desk.group(0)}),
            ("reset", {"to": "beginning"}),
        ):
            counted = await desk.begin(kind, dry_run=True, **asked)
            assert counted.count == {"skip": 1, "reset": 0}.get(kind, 4)
        assert await dump() == before
        assert await desk.bench.operations.list(PROJECT, "crm", limit=10) == []


async def test_a_message_is_redriven_with_what_is_before_it(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_desk(store_server, tmp_path) as desk:
        group = desk.group(0)
        ids = await desk.park(group, 4)
        assert (await desk.begin("redrive", message=ids[1], dry_run=True)).count == 2
        begun = await desk.begin("redrive", message=ids[1])
        assert begun.count == 2
        assert await desk.owners[0].deliver() == ["d1.0", "d2.0"]
        done = await desk.get(begun)
        assert (done.state, done.settled) == (OperationState.DONE, 2)


async def test_what_fails_again_is_told_and_ends_the_operation(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_desk(store_server, tmp_path) as desk:
        group = desk.group(0)
        await desk.park(group, 3)
        begun = await desk.begin("redrive", group=group)
        await desk.owners[0].deliver(verdict=Verdict.DEAD, most=1)
        done = await desk.get(begun)
        assert (done.state, done.parked_again, done.open) == (OperationState.DONE, 1, 0)
        # Its owner would meet it again, if it looked at what failed later.
        await desk.owners[0].steps()
        assert await desk.owners[0].deliver() == []


async def test_a_skip_settles_the_head_and_a_purge_the_whole_group(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_desk(store_server, tmp_path) as desk:
        skipped, purged = desk.group(0), desk.group(0, 1)
        await desk.park(skipped, 2)
        await desk.park(purged, 2)
        operation = await desk.begin("skip", group=skipped)
        assert (operation.state, operation.count) == (OperationState.DONE, 1)
        assert await desk.owners[0].deliver() == ["d2.0"]
        operation = await desk.begin("purge", group=purged)
        assert (operation.state, operation.count) == (OperationState.DONE, 2)
        for kind in ("skip", "purge"):
            with pytest.raises(GroupCleanError):
                await desk.begin(kind, group=purged)
        with pytest.raises(NotParkedError):
            await desk.begin("redrive", group=purged)


async def test_a_message_is_purged_only_if_it_stands_alone(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_desk(store_server, tmp_path, poison="skip") as desk:
        group = desk.group(0)
        first, second = await desk.owners[0].park(group, 2, alone=True)
        operation = await desk.begin("purge", message=first)
        assert (operation.state, operation.count) == (OperationState.DONE, 1)
        with pytest.raises(NotParkedError):
            await desk.begin("purge", message=first)
        begun = await desk.begin("redrive", message=second)
        assert await desk.owners[0].deliver() == ["d2.0"]
        assert (await desk.get(begun)).state is OperationState.DONE
    async with open_desk(store_server, tmp_path / "park") as desk:
        ids = await desk.park(desk.group(0), 2)
        with pytest.raises(InvalidInputError) as caught:
            await desk.begin("purge", message=ids[0])
        assert caught.value.field == "message"


async def test_a_long_group_is_purged_by_the_call_as_far_as_that_goes_and_then_by_its_owner(
    store_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations_module, "_STEPS_AT_ONCE", 1)
    monkeypatch.setattr(operations_module, "STEP_MAX", 2)
    async with open_desk(store_server, tmp_path) as desk:
        group = desk.group(1)
        await desk.park(group, 5)
        begun = await desk.begin("purge", group=group)
        assert (begun.state, begun.settled) == (OperationState.BEGUN, 2)
        await desk.owners[1].steps()
        done = await desk.get(begun)
        assert (done.state, done.settled) == (OperationState.DONE, 5)


# -- All shards ------------------------------------------------------------------------------


async def test_a_redrive_of_all_is_worked_off_by_the_owners_and_summed_over_shards(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_desk(store_server, tmp_path) as desk:
        for shard in range(2):
            for n in range(3):
                await desk.park(desk.group(shard, n), 2)
        await past(desk)
        begun = await desk.begin("redrive")
        assert (begun.state, begun.marked, begun.shards_done) == (OperationState.BEGUN, 0, 0)
        await desk.owners[0].steps()
        half = await desk.get(begun)
        assert (half.marked, half.matched, half.open, half.shards_done) == (6, 3, 3, 1)
        await desk.owners[1].steps()
        for owner in desk.owners:
            assert len(await owner.deliver()) == 6
        assert await desk.owners[0].step() == operations_module._BUSY_SECONDS
        assert await desk.owners[0].step() == operations_module._IDLE_SECONDS
        done = await desk.get(begun)
        assert (done.state, done.settled, done.count) == (OperationState.DONE, 12, 12)


async def test_a_purge_by_time_takes_what_failed_then_and_nothing_else(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_desk(store_server, tmp_path) as desk:
        await desk.park(desk.group(0), 2)
        await past(desk)
        seconds, micros = await desk.bench.store.call("TIME")
        border = int(seconds) * 1000 + int(micros) // 1000
        await past(desk)
        await desk.park(desk.group(0, 1), 3)
        await past(desk)
        assert (await desk.begin("purge", failed_after_ms=border, dry_run=True)).count == 3
        begun = await desk.begin("purge", failed_before_ms=border)
        for owner in desk.owners:
            await owner.steps()
        done = await desk.get(begun)
        assert (done.state, done.settled) == (OperationState.DONE, 2)
        assert (await desk.begin("purge", dry_run=True)).count == 3


async def test_what_fails_after_its_beginning_is_left_alone(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_desk(store_server, tmp_path) as desk:
        await desk.park(desk.group(0))
        begun = await desk.begin("redrive")
        await past(desk)
        await desk.park(desk.group(0, 1))
        for owner in desk.owners:
            await owner.steps()
        assert (await desk.get(begun)).matched == 1


async def test_two_redrives_at_once_attempt_nothing_twice(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """F-27."""
    async with open_desk(store_server, tmp_path) as desk:
        for n in range(3):
            await desk.park(desk.group(0, n), 2)
        await past(desk)
        first, second = await asyncio.gather(desk.begin("redrive"), desk.begin("redrive"))
        for owner in desk.owners:
            await owner.steps()
        members = await desk.owners[0].deliver()
        assert len(members) == len(set(members)) == 6
        done = [await desk.get(each) for each in (first, second)]
        assert {each.state for each in done} == {OperationState.DONE}
        assert sorted(each.marked for each in done) == [0, 6]


async def test_redrive_with_a_rate_marks_two_seconds_ahead_and_more_when_these_are_settled(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """The owner delivers by the rate (`test_rates.py`); a cancel leaves little marked."""
    async with open_desk(store_server, tmp_path) as desk:
        for n in range(5):
            await desk.park(desk.group(0, n))
        await past(desk)
        begun = await desk.begin("redrive", rate=1.0)
        owner = desk.owners[0]
        assert desk.bench.operations.redrive_limit(owner.place, owner.terms.epoch) == (
            RedriveLimit("", None)
        ), "nothing goes before its owner has seen which redrives there are"
        for _ in range(3):
            assert 0 < await owner.step() <= 1
            assert (await desk.get(begun)).marked == 2
        limit = desk.bench.operations.redrive_limit(owner.place, owner.terms.epoch)
        assert limit == RedriveLimit(begun.id, 1.0)
        assert len(await owner.deliver()) == 2
        await owner.step()
        assert (await desk.get(begun)).marked == 4
        # What was marked goes on after a cancel, at the same rate
        await desk.bench.operations.cancel(PROJECT, "crm", begun.id)
        await owner.step()
        assert desk.bench.operations.redrive_limit(owner.place, owner.terms.epoch) == limit
        await owner.deliver()
        await owner.step()
        assert desk.bench.operations.redrive_limit(owner.place, owner.terms.epoch) is None


# -- Pausing, cancelling ---------------------------------------------------------------------


async def test_a_paused_operation_marks_nothing_and_goes_on_where_it_was(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_desk(store_server, tmp_path) as desk:
        for n in range(4):
            await desk.park(desk.group(0, n))
        await past(desk)
        operations = desk.bench.operations
        begun = await desk.begin("redrive")
        await desk.owners[0].step(credit=1)
        paused = await operations.pause(PROJECT, "crm", begun.id)
        assert (paused.state, paused.marked) == (OperationState.PAUSED, 1)
        assert await operations.pause(PROJECT, "crm", begun.id) == paused
        await desk.owners[0].steps()
        assert (await desk.get(begun)).marked == 1
        resumed = await operations.resume(PROJECT, "crm", begun.id)
        assert resumed.state is OperationState.BEGUN
        for owner in desk.owners:
            await owner.steps()
        assert (await desk.get(begun)).marked == 4


async def test_a_cancelled_operation_ends_and_what_it_marked_goes_on(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_desk(store_server, tmp_path) as desk:
        for n in range(2):
            await desk.park(desk.group(0, n))
        await past(desk)
        operations = desk.bench.operations
        begun = await desk.begin("redrive")
        await desk.owners[0].step(credit=1)
        cancelled = await operations.cancel(PROJECT, "crm", begun.id)
        assert (cancelled.state, cancelled.open) == (OperationState.CANCELLED, 1)
        assert cancelled.ended_ms > 0
        assert await desk.owners[0].step() == operations_module._IDLE_SECONDS
        assert len(await desk.owners[0].deliver()) == 1
        assert (await desk.get(begun)).state is OperationState.CANCELLED
        for verb in (operations.pause, operations.resume):
            with pytest.raises(OperationEndedError):
                await verb(PROJECT, "crm", begun.id)
        assert (await operations.cancel(PROJECT, "crm", begun.id)).ended_ms == cancelled.ended_ms


async def test_an_operation_that_is_none_is_not_found(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_desk(store_server, tmp_path) as desk:
        operations = desk.bench.operations
        for verb in (operations.get, operations.pause, operations.resume, operations.cancel):
            with pytest.raises(OperationNotFoundError):
                await verb(PROJECT, "crm", "}{ no such")


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"kind": "skip"}, "group"),
        ({"kind": "skip", "group": "g", "message": "m"}, "message"),
        ({"kind": "reset"}, "to"),
        ({"kind": "reset", "to": "end", "group": "g"}, "to"),
        ({"kind": "reset", "to": 2**52}, "to"),
        ({"kind": "redrive", "to": "end"}, "to"),
        ({"kind": "redrive", "group": "g", "failed_after_ms": 1}, "failed_after"),
        ({"kind": "redrive", "message": "m", "failed_before_ms": 1}, "message"),
        ({"kind": "purge", "failed_after_ms": 9, "failed_before_ms": 9}, "failed_before"),
    ],
    ids=str,
)
async def test_what_contradicts_itself_is_refused_by_field_and_nothing_is_entered(
    store_server: EmbeddedServer, tmp_path: Path, asked: dict[str, Any], field: str
) -> None:
    async with open_desk(store_server, tmp_path) as desk:
        with pytest.raises(InvalidInputError) as caught:
            await desk.bench.operations.begin(PROJECT, "crm", Asked(**asked))
        assert caught.value.field == field
        assert await desk.bench.keys("{sub.*:op*") == []


async def test_a_subscription_that_is_being_deleted_takes_no_operation(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_desk(store_server, tmp_path) as desk:
        lifecycle = desk.bench.subscriptions.lifecycle
        await lifecycle.change(PROJECT, "crm", lambda now: now.changed(state="deleting"))
        with pytest.raises(ConflictError):
            await desk.begin("redrive")


# -- Reset, lists, upkeep --------------------------------------------------------------------


async def test_a_reset_is_an_operation_that_is_done_when_the_call_returns(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_desk(store_server, tmp_path) as desk:
        await desk.bench.produce(10)
        await desk.bench.subscriptions.reset(PROJECT, "crm", "end")
        assert (await desk.begin("reset", to="beginning", dry_run=True)).count == 10
        operation = await desk.begin("reset", to="beginning")
        assert (operation.state, operation.shards_done) == (OperationState.DONE, 2)
        assert (await desk.bench.subscriptions.get(PROJECT, "crm")).incarnation == 3
        assert set((await desk.bench.positions(desk.subscription)).values()) == {0}


async def test_operations_are_listed_by_pages_the_newest_first(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_desk(store_server, tmp_path) as desk:
        ids = []
        for _ in range(3):
            ids.append((await desk.begin("redrive")).id)
            await past(desk)
        operations = desk.bench.operations
        page = await operations.list(PROJECT, "crm", limit=2)
        assert [each.id for each in page] == ids[:0:-1]
        rest = await operations.list(PROJECT, "crm", after=page[-1].id, limit=2)
        assert [each.id for each in rest] == ids[:1]


async def test_upkeep_tells_the_shards_that_were_not_told(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_desk(store_server, tmp_path) as desk:
        await desk.park(desk.group(0))
        await desk.park(desk.group(1))
        await past(desk)
        begun = await desk.begin("redrive")
        for owner in desk.owners:
            # As if it had died before.
            await desk.bench.store.call("DEL", owner.place.key("ops"))
            await owner.steps()
        assert (await desk.get(begun)).marked == 0
        await desk.bench.upkeep.mend()
        for owner in desk.owners:
            await owner.steps()
        assert (await desk.get(begun)).marked == 2


async def test_what_has_ended_is_forgotten_after_a_while(
    store_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_desk(store_server, tmp_path) as desk:
        operations = desk.bench.operations
        for n in range(3):
            await desk.park(desk.group(0, n))
            await desk.begin("purge", group=desk.group(0, n))
            await past(desk)
        await desk.begin("redrive")
        assert len(await operations.list(PROJECT, "crm", limit=10)) == 4
        monkeypatch.setattr(operations_module, "ENDED_MAX", 2)
        await desk.bench.upkeep.mend()
        assert len(await operations.list(PROJECT, "crm", limit=10)) == 3
        desk.bench.clock.shift_to(KEEP_MS + 60_000)
        await desk.bench.upkeep.mend()
        (left,) = await operations.list(PROJECT, "crm", limit=10)
        assert left.asked.kind == "redrive"
        fields = await desk.bench.store.call("HKEYS", desk.owners[0].place.key("ops"))
        assert {each.partition(b":")[0] for each in fields} == {left.id.encode()}


async def test_a_deleted_subscription_takes_its_operations_with_it(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_desk(store_server, tmp_path) as desk:
        begun = await desk.begin("redrive")
        await desk.bench.subscriptions.delete(PROJECT, "crm")
        await desk.bench.create()
        with pytest.raises(OperationNotFoundError):
            await desk.get(begun)
        assert await desk.bench.operations.list(PROJECT, "crm", limit=10) == []


# -- Deaths ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "by_group"),
    [
        ("redrive", True),
        pytest.param("redrive", False, marks=pytest.mark.slow),
        pytest.param("purge", True, marks=pytest.mark.slow),
        pytest.param("purge", False, marks=pytest.mark.slow),
    ],
)
def test_an_operation_that_dies_anywhere_is_done_once_or_never_was(
    store_server: EmbeddedServer, tmp_path: Path, kind: str, by_group: bool
) -> None:
    seen = set()

    async def parked(bench: SubscriptionBench) -> None:
        made = await bench.subscriptions.get(PROJECT, "crm")
        owner = await own(bench, made)
        await owner.park(_group_of_first_shard(), 3)
        await owner.park("another", 1)

    async def verb(bench: SubscriptionBench) -> None:
        group = _group_of_first_shard() if by_group else ""
        await bench.operations.begin(PROJECT, "crm", Asked(kind=kind, group=group))

    async def check(bench: SubscriptionBench) -> None:
        made = await bench.subscriptions.get(PROJECT, "crm")
        owners = [await own(bench, made, shard) for shard in range(made.shards)]
        for owner in owners:
            await owner.steps()
        members = await owners[0].deliver()
        await owners[0].steps()
        found = await bench.operations.list(PROJECT, "crm", limit=10)
        seen.add(len(found))
        wanted = (3 if by_group else 4) * len(found)
        assert [(each.state, each.settled) for each in found] == [
            (OperationState.DONE, wanted) for _ in found
        ]
        assert len(set(members)) == len(members) == (wanted if kind == "redrive" else 0)

    Deaths(tmp_path, store_server).run(verb, check, before=parked)
    assert seen == {0, 1}


def _group_of_first_shard() -> str:
    names = (f"g-{i}" for i in range(1000))
    return next(each for each in names if shards_of_key(each, [Router(3)], 2) == [0])
