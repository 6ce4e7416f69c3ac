"""Producing: every message once, in the order of its group, where the router says; switches too."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence

import pytest

from tests.helpers.interleavings import count_calls
from tests.topics.conftest import Open, TopicBench
from waystation.errors import (
    BusyError,
    LogFullError,
    LogSealedError,
    TopicBlockedError,
    TopicNotFoundError,
)
from waystation.logs.protocol import Appended
from waystation.logs.streams import StreamLogs
from waystation.messages.envelope import Envelope
from waystation.runtime.clock import Clock
from waystation.store.client import Store
from waystation.topics.dedup import Deduplicator
from waystation.topics.model import TopicDefinition
from waystation.topics.producer import Producer
from waystation.topics.router import Router, hash_of
from waystation.types.message import Receipt
from waystation.types.topic import TopicOptions


def hundreds(count: int) -> list[Envelope]:
    """Messages of one partition of a little more than a hundred bytes each."""
    return [
        Envelope(id=f"m{n:03}", project="default", data=b"x" * 100, group="g") for n in range(count)
    ]


async def test_a_message_is_where_its_receipt_says(open_bench: Open) -> None:
    async with open_bench() as bench:
        topic = await bench.topics.create("default", "orders", partitions=4)
        receipts = await bench.produce("orders", *(f"m{n}" for n in range(50)))
        for receipt in receipts:
            spread = topic.target.router
            assert receipt.partition == spread.partition_of(hash_of(receipt.id))
            log = topic.log(topic.storage[receipt.storage])
            batch = await bench.logs.read(log, receipt.partition, receipt.offset, limit=1)
            (entry,) = batch.entries()
            assert receipt.id.encode() in entry.payload
            assert receipt.time_ms == entry.ms
        assert [receipt.id for receipt in receipts] == [f"m{n}" for n in range(50)]
        assert {receipt.partition for receipt in receipts} == {0, 1, 2, 3}


async def test_a_switch_moves_production_and_seals_what_is_older(open_bench: Open) -> None:
    async with open_bench() as bench:
        await bench.topics.create("default", "orders", partitions=2)
        await bench.produce("orders", "a", "b", group="g")
        added = await bench.topics.add_storage_topic("default", "orders", 10)
        assert (added.produce_pointer, added.storage[1].factor) == (0, 5)
        assert (await bench.produce("orders", "c", group="g"))[0].storage == 0
        switched = await bench.topics.switch_produce("default", "orders")
        assert switched.produce_pointer == 1
        assert (await bench.produce("orders", "d", group="g"))[0].storage == 1
        # At the last one it stays.
        assert (await bench.topics.switch_produce("default", "orders")).produce_pointer == 1
        await bench.check(switched, {"g": ["a", "b", "c", "d"]})


async def test_a_producer_with_a_stale_pointer_goes_on_by_itself(open_bench: Open) -> None:
    async with open_bench() as one, open_bench() as other:
        await one.topics.create("default", "orders", partitions=4)
        await other.produce("orders", "a", group="g")
        await one.topics.add_storage_topic("default", "orders", 12)
        topic = await one.topics.switch_produce("default", "orders")
        # The other has read the topic before the switch, and believes it for two seconds.
        (receipt,) = await other.produce("orders", "b", group="g")
        assert receipt.storage == 1
        await one.check(topic, {"g": ["a", "b"]})


async def test_a_switch_that_died_half_way_is_finished_by_whoever_meets_it(
    open_bench: Open,
) -> None:
    async with open_bench() as bench:
        await bench.topics.create("default", "orders", partitions=4)
        groups = [f"g{n}" for n in range(16)]
        for group in groups:
            await bench.produce("orders", f"{group}-1", group=group)
        topic = await bench.topics.add_storage_topic("default", "orders", 8)
        # Died after its first seal.
        await bench.logs.seal(topic.log(topic.target), 2, 1)
        for group in groups:
            await bench.produce("orders", f"{group}-2", group=group)
        topic = await bench.topics.get("default", "orders")
        assert topic.produce_pointer == 1
        for partition in range(4):
            state = await bench.logs.state(topic.log(topic.storage[0]), partition)
            assert state.sealed == 1
        await bench.check(topic, {group: [f"{group}-1", f"{group}-2"] for group in groups})


async def test_order_holds_while_many_produce_and_storage_topics_are_added_and_switched(
    open_bench: Open,
) -> None:
    sent: dict[str, list[str]] = defaultdict(list)
    async with open_bench() as one, open_bench() as other, open_bench() as operator:
        await one.topics.create("default", "orders", partitions=2)
        done = asyncio.Event()

        async def send(bench: TopicBench, name: str) -> None:
            """Sends without waiting, so that several batches are under way at a seal."""
            under_way: list[asyncio.Task[list[Receipt]]] = []
            number = 0
            while not done.is_set() or number < 100:
                ids = [f"{name}-{number + i}" for i in range(3)]
                number += 3
                sent[name] += ids
                under_way.append(asyncio.ensure_future(bench.produce("orders", *ids, group=name)))
                if len(under_way) > 8:
                    await under_way.pop(0)
                await asyncio.sleep(0)
            await asyncio.gather(*under_way)

        async def operate() -> None:
            for partitions in (4, 8, 12, 24, 5, 10):
                await operator.topics.add_storage_topic("default", "orders", partitions)
                await asyncio.sleep(0.02)
                await operator.topics.switch_produce("default", "orders")
            done.set()

        await asyncio.gather(
            operate(), *(send(bench, f"g{n}") for n, bench in enumerate([one, other] * 4))
        )
        topic = await operator.topics.get("default", "orders")
        assert topic.produce_pointer == 6
        await operator.check(topic, dict(sent))


class HeldLogs(StreamLogs):
    """The real logs; appends to some partitions are held up on their way."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.held: dict[tuple[str, int], asyncio.Event] = {}
        self.arrived = asyncio.Event()

    async def append(self, log: str, partition: int, payloads: Sequence[bytes]) -> Appended:
        if gate := self.held.get((log, partition)):
            self.arrived.set()
            await gate.wait()
        return await super().append(log, partition, payloads)


def held_producer(bench: TopicBench) -> HeldLogs:
    """Gives the bench a producer whose appends can be held up."""
    logs = HeldLogs(bench.store)
    deduplication = Deduplicator(bench.store, clock=Clock())
    bench.producer = Producer(bench.topics, logs, deduplication)
    return logs


async def test_a_message_waits_for_an_earlier_one_that_is_under_way_to_the_older_storage_topic(
    open_bench: Open,
) -> None:
    async with open_bench() as bench:
        topic = await bench.topics.create("default", "orders", partitions=1)
        logs = held_producer(bench)
        # One that has another partition after the switch, and so another lane.
        group = next(name for name in "abcdef" if Router(2, 2).partition_of(hash_of(name)) == 1)
        await bench.produce("orders", "a", group=group)
        gate = logs.held[topic.log(topic.target), 0] = asyncio.Event()
        first = asyncio.ensure_future(bench.produce("orders", "b", group=group))
        await logs.arrived.wait()
        # The switch is done, and this process knows it, before the store has heard of b.
        await bench.topics.add_storage_topic("default", "orders", 2)
        topic = await bench.topics.switch_produce("default", "orders")
        second = asyncio.ensure_future(bench.produce("orders", "c", group=group))
        await asyncio.wait([second], timeout=0.1)
        assert not second.done()
        gate.set()
        await asyncio.wait_for(asyncio.gather(first, second), 10)
        await bench.check(topic, {group: ["a", "b", "c"]})


async def test_a_refusal_waits_for_what_is_under_way_to_other_partitions(open_bench: Open) -> None:
    async with open_bench() as bench:
        topic = await bench.topics.create("default", "orders", partitions=2)
        logs = held_producer(bench)
        spread = topic.target.router
        groups = {spread.partition_of(hash_of(name)): name for name in ("a", "b", "c", "d", "e")}
        await bench.topics.add_storage_topic("default", "orders", 2)
        gate = logs.held[topic.log(topic.target), 1] = asyncio.Event()
        slow = [asyncio.ensure_future(bench.produce("orders", "1", group=groups[1]))]
        await logs.arrived.wait()
        slow.append(asyncio.ensure_future(bench.produce("orders", "2", group=groups[1])))
        await bench.logs.seal(topic.log(topic.target), 0, 1)
        refused = asyncio.ensure_future(bench.produce("orders", "x", group=groups[0]))
        await asyncio.wait([refused], timeout=0.1)
        assert not refused.done()
        gate.set()
        await asyncio.wait_for(asyncio.gather(*slow, refused), 10)
        topic = await bench.topics.get("default", "orders")
        await bench.check(topic, {groups[1]: ["1", "2"], groups[0]: ["x"]})
        assert slow[0].result()[0].storage == 0


async def test_two_who_switch_at_once_move_the_pointer_once_each_or_together(
    open_bench: Open,
) -> None:
    async with open_bench() as one, open_bench() as other:
        await one.topics.create("default", "orders", partitions=2)
        for _ in range(3):
            await one.topics.add_storage_topic("default", "orders", 2)
        await asyncio.gather(
            one.topics.switch_produce("default", "orders"),
            other.topics.switch_produce("default", "orders"),
        )
        topic = await one.topics.get("default", "orders")
        assert topic.produce_pointer in (1, 2)
        for index in range(topic.produce_pointer):
            state = await one.logs.state(topic.log(topic.storage[index]), 0)
            assert state.sealed == index + 1


async def test_a_caller_that_gives_up_costs_others_nothing(open_bench: Open) -> None:
    async with open_bench() as bench:
        await bench.topics.create("default", "orders", partitions=1)
        await bench.produce("orders", "first")
        topic = await bench.topics.add_storage_topic("default", "orders", 1)
        await bench.logs.seal(topic.log(topic.target), 0, 1)
        quitter = asyncio.ensure_future(bench.produce("orders", "a"))
        stayer = asyncio.ensure_future(bench.produce("orders", "b"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        quitter.cancel()
        (receipt,) = await asyncio.wait_for(stayer, 10)
        assert (receipt.storage, receipt.offset) == (1, 1)
        assert (await bench.produce("orders", "c"))[0].storage == 1


@pytest.mark.parametrize("turns", range(6))
async def test_what_a_caller_handed_over_is_produced_when_it_gives_up_and_nobody_follows(
    open_bench: Open, turns: int
) -> None:
    async with open_bench() as bench:
        await bench.topics.create("default", "orders", partitions=1)
        await bench.produce("orders", "first")
        topic = await bench.topics.add_storage_topic("default", "orders", 1)
        await bench.logs.seal(topic.log(topic.target), 0, 1)
        quitter = asyncio.ensure_future(bench.produce("orders", "a"))
        for _ in range(turns + 1):
            await asyncio.sleep(0)
        quitter.cancel()
        async with asyncio.timeout(10):
            while not await bench.logs.read(topic.log(topic.storage[1]), 0, 0, limit=1):
                await asyncio.sleep(0.005)


async def test_many_small_requests_share_calls_and_keep_their_order(open_bench: Open) -> None:
    async with open_bench() as bench:
        topic = await bench.topics.create("default", "orders", partitions=4)
        await bench.produce("orders", "first", group="g0")
        calls = count_calls(bench.store)
        groups = [f"g{n % 8}" for n in range(200)]
        receipts = await asyncio.gather(
            *(bench.produce("orders", f"m{n}", group=group) for n, group in enumerate(groups))
        )
        assert [receipt.id for (receipt,) in receipts] == [f"m{n}" for n in range(200)]
        assert calls() <= 4
        sent: dict[str, list[str]] = defaultdict(list, {"g0": ["first"]})
        for n, group in enumerate(groups):
            sent[group].append(f"m{n}")
        await bench.check(topic, sent)


async def test_nobody_is_refused_for_what_another_brought(open_bench: Open) -> None:
    async with open_bench() as bench:
        options = TopicOptions(max_bytes=1000)
        await bench.topics.create("default", "orders", partitions=1, options=options)

        async def produce(message_id: str, size: int) -> object:
            envelope = Envelope(id=message_id, project="default", data=b"x" * size)
            return (await bench.producer.produce("default", "orders", [envelope]))[0]

        results = await asyncio.gather(
            produce("a", 300), produce("b", 900), produce("c", 300), produce("d", 1)
        )
        assert [isinstance(each, Receipt) for each in results] == [True, False, True, True]
        assert isinstance(results[1], LogFullError)
        offsets = [each.offset for each in results if isinstance(each, Receipt)]
        assert offsets == [0, 1, 2]


async def test_more_than_may_wait_is_refused_and_nothing_of_it_produced(
    open_bench: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waystation.topics.producer.PENDING_MESSAGES_MAX", 5)
    async with open_bench() as bench:
        topic = await bench.topics.create("default", "orders", partitions=1)
        first = asyncio.ensure_future(bench.produce("orders", "a", "b", "c"))
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await bench.produce("orders", "d", "e", "f")
        await first
        await bench.produce("orders", *"ghijkl")
        assert len(await bench.contents(topic)) == 9


async def test_what_waits_is_bounded_over_all_topics_of_a_process(
    open_bench: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waystation.topics.producer.PENDING_BYTES_MAX", 1000)
    async with open_bench() as bench:
        for name in ("one", "two"):
            await bench.topics.create("default", name, partitions=1)
        first = asyncio.ensure_future(bench.producer.produce("default", "one", hundreds(6)))
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await bench.producer.produce("default", "two", hundreds(6))
        await first
        assert len(await bench.producer.produce("default", "two", hundreds(6))) == 6


async def test_a_seal_of_a_topic_that_was_purged_ends_nothing_of_the_one_that_has_its_name_now(
    open_bench: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_bench() as bench, open_bench() as other:
        old = await bench.topics.create("default", "orders", partitions=1)
        await bench.produce("orders", "a")
        await bench.logs.seal(old.log(old.target), 0, 1)
        get = bench.topics.get

        async def late(project: str, name: str) -> TopicDefinition:
            monkeypatch.setattr(bench.topics, "get", get)
            # The producer was refused, and comes to look at the topic only now.
            await other.topics.delete(project, name)
            await other.topics.purge(project, name)
            await other.topics.create(project, name, partitions=1)
            return await get(project, name)

        monkeypatch.setattr(bench.topics, "get", late)
        (receipt,) = await bench.produce("orders", "b")
        new = await other.topics.get("default", "orders")
        assert [each.id for _, _, each in await other.contents(new)] == ["b"]
        assert (receipt.storage, receipt.offset) == (0, 0)
        assert (await other.logs.state(new.log(new.target), 0)).sealed is None


async def test_a_topic_that_is_sealed_with_nothing_behind_it_says_so_and_can_be_mended(
    open_bench: Open,
) -> None:
    async with open_bench() as bench:
        topic = await bench.topics.create("default", "orders", partitions=2)
        for partition in range(2):
            await bench.logs.seal(topic.log(topic.target), partition, 1)
        envelope = Envelope(id="a", project="default", data=b"")
        (result,) = await bench.producer.produce("default", "orders", [envelope])
        assert isinstance(result, LogSealedError)
        assert "has no further storage topic" in str(result)
        await bench.topics.add_storage_topic("default", "orders", 2)
        await bench.topics.switch_produce("default", "orders")
        assert (await bench.produce("orders", "a"))[0].storage == 1


async def test_logs_that_were_lost_are_made_again(open_bench: Open) -> None:
    async with open_bench() as bench:
        topic = await bench.topics.create("default", "orders", partitions=2)
        await bench.produce("orders", "a", "b", "c")
        await bench.logs.delete(topic.log(topic.target), 2)
        receipts = await bench.produce("orders", *(f"n{n}" for n in range(20)))
        assert sorted({receipt.partition for receipt in receipts}) == [0, 1]
        assert len(await bench.contents(topic)) == 20


async def test_a_switch_of_many_partitions_takes_few_calls_for_each(open_bench: Open) -> None:
    async with open_bench() as bench, open_bench() as other:
        await bench.topics.create("default", "orders", partitions=512)
        await other.produce("orders", "a", group="g")
        await bench.topics.add_storage_topic("default", "orders", 1024)
        calls = count_calls(bench.store)
        await bench.topics.switch_produce("default", "orders")
        # A look whether both logs are there, and a seal.
        assert calls() <= 512 + 512 + 1024 + 10
        calls = count_calls(other.store)
        assert (await other.produce("orders", "b", group="g"))[0].storage == 1
        # The stale producer reads the topic, and nothing of its partitions.
        assert calls() <= 5


async def test_a_full_partition_refuses_its_own_messages_only(open_bench: Open) -> None:
    async with open_bench() as bench:
        options = TopicOptions(max_bytes=2000)
        await bench.topics.create("default", "orders", partitions=2, options=options)
        partition_of = Router(2).partition_of
        there, elsewhere = (
            next(name for name in "abcdef" if partition_of(hash_of(name)) == partition)
            for partition in range(2)
        )
        results = await bench.producer.produce(
            "default",
            "orders",
            [
                Envelope(id=name, project="default", data=b"x" * 1500, group=group)
                for name, group in (("a", there), ("b", there), ("c", elsewhere))
            ],
        )
        assert [type(each) for each in results] == [Receipt, LogFullError, Receipt]
        # What has room finds it, after all that was refused.
        assert (await bench.produce("orders", "s", group=there))[0].offset == 1


@pytest.mark.parametrize("dedup_seconds", [0, 60])
async def test_a_batch_that_is_larger_than_its_partition_goes_in_as_far_as_there_is_room(
    open_bench: Open, dedup_seconds: int
) -> None:
    async with open_bench() as bench:
        options = TopicOptions(max_bytes=2000, dedup_seconds=dedup_seconds)
        topic = await bench.topics.create("default", "orders", partitions=1, options=options)
        results = await bench.producer.produce("default", "orders", hundreds(20))
        kept = [type(each) for each in results].index(LogFullError)
        assert [type(each) for each in results] == [Receipt] * kept + [LogFullError] * (20 - kept)
        assert "stores at most 2,000 bytes" in str(results[-1])
        state = await bench.logs.state(topic.log(topic.target), 0)
        size = state.bytes // kept
        assert state.end == kept
        assert state.bytes <= 2000 < state.bytes + size


async def test_a_dropping_topic_stays_within_its_limit_however_much_comes_at_once(
    open_bench: Open,
) -> None:
    async with open_bench() as bench:
        options = TopicOptions(max_bytes=2000, full_policy="drop_and_count")
        topic = await bench.topics.create("default", "orders", partitions=1, options=options)
        results = await bench.producer.produce("default", "orders", hundreds(100))
        assert [type(each) for each in results] == [Receipt] * 100
        state = await bench.logs.state(topic.log(topic.target), 0)
        assert state.end == 100
        assert state.bytes <= 2000
        # A message that is larger than the limit is the one that is kept.
        large = Envelope(id="large", project="default", data=b"x" * 3000)
        await bench.producer.produce("default", "orders", [large])
        state = await bench.logs.state(topic.log(topic.target), 0)
        assert (state.first, state.end) == (100, 101)


async def test_a_topic_that_is_unknown_blocked_or_deleted_takes_nothing(open_bench: Open) -> None:
    async with open_bench() as bench:
        with pytest.raises(TopicNotFoundError):
            await bench.produce("orders", "a")
        await bench.topics.create("default", "orders", partitions=1)
        await bench.topics.block("default", "orders")
        with pytest.raises(TopicBlockedError):
            await bench.produce("orders", "a")
        await bench.topics.unblock("default", "orders")
        await bench.produce("orders", "b")
        await bench.topics.delete("default", "orders")
        with pytest.raises(TopicNotFoundError):
            await bench.produce("orders", "c")
        await bench.topics.restore("default", "orders")
        assert (await bench.produce("orders", "d"))[0].offset == 1


async def test_a_large_batch_goes_in_calls_of_bounded_size(open_bench: Open) -> None:
    async with open_bench() as bench:
        topic = await bench.topics.create("default", "orders", partitions=1)
        receipts = await bench.produce("orders", *(f"m{n}" for n in range(1700)), group="g")
        assert [receipt.offset for receipt in receipts] == list(range(1700))
        await bench.check(topic, {"g": [f"m{n}" for n in range(1700)]})


async def test_what_comes_behind_a_refused_part_of_its_batch_is_refused_too(
    open_bench: Open,
) -> None:
    """Else whoever sends the refused part again has it behind what came later."""
    async with open_bench() as bench:
        options = TopicOptions(max_bytes=20_000)
        topic = await bench.topics.create("default", "orders", partitions=1, options=options)
        # Each goes in a call of its own: the second has no room, the third would have.
        first, second, third = (
            Envelope(id=name, project="default", data=b"x" * size)
            for name, size in (("first", 9000), ("second", 15_000), ("third", 6000))
        )
        small = Envelope(id="small", project="default", data=b"x")

        theirs, others = await asyncio.gather(
            bench.producer.produce("default", "orders", [first, second, third]),
            bench.producer.produce("default", "orders", [small]),
        )

        assert [type(result) for result in theirs] == [Receipt, LogFullError, LogFullError]
        assert [type(result) for result in others] == [Receipt], "nobody else suffers"
        kept = [each.id for _, _, each in await bench.contents(topic)]
        assert kept == ["first", "small"]


async def test_produce_by_100_callers_to_full_partition_costs_one_append_each(
    open_bench: Open,
) -> None:
    async with open_bench() as bench:
        options = TopicOptions(max_bytes=20_000)
        await bench.topics.create("default", "orders", partitions=1, options=options)
        filled = await bench.producer.produce("default", "orders", hundreds(300))
        assert isinstance(filled[-1], LogFullError)
        calls = count_calls(bench.store)

        results = await asyncio.gather(
            *(bench.producer.produce("default", "orders", [envelope]) for envelope in hundreds(100))
        )

        assert {type(result) for (result,) in results} == {LogFullError}
        assert calls() <= 103


async def test_produce_after_unexpected_error_during_switch_succeeds(
    open_bench: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_bench() as bench:
        await bench.topics.create("default", "orders", partitions=1)
        await bench.produce("orders", "a", group="g")
        topic = await bench.topics.add_storage_topic("default", "orders", 1)
        await bench.logs.seal(topic.log(topic.target), 0, 1)

        async def fail(project: str, name: str) -> TopicDefinition:
            raise RuntimeError("unexpected")

        with monkeypatch.context() as patch:
            patch.setattr(bench.topics, "get", fail)
            with pytest.raises(RuntimeError):
                await bench.produce("orders", "b", group="g")

        (receipt,) = await asyncio.wait_for(bench.produce("orders", "c", group="g"), 10)
        assert receipt.storage == 1


async def test_produce_during_slow_append_continues_on_other_partition(open_bench: Open) -> None:
    async with open_bench() as bench:
        topic = await bench.topics.create("default", "orders", partitions=2)
        logs = held_producer(bench)
        router = topic.target.router
        groups = {router.partition_of(hash_of(name)): name for name in ("a", "b", "c", "d", "e")}
        await bench.produce("orders", "1", group=groups[0])
        gate = logs.held[topic.log(topic.target), 0] = asyncio.Event()
        slow = asyncio.ensure_future(bench.produce("orders", "2", group=groups[0]))
        await logs.arrived.wait()

        # The topic is read again every two seconds, and it has not changed.
        await asyncio.sleep(2.1)
        await asyncio.wait_for(bench.produce("orders", "3", group=groups[1]), 5)

        assert not slow.done()
        gate.set()
        await slow
