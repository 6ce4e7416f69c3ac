"""Topic service: create, grow, switch, block, delete, restore, purge; restored databases."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.helpers.interleavings import count_calls
from tests.helpers.topics import open_topics
from tests.topics.conftest import OpenProcess, TopicProcess
from waystation.catalogue import DefinitionRecord
from waystation.errors import ConflictError, InvalidInputError, TopicNotFoundError
from waystation.messages.envelope import Envelope
from waystation.topics import model as topic_module
from waystation.topics.keys import definition_key
from waystation.topics.model import (
    StorageTopicDefinition,
    TopicDefinition,
    decode_topic,
    encode_topic,
)
from waystation.types.topic import TopicOptions

BAD_NAMES = ["", "{", "a}b", "a*", "a:b", "..", "a\0b", "A", "x" * 300, "-a", "ä", "a b", "a.b"]


async def test_create_topic_without_partitions_has_four(process: TopicProcess) -> None:
    topic = await process.topics.create("default", "orders")
    assert [storage.partitions for storage in topic.storage] == [4]
    assert (topic.version, topic.produce_pointer, topic.state) == (1, 0, "active")
    assert await process.topics.get("default", "orders") == topic


@pytest.mark.parametrize("name", BAD_NAMES)
async def test_create_topic_with_invalid_name_is_rejected(process: TopicProcess, name: str) -> None:
    with pytest.raises(InvalidInputError):
        await process.topics.create("default", name)
    with pytest.raises(InvalidInputError):
        await process.topics.get("default", name)
    assert await process.store.call("DBSIZE") == 0


@pytest.mark.parametrize("partitions", [0, -1, 1025, 10**9])
async def test_create_topic_with_partitions_out_of_range_is_rejected(
    process: TopicProcess, partitions: int
) -> None:
    with pytest.raises(InvalidInputError, match="partitions"):
        await process.topics.create("default", "orders", partitions=partitions)
    await process.topics.create("default", "orders")
    with pytest.raises(InvalidInputError, match="partitions"):
        await process.topics.add_storage_topic("default", "orders", partitions)


async def test_create_topic_with_discouraged_partitions_is_rejected_if_strict(
    process: TopicProcess,
) -> None:
    await process.topics.create("default", "seven", partitions=7)
    strict = open_topics(
        process.catalogue, process.store, process.logs, clock=process.topics._clock, strict=True
    )
    with pytest.raises(InvalidInputError, match="evenly"):
        await strict.create("default", "orders", partitions=7)
    await strict.create("default", "orders", partitions=6)


async def test_create_topic_by_two_processes_succeeds_once(
    process: TopicProcess, open_process: OpenProcess
) -> None:
    async with open_process() as other:
        results = await asyncio.gather(
            process.topics.create("default", "orders"),
            other.topics.create("default", "orders"),
            return_exceptions=True,
        )
        assert [type(each) for each in results if isinstance(each, Exception)] == [ConflictError]


async def test_change_options_with_outdated_version_is_rejected(process: TopicProcess) -> None:
    topic = await process.topics.create("default", "orders")
    options = TopicOptions(max_bytes=10)
    changed = await process.topics.change_options(
        "default", "orders", options, version=topic.version
    )
    assert (changed.version, changed.options) == (2, options)
    with pytest.raises(ConflictError, match="version 2"):
        await process.topics.change_options("default", "orders", options, version=1)


async def test_add_storage_topic_by_two_processes_adds_both(open_process: OpenProcess) -> None:
    async with open_process() as one, open_process() as other:
        await one.topics.create("default", "orders", partitions=2)
        await asyncio.gather(
            *(
                process.topics.add_storage_topic("default", "orders", partitions)
                for process, partitions in zip([one, other] * 3, (4, 6, 8, 10, 3, 9), strict=True)
            )
        )
        topic = await one.topics.get("default", "orders")
        assert sorted(each.partitions for each in topic.storage) == [2, 3, 4, 6, 8, 9, 10]
        assert [each.number for each in topic.storage] == list(range(7))
        for storage in topic.storage:
            for partition in range(storage.partitions):
                assert (await one.logs.state(topic.log(storage), partition)).end == 0


async def test_topic_changed_by_other_process_is_read(
    process: TopicProcess, open_process: OpenProcess
) -> None:
    async with open_process() as other:
        await process.topics.create("default", "orders")
        assert (await other.topics.get("default", "orders")).version == 1
        await process.topics.block("default", "orders")
        assert (await other.topics.get("default", "orders")).state == "blocked"


async def test_topic_missing_from_store_is_restored_from_database(
    process: TopicProcess,
    open_process: OpenProcess,
) -> None:
    async with open_process() as other:
        topic = await process.topics.create("default", "orders")
        await process.store.call("DEL", "{t.default.orders}:topic")
        assert await other.topics.get("default", "orders") == topic
        assert await process.store.call("HGET", "{t.default.orders}:topic", "version") == b"1"


async def test_topic_deleted_is_hidden_until_restored(process: TopicProcess) -> None:
    await process.topics.create("default", "orders", partitions=1)
    await process.produce("orders", "a")
    await process.topics.delete("default", "orders")
    with pytest.raises(TopicNotFoundError):
        await process.topics.get("default", "orders")
    with pytest.raises(TopicNotFoundError):
        await process.topics.delete("default", "orders")
    with pytest.raises(ConflictError):
        await process.topics.create("default", "orders")
    assert await process.topics.list("default", limit=10) == []
    assert len(await process.topics.list("default", limit=10, deleted=True)) == 1
    restored = await process.topics.restore("default", "orders")
    assert [message.id for _, _, message in await process.contents(restored)] == ["a"]
    with pytest.raises(ConflictError):
        await process.topics.restore("default", "orders")


async def test_topic_of_other_project_is_not_found(process: TopicProcess) -> None:
    await process.topics.create("default", "orders")
    with pytest.raises(TopicNotFoundError):
        await process.topics.get("other", "orders")
    assert await process.topics.list("other", limit=10) == []


async def test_list_topics_after_deleted_ones_returns_full_page(process: TopicProcess) -> None:
    for number in range(6):
        await process.topics.create("default", f"t{number}", partitions=1)
    for number in range(3):
        await process.topics.delete("default", f"t{number}")
    await process.topics.purge("default", "t0")
    page = await process.topics.list("default", limit=2)
    assert [topic.name for topic in page] == ["t3", "t4"]
    deleted = await process.topics.list("default", limit=3, deleted=True)
    assert [topic.name for topic in deleted] == ["t1", "t2", "t3"]


async def test_change_options_sets_retention_of_all_logs(process: TopicProcess) -> None:
    topic = await process.topics.create("default", "orders", partitions=2)
    topic = await process.topics.add_storage_topic("default", "orders", 4)
    options = TopicOptions(max_bytes=10, max_age_seconds=60, full_policy="drop_and_count")
    topic = await process.topics.change_options("default", "orders", options, version=topic.version)
    for storage in topic.storage:
        for partition in range(storage.partitions):
            trimmed = await process.logs.trim(topic.log(storage), partition)
            assert trimmed.retention == topic.retention


async def test_delete_topic_repeated_after_crash_completes(
    process: TopicProcess,
    open_process: OpenProcess,
) -> None:
    async with open_process() as other:
        topic = await process.topics.create("default", "orders", partitions=1)
        deleted = topic.in_state("deleted")
        await process.catalogue.change_definition(
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
            await process.topics.delete("default", "orders")
        with pytest.raises(TopicNotFoundError):
            await other.topics.get("default", "orders")


async def test_switch_produce_of_deleted_topic_is_rejected(process: TopicProcess) -> None:
    topic = await process.topics.create("default", "orders", partitions=1)
    await process.topics.add_storage_topic("default", "orders", 2)
    await process.topics.delete("default", "orders")
    with pytest.raises(TopicNotFoundError):
        await process.topics.switch_produce("default", "orders")
    assert (await process.logs.state(topic.log(topic.target), 0)).sealed is None


async def test_purge_topic_deletes_all_keys_and_reuses_no_storage_number(
    process: TopicProcess,
    open_process: OpenProcess,
) -> None:
    async with open_process() as other:
        old = await process.topics.create("default", "orders", partitions=2)
        with pytest.raises(ConflictError, match="not deleted"):
            await process.topics.purge("default", "orders")
        await process.topics.add_storage_topic("default", "orders", 4)
        await process.topics.switch_produce("default", "orders")
        await other.produce("orders", "a", "b", "c")
        await process.topics.delete("default", "orders")
        await process.topics.purge("default", "orders")
        await process.topics.purge("default", "orders")
        assert await process.logs.names() == {}
        assert await process.store.call("KEYS", "*:log*") == []
        for verb in (process.topics.get_any, process.topics.restore, process.topics.delete):
            with pytest.raises(TopicNotFoundError):
                await verb("default", "orders")
        assert await process.topics.list("default", limit=10, deleted=True) == []

        new = await process.topics.create("default", "orders", partitions=3)
        assert [each.number for each in new.storage] == [2]
        assert new.version > old.version
        # The other process caches the old topic, and finds the new one when it produces.
        receipts = await other.produce("orders", "a", "b", "c")
        assert {receipt.storage for receipt in receipts} == {0}
        assert len(await process.contents(new)) == 3
        assert list(await process.logs.names()) == ["t.default.orders.2"]


async def test_producer_of_other_process_rejects_messages_of_purged_topic(
    process: TopicProcess,
    open_process: OpenProcess,
) -> None:
    async with open_process() as other:
        await process.topics.create("default", "orders", partitions=1)
        await other.produce("orders", "a")
        await process.topics.delete("default", "orders")
        await process.topics.purge("default", "orders")
        envelope = Envelope(id="b", project="default", data=b"")
        (result,) = await other.producer.produce("default", "orders", [envelope])
        assert isinstance(result, TopicNotFoundError)
        assert await process.logs.names() == {}


async def test_create_topic_in_new_database_ignores_messages_of_former_topic(
    open_process: OpenProcess, tmp_path: Path
) -> None:
    async with open_process() as former:
        await former.topics.create("default", "orders", partitions=1)
        await former.produce("orders", "old")
    (tmp_path / "catalogue.db").rename(tmp_path / "lost.db")
    for rest in tmp_path.glob("catalogue.db-*"):
        rest.unlink()
    async with open_process() as process, open_process() as other:
        topic = await process.topics.create("default", "orders", partitions=2)
        assert (topic.version, topic.storage[0].number) == (2, 1)
        assert await other.topics.get("default", "orders") == topic
        await other.produce("orders", "new")
        assert [message.id for _, _, message in await process.contents(topic)] == ["new"]
        # The old messages stay, because this database never had their topic.
        assert list(topic.purged_numbers) == []
        assert (await process.logs.state("t.default.orders.0", 0)).end == 1


async def test_restore_topic_returns_to_state_before_deletion(process: TopicProcess) -> None:
    await process.topics.create("default", "orders", partitions=1)
    await process.topics.block("default", "orders")
    await process.topics.delete("default", "orders")
    assert (await process.topics.restore("default", "orders")).state == "blocked"
    await process.topics.unblock("default", "orders")
    await process.topics.delete("default", "orders")
    assert (await process.topics.restore("default", "orders")).state == "active"


async def test_switch_produce_repeated_with_version_skips_no_storage_topic(
    process: TopicProcess,
) -> None:
    await process.topics.create("default", "orders", partitions=1)
    for _ in range(2):
        topic = await process.topics.add_storage_topic("default", "orders", 1)
    # A process crashed after its seals; the repetition finishes the switch.
    await process.logs.seal(topic.log(topic.target), 0, 1)
    switched = await process.topics.switch_produce("default", "orders", version=topic.version)
    assert switched.produce_pointer == 1
    # The reply was lost; a repetition with the old version is rejected.
    with pytest.raises(ConflictError, match=f"has version {switched.version}"):
        await process.topics.switch_produce("default", "orders", version=topic.version)
    assert (await process.topics.get("default", "orders")).produce_pointer == 1
    assert (await process.logs.state(topic.log(topic.storage[1]), 0)).sealed is None


async def test_switch_produce_by_two_processes_seals_each_storage_topic_before_the_new_one(
    process: TopicProcess,
    open_process: OpenProcess,
) -> None:
    async with open_process() as other:
        await process.topics.create("default", "orders", partitions=2)
        for _ in range(3):
            await process.topics.add_storage_topic("default", "orders", 2)
        await asyncio.gather(
            process.topics.switch_produce("default", "orders"),
            other.topics.switch_produce("default", "orders"),
        )
        topic = await process.topics.get("default", "orders")
        assert topic.produce_pointer in (1, 2)
        for index in range(topic.produce_pointer):
            state = await process.logs.state(topic.log(topic.storage[index]), 0)
            assert state.sealed == index + 1


async def test_switch_produce_of_many_partitions_costs_few_calls_per_partition(
    process: TopicProcess,
    open_process: OpenProcess,
) -> None:
    async with open_process() as other:
        await process.topics.create("default", "orders", partitions=512)
        await other.produce("orders", "a", group="g")
        await process.topics.add_storage_topic("default", "orders", 1024)
        calls = count_calls(process.store)
        await process.topics.switch_produce("default", "orders")
        # The switch checks all partitions of both storage topics, and seals those of the first.
        assert calls() <= 512 + 512 + 1024 + 10
        calls = count_calls(other.store)
        assert (await other.produce("orders", "b", group="g"))[0].storage == 1
        # The producer with the outdated pointer reads the topic, but none of its partitions.
        assert calls() <= 5


async def purge_and_begin_anew(process: TopicProcess) -> TopicDefinition:
    await process.topics.delete("default", "orders")
    await process.topics.purge("default", "orders")
    await process.topics.create("default", "orders", partitions=2)
    return await process.topics.add_storage_topic("default", "orders", 4)


async def test_switch_produce_during_purge_leaves_new_topic_unchanged(
    process: TopicProcess, open_process: OpenProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_process() as other:
        await process.topics.create("default", "orders", partitions=2)
        await process.topics.add_storage_topic("default", "orders", 4)
        create_logs = process.topics.create_logs

        async def late(topic: TopicDefinition) -> None:
            await purge_and_begin_anew(other)
            await create_logs(topic)

        monkeypatch.setattr(process.topics, "create_logs", late)
        answer = await process.topics.switch_produce("default", "orders")
        new = await other.topics.get("default", "orders")
        assert answer == new
        assert new.produce_pointer == 0
        for storage in new.storage:
            for partition in range(storage.partitions):
                assert (await other.logs.state(new.log(storage), partition)).sealed is None


async def test_purge_topic_deletes_its_message_ids_only(process: TopicProcess) -> None:
    options = TopicOptions(dedup_seconds=600)
    for name in ("orders", "other"):
        await process.topics.create("default", name, partitions=2, options=options)
        await process.produce(name, *(f"m{n}" for n in range(10)), group="a person")
    await process.topics.add_storage_topic("default", "orders", 3)
    await process.topics.switch_produce("default", "orders")
    await process.produce("orders", *(f"n{n}" for n in range(10)), group="a person")
    await process.topics.delete("default", "orders")
    assert len(await process.store.call("KEYS", "{t.default.orders.*:id:*")) == 20
    await process.topics.purge("default", "orders")
    assert await process.store.call("KEYS", "{t.default.orders.*") == []
    assert all(each.duplicate for each in await process.produce("other", "m1", group="a person"))


async def back_to(process: TopicProcess, topic: TopicDefinition) -> None:
    """Set the database back to an earlier version of the topic, as a restored backup does."""
    now = await process.catalogue.definition("topic", "default", topic.name)
    assert now is not None
    record = DefinitionRecord(
        kind="topic",
        project="default",
        name=topic.name,
        version=topic.version,
        body=encode_topic(topic),
        changed_ms=1,
    )
    await process.catalogue.change_definition(record, over=now.version)


async def test_topic_changes_missing_from_restored_database_are_kept(
    open_process: OpenProcess,
) -> None:
    async with open_process() as process:
        backup = await process.topics.create("default", "orders", partitions=1)
        await process.topics.add_storage_topic("default", "orders", 2)
        await process.topics.switch_produce("default", "orders")
        await process.produce("orders", "a", "b", "c")
        await back_to(process, backup)
    async with open_process() as one, open_process() as other:
        # Both processes see a confirmed change.
        assert (await one.topics.block("default", "orders")).state == "blocked"
        assert (await other.topics.get("default", "orders")).state == "blocked"
        assert [each.state for each in await other.topics.list("default", limit=9)] == ["blocked"]
        await one.topics.unblock("default", "orders")
        # The new storage topic has an unused number, and all messages are readable.
        topic = await one.topics.add_storage_topic("default", "orders", 8)
        assert [(each.number, each.partitions) for each in topic.storage] == [
            (0, 1),
            (1, 2),
            (2, 8),
        ]
        assert (await one.logs.names())["t.default.orders.1"] == 2
        assert len(await one.contents(topic)) == 3
        assert (await one.produce("orders", "d"))[0].storage == 1


async def test_create_topic_in_restored_database_uses_unused_number(
    open_process: OpenProcess,
) -> None:
    async with open_process() as process:
        await process.topics.create("default", "orders", partitions=1)
        deleted = await process.topics.delete("default", "orders")
        await process.topics.purge("default", "orders")
        backup = deleted.in_state("purged")
        newer = await process.topics.create("default", "orders", partitions=1)
        await back_to(process, backup)
        with pytest.raises(ConflictError, match="already"):
            await process.topics.create("default", "orders", partitions=1)
        await process.topics.delete("default", "orders")
        await process.topics.purge("default", "orders")
        await back_to(process, backup)
        topic = await process.topics.create("default", "orders", partitions=1)
        assert topic.storage[0].number > newer.storage[0].number
        assert topic.version > newer.version + 2
    async with open_process() as other:
        assert await other.topics.get("default", "orders") == topic


async def test_add_storage_topic_above_limit_is_rejected(
    open_process: OpenProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_module, "STORAGE_TOPICS_MAX", 3)
    async with open_process() as process:
        await process.topics.create("default", "orders", partitions=1)
        for partitions in (2, 4):
            await process.topics.add_storage_topic("default", "orders", partitions)
        with pytest.raises(InvalidInputError, match="3 storage topics"):
            await process.topics.add_storage_topic("default", "orders", 8)
        assert len((await process.topics.get("default", "orders")).storage) == 3


def test_topic_stored_without_limits_has_none() -> None:
    # Topics that were created before the default limits existed have null in their definition.
    storage = (StorageTopicDefinition(number=0, partitions=1),)
    options = TopicOptions(max_bytes=None, max_age_seconds=None)
    topic = TopicDefinition(project="p", name="t", version=1, options=options, storage=storage)
    stored = encode_topic(topic)
    assert b'"max_bytes":null,"max_age_seconds":null' in stored
    retention = decode_topic(stored).retention
    assert (retention.max_bytes, retention.max_age_ms) == (None, None)


async def test_create_topic_without_options_has_default_limits(process: TopicProcess) -> None:
    topic = await process.topics.create("default", "orders", partitions=1)
    retention = (await process.logs.trim(topic.log(topic.target), 0)).retention
    assert (retention.max_bytes, retention.max_age_ms) == (256 * 1_048_576, 7 * 86_400_000)
    assert retention.policy == "refuse"


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff", b"[" * 5000, b'{"x":' + b"[" * 5000])
async def test_topic_with_invalid_cached_definition_is_read_from_its_row_and_repaired(
    process: TopicProcess, open_process: OpenProcess, body: bytes
) -> None:
    created = await process.topics.create("default", "orders", partitions=2)
    key = definition_key("default", "orders")
    good = await process.store.call("HGET", key, "body")
    await process.store.call("HSET", key, "body", body)

    async with open_process() as other:
        assert await other.topics.get("default", "orders") == created
        assert await process.store.call("HGET", key, "body") == good
        await process.store.call("HSET", key, "version", "soon", "body", body)
        await other.topics.reconcile(created)
        assert await process.store.call("HGETALL", key) == [b"version", b"1", b"body", good]
        await other.produce("orders", "a")
