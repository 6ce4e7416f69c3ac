"""Deduplicator: finds known ids within the window, over switches and with wrong clocks."""

from __future__ import annotations

import pytest

from tests.topics.conftest import OpenProcess, TopicProcess
from waystation.errors import StoreDamagedError
from waystation.logs import keys
from waystation.messages.envelope import Envelope
from waystation.runtime.clock import Clock
from waystation.topics.dedup import Deduplicator
from waystation.topics.producer import Producer
from waystation.types.topic import TopicOptions


async def test_dedup_of_known_id_returns_first_receipt_after_switches(
    process: TopicProcess,
    open_process: OpenProcess,
) -> None:
    async with open_process() as other:
        options = TopicOptions(dedup_seconds=60)
        await process.topics.create("default", "orders", partitions=2, options=options)
        first = await process.produce("orders", "a", "b", "a", group="g")
        assert [each.duplicate for each in first] == [False, False, True]
        assert (first[0].partition, first[0].offset) == (first[2].partition, first[2].offset)
        # The same id in another group is another message.
        assert not (await process.produce("orders", "a", group="h"))[0].duplicate
        for partitions in (4, 6):
            await process.topics.add_storage_topic("default", "orders", partitions)
            await process.topics.switch_produce("default", "orders")
            again = await other.produce("orders", "a", f"n{partitions}", group="g")
            assert [each.duplicate for each in again] == [True, False]
            assert (again[0].storage, again[0].offset) == (0, first[0].offset)
        assert (await process.produce("orders", "n4", group="g"))[0].storage == 1


@pytest.mark.parametrize("hours", [-5, 5])
async def test_dedup_with_wrong_process_clock_uses_store_time(
    open_process: OpenProcess, hours: int
) -> None:
    class WrongClock(Clock):
        def now_ms(self) -> int:
            return super().now_ms() + hours * 3_600_000

    async with open_process() as process:
        wrong = Deduplicator(process.store, clock=WrongClock())
        process.producer = Producer(process.topics, process.logs, wrong)
        options = TopicOptions(dedup_seconds=60)
        topic = await process.topics.create("default", "orders", partitions=2, options=options)
        await process.produce("orders", "a", "b", group="g")
        await process.topics.add_storage_topic("default", "orders", 4)
        await process.topics.switch_produce("default", "orders")

        again = await process.produce("orders", "a", "c", group="g")
        assert [each.duplicate for each in again] == [True, False]

        # All ids of the sealed storage topic have expired, so the deduplicator skips it.
        for partition in range(2):
            head = keys.head(topic.log(topic.target), partition)
            await process.store.call("HSET", head, "sealed_ms", "1")
        later = Deduplicator(process.store, clock=WrongClock())
        process.producer = Producer(process.topics, process.logs, later)
        assert not (await process.produce("orders", "b", group="g"))[0].duplicate


async def test_dedup_of_similar_ids_and_groups_keeps_them_apart(
    process: TopicProcess,
) -> None:
    options = TopicOptions(dedup_seconds=60)
    await process.topics.create("default", "orders", partitions=1, options=options)
    await process.produce("orders", "b", group="a")
    assert not (await process.produce("orders", "1:a:b"))[0].duplicate
    await process.produce("orders", ":b", group="a:")
    assert not (await process.produce("orders", "b", group="a::"))[0].duplicate


async def test_dedup_with_window_below_one_millisecond_produces_messages(
    process: TopicProcess,
) -> None:
    options = TopicOptions(dedup_seconds=0.0001)
    topic = await process.topics.create("default", "orders", partitions=1, options=options)
    await process.produce("orders", "a", group="g")
    await process.produce("orders", "b", group="g")
    await process.check(topic, {"g": ["a", "b"]})


async def test_dedup_of_duplicate_in_full_partition_returns_receipt(
    process: TopicProcess,
) -> None:
    options = TopicOptions(dedup_seconds=60)
    topic = await process.topics.create("default", "orders", partitions=1, options=options)
    (first,) = await process.produce("orders", "a")
    full = TopicOptions(dedup_seconds=60, max_bytes=1)
    await process.topics.change_options("default", "orders", full, version=topic.version)
    (again,) = await process.produce("orders", "a")
    assert (again.duplicate, again.offset) == (True, first.offset)


@pytest.mark.parametrize("switched", [False, True])
async def test_dedup_with_invalid_entry_of_an_id_names_its_key_and_appends_nothing(
    process: TopicProcess, switched: bool
) -> None:
    options = TopicOptions(dedup_seconds=60)
    topic = await process.topics.create("default", "orders", partitions=1, options=options)
    await process.produce("orders", "a")
    if switched:
        await process.topics.add_storage_topic("default", "orders", 1)
        await process.topics.switch_produce("default", "orders")
    (key,) = await process.store.call("KEYS", "*:log:id:*")
    await process.store.call("SET", key, "soon")

    envelopes = [Envelope(id=each, project="default", data=b"", group=None) for each in ("b", "a")]
    results = await process.producer.produce("default", "orders", envelopes)

    assert all(isinstance(each, StoreDamagedError) for each in results)
    assert results[1].key == key.decode()  # type: ignore[union-attr]
    topic = await process.topics.get_newest("default", "orders")
    assert [message.id for _, _, message in await process.contents(topic)] == ["a"]
