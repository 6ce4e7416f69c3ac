"""The store dies under load, or comes back with a damaged file: nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.processes import ended, parent_of
from tests.helpers.store_faults import spoil, tear
from waystation.channels.service import ChannelService
from waystation.config import Config, StoreConfig
from waystation.errors import StoreRefusedError, WaystationError
from waystation.node import Node, open_node
from waystation.testing.station import Serving, quick_settings, serving
from waystation.types.message import Durability

CHANNEL = ("default", "orders")


#: With `appendfsync everysec` the store holds back what it writes while an fsync is under way, and
#: answers meanwhile; after this long it waits for the fsync. And a little for us.
HELD_BACK_SECONDS_MAX = 2.0 + 1.0


async def publish_until(
    stop: asyncio.Event, channels: ChannelService, publisher: int
) -> dict[str, float]:
    """Publishes one message after the other; returns those acknowledged, and when they were."""
    acknowledged: dict[str, float] = {}
    number = 0
    while not stop.is_set():
        number += 1
        message_id = f"p{publisher}-{number}"
        try:
            await channels.publish(*CHANNEL, message_id, b"1")
        except WaystationError:
            continue  # Not acknowledged: it may be there or not.
        acknowledged[message_id] = asyncio.get_running_loop().time()
    return acknowledged


async def everything_in(channels: ChannelService, subscriber: str) -> list[str]:
    fetched = await channels.fetch(*CHANNEL, subscriber, limit=1_000_000)
    assert not fetched.more
    return [message.id for message in fetched.messages]


async def readiness(serving_now: Serving) -> tuple[int, dict[str, Any]]:
    def get() -> tuple[int, dict[str, Any]]:
        try:
            with urllib.request.urlopen(f"{serving_now.url}/readyz") as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, json.load(refused)

    return await asyncio.to_thread(get)


@asynccontextmanager
async def station(settings: Config) -> AsyncIterator[Node]:
    """A node without a door; its server has ended in order when the block is left."""
    node = await open_node(settings)
    server = node.opened.server
    assert server is not None
    try:
        yield node
        keeper_id = parent_of(server.process_id)
    finally:
        await node.close()
    assert await asyncio.to_thread(ended, keeper_id)


async def messages_in(node: Node) -> int:
    return int(await node.opened.store.call("GET", "c.{orders}.clock", repeatable=True) or 0)


async def kill_store(node: Node) -> None:
    """kill -9, and wait until a connection to the next one works."""
    server = node.opened.server
    assert server is not None
    process_id = server.process_id
    os.kill(process_id, signal.SIGKILL)
    assert await asyncio.to_thread(ended, process_id)
    while True:
        try:
            await node.opened.store.ping()
        except WaystationError:
            continue
        if server.process_id != process_id:
            return


@pytest.mark.parametrize("level", ["disk", "memory"])
async def test_nothing_acknowledged_is_lost_when_the_store_is_killed_under_load(
    tmp_path: Path, level: Durability
) -> None:
    """F-06. At `memory` what was acknowledged within the last moments may be."""
    settings = quick_settings(str(tmp_path), store=StoreConfig(durability=level))
    async with station(settings) as node:
        await node.channels.subscribe(*CHANNEL, "me")
        kills: list[float] = []
        stop = asyncio.Event()
        load = [asyncio.ensure_future(publish_until(stop, node.channels, n)) for n in range(16)]
        for _ in range(3):
            # Some hundred messages, then the end, in the middle of others on their way
            target = await messages_in(node) + 300
            while await messages_in(node) < target:
                await asyncio.sleep(0.005)
            kills.append(asyncio.get_running_loop().time())
            await kill_store(node)
        stop.set()
        acknowledged = dict[str, float]()
        for each in await asyncio.gather(*load):
            acknowledged |= each

        found = await everything_in(node.channels, "me")

        assert len(acknowledged) > 900
        lost = {acknowledged[each] for each in acknowledged.keys() - set(found)}
        if level == "disk":
            assert not lost, "acknowledged and lost"
        for at in lost:
            assert any(kill - HELD_BACK_SECONDS_MAX < at < kill + 0.1 for kill in kills), "older"
        assert len(found) == len(set(found)), "a message was doubled"
        # And every publisher's messages are in its order
        for publisher in range(16):
            mine = [int(each.split("-")[1]) for each in found if each.startswith(f"p{publisher}-")]
            assert mine == sorted(mine)


async def test_a_store_that_died_under_a_running_node_is_told_in_its_readiness(
    settings: Config,
) -> None:
    async with serving(settings) as running:
        status, told = await readiness(running)
        assert (status, told["ready"], told["problems"], told["notes"]) == (200, True, {}, [])
        await kill_store(running.node)
        status, said = await readiness(running)
        assert (status, said["ready"]) == (200, True)
        assert "did not stop cleanly" in said["notes"][0]


async def test_a_torn_tail_is_cut_and_told_in_the_readiness(settings: Config) -> None:
    """F-08."""
    async with station(settings) as node:
        # A lease given back and a leave taken at the end would be the last that is written.
        await node.leader.stop()
        await node.subscriptions.close()
        await node.engine.close()
        await node.membership.stop()
        await node.channels.subscribe(*CHANNEL, "me")
        await node.channels.publish(*CHANNEL, "m-1", b"1")
        await node.channels.publish(*CHANNEL, "m-2", b"2")
    tear(settings.data_dir / "store")

    async with serving(settings) as running:
        notes = running.node.opened.notes
        assert [note for note in notes if "ended within a command" in note]
        status, said = await readiness(running)
        assert (status, said["notes"]) == (200, notes)
        # And only the torn end is missing
        assert await everything_in(running.node.channels, "me") == ["m-1"]


async def test_a_spoiled_file_is_refused_at_the_start(settings: Config) -> None:
    """F-08."""
    async with station(settings) as node:
        for number in range(10):
            await node.channels.publish(*CHANNEL, f"m-{number}", b"1")
    spoil(settings.data_dir / "store")
    with pytest.raises(StoreRefusedError, match=r"does not start: .*[Bb]ad file format"):
        async with station(settings):
            pass


@pytest.mark.slow
async def test_a_file_spoiled_under_a_running_node_is_told_in_its_readiness(
    settings: Config,
) -> None:
    """F-08."""
    async with serving(settings) as running:
        for number in range(10):
            await running.node.channels.publish(*CHANNEL, f"m-{number}", b"1")
        server = running.node.opened.server
        assert server is not None
        server_id, keeper_id = server.process_id, parent_of(server.process_id)
        # Given a server that dies over a disk that lies
        os.kill(keeper_id, signal.SIGSTOP)
        os.kill(server_id, signal.SIGKILL)
        assert await asyncio.to_thread(ended, server_id)
        spoil(settings.data_dir / "store")

        os.kill(keeper_id, signal.SIGCONT)
        assert await asyncio.to_thread(ended, keeper_id)

        status, said = await readiness(running)
        assert (status, said["ready"]) == (503, False)
        assert "The embedded store does not start" in said["problems"]["store"]
        assert "Run `waystation store check --fix" in said["problems"]["store"]
        assert "Bad file format" in said["problems"]["store"]


def test_a_file_is_torn_at_its_end_and_spoiled_in_its_middle(tmp_path: Path) -> None:
    """The tools of this test do what they say."""
    (tmp_path / "appendonlydir").mkdir()
    part = tmp_path / "appendonlydir" / "appendonly.aof.1.incr.aof"
    part.write_bytes(b"*1\r\n$4\r\nPING\r\n" * 10)
    tear(tmp_path)
    assert part.stat().st_size == 135
    assert b"PING\r\n!spoiled!" in spoil(tmp_path)
