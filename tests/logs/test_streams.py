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
            retention = Retention(max_bytes=100, policy="drop_and_count")
            await logs.create("log", 1, retention)
            for _ in range(3):
                await logs.append("log", 0, [b"x"] * TRIM_STEP)
            steps = [await logs.trim("log", 0) for _ in range(4)]
            assert [step.removed for step in steps] == [TRIM_STEP, TRIM_STEP, TRIM_STEP - 100, 0]
            assert [step.more for step in steps] == [True, True, False, False]

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
