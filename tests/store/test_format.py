"""Stamp of a data set: written once; a newer format or another archive is refused."""

from __future__ import annotations

import asyncio

import pytest

from tests.helpers.store_faults import store_at
from waystation.errors import ArchiveForeignError, StoreRefusedError
from waystation.runtime.ids import CountingIds, RandomIds
from waystation.store import keys
from waystation.store.dataset import stamp_archive
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.migrations import FORMAT_VERSION
from waystation.store.opening import stamp_dataset


async def test_stamp_of_new_data_set_is_written_once(
    store_server: EmbeddedServer,
) -> None:
    async with store_at(store_server.address) as store:
        await store.call("DEL", keys.FORMAT)
        dataset = await stamp_dataset(store, CountingIds())
        assert dataset == "ds-0000000000000001"

        assert await stamp_dataset(store, RandomIds()) == dataset

        version, created = await store.call("HMGET", keys.FORMAT, "version", "created_ms")
        assert int(version) == FORMAT_VERSION
        seconds = (await store.call("TIME"))[0]
        assert abs(int(created) / 1000 - int(seconds)) < 60
        assert await store.call("TTL", keys.FORMAT) == -1


async def test_stamp_by_concurrent_processes_is_the_same(
    store_server: EmbeddedServer,
) -> None:
    async with store_at(store_server.address) as one, store_at(store_server.address) as two:
        await one.call("DEL", keys.FORMAT)
        stamps = [stamp_dataset(store, RandomIds()) for store in (one, two) for _ in range(5)]
        assert len(set(await asyncio.gather(*stamps))) == 1


async def test_stamp_with_newer_format_is_refused_and_unchanged(
    store_server: EmbeddedServer,
) -> None:
    async with store_at(store_server.address) as store:
        await store.call("DEL", keys.FORMAT)
        newer = FORMAT_VERSION + 1
        await store.call("HSET", keys.FORMAT, "version", newer, "dataset", "ds-1")
        with pytest.raises(StoreRefusedError, match=f"format {newer}, but this release supports"):
            await stamp_dataset(store, RandomIds())
        assert await store.call("HGET", keys.FORMAT, "version") == str(newer).encode()
        await store.call("DEL", keys.FORMAT)


@pytest.mark.parametrize("stamp", [("version", "soon", "dataset", "ds-1"), ("version", "1")])
async def test_stamp_that_is_unreadable_is_refused(
    store_server: EmbeddedServer, stamp: tuple[str, ...]
) -> None:
    async with store_at(store_server.address) as store:
        await store.call("DEL", keys.FORMAT)
        await store.call("HSET", keys.FORMAT, *stamp)
        with pytest.raises(StoreRefusedError, match=r"waystation\.format\) is unreadable"):
            await stamp_dataset(store, RandomIds())
        await store.call("DEL", keys.FORMAT)


async def test_stamp_archive_by_concurrent_processes_accepts_one(
    store_server: EmbeddedServer,
) -> None:
    async with store_at(store_server.address) as one, store_at(store_server.address) as two:
        await one.call("HDEL", keys.FORMAT, "archive")
        stamps = [stamp_archive(store, f"ar-{n}") for n in range(5) for store in (one, two)]
        done = await asyncio.gather(*stamps, return_exceptions=True)
        kept = (await one.call("HGET", keys.FORMAT, "archive")).decode()
        assert [n for n, error in enumerate(done) if error is None] == [
            2 * int(kept[3:]),
            2 * int(kept[3:]) + 1,
        ]
        refused = [error for error in done if error is not None]
        assert all(isinstance(error, ArchiveForeignError) for error in refused)
        assert all(kept in str(error) for error in refused), "an error does not name the archive"
        await one.call("HDEL", keys.FORMAT, "archive")
