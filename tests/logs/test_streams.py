"""Streams in the store are logs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.logs.conformance import KEEP_ALL, LogConformance, Open, payloads
from waystation.logs import Logs, Retention, names
from waystation.logs.streams import TRIM_STEP, StreamLogs
from waystation.store import Store, script
from waystation.store.connection import Reply
from waystation.store.embedded import EmbeddedServer

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
            await logs.retain("log", 0, Retention(max_bytes=100, policy="drop_and_count"))
            steps = [await logs.trim("log", 0) for _ in range(4)]
            assert [step.removed for step in steps] == [TRIM_STEP, TRIM_STEP, TRIM_STEP - 100, 0]
            assert [step.more for step in steps] == [True, True, False, False]

    async def test_a_step_ends_early_where_messages_are_large(self, open_logs: Open) -> None:
        async with open_logs() as logs:
            await logs.create("log", 1, KEEP_ALL)
            await logs.append("log", 0, [b"x"] * 100 + [b"x" * 300_000] * 20)
            await logs.retain("log", 0, Retention(max_bytes=1, policy="drop_and_count"))
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
                    RECORD, [state, *names.all_of(log, 2)], [position, record]
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
                    key = names.message_id(log, number % 12, f"g[*]:{{log.1}}:log:id:{number}")
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
