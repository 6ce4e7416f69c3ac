"""Readers of the source: ranges, starts and ends on a real store, without Spark."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, In, LessThan
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from tests.history.log_writer import LogWriter, envelopes
from waystation.errors import (
    LogDamagedError,
    StoreDataLostError,
    StoreWentBackError,
    TopicNotFoundError,
    TrimmedError,
)
from waystation.history.log_reader import LogReader
from waystation.history.offsets import Gap, OffsetRange
from waystation.history.sources.options import TopicSourceOptions
from waystation.history.sources.topics import (
    PushdownTopicReader,
    ReadPartition,
    TopicReader,
    TopicStreamReader,
)
from waystation.logs.protocol import LogBatch

ORDERS = "t.default.orders.0"
LATER = "t.default.orders.1"


@pytest.fixture
def given(store_url: str) -> Any:
    """Return a function that makes options for the store of this run."""
    return lambda **more: TopicSourceOptions.parse({"topic": "orders", "store": store_url, **more})


def rows_of(reader: TopicReader | TopicStreamReader, parts: list[Any]) -> list[dict[str, Any]]:
    # As Spark does: plan here, and read in another process
    reader, parts = pickle.loads(pickle.dumps((reader, parts)))
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def ids_of(reader: TopicReader | TopicStreamReader, parts: list[Any]) -> list[str]:
    return [row["id"] for row in rows_of(reader, parts)]


def spans_of(parts: list[Any]) -> list[tuple[str, int, int, int]]:
    assert all(isinstance(part, ReadPartition) for part in parts)
    return [
        (span.log, span.partition, span.start, span.end) for part in parts for span in part.value
    ]


def test_topic_reader_reads_all_storage_topics_and_partitions_of_its_topics(
    writer: LogWriter, given: Any
) -> None:
    writer.create(ORDERS, 2)
    writer.append(ORDERS, envelopes(3), 0)
    writer.append(ORDERS, envelopes(2, first=10), 1)
    writer.create(LATER, 1)
    writer.append(LATER, envelopes(1, first=20))
    for other in ("t.default.other.0", "t.shop.orders.0", "tx"):
        writer.create(other)
        writer.append(other, envelopes(1, first=99))

    reader = TopicReader(given())
    assert ids_of(reader, reader.partitions()) == ["m-0", "m-1", "m-2", "m-10", "m-11", "m-20"]
    everything = TopicReader(given(topic="*"))
    assert len(rows_of(everything, everything.partitions())) == 7
    shop = TopicReader(given(project="shop"))
    assert ids_of(shop, shop.partitions()) == ["m-99"]


def test_topic_reader_of_unknown_topic_names_it(writer: LogWriter, given: Any) -> None:
    writer.create(ORDERS)
    with pytest.raises(TopicNotFoundError, match="Topic ordres does not exist in project default"):
        TopicReader(given(topic="orders,ordres")).partitions()
    # All topics of a project that has none is no mistake
    empty = TopicReader(given(topic="*", project="shop"))
    assert rows_of(empty, empty.partitions()) == []


def test_topic_reader_splits_a_large_log_and_combines_small_ones(
    writer: LogWriter, given: Any
) -> None:
    writer.create(ORDERS, 3)
    for partition, rows in enumerate((1000, 10, 10)):
        writer.append(ORDERS, envelopes(rows), partition)

    parts = TopicReader(given(partition_rows="600", partitions_max="8")).partitions()
    assert [[span.rows for span in part.value] for part in parts] == [[600], [400, 10, 10]]
    assert len(TopicReader(given(partition_rows="1", partitions_max="3")).partitions()) == 3


def test_topic_reader_leaves_out_entries_that_come_after_planning(
    writer: LogWriter, given: Any
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(2))
    reader = TopicReader(given())
    parts = reader.partitions()
    writer.append(ORDERS, envelopes(5, first=10))
    assert ids_of(reader, parts) == ["m-0", "m-1"]


def test_pushdown_reader_plans_only_ranges_within_the_filters(
    writer: LogWriter, given: Any
) -> None:
    writer.create(ORDERS, 2)
    first = writer.append(ORDERS, envelopes(5), 0)
    writer.append(ORDERS, envelopes(5), 1)
    while (second := writer.append(ORDERS, envelopes(1, first=50), 0)).ms == first.ms:
        pass

    def planned(*filters: Any) -> list[tuple[str, int, int, int]]:
        reader = PushdownTopicReader(given())
        assert list(reader.pushFilters(list(filters))) == list(filters)
        return spans_of(reader.partitions())

    assert planned(EqualTo(("partition",), 1), GreaterThanOrEqual(("offset",), 3)) == [
        (ORDERS, 1, 3, 5)
    ]
    assert planned(EqualTo(("topic",), "other")) == []
    assert planned(In(("storage",), (1, 2))) == []
    moment = _moment(second.ms)
    assert planned(EqualTo(("partition",), 0), GreaterThanOrEqual(("time",), moment)) == [
        (ORDERS, 0, second.offsets[0], second.offsets[0] + 1)
    ]
    assert planned(EqualTo(("partition",), 0), LessThan(("time",), moment)) == [
        (ORDERS, 0, 0, second.offsets[0])
    ]


def test_topic_reader_of_trimmed_entries_fails_or_counts_them(
    writer: LogWriter, given: Any
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(100))
    strict, counting = TopicReader(given()), TopicReader(given(on_gap="count"))
    planned = strict.partitions()

    first = writer.trim_to(ORDERS, 500)

    assert 0 < first < 100
    with pytest.raises(TrimmedError, match=f"Offsets 0 to {first - 1} of partition 0"):
        rows_of(strict, planned)
    rows = rows_of(counting, planned)
    assert [(row["offset"], row["gap"]) for row in rows[:2]] == [(0, first), (first, 0)]
    assert sum(row["gap"] or 1 for row in rows) == 100
    # A plan after that begins with the entries that are kept
    assert rows_of(strict, strict.partitions())[0]["offset"] == first

    # A log that is gone altogether
    writer.delete(ORDERS)
    with pytest.raises(TrimmedError):
        rows_of(strict, planned)
    (row,) = rows_of(counting, planned)
    assert (row["offset"], row["gap"]) == (0, 100)


def test_topic_reader_counts_a_gap_over_several_tasks_once(writer: LogWriter, given: Any) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(100))
    reader = TopicReader(given(on_gap="count", partition_rows="10", partitions_max="99"))
    planned = reader.partitions()
    first = writer.trim_to(ORDERS, 500)
    rows = rows_of(reader, planned)
    assert sum(row["gap"] for row in rows) == first
    assert sum(row["gap"] or 1 for row in rows) == 100


def test_log_reader_of_a_range_behind_the_end_raises_store_went_back(
    writer: LogWriter, store_url: str
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(5))
    with LogReader(store_url) as logs:
        for span in (
            OffsetRange(ORDERS, 0, 0, 9),
            OffsetRange(ORDERS, 0, 5, 9),
            OffsetRange(ORDERS, 0, 7, 9),
        ):
            with pytest.raises(StoreWentBackError, match="ends at offset 5"):
                list(logs.blocks(span, on_gap="count"))


def test_log_reader_whose_store_is_emptied_reports_lost_data_instead_of_a_gap(
    writer: LogWriter, store_url: str
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(5))
    span = OffsetRange(ORDERS, 0, 0, 5)
    with LogReader(store_url, dataset="ds-test") as logs:
        assert logs.states([(ORDERS, 0)])
        # FLUSHALL keeps the connection, so that no check of a new connection finds the loss.
        writer.command("FLUSHALL")
        with pytest.raises(StoreDataLostError, match="lost data set ds-test"):
            list(logs.blocks(span, on_gap="count"))
        writer.flush()
        (gap,) = logs.blocks(span, on_gap="count")
        assert gap == Gap(ORDERS, 0, 0, 5)


def test_log_reader_yields_consecutive_blocks(writer: LogWriter, store_url: str) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(9000))
    with LogReader(store_url) as logs:
        blocks = list(logs.blocks(OffsetRange(ORDERS, 0, 100, 8999), on_gap="fail"))
    assert len(blocks) > 1
    offset = 100
    for block in blocks:
        assert isinstance(block, LogBatch)
        assert block.offset == offset
        assert len(block.times_ms) == len(block.payloads)
        offset += len(block.payloads)
    assert offset == 8999


# -- Streams -----------------------------------------------------------------------------------


def test_stream_reader_starts_at_the_oldest_entry_or_at_the_end(
    writer: LogWriter, given: Any
) -> None:
    writer.create(ORDERS, 2)
    writer.append(ORDERS, envelopes(100))
    first = writer.trim_to(ORDERS, 500)
    assert TopicStreamReader(given()).initialOffset() == {f"{ORDERS}/0": first, f"{ORDERS}/1": 0}
    latest = {"from": "latest"}
    assert TopicStreamReader(given(**latest)).initialOffset() == {
        f"{ORDERS}/0": 100,
        f"{ORDERS}/1": 0,
    }


def test_stream_reader_plans_micro_batches_with_each_entry_once(
    writer: LogWriter, given: Any
) -> None:
    writer.create(ORDERS, 2)
    writer.append(ORDERS, envelopes(50), 0)
    writer.append(ORDERS, envelopes(3, first=100), 1)
    reader = TopicStreamReader(given(rows_max="20"))
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(20)

    seen: list[str] = []
    start = reader.initialOffset()
    while (end := reader.latestOffset(start, limit)) != start:
        batch = ids_of(reader, reader.partitions(start, end))
        assert len(batch) <= 20
        seen += batch
        start = end
    assert len(seen) == 53
    assert set(seen) == {f"m-{n}" for n in (*range(50), 100, 101, 102)}
    # The small partition did not wait for the large one
    assert "m-102" in seen[:20]
    assert reader.partitions(start, start) == []
    assert TopicStreamReader(given()).getDefaultReadLimit() == ReadAllAvailable()


def test_stream_reader_reads_an_added_storage_topic_from_its_beginning(
    writer: LogWriter, given: Any
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(5))
    reader = TopicStreamReader(given(**{"from": "latest"}))
    start = reader.initialOffset()

    writer.create(LATER, 2)
    writer.append(LATER, envelopes(2, first=7), 1)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert ids_of(reader, reader.partitions(start, end)) == ["m-7", "m-8"]

    # One that is purged stays where it was
    writer.delete(ORDERS)
    assert reader.latestOffset(end, ReadAllAvailable()) == end


def test_stream_reader_with_available_now_ends_with_the_entries_of_its_start(
    writer: LogWriter, given: Any
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(5))
    reader = TopicStreamReader(given())
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    writer.append(ORDERS, envelopes(5, first=5))
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end == {f"{ORDERS}/0": 5}
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    assert reader.reportLatestOffset() == {f"{ORDERS}/0": 10}


def test_stream_reader_of_a_store_that_lost_its_tail_raises_store_went_back(
    writer: LogWriter, given: Any
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(5))
    with pytest.raises(StoreWentBackError, match="ends at offset 5, and 8 was there before"):
        TopicStreamReader(given()).latestOffset({f"{ORDERS}/0": 8}, ReadAllAvailable())


def test_stream_reader_without_start_and_limit_reads_all_and_keeps_purged_offsets(
    writer: LogWriter, given: Any
) -> None:
    """Spark before 4.2 asks for the latest offset without arguments."""
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(5))
    reader = TopicStreamReader(given(rows_max="2"))
    start = reader.initialOffset()
    end = reader.latestOffset()
    assert end == {f"{ORDERS}/0": 5}
    assert ids_of(reader, reader.partitions(start, end)) == [f"m-{n}" for n in range(5)]

    writer.create(LATER)
    writer.delete(ORDERS)
    reader.partitions(start, end)
    assert reader.latestOffset() == {f"{ORDERS}/0": 5, f"{LATER}/0": 0}

    # After a restart, the reader learns the start with the end
    with pytest.raises(StoreWentBackError, match="ends at offset 3, and 5 was there before"):
        TopicStreamReader(given()).partitions({f"{ORDERS}/0": 5}, {f"{ORDERS}/0": 3})


def test_stream_reader_of_trimmed_entries_fails_or_counts_them(
    writer: LogWriter, given: Any
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(100))
    first = writer.trim_to(ORDERS, 500)
    start, end = {f"{ORDERS}/0": 2}, {f"{ORDERS}/0": 100}
    strict, counting = TopicStreamReader(given()), TopicStreamReader(given(on_gap="count"))
    with pytest.raises(TrimmedError):
        rows_of(strict, strict.partitions(start, end))
    rows = rows_of(counting, counting.partitions(start, end))
    assert (rows[0]["offset"], rows[0]["gap"]) == (2, first - 2)


def _moment(ms: int) -> Any:
    from datetime import UTC, datetime, timedelta

    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


def test_topic_reader_at_a_hole_fails_or_counts_it_and_keeps_stored_offsets(
    writer: LogWriter, given: Any
) -> None:
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(20))
    writer.remove(ORDERS, 3, 4, 19)
    strict, counting = TopicReader(given()), TopicReader(given(on_gap="count"))

    with pytest.raises(LogDamagedError, match="Offsets 3 to 4 of partition 0"):
        rows_of(strict, strict.partitions())
    rows = rows_of(counting, counting.partitions())

    assert {(row["offset"], row["gap"]) for row in rows if row["gap"]} == {(3, 2), (19, 1)}
    assert {row["offset"]: row["id"] for row in rows if not row["gap"]} == {
        number: f"m-{number}" for number in range(20) if number not in (3, 4, 19)
    }


def test_log_reader_lists_holes_and_reads_only_damaged_partitions(
    writer: LogWriter,
    store_url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for log in (ORDERS, LATER):
        writer.create(log)
        writer.append(log, envelopes(10))
    writer.remove(LATER, 0, 5)
    writer.trim_to(ORDERS, 100)
    read: list[str] = []
    blocks = LogReader.blocks

    def counted(self: LogReader, span: OffsetRange, **more: Any) -> Any:
        read.append(span.log)
        return blocks(self, span, **more)

    monkeypatch.setattr(LogReader, "blocks", counted)
    with LogReader(store_url) as logs:
        holes = logs.holes([(ORDERS, 0), (LATER, 0)])

    assert [(each.log, each.start, each.end) for each in holes] == [(LATER, 0, 1), (LATER, 5, 6)]
    assert not [each for each in caplog.records if each.message == "log damaged"]
    assert read == [LATER]
