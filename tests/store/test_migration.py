"""Migrations of a store: steps run once, in order, on one node, and again after a crash."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.helpers.store_faults import store_at
from waystation.errors import StoreRefusedError
from waystation.runtime.ids import RandomIds
from waystation.store import keys
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.migrations import FORMAT_VERSION, STEPS, Step, migrate


class CrashError(Exception):
    """A crash of the process."""


@asynccontextmanager
async def old_store(store_server: EmbeddedServer) -> AsyncIterator[Store]:
    """Yield a store with a data set of format 1."""
    async with store_at(store_server.address) as store:
        await store.call("DEL", keys.FORMAT)
        await store.call("DEL", keys.MIGRATION)
        await store.call("DEL", keys.PROCESSES)
        await store.call("HSET", keys.FORMAT, "version", 1, "dataset", "ds-1")
        yield store
        await store.call("DEL", keys.FORMAT)
        await store.call("DEL", keys.PROCESSES)


def noting(ran: list[int], number: int, *, seconds: float = 0.0) -> Step:
    async def step(store: Store) -> None:
        ran.append(number)
        await asyncio.sleep(seconds)

    return step


async def version(store: Store) -> int:
    return int(await store.call("HGET", keys.FORMAT, "version"))


def test_migration_steps_end_at_the_current_format() -> None:
    assert all(1 < number <= FORMAT_VERSION for number in STEPS)


async def test_migrate_runs_each_missing_step_once_in_order(
    store_server: EmbeddedServer,
) -> None:
    async with old_store(store_server) as store:
        ran: list[int] = []
        steps = {number: noting(ran, number) for number in (2, 3)}
        for _ in range(2):
            await migrate(store, await version(store), RandomIds(), newest=3, steps=steps)
        assert (ran, await version(store)) == ([2, 3], 3)


async def test_migrate_after_crash_repeats_the_interrupted_step(
    store_server: EmbeddedServer,
) -> None:
    async with old_store(store_server) as store:
        ran: list[int] = []

        async def crash(_: Store) -> None:
            ran.append(3)
            raise CrashError

        first, second = noting(ran, 2), noting(ran, 3)
        with pytest.raises(CrashError):
            await migrate(store, 1, RandomIds(), newest=3, steps={2: first, 3: crash})
        assert await version(store) == 2
        await migrate(store, 2, RandomIds(), newest=3, steps={2: first, 3: second})
        assert (ran, await version(store)) == ([2, 3, 3], 3)


async def test_migrate_by_two_nodes_runs_each_step_once(
    store_server: EmbeddedServer,
) -> None:
    async with old_store(store_server) as store:
        ran: list[int] = []
        steps = {2: noting(ran, 2, seconds=0.3)}
        await asyncio.gather(
            *(migrate(store, 1, RandomIds(), newest=2, steps=steps) for _ in range(2))
        )
        assert (ran, await version(store)) == ([2], 2)


async def test_migrate_under_a_lost_lease_leaves_the_format_to_the_new_holder(
    store_server: EmbeddedServer,
) -> None:
    async with old_store(store_server) as store:
        ran: list[int] = []

        async def overtaken(store: Store) -> None:
            ran.append(2)
            if len(ran) == 1:
                # Another node acquired the lease while this one was suspended, and runs the step.
                await store.call("HSET", keys.MIGRATION, "epoch", 99, "until_ms", 0)

        await migrate(store, 1, RandomIds(), newest=2, steps={2: overtaken})
        assert (ran, await version(store)) == ([2, 2], 2)


async def test_migrate_without_a_step_is_refused_and_changes_nothing(
    store_server: EmbeddedServer,
) -> None:
    async with old_store(store_server) as store:
        ran: list[int] = []
        with pytest.raises(StoreRefusedError, match="cannot migrate it to format 2"):
            await migrate(store, 1, RandomIds(), newest=3, steps={3: noting(ran, 3)})
        assert (ran, await version(store)) == ([], 1)


async def test_migrate_with_running_processes_is_refused(
    store_server: EmbeddedServer,
) -> None:
    async with old_store(store_server) as store:
        ran: list[int] = []
        await store.call("ZADD", keys.PROCESSES, 1, "older")
        with pytest.raises(StoreRefusedError, match="1 processes still use it"):
            await migrate(
                store,
                1,
                RandomIds(),
                newest=2,
                steps={2: noting(ran, 2)},
                absence_seconds_max=0.1,
            )
        assert (ran, await version(store)) == ([], 1)
