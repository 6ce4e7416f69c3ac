"""Conformance suite of `waystation.logs.protocol.Logs`.

    class TestStreamLogs(LogConformance):
        ...

The test module of an implementation inherits the class and defines a fixture `logs` that returns an
empty set of logs.
"""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from waystation.errors import (
    LogFullError,
    LogNotFoundError,
    LogSealedError,
    OffsetOutOfRangeError,
)
from waystation.logs.protocol import LogEntry, Logs, Retention

KEEP_ALL = Retention()


async def read_all(logs: Logs, log: str, partition: int) -> list[LogEntry]:
    entries: list[LogEntry] = []
    offset = 0
    while batch := await logs.read(log, partition, offset, limit=1000):
        entries += batch.entries()
        offset = batch.next_offset
    return entries


class LogConformance:
    """Tests that every implementation must pass."""

    async def test_create_of_existing_log_changes_nothing(self, logs: Logs) -> None:
        assert await logs.create("t.p.orders.0", 3, KEEP_ALL) is True
        assert await logs.create("t.p.orders.0", 3, KEEP_ALL) is False
        for partition in range(3):
            state = await logs.state("t.p.orders.0", partition)
            assert (state.first, state.end, state.sealed, state.dropped) == (0, 0, None, 0)
            assert len(await logs.read("t.p.orders.0", partition, 0, limit=10)) == 0

    async def test_watch_returns_state_and_does_not_change_it(self, logs: Logs) -> None:
        await logs.create("log", 1, KEEP_ALL)
        for end in range(3):
            before = await logs.state("log", 0)
            assert await logs.watch("log", 0) == before
            assert await logs.watch("log", 0) == await logs.state("log", 0)
            assert (await logs.append("log", 0, [b"a"])).offsets[0] == end
        with pytest.raises(LogNotFoundError):
            await logs.watch("none", 0)
        assert await logs.create("none", 1, KEEP_ALL) is True

    async def test_append_assigns_consecutive_offsets_from_zero(self, logs: Logs) -> None:
        await logs.create("log", 2, KEEP_ALL)
        first = await logs.append("log", 1, [b"a", b"b", b"c"])
        second = await logs.append("log", 1, [b"d"])
        assert (list(first.offsets), list(second.offsets)) == ([0, 1, 2], [3])
        batch = await logs.read("log", 1, 0, limit=10)
        assert (batch.offset, batch.next_offset) == (0, 4)
        assert [(entry.offset, entry.payload) for entry in batch.entries()] == [
            (0, b"a"),
            (1, b"b"),
            (2, b"c"),
            (3, b"d"),
        ]
        assert (await logs.state("log", 1)).end == 4
        assert (await logs.state("log", 0)).end == 0

    async def test_append_keeps_payloads_byte_for_byte(self, logs: Logs) -> None:
        bodies = [b"", b"\0", bytes(range(256)), b"\r\n$5\r\n", "ünï".encode(), b"x" * 2_000_000]
        await logs.create("log", 1, KEEP_ALL)
        await logs.append("log", 0, bodies)
        assert [entry.payload for entry in await read_all(logs, "log", 0)] == bodies

    async def test_append_times_never_decrease(self, logs: Logs) -> None:
        await logs.create("log", 1, KEEP_ALL)
        for _ in range(5):
            await logs.append("log", 0, [b"a", b"b"])
        times = (await logs.read("log", 0, 0, limit=100)).times_ms
        assert times == sorted(times)
        assert times[0] > 0
        assert (await logs.state("log", 0)).last_ms == times[-1]

    async def test_read_returns_time_of_each_append(self, logs: Logs) -> None:
        await logs.create("log", 1, KEEP_ALL)
        expected = []
        for size in (1, 60, 2, 30, 1, 1, 26, 3):
            done = await logs.append("log", 0, [b"x"] * size)
            expected += [(offset, done.ms) for offset in done.offsets]
            await asyncio.sleep(0.002)
        for start in (0, 1, 40, 63, len(expected) - 1):
            batch = await logs.read("log", 0, start, limit=1000)
            assert [(entry.offset, entry.ms) for entry in batch.entries()] == expected[start:]

    async def test_read_with_limits_returns_at_least_one_message(self, logs: Logs) -> None:
        await logs.create("log", 1, KEEP_ALL)
        await logs.append("log", 0, [b"x" * 1000] * 50)
        assert len(await logs.read("log", 0, 10, limit=7)) == 7
        few = await logs.read("log", 0, 10, limit=50, bytes_max=3500)
        assert 1 <= len(few) <= 4
        assert len(await logs.read("log", 0, 10, limit=50, bytes_max=10)) == 1

    @pytest.mark.parametrize("offset", [-1, 5, 10**15])
    async def test_offset_outside_partition_is_rejected_with_valid_range(
        self, logs: Logs, offset: int
    ) -> None:
        await logs.create("log", 1, KEEP_ALL)
        await logs.append("log", 0, [b"a"] * 4)
        with pytest.raises(OffsetOutOfRangeError) as refusal:
            await logs.read("log", 0, offset, limit=1)
        assert (refusal.value.first, refusal.value.end) == (0, 4)
        with pytest.raises(OffsetOutOfRangeError):
            await logs.hold("log", 0, "reader", offset)

    async def test_logs_methods_on_missing_partition_raise_not_found(self, logs: Logs) -> None:
        await logs.create("log", 1, KEEP_ALL)
        for name, partition in (("none", 0), ("log", 1)):
            for attempt in (
                logs.append(name, partition, [b"a"]),
                logs.read(name, partition, 0, limit=1),
                logs.state(name, partition),
                logs.offset_at(name, partition, 1),
                logs.hold(name, partition, "reader", 0),
                logs.set_retention(name, partition, KEEP_ALL),
                logs.trim(name, partition),
                logs.seal(name, partition, 1),
            ):
                with pytest.raises(LogNotFoundError):
                    await attempt

    async def test_seal_rejects_appends_and_keeps_messages_readable(self, logs: Logs) -> None:
        await logs.create("log", 2, KEEP_ALL)
        await logs.append("log", 0, [b"a"])
        sealed = await logs.seal("log", 0, 1)
        assert (sealed.sealed, sealed.end) == (1, 1)
        # A second seal changes nothing.
        assert (await logs.seal("log", 0, 7)).sealed == 1
        with pytest.raises(LogSealedError) as refusal:
            await logs.append("log", 0, [b"b", b"c"])
        assert refusal.value.next_index == 1
        assert (await logs.read("log", 0, 0, limit=10)).payloads == [b"a"]
        assert (await logs.append("log", 1, [b"b"])).offsets[0] == 0

    async def test_seal_during_appends_rejects_all_later_ones(self, logs: Logs) -> None:
        await logs.create("log", 1, KEEP_ALL)
        appends = [logs.append("log", 0, [b"%d" % n]) for n in range(40)]
        seal = logs.seal("log", 0, 1)
        results = await asyncio.gather(*appends[:20], seal, *appends[20:], return_exceptions=True)
        end = (await logs.state("log", 0)).end
        accepted = [each for each in results if hasattr(each, "offsets")]
        assert len(accepted) == end == len(await logs.read("log", 0, 0, limit=100))
        refused = [each for each in results if isinstance(each, LogSealedError)]
        assert len(refused) == 40 - end

    async def test_offset_at_returns_first_message_since_time(self, logs: Logs) -> None:
        await logs.create("log", 1, KEEP_ALL)
        assert await logs.offset_at("log", 0, 1) == 0
        batches = []
        for size in (3, 1, 5, 2, 100):
            batches.append(await logs.append("log", 0, [b"x"] * size))
            await asyncio.sleep(0.003)
        for batch in batches:
            # If several appends have the same time, offset_at returns the first one.
            first = next(each.offsets[0] for each in batches if each.ms == batch.ms)
            assert await logs.offset_at("log", 0, batch.ms) == first
        assert await logs.offset_at("log", 0, 0) == 0
        assert await logs.offset_at("log", 0, batches[-1].ms + 1) == 111

    async def test_trim_of_full_refusing_log_without_readers_deletes_nothing(
        self, logs: Logs
    ) -> None:
        await logs.create("log", 1, Retention(max_bytes=1000))
        await logs.append("log", 0, [b"x" * 100] * 10)
        assert (await logs.trim("log", 0)).removed == 0
        with pytest.raises(LogFullError):
            await logs.append("log", 0, [b"y"])
        assert (await logs.state("log", 0)).end == 10

    async def test_append_to_full_dropping_log_counts_deleted_messages_that_reader_needed(
        self, logs: Logs
    ) -> None:
        await logs.create("log", 1, Retention(max_bytes=1000, policy="drop_and_count"))
        await logs.append("log", 0, [b"x" * 100] * 10)
        await logs.hold("log", 0, "slow", 4)
        await logs.append("log", 0, [b"y" * 100] * 6)
        state = await logs.state("log", 0)
        assert (state.first, state.end, state.bytes) == (6, 16, 1000)
        assert (state.dropped, (await logs.trim("log", 0)).dropped) == (2, 2)
        with pytest.raises(OffsetOutOfRangeError) as refusal:
            await logs.read("log", 0, 4, limit=1)
        assert refusal.value.first == 6

    async def test_trim_by_age_keeps_held_messages(self, logs: Logs) -> None:
        await logs.create("log", 1, Retention(max_age_ms=0))
        await logs.append("log", 0, [b"x"] * 10)
        await logs.hold("log", 0, "slow", 3)
        await logs.hold("log", 0, "quick", 8)
        await asyncio.sleep(0.005)
        assert (await logs.trim("log", 0)).removed == 3
        await logs.hold("log", 0, "slow", 7)
        assert (await logs.trim("log", 0)).removed == 4
        await logs.release("log", 0, "slow")
        assert (await logs.trim("log", 0)).removed == 1
        await logs.release("log", 0, "quick")
        assert (await logs.trim("log", 0)).removed == 2
        state = await logs.state("log", 0)
        assert (state.first, state.end, state.bytes, state.dropped) == (10, 10, 0, 0)
        assert (await logs.append("log", 0, [b"y"])).offsets[0] == 10
        assert (await logs.read("log", 0, 10, limit=5)).payloads == [b"y"]

    async def test_hold_of_earlier_incarnation_changes_nothing(self, logs: Logs) -> None:
        await logs.create("log", 1, Retention(max_age_ms=0))
        await logs.append("log", 0, [b"x"] * 10)
        await logs.hold("log", 0, "reader", 8, incarnation=1)
        await logs.hold("log", 0, "reader", 2, incarnation=2)
        for late in (0, 1):
            await logs.hold("log", 0, "reader", 9, incarnation=late)
        await asyncio.sleep(0.005)
        assert (await logs.trim("log", 0)).removed == 2
        await logs.hold("log", 0, "reader", 6, incarnation=2)
        await logs.hold("log", 0, "reader", 5, incarnation=10)
        assert (await logs.trim("log", 0)).removed == 3
        # After a release, any incarnation may set a hold.
        await logs.release("log", 0, "reader")
        await logs.hold("log", 0, "reader", 7)
        assert (await logs.trim("log", 0)).removed == 2

    async def test_append_to_full_refusing_log_deletes_passed_messages(self, logs: Logs) -> None:
        await logs.create("log", 1, Retention(max_bytes=1000))
        await logs.append("log", 0, [b"x" * 100] * 10)
        await logs.hold("log", 0, "quick", 9)
        await logs.hold("log", 0, "slow", 2)
        assert (await logs.append("log", 0, [b"y" * 100] * 2)).offsets[0] == 10
        state = await logs.state("log", 0)
        assert (state.first, state.end, state.bytes, state.dropped) == (2, 12, 1000, 0)
        # The slow reader needs the remaining messages, so trimming keeps them.
        with pytest.raises(LogFullError, match="stores at most 1,000 bytes"):
            await logs.append("log", 0, [b"z"])
        assert (await logs.state("log", 0)).end == 12
        await logs.hold("log", 0, "slow", 9)
        assert (await logs.append("log", 0, [b"z" * 150])).offsets[0] == 12
        assert (await logs.state("log", 0)).first == 4

    async def test_hold_of_yielding_reader_keeps_old_messages_only_below_byte_limit(
        self, logs: Logs
    ) -> None:
        await logs.create("log", 1, Retention(max_bytes=1000, max_age_ms=0))
        await logs.append("log", 0, [b"x" * 100] * 10)
        await logs.hold("log", 0, "~history", 2)
        await asyncio.sleep(0.005)
        assert (await logs.trim("log", 0)).removed == 2
        # If all readers yield (names with `~`), a full log rejects appends.
        await logs.append("log", 0, [b"y" * 100] * 2)
        with pytest.raises(LogFullError):
            await logs.append("log", 0, [b"z"])
        assert (await logs.trim("log", 0)).needed_bytes == 1000
        # A message that only the yielding reader has not read is deleted and counted.
        await logs.hold("log", 0, "quick", 5)
        assert (await logs.append("log", 0, [b"z" * 100] * 3)).offsets[0] == 12
        state = await logs.state("log", 0)
        assert (state.first, state.end, state.dropped) == (5, 15, 3)
        with pytest.raises(LogFullError):
            await logs.append("log", 0, [b"z"])

    async def test_append_to_full_dropping_log_counts_deleted_messages_that_yielding_reader_needed(
        self, logs: Logs
    ) -> None:
        await logs.create("log", 1, Retention(max_bytes=1000, policy="drop_and_count"))
        await logs.append("log", 0, [b"x" * 100] * 10)
        await logs.hold("log", 0, "~history", 1)
        await logs.append("log", 0, [b"y" * 100] * 3)
        trimmed = await logs.trim("log", 0)
        # The warning begins before messages are dropped.
        assert (trimmed.dropped, trimmed.warning) == (2, "begins")

    async def test_log_batch_columns_and_entries_have_same_messages(self, logs: Logs) -> None:
        await logs.create("log", 1, KEEP_ALL)
        for size in (3, 1, 40):
            await logs.append("log", 0, [b"x" * number for number in range(size)])
        everything = await read_all(logs, "log", 0)
        for start, limit, bytes_max in ((0, 100, 10_000), (2, 30, 10_000), (30, 10, 50)):
            batch = await logs.read("log", 0, start, limit=limit, bytes_max=bytes_max)
            assert batch.offset == start
            assert 1 <= len(batch) <= limit
            assert batch.next_offset == start + len(batch)
            same = everything[start : batch.next_offset]
            assert list(batch.entries()) == same
            assert batch.payloads == [entry.payload for entry in same]
            assert batch.times_ms == [entry.ms for entry in same]
        at_end = await logs.read("log", 0, 44, limit=5)
        assert (at_end.offset, at_end.next_offset, at_end.payloads) == (44, 44, [])

    async def test_append_above_byte_limit_deletes_nothing(self, logs: Logs) -> None:
        await logs.create("log", 1, Retention(max_bytes=1000))
        await logs.append("log", 0, [b"x" * 100] * 5)
        await logs.hold("log", 0, "reader", 5)
        with pytest.raises(LogFullError):
            await logs.append("log", 0, [b"y" * 1001])
        assert (await logs.state("log", 0)).first == 0

    async def test_append_to_dropping_log_keeps_it_within_limit(self, logs: Logs) -> None:
        await logs.create("log", 1, Retention(max_bytes=1000, policy="drop_and_count"))
        await logs.hold("log", 0, "slow", 0)
        for _ in range(30):
            await logs.append("log", 0, [b"x" * 100])
        state = await logs.state("log", 0)
        assert (state.first, state.end, state.bytes, state.dropped) == (20, 30, 1000, 20)

    async def test_set_retention_applies_to_next_trim_and_append(self, logs: Logs) -> None:
        await logs.create("log", 1, KEEP_ALL)
        await logs.append("log", 0, [b"x" * 100] * 10)
        await logs.set_retention("log", 0, Retention(max_bytes=300, policy="drop_and_count"))
        assert (await logs.trim("log", 0)).removed == 7
        await logs.set_retention("log", 0, Retention(max_bytes=300))
        with pytest.raises(LogFullError):
            await logs.append("log", 0, [b"y"])
        await logs.set_retention("log", 0, KEEP_ALL)
        await logs.append("log", 0, [b"y" * 1000])
        assert (await logs.state("log", 0)).first == 7

    async def test_set_retention_of_lower_version_changes_nothing(self, logs: Logs) -> None:
        first, second, third = (Retention(max_bytes=n * 100, version=n) for n in (1, 2, 3))
        await logs.create("log", 1, first)
        await logs.set_retention("log", 0, third)
        await logs.set_retention("log", 0, second)
        assert (await logs.trim("log", 0)).retention == third
        assert (await logs.trim("log", 0, second)).retention == third
        assert await logs.create("log", 1, second) is False
        assert (await logs.trim("log", 0)).retention == third

    async def test_trim_with_new_retention_stores_it_and_trims_by_it(self, logs: Logs) -> None:
        await logs.create("log", 1, Retention(max_age_ms=0, version=1))
        await logs.append("log", 0, [b"x"] * 5)
        await asyncio.sleep(0.005)
        assert (await logs.trim("log", 0, Retention(version=2))).removed == 0
        assert (await logs.trim("log", 0)).retention == Retention(version=2)
        assert (await logs.trim("log", 0, Retention(max_age_ms=0, version=3))).removed == 5

    async def test_trim_warning_begins_and_ends_once(self, logs: Logs) -> None:
        await logs.create("log", 1, Retention(max_bytes=1000))
        await logs.append("log", 0, [b"x" * 100] * 6)
        assert (await logs.trim("log", 0)).warning == ""
        await logs.append("log", 0, [b"x" * 100] * 2)
        first = await logs.trim("log", 0)
        assert (first.warning, first.needed_bytes, first.bytes) == ("begins", 800, 800)
        assert first.retention == Retention(max_bytes=1000)
        assert (await logs.trim("log", 0)).warning == "lasts"
        assert (await logs.state("log", 0)).warned_ms > 0
        # A reader has passed half of the messages, so the needed half is below the limit.
        await logs.hold("log", 0, "reader", 4)
        ended = await logs.trim("log", 0)
        assert (ended.warning, ended.needed_bytes) == ("ends", 400)
        # The result names the reader with the lowest hold.
        await logs.hold("log", 0, "~slow", 2)
        assert (first.slowest, ended.slowest, (await logs.trim("log", 0)).slowest) == (
            "",
            "reader",
            "~slow",
        )
        assert (await logs.trim("log", 0)).warning == ""
        assert (await logs.state("log", 0)).warned_ms == 0

    async def test_names_returns_logs_with_partition_counts(self, logs: Logs) -> None:
        for number in range(3):
            await logs.create(f"log.{number}", number + 1, KEEP_ALL)
        assert await logs.names() == {"log.0": 1, "log.1": 2, "log.2": 3}
        await logs.delete("log.1", 2)
        assert await logs.names() == {"log.0": 1, "log.2": 3}

    async def test_delete_removes_log_and_allows_new_one(self, logs: Logs) -> None:
        await logs.create("log", 2, KEEP_ALL)
        await logs.append("log", 0, [b"a"])
        await logs.hold("log", 0, "reader", 1)
        await logs.delete("log", 2)
        await logs.delete("log", 2)
        with pytest.raises(LogNotFoundError):
            await logs.append("log", 0, [b"a"])
        assert await logs.create("log", 2, KEEP_ALL) is True
        assert (await logs.append("log", 0, [b"b"])).offsets[0] == 0

    async def test_append_by_concurrent_callers_keeps_batches_together(self, logs: Logs) -> None:
        await logs.create("log", 1, KEEP_ALL)

        async def appender(name: bytes) -> list[int]:
            receipts = []
            for n in range(20):
                batch = [b"%b-%d-%d" % (name, n, i) for i in range(5)]
                receipts.append((await logs.append("log", 0, batch)).offsets[0])
            return receipts

        offsets = await asyncio.gather(*(appender(b"w%d" % n) for n in range(4)))
        assert sorted(itertools.chain.from_iterable(offsets)) == list(range(0, 400, 5))
        entries = await read_all(logs, "log", 0)
        for name, own in enumerate(offsets):
            for n, offset in enumerate(own):
                batch = [entry.payload for entry in entries[offset : offset + 5]]
                assert batch == [b"w%d-%d-%d" % (name, n, i) for i in range(5)]

    @settings(
        max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )
    @given(
        sizes=st.lists(st.integers(1, 30), min_size=1, max_size=8),
        start=st.integers(0, 300),
        limit=st.integers(1, 50),
    )
    async def test_read_from_any_offset_returns_appended_messages(
        self, logs: Logs, sizes: list[int], start: int, limit: int
    ) -> None:
        await logs.delete("log", 1)
        await logs.create("log", 1, KEEP_ALL)
        bodies = [b"%d" % n for n in range(sum(sizes))]
        done = 0
        for size in sizes:
            await logs.append("log", 0, bodies[done : done + size])
            done += size
        at = min(start, done)
        batch = await logs.read("log", 0, at, limit=limit)
        assert batch.payloads == bodies[at:][:limit]
