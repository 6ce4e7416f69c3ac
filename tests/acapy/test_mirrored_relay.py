"""A relay that agents serve: when it starts, and when it says why it does not."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from tests.acapy.mirror_world import mirror_world
from tests.acapy.relay_world import open_relay as open_world
from tests.acapy.relay_world import v1
from waystation.config import Config, DoorRule
from waystation.errors import MirrorTakenError, SettingsError
from waystation.pools import Assignments, PoolOptions
from waystation.relay.opening import open_relay
from waystation.store.embedded.server import EmbeddedServer


def relaying(settings: Config, **more: Any) -> Config:
    doors = (DoorRule("http", "127.0.0.1", 0),)
    relay = msgspec.structs.replace(settings.relay, doors=doors, **more)
    return msgspec.structs.replace(settings, relay=relay)


async def test_a_relay_makes_its_pool_mirrored_if_it_is_told_so(settings: Config) -> None:
    async with open_relay(relaying(settings, mirror=True)) as running:
        head = "{p.default.agents}:head"
        assert await running.opened.store.call("HEXISTS", head, "mirrored") == 1
    async with open_relay(relaying(settings)):
        pass  # As the pool is, whatever this one would have made.


async def test_a_pool_that_was_made_without_a_mirror_is_refused(settings: Config) -> None:
    async with open_relay(relaying(settings)) as running:
        assert await running.opened.store.call("EXISTS", "{waystation.mirror}:lease") == 0
    with pytest.raises(SettingsError, match="was made without a mirror"):
        async with open_relay(relaying(settings, mirror=True)):
            pass


@pytest.mark.parametrize("agents_answer", [False, True])
async def test_pusher_writes_txn_id_only_if_agents_can_answer(
    store_server: EmbeddedServer, agents_answer: bool
) -> None:
    async with mirror_world(store_server.address, agents_answer=agents_answer) as world:
        await world.agent_starts("a")
        await world.step()
        await world.send("k", answer_to="t-1")
        await world.step()
        (written,) = await world.store.call("LRANGE", "acapy_inbound_k", 0, -1)
        assert json.loads(written).get("txn_id") == ("t-1" if agents_answer else None)


async def test_relay_request_for_direct_response_of_agents_that_cannot_answer_returns_at_once(
    store_server: EmbeddedServer,
) -> None:
    async with open_world(
        store_server.address, options=PoolOptions(mirror=True), answer_seconds=60
    ) as world:
        asking = v1("k", **{"~transport": {"return_route": "all"}})
        async with asyncio.timeout(30), world.client.post(world.http, data=asking) as reply:
            assert (reply.status, await reply.read()) == (200, b"")
        headers = {"waystation-wait": "60s"}
        async with (
            asyncio.timeout(30),
            world.client.post(world.http, data=v1("k"), headers=headers) as reply,
        ):
            assert (reply.status, await reply.read()) == (200, b"")
        look = await Assignments(world.store).look(world.pool.place, world.terms)
        assert look.waiting == 2


async def test_a_second_mirrored_pool_of_a_store_is_refused(settings: Config) -> None:
    async with open_relay(relaying(settings, mirror=True)):
        pass
    with pytest.raises(MirrorTakenError, match="agents of project default"):
        async with open_relay(relaying(settings, mirror=True, pool="others")):
            pass
