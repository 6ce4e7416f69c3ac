"""Deduplicator: an id is found again within its window, over switches, whatever clocks say."""

from __future__ import annotations

import pytest

from tests.topics.conftest import Open
from waystation.logs import keys
from waystation.runtime.clock import Clock
from waystation.topics.dedup import Deduplicator
from waystation.topics.producer import Producer
from waystation.types.topic import TopicOptions


async def test_deduplication_finds_an_id_again_also_over_switches(open_bench: Open) -> None:
    async with open_bench() as bench, open_bench() as other:
        options = TopicOptions(dedup_seconds=60)
        await bench.topics.create("default", "orders", partitions=2, options=options)
        first = await bench.produce("orders", "a", "b", "a", group="g")
        assert [each.duplicate for each in first] == [False, False, True]
        assert (first[0].partition, first[0].offset) == (first[2].partition, first[2].offset)
        # Another group is another scope.
        assert not (await bench.produce("orders", "a", group="h"))[0].duplicate
        for partitions in (4, 6):
            await bench.topics.add_storage_topic("default", "orders", partitions)
            await bench.topics.switch_produce("default", "orders")
            again = await other.produce("orders", "a", f"n{partitions}", group="g")
            assert [each.duplicate for each in again] == [True, False]
            assert (again[0].storage, again[0].offset) == (0, first[0].offset)
        assert (await bench.produce("orders", "n4", group="g"))[0].storage == 1


@pytest.mark.parametrize("hours", [-5, 5])
async def test_deduplication_goes_by_the_store_s_time_whatever_a_process_s_clock_says(
    open_bench: Open, hours: int
) -> None:
    class WrongClock(Clock):
        def now_ms(self) -> int:
            return super().now_ms() + hours * 3_600_000

    async with open_bench() as bench:
        wrong = Deduplicator(bench.store, clock=WrongClock())
        bench.producer = Producer(bench.topics, bench.logs, wrong)
        options = TopicOptions(dedup_seconds=60)
        topic = await bench.topics.create("default", "orders", partitions=2, options=options)
        await bench.produce("orders", "a", "b", group="g")
        await bench.topics.add_storage_topic("default", "orders", 4)
        await bench.topics.switch_produce("default", "orders")

        again = await bench.produce("orders", "a", "c", group="g")
        assert [each.duplicate for each in again] == [True, False]

        # Sealed longer ago than any id is remembered: it is not asked any more.
        for partition in range(2):
            head = keys.head(topic.log(topic.target), partition)
            await bench.store.call("HSET", head, "sealed_ms", "1")
        later = Deduplicator(bench.store, clock=WrongClock())
        bench.producer = Producer(bench.topics, bench.logs, later)
        assert not (await bench.produce("orders", "b", group="g"))[0].duplicate


async def test_ids_with_and_without_a_group_are_never_taken_for_one_another(
    open_bench: Open,
) -> None:
    async with open_bench() as bench:
        options = TopicOptions(dedup_seconds=60)
        await bench.topics.create("default", "orders", partitions=1, options=options)
        await bench.produce("orders", "b", group="a")
        assert not (await bench.produce("orders", "1:a:b"))[0].duplicate
        await bench.produce("orders", ":b", group="a:")
        assert not (await bench.produce("orders", "b", group="a::"))[0].duplicate


async def test_a_window_of_less_than_a_millisecond_is_one(open_bench: Open) -> None:
    async with open_bench() as bench:
        options = TopicOptions(dedup_seconds=0.0001)
        topic = await bench.topics.create("default", "orders", partitions=1, options=options)
        await bench.produce("orders", "a", group="g")
        await bench.produce("orders", "b", group="g")
        await bench.check(topic, {"g": ["a", "b"]})


async def test_duplicates_have_their_receipts_also_where_the_partition_is_full(
    open_bench: Open,
) -> None:
    async with open_bench() as bench:
        options = TopicOptions(dedup_seconds=60)
        topic = await bench.topics.create("default", "orders", partitions=1, options=options)
        (first,) = await bench.produce("orders", "a")
        full = TopicOptions(dedup_seconds=60, max_bytes=1)
        await bench.topics.change_options("default", "orders", full, version=topic.version)
        (again,) = await bench.produce("orders", "a")
        assert (again.duplicate, again.offset) == (True, first.offset)
