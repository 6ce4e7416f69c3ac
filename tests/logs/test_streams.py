"""StreamLogs: the conformance suite, bounded steps, gaps, and record logs without a reader."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tests.helpers.store_faults import store_at
from tests.logs.conformance import KEEP_ALL, LogConformance
from waystation.errors import LogDamagedError, LogFullError, StoreDamagedError
from waystation.logs import keys
from waystation.logs.protocol import Logs, Retention, record_retention
from waystation.logs.streams import TRIM_STEP, StreamLogs
from waystation.store.client import Store
from waystation.store.connection import Reply
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.scripts import script

RECORD = script("tests.logs", "record")


@pytest.fixture
async def store(store_server: EmbeddedServer) -> AsyncIterator[Store]:
    """Return a client with the product's scripts on the emptied store of this test process."""
    async with store_at(store_server.address) as client:
        await client.call("FLUSHALL", repeatable=True)
        yield client


@pytest.fixture
def logs(store: Store) -> StreamLogs:
    """Return logs in the emptied store of this test process."""
    return StreamLogs(store)


class TestStreamLogs(LogConformance):
    """The conformance suite, and behaviour that only streams have."""

    async def test_trim_of_long_log_takes_bounded_steps(self, logs: Logs) -> None:
        await logs.create("log", 1, KEEP_ALL)
        for _ in range(3):
            await logs.append("log", 0, [b"x"] * TRIM_STEP)
        await logs.set_retention("log", 0, Retention(max_bytes=100, policy="drop_and_count"))
        steps = [await logs.trim("log", 0) for _ in range(4)]
        assert [step.removed for step in steps] == [TRIM_STEP, TRIM_STEP, TRIM_STEP - 100, 0]
        assert [step.more for step in steps] == [True, True, False, False]

    async def test_trim_of_large_messages_takes_smaller_steps(self, logs: Logs) -> None:
        await logs.create("log", 1, KEEP_ALL)
        await logs.append("log", 0, [b"x"] * 100 + [b"x" * 300_000] * 20)
        await logs.set_retention("log", 0, Retention(max_bytes=1, policy="drop_and_count"))
        removed = []
        while (step := await logs.trim("log", 0)).more:
            removed.append(step.removed)
        # One step reads about 1 MiB, even if its first messages are small.
        assert len(removed) > 2
        assert (await logs.state("log", 0)).first == sum(removed) + step.removed == 120

    async def test_read_after_large_message_grows_batches_slowly(self, logs: Logs) -> None:
        await logs.create("log", 1, KEEP_ALL)
        await logs.append("log", 0, [b"x" * 1_000_000] + [b"x"] * 999)
        assert len(await logs.read("log", 0, 0, limit=1)) == 1
        sizes = []
        at = 1
        while batch := await logs.read("log", 0, at, limit=1000):
            sizes.append(len(batch))
            at = batch.next_offset
        assert sizes[:4] == [4, 8, 16, 33]

    async def test_offset_at_does_not_read_bodies_of_older_messages(
        self, logs: Logs, store: Store
    ) -> None:
        await logs.create("log", 1, KEEP_ALL)
        for _ in range(12):
            await logs.append("log", 0, [b"x" * 4_000_000])
        old = await logs.state("log", 0)
        await asyncio.sleep(0.002)
        await logs.append("log", 0, [b"x"] * 4)

        async def reads(ms: int, found: int) -> tuple[int, int]:
            """Search for a time. Return the number and the microseconds of the XRANGE commands."""
            await store.call("CONFIG", "RESETSTAT")
            assert await logs.offset_at("log", 0, ms) == found
            statistics = re.search(
                rb"cmdstat_xrange:calls=(\d+),usec=(\d+)", await store.call("INFO", "all")
            )
            return (int(statistics[1]), int(statistics[2])) if statistics else (0, 0)

        state = await logs.state("log", 0)
        assert await reads(state.last_ms + 1, 16) == (0, 0)
        assert (await reads(0, 0))[0] == (await reads(-1, 0))[0] == 1
        # The search reads no body of a large message, so it costs less than reading one.
        searches = [await reads(old.last_ms + 1, 12) for _ in range(5)]
        single_reads = [await reads(0, 0) for _ in range(5)]
        assert max(calls for calls, _ in searches) <= 6
        assert min(spent for _, spent in searches) < min(spent for _, spent in single_reads) / 2

    async def test_script_with_append_include_writes_record_and_state_atomically(
        self, logs: Logs, store: Store
    ) -> None:
        log = "s.default.mails.1"
        await logs.create(log, 3, Retention(max_bytes=100))
        state = f"{{{log}.2}}:state"

        async def commit(position: int, record: bytes) -> list[Reply]:
            reply: list[Reply] = await store.run(
                RECORD, [state, *keys.all_of(log, 2)], [position, record]
            )
            return reply

        for position in (7, 8):
            assert (await commit(position, b"%d" % position))[0] == b"appended"
        assert (await logs.read(log, 2, 0, limit=9)).payloads == [b"7", b"8"]
        assert await logs.names() == {log: 3}
        await logs.hold(log, 2, "history", 1)
        assert await commit(9, b"x" * 101) == [b"full", b"100"]
        await logs.seal(log, 2, 1)
        assert await commit(10, b"10") == [b"sealed", b"1"]
        # A refused record leaves the state unchanged.
        assert await store.call("HGET", state, "position") == b"8"

    async def test_delete_removes_deduplication_entries_of_this_log_only(
        self, logs: Logs, store: Store
    ) -> None:
        for log in ("log", "log.0", "logs"):
            await logs.create(log, 12, KEEP_ALL)
            # Create more keys than one SCAN returns. Some ids look like patterns or keys.
            for number in range(1500):
                key = keys.message_id(log, number % 12, f"g[*]:{{log.1}}:log:id:{number}")
                await store.call("SET", key, "0-0")
        await logs.delete("log", 12)
        assert await store.call("KEYS", "{log.[0-9]}:*") == []
        assert await store.call("KEYS", "{log.1[0-9]}:*") == []
        assert await store.call("DBSIZE") == 2 * (12 + 1500) + 1

    async def test_create_repeated_after_crash_adds_missing_partitions(
        self, logs: Logs, store: Store
    ) -> None:
        await logs.create("log", 4, KEEP_ALL)
        await logs.append("log", 0, [b"a"])
        await store.call("DEL", "{log.2}:log:head")
        assert await logs.create("log", 4, KEEP_ALL) is True
        assert (await logs.state("log", 2)).end == 0
        assert (await logs.state("log", 0)).end == 1


class TestGaps:
    """Entries that another program deleted. The others keep their offsets."""

    @pytest.fixture
    async def delete(self, logs: StreamLogs, store: Store) -> Callable[..., Awaitable[None]]:
        """Append ten messages. Return a function that deletes the entries of given offsets."""
        await logs.create("log", 1, KEEP_ALL)
        for number in range(10):
            await logs.append("log", 0, [b"%d" % number])
        batch = await logs.read("log", 0, 0, limit=10)

        async def delete(*offsets: int) -> None:
            for offset in offsets:
                entry_id = f"{offset}-{batch.times_ms[offset]}"
                await store.call("XDEL", keys.entries("log", 0), entry_id)

        return delete

    async def test_read_before_gap_returns_messages_up_to_it(
        self, logs: Logs, delete: Callable[..., Awaitable[None]]
    ) -> None:
        await delete(4, 5)
        batch = await logs.read("log", 0, 1, limit=100)
        assert (batch.offset, batch.next_offset) == (1, 4)
        assert batch.payloads == [b"1", b"2", b"3"]
        assert len(batch.times_ms) == 3

    @pytest.mark.parametrize("offset", [4, 5])
    async def test_read_inside_gap_raises_log_damaged_with_range(
        self, logs: Logs, delete: Callable[..., Awaitable[None]], offset: int
    ) -> None:
        await delete(4, 5)
        with pytest.raises(LogDamagedError) as caught:
            await logs.read("log", 0, offset, limit=100)
        assert (caught.value.start, caught.value.end) == (offset, 6)
        assert caught.value.code == "log.damaged"

    async def test_read_after_gap_returns_stored_offsets(
        self, logs: Logs, delete: Callable[..., Awaitable[None]]
    ) -> None:
        await delete(0, 4, 5)
        batch = await logs.read("log", 0, 6, limit=100)
        assert [(each.offset, each.payload) for each in batch.entries()] == [
            (number, b"%d" % number) for number in range(6, 10)
        ]

    async def test_read_of_missing_tail_raises_log_damaged(
        self, logs: Logs, store: Store, delete: Callable[..., Awaitable[None]]
    ) -> None:
        await delete(8, 9)
        with pytest.raises(LogDamagedError) as caught:
            await logs.read("log", 0, 8, limit=100)
        assert (caught.value.start, caught.value.end) == (8, 10)
        assert len(await logs.read("log", 0, 10, limit=100)) == 0
        await store.call("DEL", keys.entries("log", 0))
        with pytest.raises(LogDamagedError) as caught:
            await logs.read("log", 0, 0, limit=100)
        assert (caught.value.start, caught.value.end) == (0, 10)

    async def test_offset_at_in_log_with_gap_finds_messages_around_it(
        self, logs: Logs, store: Store
    ) -> None:
        await logs.create("log", 1, KEEP_ALL)
        stream, head = keys.entries("log", 0), keys.head("log", 0)
        for offset in (*range(3), *range(6, 10)):
            await store.call("XADD", stream, f"{offset}-{1000 + offset}", "m", b"x")
        await store.call("HSET", head, "end", 10, "ms", 1009)
        found = [await logs.offset_at("log", 0, 1000 + number) for number in range(11)]
        assert found[:3] == [0, 1, 2]
        # A time inside the gap finds the gap or the first message after it.
        assert all(3 <= each <= 6 for each in found[3:7])
        assert found[7:] == [7, 8, 9, 10]

    async def test_trim_of_log_with_gap_keeps_held_messages(
        self, logs: Logs, delete: Callable[..., Awaitable[None]]
    ) -> None:
        await delete(0, 1, 2, 3)
        await logs.hold("log", 0, "reader", 6)
        await logs.set_retention("log", 0, Retention(max_bytes=1))
        trimmed = await logs.trim("log", 0)
        assert (trimmed.removed, trimmed.dropped) == (2, 0)
        assert (await logs.state("log", 0)).first == 6
        assert (await logs.read("log", 0, 6, limit=100)).payloads == [b"6", b"7", b"8", b"9"]

    async def test_append_to_full_log_whose_stream_is_missing_succeeds(
        self, logs: Logs, store: Store, delete: Callable[..., Awaitable[None]]
    ) -> None:
        await delete()
        await logs.set_retention("log", 0, Retention(max_bytes=10))
        with pytest.raises(LogFullError):
            await logs.append("log", 0, [b"x"])
        await store.call("DEL", keys.entries("log", 0))
        assert (await logs.append("log", 0, [b"x"])).offsets[0] == 10
        state = await logs.state("log", 0)
        assert (state.end, state.bytes) == (11, 1)


class TestUnread:
    """A record log without a reader stores few entries and counts those that it deletes."""

    RETENTION = Retention(max_bytes=100, policy="drop_and_count", unread_max_bytes=20)

    async def test_append_without_reader_deletes_and_counts_entries_above_unread_limit(
        self, logs: Logs
    ) -> None:
        await logs.create("log", 1, self.RETENTION)
        for _ in range(50):
            await logs.append("log", 0, [b"x"])
        state = await logs.state("log", 0)
        assert (state.first, state.end, state.bytes) == (30, 50, 20)
        assert (state.unread, state.dropped) == (30, 0)

    async def test_append_with_reader_deletes_nothing_below_byte_limit(self, logs: Logs) -> None:
        await logs.create("log", 1, self.RETENTION)
        await logs.append("log", 0, [b"x"] * 10)
        await logs.hold("log", 0, "~history", 0)
        for _ in range(120):
            await logs.append("log", 0, [b"x"])
        state = await logs.state("log", 0)
        assert (state.first, state.bytes, state.unread, state.dropped) == (30, 100, 0, 30)
        # Without the reader the lower limit applies again.
        await logs.release("log", 0, "~history")
        await logs.append("log", 0, [b"x"])
        state = await logs.state("log", 0)
        assert (state.bytes, state.unread, state.dropped) == (20, 81, 30)

    async def test_trim_of_sealed_log_without_reader_deletes_nothing(self, logs: Logs) -> None:
        # The ingest releases a sealed log only after it has read every entry.
        await logs.create("log", 1, self.RETENTION)
        await logs.hold("log", 0, "~history", 0)
        await logs.append("log", 0, [b"x"] * 50)
        await logs.seal("log", 0, 1)
        await logs.release("log", 0, "~history")
        assert (await logs.trim("log", 0)).removed == 0
        assert (await logs.state("log", 0)).unread == 0

    async def test_append_to_record_log_with_policy_refuse_deletes_nothing_without_reader(
        self, logs: Logs
    ) -> None:
        await logs.create("log", 1, record_retention(100, "refuse"))
        await logs.append("log", 0, [b"x"] * 100)
        with pytest.raises(LogFullError):
            await logs.append("log", 0, [b"x"])
        assert (await logs.state("log", 0)).first == 0


def documented_repair() -> str:
    """Return the script that the operating page prints for a stream with foreign entries."""
    page = Path("docs/operating/troubleshooting.md").read_text()
    return page.split("```lua\n", 1)[1].split("```", 1)[0]


class TestDamagedKeys:
    """Keys that another program has written."""

    @pytest.mark.parametrize("field", ["first", "end", "bytes", "ms"])
    @pytest.mark.parametrize("value", ["1.5", "soon", "-1", "9" * 30, "nan", ""])
    async def test_log_with_invalid_number_in_head_rejects_calls_and_changes_nothing(
        self, logs: StreamLogs, store: Store, field: str, value: str
    ) -> None:
        await logs.create("log", 1, KEEP_ALL)
        await logs.append("log", 0, [b"a", b"b"])
        await store.call("HSET", keys.head("log", 0), field, value)
        entries = await store.call("XRANGE", keys.entries("log", 0), "-", "+")
        head = await store.call("HGETALL", keys.head("log", 0))
        limits = Retention(max_bytes=1, policy="drop_and_count")
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "end bytes ms": lambda: logs.append("log", 0, [b"c"]),
            "first end bytes": lambda: logs.trim("log", 0, limits),
            "first end": lambda: logs.hold("log", 0, "reader", 0),
            "end first": lambda: logs.read("log", 0, 2, limit=1),
            "ms end first": lambda: logs.offset_at("log", 0, 0),
        }
        for fields, call in calls.items():
            if field in fields.split():
                with pytest.raises(StoreDamagedError) as raised:
                    await call()
                assert raised.value.key == keys.head("log", 0)
                assert "Do not delete" in raised.value.hint
        assert await store.call("XRANGE", keys.entries("log", 0), "-", "+") == entries
        now = dict(zip(*[iter(await store.call("HGETALL", keys.head("log", 0)))] * 2, strict=True))
        before = dict(zip(*[iter(head)] * 2, strict=True))
        assert now[field.encode()] == before[field.encode()]

    @pytest.mark.parametrize("value", ["1.5", "soon", ""])
    async def test_state_with_invalid_number_names_the_damaged_key(
        self, logs: StreamLogs, store: Store, value: str
    ) -> None:
        await logs.create("log", 1, KEEP_ALL)
        await store.call("HSET", keys.head("log", 0), "end", value)
        with pytest.raises(StoreDamagedError) as raised:
            await logs.state("log", 0)
        assert raised.value.key == keys.head("log", 0)

    async def test_append_behind_foreign_entry_names_the_log_and_works_after_repair(
        self, logs: StreamLogs, store: Store
    ) -> None:
        await logs.create("log", 1, KEEP_ALL)
        appended = await logs.append("log", 0, [b"a", b"b"])
        stream = keys.entries("log", 0)
        await store.call("XADD", stream, "*", "m", b"x")
        with pytest.raises(StoreDamagedError) as raised:
            await logs.append("log", 0, [b"c", b"d"])
        assert raised.value.key == stream
        assert (await logs.read("log", 0, 0, limit=9)).payloads == [b"a", b"b"]
        assert not await logs.read("log", 0, 2, limit=9)
        end = (await logs.state("log", 0)).end
        await store.call("EVAL", documented_repair(), 2, stream, f"{stream}:copy", end)
        assert (await logs.append("log", 0, [b"c"])).offsets == range(2, 3)
        assert (await logs.read("log", 0, 0, limit=9)).payloads == [b"a", b"b", b"c"]
        assert appended.offsets == range(2)

    async def test_trim_stops_before_foreign_entry(self, logs: StreamLogs, store: Store) -> None:
        await logs.create("log", 1, Retention(max_bytes=1, policy="drop_and_count"))
        await logs.append("log", 0, [b"a"])
        await logs.append("log", 0, [b"bc"])
        await store.call("XADD", keys.entries("log", 0), "*", "m", b"x")
        result = await logs.trim("log", 0)
        state = await logs.state("log", 0)
        assert not result.more
        assert (state.first, state.end, state.bytes) == (2, 2, 0)

    async def test_names_with_invalid_field_of_register_returns_the_others(
        self, logs: StreamLogs, store: Store
    ) -> None:
        await logs.create("log", 2, KEEP_ALL)
        await store.call("HSET", keys.REGISTER, "other", "many", b"\xff", "1")
        assert await logs.names() == {"log": 2}
