"""Streams in the store are logs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.logs.conformance import KEEP_ALL, LogConformance, Open, payloads
from waystation.errors import LogDamagedError, LogFullError
from waystation.logs import keys
from waystation.logs.protocol import Logs, Retention, record_retention
from waystation.logs.streams import TRIM_STEP, StreamLogs
from waystation.store.client import Store
from waystation.store.connection import Reply
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.scripts import script

RECORD = script("tests.logs", "record")


@pytest.fixture
def open_logs(store_server: EmbeddedServer) -> Open:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Logs]:
        store = Store(store_server.address)
        await store.call("FLUSHALL")
        try:
            yield StreamLogs(store)
        finally:
            await store.close()

    return opened


@asynccontextmanager
async def closing_store(server: EmbeddedServer) -> AsyncIterator[Store]:
    store = Store(server.address)
    try:
        yield store
    finally:
        await store.close()


class TestStreams(LogConformance):
    """The suite, and what only streams have."""

    async def test_a_long_log_is_trimmed_in_bounded_steps(self, open_logs: Open) -> None:
        async with open_logs() as logs:
            await logs.create("log", 1, KEEP_ALL)
            for _ in range(3):
                await logs.append("log", 0, [b"x"] * TRIM_STEP)
            await logs.set_retention("log", 0, Retention(max_bytes=100, policy="drop_and_count"))
            steps = [await logs.trim("log", 0) for _ in range(4)]
            assert [step.removed for step in steps] == [TRIM_STEP, TRIM_STEP, TRIM_STEP - 100, 0]
            assert [step.more for step in steps] == [True, True, False, False]

    async def test_a_step_ends_early_where_messages_are_large(self, open_logs: Open) -> None:
        async with open_logs() as logs:
            await logs.create("log", 1, KEEP_ALL)
            await logs.append("log", 0, [b"x"] * 100 + [b"x" * 300_000] * 20)
            await logs.set_retention("log", 0, Retention(max_bytes=1, policy="drop_and_count"))
            removed = []
            while (step := await logs.trim("log", 0)).more:
                removed.append(step.removed)
            # About a mebibyte is looked at in one step, however small the first messages were.
            assert len(removed) > 2
            assert (await logs.state("log", 0)).first == sum(removed) + step.removed == 120

    async def test_a_read_after_small_messages_remembers_large_ones_for_a_while(
        self, open_logs: Open
    ) -> None:
        async with open_logs() as logs:
            await logs.create("log", 1, KEEP_ALL)
            await logs.append("log", 0, [b"x" * 1_000_000] + [b"x"] * 999)
            assert len(await logs.read("log", 0, 0, limit=1)) == 1
            sizes = []
            at = 1
            while batch := await logs.read("log", 0, at, limit=1000):
                sizes.append(len(batch))
                at += len(batch)
            assert sizes[:4] == [4, 8, 16, 33]

    async def test_the_offset_of_a_time_is_found_without_reading_what_is_older(
        self, open_logs: Open, store_server: EmbeddedServer
    ) -> None:
        async with open_logs() as logs, closing_store(store_server) as store:
            await logs.create("log", 1, KEEP_ALL)
            for _ in range(12):
                await logs.append("log", 0, [b"x" * 4_000_000])
            old = await logs.state("log", 0)
            await asyncio.sleep(0.002)
            await logs.append("log", 0, [b"x"] * 4)

            async def reads(ms: int, found: int) -> tuple[int, int]:
                """How often the store read from the log for it, and for how many microseconds."""
                await store.call("CONFIG", "RESETSTAT")
                assert await logs.offset_at("log", 0, ms) == found
                told = re.search(
                    rb"cmdstat_xrange:calls=(\d+),usec=(\d+)", await store.call("INFO", "all")
                )
                return (int(told[1]), int(told[2])) if told else (0, 0)

            state = await logs.state("log", 0)
            assert await reads(state.last_ms + 1, 16) == (0, 0)
            assert (await reads(0, 0))[0] == (await reads(-1, 0))[0] == 1
            # Each look is a range that is empty for the large ones: less than to read one of them.
            looks = [await reads(old.last_ms + 1, 12) for _ in range(5)]
            one = [await reads(0, 0) for _ in range(5)]
            assert max(calls for calls, _ in looks) <= 6
            assert min(spent for _, spent in looks) < min(spent for _, spent in one) / 2

    async def test_another_unit_writes_its_record_in_its_own_slot_together_with_its_state(
        self, open_logs: Open, store_server: EmbeddedServer
    ) -> None:
        log = "s.default.mails.1"
        async with open_logs() as logs, closing_store(store_server) as store:
            await logs.create(log, 3, Retention(max_bytes=100))
            state = f"{{{log}.2}}:state"

            async def commit(position: int, record: bytes) -> list[Reply]:
                reply: list[Reply] = await store.run(
                    RECORD, [state, *keys.all_of(log, 2)], [position, record]
                )
                return reply

            for position in (7, 8):
                assert (await commit(position, b"%d" % position))[0] == b"appended"
            # It is a log like any other: read, trimmed, held, sealed by those who know its name.
            assert payloads(await logs.read(log, 2, 0, limit=9)) == [b"7", b"8"]
            assert await logs.names() == {log: 3}
            await logs.hold(log, 2, "history", 1)
            assert await commit(9, b"x" * 101) == [b"full", b"100"]
            await logs.seal(log, 2, 1)
            assert await commit(10, b"10") == [b"sealed", b"1"]
            # What has no record did not happen.
            assert await store.call("HGET", state, "position") == b"8"

    async def test_a_deletion_takes_what_is_remembered_of_the_log_and_of_no_other(
        self, open_logs: Open, store_server: EmbeddedServer
    ) -> None:
        async with open_logs() as logs, closing_store(store_server) as store:
            for log in ("log", "log.0", "logs"):
                await logs.create(log, 12, KEEP_ALL)
                # More than one step of a walk, and names that look like patterns and keys.
                for number in range(1500):
                    key = keys.message_id(log, number % 12, f"g[*]:{{log.1}}:log:id:{number}")
                    await store.call("SET", key, "0-0")
            await logs.delete("log", 12)
            assert await store.call("KEYS", "{log.[0-9]}:*") == []
            assert await store.call("KEYS", "{log.1[0-9]}:*") == []
            assert await store.call("DBSIZE") == 2 * (12 + 1500) + 1

    async def test_a_creation_that_died_half_way_is_done_by_repeating_it(
        self, open_logs: Open, store_server: EmbeddedServer
    ) -> None:
        async with open_logs() as logs:
            await logs.create("log", 4, KEEP_ALL)
            await logs.append("log", 0, [b"a"])
            store = Store(store_server.address)
            await store.call("DEL", "{log.2}:log:head")
            assert await logs.create("log", 4, KEEP_ALL) is True
            assert (await logs.state("log", 2)).end == 0
            assert (await logs.state("log", 0)).end == 1
            await store.close()


class TestHoles:
    """Entries that somebody removed from a stream, past Waystation: the rest keeps its offsets."""

    @asynccontextmanager
    async def damaged(
        self, server: EmbeddedServer, *removed: int, count: int = 10
    ) -> AsyncIterator[tuple[StreamLogs, Store]]:
        async with closing_store(server) as store:
            await store.call("FLUSHALL")
            logs = StreamLogs(store)
            await logs.create("log", 1, KEEP_ALL)
            for number in range(count):
                await logs.append("log", 0, [b"%d" % number])
            for entry in await logs.read("log", 0, 0, limit=count):
                if entry.offset in removed:
                    await store.call("XDEL", keys.entries("log", 0), f"{entry.offset}-{entry.ms}")
            yield logs, store

    async def test_read_before_a_hole_returns_the_entries_up_to_it(
        self, store_server: EmbeddedServer
    ) -> None:
        async with self.damaged(store_server, 4, 5) as (logs, _):
            entries = await logs.read("log", 0, 0, limit=100)
            assert [(each.offset, each.payload) for each in entries] == [
                (number, b"%d" % number) for number in range(4)
            ]
            block = await logs.read_block("log", 0, 1, limit=100)
            assert (block.offset, block.payloads) == (1, [b"1", b"2", b"3"])
            assert len(block.times_ms) == 3

    @pytest.mark.parametrize("offset", [4, 5])
    async def test_read_within_a_hole_raises_log_damaged_with_its_range(
        self, store_server: EmbeddedServer, offset: int
    ) -> None:
        async with self.damaged(store_server, 4, 5) as (logs, _):
            with pytest.raises(LogDamagedError) as caught:
                await logs.read("log", 0, offset, limit=100)
            assert (caught.value.start, caught.value.end) == (offset, 6)
            assert caught.value.code == "log.damaged"

    async def test_read_behind_a_hole_returns_the_stored_offsets(
        self, store_server: EmbeddedServer
    ) -> None:
        async with self.damaged(store_server, 0, 4, 5) as (logs, _):
            entries = await logs.read("log", 0, 6, limit=100)
            assert [(each.offset, each.payload) for each in entries] == [
                (number, b"%d" % number) for number in range(6, 10)
            ]

    async def test_read_at_a_missing_tail_raises_instead_of_reporting_the_end(
        self, store_server: EmbeddedServer
    ) -> None:
        async with self.damaged(store_server, 8, 9) as (logs, store):
            with pytest.raises(LogDamagedError) as caught:
                await logs.read("log", 0, 8, limit=100)
            assert (caught.value.start, caught.value.end) == (8, 10)
            assert await logs.read("log", 0, 10, limit=100) == []
            await store.call("DEL", keys.entries("log", 0))
            with pytest.raises(LogDamagedError) as caught:
                await logs.read("log", 0, 0, limit=100)
            assert (caught.value.start, caught.value.end) == (0, 10)

    async def test_offset_at_a_time_before_a_hole_finds_the_entry(
        self, store_server: EmbeddedServer
    ) -> None:
        async with closing_store(store_server) as store:
            await store.call("FLUSHALL")
            logs = StreamLogs(store)
            await logs.create("log", 1, KEEP_ALL)
            stream, head = keys.entries("log", 0), keys.head("log", 0)
            for offset in (*range(3), *range(6, 10)):
                await store.call("XADD", stream, f"{offset}-{1000 + offset}", "m", b"x")
            await store.call("HSET", head, "end", 10, "ms", 1009)
            found = [await logs.offset_at("log", 0, 1000 + number) for number in range(11)]
            # A time within the hole finds the first entry behind it, or the hole itself.
            assert found[:3] == [0, 1, 2]
            assert all(3 <= each <= 6 for each in found[3:7])
            assert found[7:] == [7, 8, 9, 10]

    async def test_trim_of_a_damaged_log_spares_what_readers_need(
        self, store_server: EmbeddedServer
    ) -> None:
        async with self.damaged(store_server, 0, 1, 2, 3) as (logs, _):
            await logs.hold("log", 0, "reader", 6)
            await logs.set_retention("log", 0, Retention(max_bytes=1))
            trimmed = await logs.trim("log", 0)
            assert (trimmed.removed, trimmed.dropped) == (2, 0)
            assert (await logs.state("log", 0)).first == 6
            entries = await logs.read("log", 0, 6, limit=100)
            assert [each.payload for each in entries] == [b"6", b"7", b"8", b"9"]

    async def test_append_to_a_log_without_entries_finds_room(
        self, store_server: EmbeddedServer
    ) -> None:
        async with self.damaged(store_server) as (logs, store):
            await logs.set_retention("log", 0, Retention(max_bytes=10))
            with pytest.raises(LogFullError):
                await logs.append("log", 0, [b"x"])
            await store.call("DEL", keys.entries("log", 0))
            assert (await logs.append("log", 0, [b"x"])).offsets[0] == 10
            state = await logs.state("log", 0)
            assert (state.end, state.bytes) == (11, 1)


class TestUnread:
    """A record log keeps little until a reader has registered, and counts what it drops."""

    KEEPS = Retention(max_bytes=100, policy="drop_and_count", unread_max_bytes=20)

    async def test_append_without_a_reader_keeps_little_and_counts_the_rest(
        self, open_logs: Open
    ) -> None:
        async with open_logs() as logs:
            await logs.create("log", 1, self.KEEPS)
            for _ in range(50):
                await logs.append("log", 0, [b"x"])
            state = await logs.state("log", 0)
            assert (state.first, state.end, state.bytes) == (30, 50, 20)
            assert (state.unread, state.dropped) == (30, 0)

    async def test_append_with_a_reader_keeps_up_to_the_limit(self, open_logs: Open) -> None:
        async with open_logs() as logs:
            await logs.create("log", 1, self.KEEPS)
            await logs.append("log", 0, [b"x"] * 10)
            await logs.hold("log", 0, "~history", 0)
            for _ in range(120):
                await logs.append("log", 0, [b"x"])
            state = await logs.state("log", 0)
            assert (state.first, state.bytes, state.unread, state.dropped) == (30, 100, 0, 30)
            # When the reader leaves, the log becomes small again
            await logs.release("log", 0, "~history")
            await logs.append("log", 0, [b"x"])
            state = await logs.state("log", 0)
            assert (state.bytes, state.unread, state.dropped) == (20, 81, 30)

    async def test_sealed_log_without_a_reader_is_left_alone(self, open_logs: Open) -> None:
        """History releases a sealed log that it has read to its end: nothing of it is unread."""
        async with open_logs() as logs:
            await logs.create("log", 1, self.KEEPS)
            await logs.hold("log", 0, "~history", 0)
            await logs.append("log", 0, [b"x"] * 50)
            await logs.seal("log", 0, 1)
            await logs.release("log", 0, "~history")
            assert (await logs.trim("log", 0)).removed == 0
            assert (await logs.state("log", 0)).unread == 0

    async def test_log_that_refuses_without_a_reader_drops_nothing(self, open_logs: Open) -> None:
        async with open_logs() as logs:
            await logs.create("log", 1, record_retention(100, "refuse"))
            await logs.append("log", 0, [b"x"] * 100)
            with pytest.raises(LogFullError):
                await logs.append("log", 0, [b"x"])
            assert (await logs.state("log", 0)).first == 0
