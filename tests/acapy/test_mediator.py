"""A mediator of the plugin beside our relay: what its races lose, the reconciler heals."""

from __future__ import annotations

import asyncio
from collections import Counter

import aiohttp
import pytest
from redis.asyncio.cluster import RedisCluster

from tests.acapy.agent_world import agent_world
from tests.acapy.mediator import PlayedMediator
from tests.acapy.relay_world import v1

KEYS = [f"key-{number:02}" for number in range(20)]


@pytest.mark.slow
async def test_20_keys_that_a_mediator_assigns_at_once_are_all_served() -> None:
    """The plugin's second trap: of 20 that were assigned at once, two were in anybody's list."""
    with agent_world(pop_seconds=0.05) as world:
        await world.make_pool(mirror=True, stale_seconds=15, agent_key_ms=60)
        world.start_relay()
        uids = [world.start_agent() for _ in range(2)]
        await world.until_registered(2)
        client = RedisCluster(host="127.0.0.1", port=world.port)
        mediator = PlayedMediator(client, "acapy")
        await asyncio.gather(*(mediator.send(key, v1(key, n=0)) for key in KEYS))
        async with aiohttp.ClientSession() as relayed:
            for number in (1, 2):
                await asyncio.gather(*(world.post(relayed, key, number) for key in KEYS))
                await asyncio.gather(*(mediator.send(key, v1(key, n=number + 2)) for key in KEYS))
        async with asyncio.timeout(60):
            while sum(len(found) for found in (await world.played(KEYS)).values()) < 5 * len(KEYS):
                await asyncio.sleep(0.1)
        played = await world.played(KEYS)
        for key, found in played.items():
            numbers = Counter(number for _, number in found)
            assert numbers == dict.fromkeys(range(5), 1), key
            ours = [number for _, number in found if number in (1, 2)]
            assert ours == [1, 2], f"{key}: what came through the relay is in order"
        async with world.store() as store, asyncio.timeout(30):
            # The mediator took a healthy agent for stale and removed it: it is back.
            while await store.call("HLEN", "uid_recip_keys_map") < 2:
                await asyncio.sleep(0.1)
            while int(await store.call("HGET", "{p.default.agents}:head", "messages")):
                await asyncio.sleep(0.1)
            assert {each.decode() for each in await store.call("HKEYS", "uid_recip_keys_map")} == {
                *uids
            }
        await client.aclose()
