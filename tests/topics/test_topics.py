"""Topics: made, grown, switched, blocked, deleted, restored; the catalogue has the truth."""

from __future__ import annotations

import asyncio

import pytest

from tests.topics.conftest import Open
from waystation.errors import ConflictError, InvalidInputError, TopicNotFoundError
from waystation.topics.topic import TopicOptions
from waystation.topics.topics import Topics

BAD_NAMES = ["", "{", "a}b", "a*", "a:b", "..", "a\0b", "A", "x" * 300, "-a", "ä", "a b", "a.b"]


async def test_a_topic_has_four_partitions_unless_told_otherwise(open_bench: Open) -> None:
    async with open_bench() as bench:
        topic = await bench.topics.create("default", "orders")
        assert [storage.partitions for storage in topic.storage] == [4]
        assert (topic.version, topic.produce_pointer, topic.state) == (1, 0, "active")
        assert await bench.topics.get("default", "orders") == topic


@pytest.mark.parametrize("name", BAD_NAMES)
async def test_a_name_that_could_break_out_of_keys_is_refused(open_bench: Open, name: str) -> None:
    async with open_bench() as bench:
        with pytest.raises(InvalidInputError):
            await bench.topics.create("default", name)
        with pytest.raises(InvalidInputError):
            await bench.topics.get("default", name)
        assert await bench.store.call("DBSIZE") == 0


@pytest.mark.parametrize("partitions", [0, -1, 1025, 10**9])
async def test_a_count_of_partitions_has_bounds(open_bench: Open, partitions: int) -> None:
    async with open_bench() as bench:
        with pytest.raises(InvalidInputError, match="partitions"):
            await bench.topics.create("default", "orders", partitions=partitions)
        await bench.topics.create("default", "orders")
        with pytest.raises(InvalidInputError, match="partitions"):
            await bench.topics.add_storage_topic("default", "orders", partitions)


async def test_the_rule_of_partition_counts_is_an_error_only_where_it_is_strict(
    open_bench: Open,
) -> None:
    async with open_bench() as bench:
        await bench.topics.create("default", "seven", partitions=7)
        strict = Topics(
            bench.catalogue, bench.store, bench.logs, clock=bench.topics._clock, strict=True
        )
        with pytest.raises(InvalidInputError, match="evenly"):
            await strict.create("default", "orders", partitions=7)
        await strict.create("default", "orders", partitions=6)


async def test_of_two_who_create_a_topic_one_does(open_bench: Open) -> None:
    async with open_bench() as one, open_bench() as other:
        results = await asyncio.gather(
            one.topics.create("default", "orders"),
            other.topics.create("default", "orders"),
            return_exceptions=True,
        )
        assert [type(each) for each in results if isinstance(each, Exception)] == [ConflictError]


async def test_a_change_is_made_to_the_version_it_was_meant_for(open_bench: Open) -> None:
    async with open_bench() as bench:
        topic = await bench.topics.create("default", "orders")
        options = TopicOptions(max_bytes=10)
        changed = await bench.topics.change_options(
            "default", "orders", options, version=topic.version
        )
        assert (changed.version, changed.options) == (2, options)
        with pytest.raises(ConflictError, match="version 2"):
            await bench.topics.change_options("default", "orders", options, version=1)


async def test_storage_topics_that_two_add_at_once_are_both_there(open_bench: Open) -> None:
    async with open_bench() as one, open_bench() as other:
        await one.topics.create("default", "orders", partitions=2)
        await asyncio.gather(
            *(
                bench.topics.add_storage_topic("default", "orders", partitions)
                for bench, partitions in zip([one, other] * 3, (4, 6, 8, 10, 3, 9), strict=True)
            )
        )
        topic = await one.topics.get("default", "orders")
        assert sorted(each.partitions for each in topic.storage) == [2, 3, 4, 6, 8, 9, 10]
        assert [each.number for each in topic.storage] == list(range(7))
        for storage in topic.storage:
            for partition in range(storage.partitions):
                assert (await one.logs.state(topic.log(storage), partition)).end == 0


async def test_another_process_sees_a_change_by_itself(open_bench: Open) -> None:
    async with open_bench() as one, open_bench() as other:
        await one.topics.create("default", "orders")
        assert (await other.topics.get("default", "orders")).version == 1
        await one.topics.block("default", "orders")
        assert (await other.topics.get("default", "orders")).state == "blocked"


async def test_a_store_that_lost_its_working_copy_gets_it_from_the_catalogue(
    open_bench: Open,
) -> None:
    async with open_bench() as one, open_bench() as other:
        topic = await one.topics.create("default", "orders")
        await one.store.call("DEL", "{t.default.orders}:topic")
        assert await other.topics.get("default", "orders") == topic
        assert await one.store.call("HGET", "{t.default.orders}:topic", "version") == b"1"


async def test_a_deleted_topic_is_gone_until_it_is_restored(open_bench: Open) -> None:
    async with open_bench() as bench:
        await bench.topics.create("default", "orders", partitions=1)
        await bench.produce("orders", "a")
        await bench.topics.delete("default", "orders")
        with pytest.raises(TopicNotFoundError):
            await bench.topics.get("default", "orders")
        with pytest.raises(TopicNotFoundError):
            await bench.topics.delete("default", "orders")
        with pytest.raises(ConflictError):
            await bench.topics.create("default", "orders")
        assert await bench.topics.list("default", limit=10) == []
        assert len(await bench.topics.list("default", limit=10, deleted=True)) == 1
        restored = await bench.topics.restore("default", "orders")
        assert [message.id for _, _, message in await bench.contents(restored)] == ["a"]
        with pytest.raises(ConflictError):
            await bench.topics.restore("default", "orders")


async def test_topics_of_another_project_are_as_good_as_absent(open_bench: Open) -> None:
    async with open_bench() as bench:
        await bench.topics.create("default", "orders")
        with pytest.raises(TopicNotFoundError):
            await bench.topics.get("other", "orders")
        assert await bench.topics.list("other", limit=10) == []
