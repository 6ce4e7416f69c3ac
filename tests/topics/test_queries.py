"""Topic queries: pages, cursors, bounds of the work, damaged logs, locations of groups."""

from __future__ import annotations

import asyncio

import pytest

from tests.helpers.interleavings import count_calls
from tests.topics.conftest import OpenProcess, TopicProcess
from waystation.errors import (
    InvalidInputError,
    LogNotFoundError,
    OffsetOutOfRangeError,
    TopicNotFoundError,
)
from waystation.logs import keys
from waystation.logs.protocol import Retention
from waystation.messages.envelope import Envelope
from waystation.topics import queries as queries_module
from waystation.topics.queries import TopicQueries
from waystation.topics.router import hash_of
from waystation.types.topic import StoredMessagePage


def queries_of(process: TopicProcess) -> TopicQueries:
    return TopicQueries(process.topics, process.logs)


def ids(page: StoredMessagePage) -> list[str]:
    return [found.message.id for found in page.messages]


async def grown(process: TopicProcess) -> None:
    """Create three storage topics with messages of one group (a to f) between other messages."""
    await process.topics.create("default", "orders", partitions=2)
    for number, pair in enumerate(("ab", "cd", "ef")):
        for message_id in pair:
            await process.produce("orders", *(f"{message_id}{n}" for n in range(20)))
            await process.produce("orders", message_id, group="g")
        if number < 2:
            await process.topics.add_storage_topic("default", "orders", (4, 5)[number])
            await process.topics.switch_produce("default", "orders")


async def test_messages_in_partition_returns_pages_and_continues_at_end(
    process: TopicProcess,
) -> None:
    await process.topics.create("default", "orders", partitions=1)
    await process.produce("orders", *(f"m{n}" for n in range(25)))
    queries = queries_of(process)
    at = {"storage": 0, "partition": 0}
    first = await queries.messages_in_partition("default", "orders", **at, limit=10)
    assert (ids(first), first.ended) == ([f"m{n}" for n in range(10)], False)
    assert (first.messages[3].offset, first.messages[3].message.payload) == (3, b"m3")
    second = await queries.messages_in_partition(
        "default", "orders", **at, limit=10, cursor=first.cursor
    )
    third = await queries.messages_in_partition(
        "default", "orders", **at, limit=10, cursor=second.cursor
    )
    assert (ids(third), third.ended) == ([f"m{n}" for n in range(20, 25)], True)
    nothing = await queries.messages_in_partition("default", "orders", **at, cursor=third.cursor)
    assert (ids(nothing), nothing.ended) == ([], True)
    await process.produce("orders", "late")
    assert ids(
        await queries.messages_in_partition("default", "orders", **at, cursor=nothing.cursor)
    ) == ["late"]
    assert ids(await queries.messages_in_partition("default", "orders", **at, offset=24)) == [
        "m24",
        "late",
    ]


async def test_messages_in_damaged_partition_lists_missing_ranges(
    process: TopicProcess,
) -> None:
    topic = await process.topics.create("default", "orders", partitions=1)
    await process.produce("orders", *(f"m{n}" for n in range(10)))
    stream = keys.entries(topic.log(topic.storage[0]), 0)
    for offset in (3, 4, 9):
        ((entry, _),) = await process.store.call("XRANGE", stream, offset, offset)
        await process.store.call("XDEL", stream, entry)
    queries = queries_of(process)
    at = {"storage": 0, "partition": 0}
    first = await queries.messages_in_partition("default", "orders", **at, limit=4)
    assert [(each.offset, each.message.id) for each in first.messages] == [
        (0, "m0"),
        (1, "m1"),
        (2, "m2"),
        (5, "m5"),
    ]
    assert [(each.from_offset, each.to_offset) for each in first.damaged] == [(3, 5)]
    rest = await queries.messages_in_partition("default", "orders", **at, cursor=first.cursor)
    assert [each.offset for each in rest.messages] == [6, 7, 8]
    assert [(each.from_offset, each.to_offset) for each in rest.damaged] == [(9, 10)]
    assert rest.ended
    after = await queries.messages_in_partition("default", "orders", **at, cursor=rest.cursor)
    assert (after.messages, after.damaged, after.ended) == ([], [], True)


async def test_messages_in_partition_start_at_time(process: TopicProcess) -> None:
    await process.topics.create("default", "orders", partitions=1)
    await process.produce("orders", "a")
    await asyncio.sleep(0.003)
    (receipt,) = await process.produce("orders", "b")
    queries = queries_of(process)
    at = {"storage": 0, "partition": 0}
    assert ids(
        await queries.messages_in_partition("default", "orders", **at, since_ms=receipt.time_ms)
    ) == ["b"]
    assert ids(await queries.messages_in_partition("default", "orders", **at, since_ms=0)) == [
        "a",
        "b",
    ]
    assert (
        ids(
            await queries.messages_in_partition(
                "default", "orders", **at, since_ms=receipt.time_ms + 1
            )
        )
        == []
    )


async def test_messages_in_partition_at_deleted_offset_names_valid_range(
    process: TopicProcess,
) -> None:
    topic = await process.topics.create("default", "orders", partitions=1)
    await process.produce("orders", *"abcdef")
    log = topic.log(topic.target)
    queries = queries_of(process)
    at = {"storage": 0, "partition": 0}
    page = await queries.messages_in_partition("default", "orders", **at, limit=1)
    await process.logs.hold(log, 0, "reader", 4)
    await process.logs.set_retention(log, 0, Retention(max_age_ms=0))
    await asyncio.sleep(0.003)
    await process.logs.trim(log, 0)
    for offset in (-1, 3, 7, 10**15):
        with pytest.raises(OffsetOutOfRangeError) as refusal:
            await queries.messages_in_partition("default", "orders", **at, offset=offset)
        assert (refusal.value.first, refusal.value.end) == (4, 6)
    # A query with a cursor skips messages that were deleted since.
    assert ids(
        await queries.messages_in_partition("default", "orders", **at, cursor=page.cursor)
    ) == [
        "e",
        "f",
    ]


async def test_messages_in_missing_partition_raise_not_found(process: TopicProcess) -> None:
    await process.topics.create("default", "orders", partitions=2)
    queries = queries_of(process)
    for storage, partition in ((1, 0), (-1, 0), (0, 2), (0, -1)):
        with pytest.raises(LogNotFoundError, match="Use 0 to"):
            await queries.messages_in_partition(
                "default", "orders", storage=storage, partition=partition
            )
    with pytest.raises(TopicNotFoundError):
        await queries.messages_of_group("default", "nothing", "g")
    with pytest.raises(TopicNotFoundError):
        await queries.messages_of_group("other", "orders", "g")


async def test_messages_of_group_are_in_order_over_storage_topics(
    process: TopicProcess,
) -> None:
    await grown(process)
    queries = queries_of(process)
    page = await queries.messages_of_group("default", "orders", "g")
    assert (ids(page), page.ended) == (list("abcdef"), True)
    assert [found.storage for found in page.messages] == [0, 0, 1, 1, 2, 2]
    pages = [await queries.messages_of_group("default", "orders", "g", limit=2)]
    while not pages[-1].ended:
        more = await queries.messages_of_group(
            "default", "orders", "g", limit=2, cursor=pages[-1].cursor
        )
        pages.append(more)
    assert [message_id for page in pages for message_id in ids(page)] == list("abcdef")


async def test_messages_of_group_from_cursor_include_later_messages(
    process: TopicProcess,
) -> None:
    await process.topics.create("default", "orders", partitions=1)
    await process.produce("orders", "a", group="g")
    await process.topics.add_storage_topic("default", "orders", 2)
    queries = queries_of(process)
    page = await queries.messages_of_group("default", "orders", "g")
    await process.produce("orders", "b", group="g")
    await process.topics.switch_produce("default", "orders")
    await process.produce("orders", "c", group="g")
    assert ids(await queries.messages_of_group("default", "orders", "g", cursor=page.cursor)) == [
        "b",
        "c",
    ]


async def test_messages_with_id_are_found_with_and_without_group(process: TopicProcess) -> None:
    await grown(process)
    queries = queries_of(process)
    alone = await queries.messages_with_id("default", "orders", "d7")
    assert ids(alone) == ["d7"]
    grouped = await queries.messages_with_id("default", "orders", "d", group="g")
    assert (ids(grouped), grouped.messages[0].storage) == (["d"], 1)
    # Without its group, the query searches all partitions.
    assert ids(await queries.messages_with_id("default", "orders", "d")) == ["d"]
    other = await queries.messages_with_id("default", "orders", "d", group="h")
    assert (ids(other), other.ended) == ([], True)
    nothing = await queries.messages_with_id("default", "orders", "z")
    assert (ids(nothing), nothing.ended) == ([], True)


async def test_messages_with_id_scan_is_bounded_per_page(
    open_process: OpenProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries_module, "SCAN_MAX", 50)
    async with open_process() as process:
        await process.topics.create("default", "orders", partitions=3)
        await process.produce("orders", *(f"m{n}" for n in range(300)))
        await process.produce("orders", "wanted", group="g")
        queries = queries_of(process)
        pages = [await queries.messages_with_id("default", "orders", "wanted")]
        while not pages[-1].ended:
            cursor = pages[-1].cursor
            pages.append(
                await queries.messages_with_id("default", "orders", "wanted", cursor=cursor)
            )
        assert len(pages) > 5
        assert [message_id for page in pages for message_id in ids(page)] == ["wanted"]


async def test_messages_with_id_over_empty_partitions_is_bounded_per_page(
    process: TopicProcess,
) -> None:
    await process.topics.create("default", "orders", partitions=1)
    await process.topics.add_storage_topic("default", "orders", 1024)
    await process.topics.switch_produce("default", "orders")
    await process.produce("orders", "wanted", group="g")
    queries, found, pages, cursor, ended = queries_of(process), [], 0, "", False
    calls = count_calls(process.store)
    while not ended:
        before = calls()
        page = await queries.messages_with_id("default", "orders", "wanted", cursor=cursor)
        # The read of an empty partition takes two calls. Two more read the topic.
        assert calls() - before <= 2 * queries_module.READS_MAX + 2
        cursor, ended = page.cursor, page.ended
        found += ids(page)
        pages += 1
    assert found == ["wanted"]
    assert pages >= 1024 // queries_module.READS_MAX


async def test_messages_page_is_bounded_in_bytes(
    open_process: OpenProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries_module, "_PAGE_BYTES_MAX", 5000)
    async with open_process() as process:
        await process.topics.create("default", "orders", partitions=1)
        envelopes = [Envelope(id=f"m{n}", project="default", data=b"x" * 2000) for n in range(9)]
        await process.producer.produce("default", "orders", envelopes)
        page = await queries_of(process).messages_in_partition(
            "default", "orders", storage=0, partition=0
        )
        assert (len(page.messages), page.ended) == (3, False)


@pytest.mark.parametrize("cursor", ["x", "§", "AAAA", "lKFhAQID", "====", "a" * 5000])
async def test_messages_with_invalid_cursor_are_rejected(
    process: TopicProcess, cursor: str
) -> None:
    await process.topics.create("default", "orders", partitions=1)
    with pytest.raises(InvalidInputError, match="cursor"):
        await queries_of(process).messages_of_group("default", "orders", "g", cursor=cursor)


async def test_messages_cursor_of_other_query_is_rejected(process: TopicProcess) -> None:
    await process.topics.create("default", "orders", partitions=1)
    await process.produce("orders", "a", "b", group="g")
    queries = queries_of(process)
    page = await queries.messages_of_group("default", "orders", "g", limit=1)
    for question in (
        queries.messages_of_group("default", "orders", "h", cursor=page.cursor),
        queries.messages_with_id("default", "orders", "a", cursor=page.cursor),
        queries.messages_in_partition(
            "default", "orders", storage=0, partition=0, cursor=page.cursor
        ),
    ):
        with pytest.raises(InvalidInputError, match="cursor"):
            await question
    with pytest.raises(InvalidInputError, match="Set only one of"):
        await queries.messages_in_partition(
            "default", "orders", storage=0, partition=0, offset=0, cursor=page.cursor
        )
    for limit in (0, -1, 1001):
        with pytest.raises(InvalidInputError, match="1 to 1000"):
            await queries.messages_of_group("default", "orders", "g", limit=limit)


async def test_locate_group_returns_partition_and_shard_per_storage_topic(
    process: TopicProcess,
) -> None:
    await process.topics.create("default", "orders", partitions=4)
    await process.topics.add_storage_topic("default", "orders", 12)
    await process.topics.switch_produce("default", "orders")
    queries = queries_of(process)
    topic = await process.topics.get("default", "orders")
    for group in ("a", "customer-17", "ünï"):
        found = await queries.locate_group("default", "orders", group, shards=2)
        assert (found.hash, found.consistent) == (hash_of(group), True)
        assert [position.partition for position in found.positions] == [
            storage.router.partition_of(hash_of(group)) for storage in topic.storage
        ]
        assert len({position.shard for position in found.positions}) == 1
        assert [position.current for position in found.positions] == [False, True]
    assert (await queries.locate_group("default", "orders", "a", shards=3)).consistent is False
    plain = await queries.locate_group("default", "orders", "a")
    assert (plain.consistent, plain.positions[0].shard) == (None, None)
    with pytest.raises(InvalidInputError, match="at least 1"):
        await queries.locate_group("default", "orders", "a", shards=0)


async def test_messages_in_partition_with_foreign_entry_returns_it_as_unreadable(
    process: TopicProcess,
) -> None:
    topic = await process.topics.create("default", "orders", partitions=1)
    await process.produce("orders", "a")
    await process.logs.append(topic.log(topic.target), 0, [b"plain text", b"\xff\x00"])
    await process.produce("orders", "b")

    page = await queries_of(process).messages_in_partition(
        "default", "orders", storage=0, partition=0
    )

    assert [each.message.id for each in page.messages] == ["a", "", "", "b"]
    assert [bool(each.unreadable) for each in page.messages] == [False, True, True, False]
    assert page.messages[1].message.payload == b"plain text"
    assert page.ended
