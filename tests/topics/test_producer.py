"""Producing: every message once, in the order of its group, where the router says; switches too."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest

from tests.topics.conftest import Open, TopicBench
from waystation.envelope import Envelope
from waystation.errors import LogFullError, TopicBlockedError, TopicNotFoundError
from waystation.topics.producer import Receipt
from waystation.topics.routing import hash_of
from waystation.topics.topic import Topic, TopicOptions


async def check_everything(bench: TopicBench, topic: Topic, sent: dict[str, list[str]]) -> None:
    """Each message is there once, in the order of its group, in the router's partition."""
    found: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for index, partition, message in await bench.contents(topic):
        assert message.group is not None
        spread = topic.storage[index].spread
        assert partition == spread.partition_of(hash_of(message.group))
        found[message.group].append((index, message.id))
    # Contents come storage topic by storage topic, and a group has one partition in each.
    assert {group: [each[1] for each in ids] for group, ids in found.items()} == sent


async def test_a_message_is_where_its_receipt_says(open_bench: Open) -> None:
    async with open_bench() as bench:
        topic = await bench.topics.create("default", "orders", partitions=4)
        receipts = await bench.produce("orders", *(f"m{n}" for n in range(50)))
        for receipt in receipts:
            spread = topic.target.spread
            assert receipt.partition == spread.partition_of(hash_of(receipt.id))
            log = topic.log(topic.storage[receipt.storage])
            (entry,) = await bench.logs.read(log, receipt.partition, receipt.offset, limit=1)
            assert receipt.id.encode() in entry.payload
            assert receipt.ms == entry.ms
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
        await check_everything(bench, switched, {"g": ["a", "b", "c", "d"]})


async def test_a_producer_with_a_stale_pointer_goes_on_by_itself(open_bench: Open) -> None:
    async with open_bench() as one, open_bench() as other:
        await one.topics.create("default", "orders", partitions=4)
        await other.produce("orders", "a", group="g")
        await one.topics.add_storage_topic("default", "orders", 12)
        topic = await one.topics.switch_produce("default", "orders")
        # The other has read the topic before the switch, and believes it for two seconds.
        (receipt,) = await other.produce("orders", "b", group="g")
        assert receipt.storage == 1
        await check_everything(one, topic, {"g": ["a", "b"]})


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
        await check_everything(
            bench, topic, {group: [f"{group}-1", f"{group}-2"] for group in groups}
        )


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
        await check_everything(operator, topic, dict(sent))


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
        assert receipt.storage == 1
        assert (await bench.produce("orders", "c"))[0].storage == 1


async def test_a_full_partition_refuses_its_own_messages_only(open_bench: Open) -> None:
    async with open_bench() as bench:
        options = TopicOptions(max_bytes=2000)
        await bench.topics.create("default", "orders", partitions=2, options=options)
        ids = [f"m{n}" for n in range(40)]
        envelopes = [
            Envelope(id=each, project="default", data=b"x" * 100, group="a") for each in ids
        ]
        results = await bench.producer.produce("default", "orders", envelopes)
        assert all(isinstance(each, LogFullError) for each in results)
        small = [Envelope(id="s", project="default", data=b"", group=g) for g in ("a", "b", "c")]
        assert all(
            isinstance(each, Receipt)
            for each in await bench.producer.produce("default", "orders", small)
        )


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


async def test_a_large_batch_goes_in_calls_of_bounded_size(open_bench: Open) -> None:
    async with open_bench() as bench:
        topic = await bench.topics.create("default", "orders", partitions=1)
        receipts = await bench.produce("orders", *(f"m{n}" for n in range(1700)), group="g")
        assert [receipt.offset for receipt in receipts] == list(range(1700))
        await check_everything(bench, topic, {"g": [f"m{n}" for n in range(1700)]})
