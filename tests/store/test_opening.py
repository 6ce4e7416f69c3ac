"""Opening of a store: a failure closes everything that was opened before it."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from tests.helpers.processes import ended
from tests.helpers.store_faults import Fate, plain_server, proxy_to, store_at
from tests.helpers.waiting import eventually
from waystation.config import Config, StoreConfig
from waystation.errors import StoreDataLostError, StoreReplyError
from waystation.runtime.clock import Clock
from waystation.store import keys
from waystation.store.client import Store
from waystation.store.opening import OpenStore, open_store

#: Rules of a user that must not read the memory use, which `open_store` reads last.
NO_MEMORY = ("on", ">pass", "~*", "&*", "+@all", "-info", "+info|everything")


async def has_no_client(store: Store, user: str) -> bool:
    return f"user={user} ".encode() not in await store.call("CLIENT", "LIST")


def process_of(opened: OpenStore) -> int:
    assert opened.server is not None
    return opened.server.process_id


async def test_open_store_with_failure_of_last_step_closes_all_connections() -> None:
    with plain_server("--appendonly", "yes") as server:
        async with store_at(server.address) as direct:
            await direct.call("ACL", "SETUSER", "watched", *NO_MEMORY)
            tasks = asyncio.all_tasks()
            url = f"unix://watched:pass@{server.address.path}"
            config = Config(store=StoreConfig(url=url, durability="memory"))

            with pytest.raises(StoreReplyError, match="NOPERM"):
                await open_store(config, clock=Clock())

            await eventually(lambda: has_no_client(direct, "watched"))
            assert asyncio.all_tasks() == tasks


async def test_open_store_with_damaged_time_releases_embedded_server(settings: Config) -> None:
    config = msgspec.structs.replace(settings, time_machine=True)
    opened = await open_store(config, clock=Clock())
    await opened.store.call("DEL", keys.TIME)
    await opened.store.call("SET", keys.TIME, "damaged")
    process_id, tasks = process_of(opened), asyncio.all_tasks()

    with pytest.raises(StoreReplyError, match="WRONGTYPE"):
        await open_store(config, clock=Clock())

    assert asyncio.all_tasks() == tasks
    await opened.close()
    # The server would run on if the failed opening still used it.
    assert ended(process_id)


async def test_open_store_with_lost_data_set_releases_embedded_server(settings: Config) -> None:
    opened = await open_store(settings, clock=Clock())
    process_id, tasks = process_of(opened), asyncio.all_tasks()

    with pytest.raises(StoreDataLostError):
        await open_store(settings, clock=Clock(), known=("ds-lost",))

    assert asyncio.all_tasks() == tasks
    await opened.close()
    assert ended(process_id)


async def test_open_store_cancelled_closes_its_connection() -> None:
    with plain_server("--appendonly", "yes") as server:
        async with proxy_to(server.address) as proxy:
            await proxy.set_fates(replies=Fate.SWALLOW)
            url = f"redis://{proxy.address.host}:{proxy.address.port}"
            config = Config(store=StoreConfig(url=url, durability="memory"))
            opening = asyncio.create_task(open_store(config, clock=Clock()))
            await eventually(lambda: proxy.connections_open)

            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening

            await eventually(lambda: not proxy.connections_open)


async def test_open_store_closed_leaves_no_task_and_no_connection() -> None:
    with plain_server("--appendonly", "yes") as server:
        async with store_at(server.address) as direct:
            await direct.call("ACL", "SETUSER", "watched", "on", ">pass", "~*", "&*", "+@all")
            tasks = asyncio.all_tasks()
            url = f"unix://watched:pass@{server.address.path}"
            config = Config(store=StoreConfig(url=url, durability="memory"))

            opened = await open_store(config, clock=Clock())
            assert not await has_no_client(direct, "watched")
            await opened.close()

            await eventually(lambda: has_no_client(direct, "watched"))
            assert asyncio.all_tasks() == tasks
