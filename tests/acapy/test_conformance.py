"""Unmodified agents behind our relay: everything arrives, in order, whoever is killed.

An agent of the plugin pops a message and then works on it, so the one that it had popped when it
was killed is lost: that is the plugin's own way, and all that is lost.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from tests.acapy.agent_world import AgentWorld, agent_world
from tests.acapy.relay_world import v1

KEYS = [f"key-{number:03}" for number in range(200)]
PER_KEY = 10


async def send_everything(world: AgentWorld, keys: list[str], half_sent: asyncio.Event) -> None:
    """Ten envelopes to each key, in order."""
    async with aiohttp.ClientSession() as client:
        for number in range(PER_KEY):
            if number == PER_KEY // 2:
                half_sent.set()
            for first in range(0, len(keys), 20):
                some = keys[first : first + 20]
                await asyncio.gather(*(world.post(client, key, number) for key in some))


async def story(world: AgentWorld, keys: list[str], *, kill_relay: bool = False) -> None:
    relay = world.start_relay()
    uids = [world.start_agent() for _ in range(3)]
    await world.until_registered(3)
    half_sent = asyncio.Event()
    sending = asyncio.create_task(send_everything(world, keys, half_sent))
    await half_sent.wait()
    world.kill(world.agents[uids[0]])
    await sending
    if kill_relay:
        # What it had not pushed yet, the next one pushes.
        world.kill(relay)
        world.start_relay()
    await world.until_empty(keys)
    played = await world.played(keys)
    missing = 0
    for key, found in played.items():
        numbers = [number for _, number in found]
        assert numbers == sorted(set(numbers)), f"{key} is out of order, or has one twice"
        lost = set(range(PER_KEY)) - set(numbers)
        missing += len(lost)
        owners = list(dict.fromkeys(uid for uid, _ in found))
        assert len(owners) == 1 or (len(owners) == 2 and owners[0] == uids[0]), "not sticky"
        if lost:
            assert uids[0] in owners or len(owners) == 1
    assert missing <= 1, "more was lost than the one message that the killed agent had popped"
    async with world.store() as store:
        lists = await store.call("HKEYS", "uid_recip_keys_map")
        assert sorted(each.decode() for each in lists) == sorted(uids[1:])


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_agents_of_which_one_is_killed_get_everything_in_order() -> None:
    with agent_world(pop_seconds=0.01) as world:
        await world.make_pool(mirror=True, stale_seconds=3, agent_key_ms=100)
        await story(world, KEYS[:30])


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("kill_relay", [False, True], ids=["the relay stays", "it is killed too"])
async def test_2000_messages_to_200_keys_of_three_agents_arrive_in_order(kill_relay: bool) -> None:
    with agent_world(pop_seconds=0.01) as world:
        await world.make_pool(mirror=True, stale_seconds=3, agent_key_ms=100)
        await story(world, KEYS, kill_relay=kill_relay)


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_three_agents_with_the_times_of_the_plugin_get_everything_in_order() -> None:
    with agent_world(pop_seconds=0.2) as world:
        await story(world, KEYS[:30])


async def test_agent_after_request_for_direct_response_gets_messages() -> None:
    with agent_world(pop_seconds=0.05) as world:
        world.start_relay()
        world.start_agent()
        await world.until_registered(1)
        asking = v1("k", n=0, **{"~transport": {"return_route": "all"}})
        async with aiohttp.ClientSession() as client:
            async with client.post(world.door, data=asking) as reply:
                assert (reply.status, await reply.read()) == (200, b"")
            await world.post(client, "k", 1)
            async with asyncio.timeout(20):
                while len((await world.played(["k"]))["k"]) < 2:
                    await asyncio.sleep(0.05)


async def test_direct_response_of_agent_that_can_answer_reaches_sender() -> None:
    with agent_world(pop_seconds=0.2) as world:
        await world.make_pool(mirror=True, agents_answer=True)
        world.start_relay()
        world.start_agent("--answers")
        await world.until_registered(1)
        body = v1("k", **{"~transport": {"return_route": "all"}})
        async with aiohttp.ClientSession() as client, client.post(world.door, data=body) as reply:
            assert reply.status == 200
            assert await reply.read() == b"answer to " + body
            assert reply.headers["content-type"] == "application/ssi-agent-wire"


@pytest.mark.parametrize("inbound", ["wallet 7", "{tenant}.inbox"])
async def test_relay_with_custom_topics_serves_agents_of_these_topics(inbound: str) -> None:
    with agent_world(pop_seconds=0.05) as world:
        await world.make_pool(mirror=True, agents_answer=True)
        topics = {
            "WAYSTATION_RELAY_INBOUND_TOPIC": inbound,
            "WAYSTATION_RELAY_DIRECT_RESPONSE_TOPIC": "responses",
        }
        world.start_relay(**topics)
        world.start_agent("--answers", inbound=inbound, direct="responses")
        await world.until_registered(1)
        body = v1("k", **{"~transport": {"return_route": "all"}})
        async with aiohttp.ClientSession() as client, client.post(world.door, data=body) as reply:
            assert await reply.read() == b"answer to " + body


@pytest.mark.slow
async def test_two_relays_share_agents_and_one_of_them_keeps_the_mirror(tmp_path: Path) -> None:
    with agent_world(pop_seconds=0.05) as world:
        first = world.start_relay("--data", str(tmp_path / "one"))
        doors = [world.door]
        world.start_relay("--data", str(tmp_path / "two"))
        doors.append(world.door)
        world.start_agent()
        world.start_agent()
        await world.until_registered(2)
        keys = [f"k{number}" for number in range(10)]
        async with aiohttp.ClientSession() as client:
            for number in range(10):
                world.door = doors[number % 2]
                await asyncio.gather(*(world.post(client, key, number) for key in keys))
            await world.until_empty(keys)
            world.kill(first)
            world.door = doors[1]
            for number in range(10, 12):
                await asyncio.gather(*(world.post(client, key, number) for key in [*keys, "new"]))
            await world.until_empty([*keys, "new"])
        for key, found in (await world.played([*keys, "new"])).items():
            first_number = 10 if key == "new" else 0
            assert [number for _, number in found] == list(range(first_number, 12)), key
