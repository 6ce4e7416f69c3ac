"""Topics: made, grown, switched, blocked, deleted, restored; the catalogue has the truth."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.helpers.topics import open_topics
from tests.topics.conftest import Open, TopicBench
from waystation.catalogue import DefinitionRecord
from waystation.errors import ConflictError, InvalidInputError, TopicNotFoundError
from waystation.messages.envelope import Envelope
from waystation.topics import model as topic_module
from waystation.topics.model import (
    StorageTopicDefinition,
    TopicDefinition,
    decode_topic,
    encode_topic,
)
from waystation.types.topic import TopicOptions

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
        strict = open_topics(
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


async def test_a_page_of_topics_is_full_however_many_were_deleted_before(open_bench: Open) -> None:
    async with open_bench() as bench:
        for number in range(6):
            await bench.topics.create("default", f"t{number}", partitions=1)
        for number in range(3):
            await bench.topics.delete("default", f"t{number}")
        await bench.topics.purge("default", "t0")
        page = await bench.topics.list("default", limit=2)
        assert [topic.name for topic in page] == ["t3", "t4"]
        deleted = await bench.topics.list("default", limit=3, deleted=True)
        assert [topic.name for topic in deleted] == ["t1", "t2", "t3"]


async def test_options_that_are_changed_reach_the_logs_that_are_there(open_bench: Open) -> None:
    async with open_bench() as bench:
        topic = await bench.topics.create("default", "orders", partitions=2)
        topic = await bench.topics.add_storage_topic("default", "orders", 4)
        options = TopicOptions(max_bytes=10, max_age_seconds=60, full_policy="drop_and_count")
        topic = await bench.topics.change_options(
            "default", "orders", options, version=topic.version
        )
        for storage in topic.storage:
            for partition in range(storage.partitions):
                trimmed = await bench.logs.trim(topic.log(storage), partition)
                assert trimmed.retention == topic.retention


async def test_a_deletion_that_died_before_the_working_copy_knew_is_done_by_repeating_it(
    open_bench: Open,
) -> None:
    async with open_bench() as bench, open_bench() as other:
        topic = await bench.topics.create("default", "orders", partitions=1)
        deleted = topic.in_state("deleted")
        await bench.catalogue.change_definition(
            DefinitionRecord(
                kind="topic",
                project="default",
                name="orders",
                version=deleted.version,
                body=encode_topic(deleted),
                changed_ms=1,
            )
        )
        assert (await other.topics.get("default", "orders")).state == "active"
        with pytest.raises(TopicNotFoundError):
            await bench.topics.delete("default", "orders")
        with pytest.raises(TopicNotFoundError):
            await other.topics.get("default", "orders")


async def test_a_deleted_topic_is_not_switched(open_bench: Open) -> None:
    async with open_bench() as bench:
        topic = await bench.topics.create("default", "orders", partitions=1)
        await bench.topics.add_storage_topic("default", "orders", 2)
        await bench.topics.delete("default", "orders")
        with pytest.raises(TopicNotFoundError):
            await bench.topics.switch_produce("default", "orders")
        assert (await bench.logs.state(topic.log(topic.target), 0)).sealed is None


async def test_a_purged_topic_leaves_nothing_and_its_numbers_are_never_used_again(
    open_bench: Open,
) -> None:
    async with open_bench() as bench, open_bench() as other:
        old = await bench.topics.create("default", "orders", partitions=2)
        with pytest.raises(ConflictError, match="not deleted"):
            await bench.topics.purge("default", "orders")
        await bench.topics.add_storage_topic("default", "orders", 4)
        await bench.topics.switch_produce("default", "orders")
        await other.produce("orders", "a", "b", "c")
        await bench.topics.delete("default", "orders")
        await bench.topics.purge("default", "orders")
        await bench.topics.purge("default", "orders")
        assert await bench.logs.names() == {}
        assert await bench.store.call("KEYS", "*:log*") == []
        for verb in (bench.topics.get_any, bench.topics.restore, bench.topics.delete):
            with pytest.raises(TopicNotFoundError):
                await verb("default", "orders")
        assert await bench.topics.list("default", limit=10, deleted=True) == []

        new = await bench.topics.create("default", "orders", partitions=3)
        assert [each.number for each in new.storage] == [2]
        assert new.version > old.version
        # Another process still believes in the old one, and finds the new one by itself.
        receipts = await other.produce("orders", "a", "b", "c")
        assert {receipt.storage for receipt in receipts} == {0}
        assert len(await bench.contents(new)) == 3
        assert list(await bench.logs.names()) == ["t.default.orders.2"]


async def test_a_producer_of_a_purged_topic_is_told_that_there_is_none(open_bench: Open) -> None:
    async with open_bench() as bench, open_bench() as other:
        await bench.topics.create("default", "orders", partitions=1)
        await other.produce("orders", "a")
        await bench.topics.delete("default", "orders")
        await bench.topics.purge("default", "orders")
        envelope = Envelope(id="b", project="default", data=b"")
        (result,) = await other.producer.produce("default", "orders", [envelope])
        assert isinstance(result, TopicNotFoundError)
        assert await bench.logs.names() == {}


async def test_a_new_catalogue_never_mixes_its_topic_with_what_the_store_has_under_that_name(
    open_bench: Open, tmp_path: Path
) -> None:
    async with open_bench() as former:
        await former.topics.create("default", "orders", partitions=1)
        await former.produce("orders", "old")
    (tmp_path / "catalogue.db").rename(tmp_path / "lost.db")
    for rest in tmp_path.glob("catalogue.db-*"):
        rest.unlink()
    async with open_bench() as bench, open_bench() as other:
        topic = await bench.topics.create("default", "orders", partitions=2)
        assert (topic.version, topic.storage[0].number) == (2, 1)
        assert await other.topics.get("default", "orders") == topic
        await other.produce("orders", "new")
        assert [message.id for _, _, message in await bench.contents(topic)] == ["new"]
        # The old messages are not ours to delete.
        assert list(topic.purged_numbers) == []
        assert (await bench.logs.state("t.default.orders.0", 0)).end == 1


async def test_a_topic_that_was_blocked_is_blocked_when_it_is_restored(open_bench: Open) -> None:
    async with open_bench() as bench:
        await bench.topics.create("default", "orders", partitions=1)
        await bench.topics.block("default", "orders")
        await bench.topics.delete("default", "orders")
        assert (await bench.topics.restore("default", "orders")).state == "blocked"
        await bench.topics.unblock("default", "orders")
        await bench.topics.delete("default", "orders")
        assert (await bench.topics.restore("default", "orders")).state == "active"


async def test_a_switch_of_a_version_can_be_repeated_without_skipping_a_storage_topic(
    open_bench: Open,
) -> None:
    async with open_bench() as bench:
        await bench.topics.create("default", "orders", partitions=1)
        for _ in range(2):
            topic = await bench.topics.add_storage_topic("default", "orders", 1)
        # Died after its seals: to repeat it is to finish it.
        await bench.logs.seal(topic.log(topic.target), 0, 1)
        switched = await bench.topics.switch_produce("default", "orders", version=topic.version)
        assert switched.produce_pointer == 1
        # Its reply was lost: whoever repeats it is told.
        with pytest.raises(ConflictError, match=f"has version {switched.version}"):
            await bench.topics.switch_produce("default", "orders", version=topic.version)
        assert (await bench.topics.get("default", "orders")).produce_pointer == 1
        assert (await bench.logs.state(topic.log(topic.storage[1]), 0)).sealed is None


async def purge_and_begin_anew(bench: TopicBench) -> TopicDefinition:
    await bench.topics.delete("default", "orders")
    await bench.topics.purge("default", "orders")
    await bench.topics.create("default", "orders", partitions=2)
    return await bench.topics.add_storage_topic("default", "orders", 4)


async def test_a_switch_over_a_purge_moves_nothing_of_the_new_topic(
    open_bench: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_bench() as bench, open_bench() as other:
        await bench.topics.create("default", "orders", partitions=2)
        await bench.topics.add_storage_topic("default", "orders", 4)
        create_logs = bench.topics.create_logs

        async def late(topic: TopicDefinition) -> None:
            await purge_and_begin_anew(other)
            await create_logs(topic)

        monkeypatch.setattr(bench.topics, "create_logs", late)
        answer = await bench.topics.switch_produce("default", "orders")
        new = await other.topics.get("default", "orders")
        assert answer == new
        assert new.produce_pointer == 0
        for storage in new.storage:
            for partition in range(storage.partitions):
                assert (await other.logs.state(new.log(storage), partition)).sealed is None


async def test_a_purge_forgets_the_ids_of_its_messages_and_no_others(open_bench: Open) -> None:
    async with open_bench() as bench:
        options = TopicOptions(dedup_seconds=600)
        for name in ("orders", "other"):
            await bench.topics.create("default", name, partitions=2, options=options)
            await bench.produce(name, *(f"m{n}" for n in range(10)), group="a person")
        await bench.topics.add_storage_topic("default", "orders", 3)
        await bench.topics.switch_produce("default", "orders")
        await bench.produce("orders", *(f"n{n}" for n in range(10)), group="a person")
        await bench.topics.delete("default", "orders")
        assert len(await bench.store.call("KEYS", "{t.default.orders.*:id:*")) == 20
        await bench.topics.purge("default", "orders")
        assert await bench.store.call("KEYS", "{t.default.orders.*") == []
        assert all(each.duplicate for each in await bench.produce("other", "m1", group="a person"))


async def back_to(bench: TopicBench, topic: TopicDefinition) -> None:
    """The catalogue comes from a backup that was made when the topic was this one."""
    now = await bench.catalogue.definition("topic", "default", topic.name)
    assert now is not None
    record = DefinitionRecord(
        kind="topic",
        project="default",
        name=topic.name,
        version=topic.version,
        body=encode_topic(topic),
        changed_ms=1,
    )
    await bench.catalogue.change_definition(record, over=now.version)


async def test_changes_that_a_catalogue_from_a_backup_lacks_are_not_lost(open_bench: Open) -> None:
    async with open_bench() as bench:
        backup = await bench.topics.create("default", "orders", partitions=1)
        await bench.topics.add_storage_topic("default", "orders", 2)
        await bench.topics.switch_produce("default", "orders")
        await bench.produce("orders", "a", "b", "c")
        await back_to(bench, backup)
    async with open_bench() as one, open_bench() as other:
        # What is answered is done, and seen by all.
        assert (await one.topics.block("default", "orders")).state == "blocked"
        assert (await other.topics.get("default", "orders")).state == "blocked"
        assert [each.state for each in await other.topics.list("default", limit=9)] == ["blocked"]
        await one.topics.unblock("default", "orders")
        # Numbers are not used twice, and no message is left behind.
        topic = await one.topics.add_storage_topic("default", "orders", 8)
        assert [(each.number, each.partitions) for each in topic.storage] == [
            (0, 1),
            (1, 2),
            (2, 8),
        ]
        assert (await one.logs.names())["t.default.orders.1"] == 2
        assert len(await one.contents(topic)) == 3
        assert (await one.produce("orders", "d"))[0].storage == 1


async def test_a_topic_is_created_behind_all_that_a_catalogue_from_a_backup_lacks(
    open_bench: Open,
) -> None:
    async with open_bench() as bench:
        await bench.topics.create("default", "orders", partitions=1)
        deleted = await bench.topics.delete("default", "orders")
        await bench.topics.purge("default", "orders")
        backup = deleted.in_state("purged")
        newer = await bench.topics.create("default", "orders", partitions=1)
        await back_to(bench, backup)
        with pytest.raises(ConflictError, match="already"):
            await bench.topics.create("default", "orders", partitions=1)
        await bench.topics.delete("default", "orders")
        await bench.topics.purge("default", "orders")
        await back_to(bench, backup)
        topic = await bench.topics.create("default", "orders", partitions=1)
        assert topic.storage[0].number > newer.storage[0].number
        assert topic.version > newer.version + 2
    async with open_bench() as other:
        assert await other.topics.get("default", "orders") == topic


async def test_a_topic_has_a_bounded_number_of_storage_topics(
    open_bench: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_module, "STORAGE_TOPICS_MAX", 3)
    async with open_bench() as bench:
        await bench.topics.create("default", "orders", partitions=1)
        for partitions in (2, 4):
            await bench.topics.add_storage_topic("default", "orders", partitions)
        with pytest.raises(InvalidInputError, match="3 storage topics"):
            await bench.topics.add_storage_topic("default", "orders", 8)
        assert len((await bench.topics.get("default", "orders")).storage) == 3


def test_stored_topic_without_limits_keeps_none() -> None:
    """A topic that was created before topics had default limits says null in its definition."""
    storage = (StorageTopicDefinition(number=0, partitions=1),)
    options = TopicOptions(max_bytes=None, max_age_seconds=None)
    topic = TopicDefinition(project="p", name="t", version=1, options=options, storage=storage)
    stored = encode_topic(topic)
    assert b'"max_bytes":null,"max_age_seconds":null' in stored
    retention = decode_topic(stored).retention
    assert (retention.max_bytes, retention.max_age_ms) == (None, None)


async def test_topic_created_without_options_has_default_limits(open_bench: Open) -> None:
    async with open_bench() as bench:
        topic = await bench.topics.create("default", "orders", partitions=1)
        retention = (await bench.logs.trim(topic.log(topic.target), 0)).retention
        assert (retention.max_bytes, retention.max_age_ms) == (256 * 1_048_576, 7 * 86_400_000)
        assert retention.policy == "refuse"
