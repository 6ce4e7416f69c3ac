"""Streams in the store are logs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.logs.conformance import KEEP_ALL, LogConformance, Open
from waystation.logs import Logs, Retention
from waystation.logs.streams import TRIM_STEP, StreamLogs
from waystation.store import Store
from waystation.store.embedded import EmbeddedServer


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
