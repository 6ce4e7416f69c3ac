"""Data set of a store: each connection checks it and refuses a store that lost its data."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Iterator

import pytest

from tests.helpers.clusters import real_cluster
from tests.helpers.store_faults import PlainServer, plain_server, store_at
from waystation.config import Config, StoreConfig
from waystation.errors import StoreDataLostError, StoreError
from waystation.runtime.clock import Clock
from waystation.runtime.ids import RandomIds
from waystation.store import keys
from waystation.store.client import Store
from waystation.store.dataset import MARKERS, accept_loss, marker_keys
from waystation.store.opening import open_store, stamp_dataset
from waystation.store.slots import SLOTS, slot_of


@pytest.fixture
def server() -> Iterator[PlainServer]:
    with plain_server("--appendonly", "yes") as server:
        yield server


def empty(server: PlainServer) -> None:
    """Restart a server without its append-only directory."""
    server.kill()
    shutil.rmtree(server.folder / "appendonlydir")
    server.start()


def settings_of(server: PlainServer, *, ephemeral: bool = False) -> Config:
    url = f"unix://{server.address.path}"
    return Config(store=StoreConfig(url=url, durability="memory", ephemeral=ephemeral))


async def call_until_refused(store: Store) -> StoreDataLostError:
    """Call until the client refuses. The first calls may fail with the old connection."""
    async with asyncio.timeout(20):
        while True:
            try:
                await store.call("SET", "written", 1)
            except StoreDataLostError as error:
                return error
            except StoreError:
                await asyncio.sleep(0.01)
            else:
                raise AssertionError("a call reached the empty store")


async def call_until_accepted(store: Store) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                await store.call("SET", "written", 1, repeatable=True)
            except StoreError:
                await asyncio.sleep(0.01)
            else:
                return


async def test_store_client_reconnected_to_an_empty_server_sends_no_call(
    server: PlainServer,
) -> None:
    opened = await open_store(settings_of(server), clock=Clock())
    try:
        empty(server)
        error = await call_until_refused(opened.store)
        waiting = [opened.store.call("SET", f"k{n}", n, repeatable=True) for n in range(100)]
        refused = await asyncio.gather(*waiting, return_exceptions=True)

        assert error.code == "store.data-lost"
        assert opened.dataset in error.message
        assert "accept-loss" in error.hint
        assert all(isinstance(each, StoreDataLostError) for each in refused)
        with pytest.raises(StoreDataLostError):
            await opened.store.ping()
        async with store_at(server.address) as other:
            assert await other.call("DBSIZE") == 0
    finally:
        await opened.close()


async def test_store_client_continues_by_itself_when_the_data_is_back(
    server: PlainServer,
) -> None:
    opened = await open_store(settings_of(server), clock=Clock())
    try:
        kept = server.folder / "kept"
        server.kill()
        (server.folder / "appendonlydir").rename(kept)
        server.start()
        await call_until_refused(opened.store)

        server.kill()
        shutil.rmtree(server.folder / "appendonlydir")
        kept.rename(server.folder / "appendonlydir")
        server.start()

        await call_until_accepted(opened.store)
        assert opened.store.data_set.lost is None
    finally:
        await opened.close()


async def test_store_client_of_a_stateless_process_adopts_a_replacing_data_set(
    server: PlainServer,
) -> None:
    opened = await open_store(settings_of(server), clock=Clock())
    try:
        empty(server)
        await call_until_refused(opened.store)
        async with store_at(server.address) as other:
            new = await accept_loss(other, RandomIds(), known=opened.dataset, earlier=())

        await call_until_accepted(opened.store)
        assert opened.store.data_set.known == new != opened.dataset
    finally:
        await opened.close()


async def test_ping_detects_flushall_and_client_refuses_later_calls(
    server: PlainServer,
) -> None:
    opened = await open_store(settings_of(server), clock=Clock())
    try:
        await opened.store.call("FLUSHALL")
        with pytest.raises(StoreDataLostError):
            await opened.store.ping()
        await call_until_refused(opened.store)
    finally:
        await opened.close()


async def test_store_with_another_data_set_is_refused_with_its_id(server: PlainServer) -> None:
    opened = await open_store(settings_of(server), clock=Clock())
    try:
        async with store_at(server.address) as other:
            await other.call("HSET", keys.FORMAT, "dataset", "ds-other")
            await other.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        error = await call_until_refused(opened.store)
        assert "ds-other" in error.message
    finally:
        await opened.close()


async def test_open_store_that_expects_a_data_set_does_not_stamp_an_empty_store(
    server: PlainServer,
) -> None:
    with pytest.raises(StoreDataLostError, match="lost data set ds-old: it has no data set"):
        await open_store(settings_of(server), clock=Clock(), known=("ds-old",))
    async with store_at(server.address) as store:
        assert await store.call("EXISTS", keys.FORMAT) == 0


async def test_open_store_with_ephemeral_setting_replaces_lost_data_set_at_once(
    server: PlainServer,
) -> None:
    settings = settings_of(server, ephemeral=True)
    opened = await open_store(settings, clock=Clock(), known=("ds-old", "ds-older"))
    try:
        replaces = await opened.store.call("HGET", keys.FORMAT, "replaces")
        assert replaces == b"ds-old ds-older"
        empty(server)
        async with asyncio.timeout(20):
            while not opened.store.data_set.replaced.is_set():
                await asyncio.gather(opened.store.ping(), return_exceptions=True)
                await asyncio.sleep(0.01)
    finally:
        await opened.close()


async def test_accept_loss_repeated_keeps_the_first_new_data_set(server: PlainServer) -> None:
    async with store_at(server.address) as store:
        first = await accept_loss(store, RandomIds(), known="ds-1", earlier=("ds-0",))
        second = await accept_loss(store, RandomIds(), known="ds-1", earlier=("ds-0",))
        assert first == second
        assert await stamp_dataset(store, RandomIds(), known="ds-1") == first
        assert await stamp_dataset(store, RandomIds(), known=first) == first
        assert await stamp_dataset(store, RandomIds()) == first
        with pytest.raises(StoreDataLostError):
            await stamp_dataset(store, RandomIds(), known="ds-unrelated")


def test_marker_keys_lie_in_equal_ranges_of_slots() -> None:
    places = [slot_of(key) * MARKERS // SLOTS for key in marker_keys()]
    assert places == list(range(MARKERS))


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_store_client_of_cluster_with_one_emptied_primary_sends_no_call() -> None:
    with real_cluster() as cluster:
        store = Store(cluster.address)
        try:
            store.data_set.known = await stamp_dataset(store, RandomIds())
            emptied, other = cluster.nodes[:2]
            await store.call("SET", cluster.key_of(emptied), 1)
            # A restarted node keeps its slots and replies CLUSTERDOWN until it has joined again.
            empty(emptied.server)
            async with asyncio.timeout(60):
                while store.data_set.lost is None:
                    with contextlib.suppress(StoreError):
                        await store.call("SET", cluster.key_of(emptied), 2, repeatable=True)
            assert emptied.ask("EXISTS", cluster.key_of(emptied)) == 0
            with pytest.raises(StoreDataLostError):
                await store.call("SET", cluster.key_of(other), 3)
        finally:
            await store.close()
