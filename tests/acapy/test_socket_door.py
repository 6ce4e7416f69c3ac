"""The WebSocket door: an envelope in each frame, answers as they come, and clear ends."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.acapy.relay_world import RelayWorld, open_relay, v1, v2
from waystation.pools.answers import ANSWER_TO
from waystation.relay.socket_door import UNDER_WAY_MAX
from waystation.store.embedded.server import EmbeddedServer

WANTED = {"~transport": {"return_route": "all"}}


async def until_taken(world: RelayWorld, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with asyncio.timeout(10):
        while len(found) < count:
            found += [envelope.data for _, envelope in await world.take()]
    return found


async def test_text_and_binary_frames_are_envelopes_and_keep_their_order(
    store_server: EmbeddedServer,
) -> None:
    async with open_relay(store_server.address) as world, connect(world.ws) as socket:
        bodies = [v1("k", number=i) for i in range(60)]
        for i, body in enumerate(bodies):
            await socket.send(body.decode() if i % 2 else body)
        assert await until_taken(world, 60) == bodies


async def test_what_was_sent_before_a_hasty_close_is_there(store_server: EmbeddedServer) -> None:
    async with open_relay(store_server.address) as world:
        async with connect(world.ws) as socket:
            for i in range(40):
                await socket.send(v1("k", number=i))
        assert len(await until_taken(world, 40)) == 40


async def test_answers_come_as_binary_frames_each_when_it_is_given(
    store_server: EmbeddedServer,
) -> None:
    async with open_relay(store_server.address) as world, connect(world.ws) as socket:
        await socket.send(v1("a", **WANTED))
        await socket.send(v2("b", return_route="all"))
        await socket.send(v1("c"))
        taken: dict[str, str] = {}
        while len(taken) < 3:
            for key, envelope in await world.take():
                taken[key] = dict(envelope.headers).get(ANSWER_TO, "")
        assert taken.pop("c") == ""
        for key in ("b", "a"):
            await world.answers.put(world.pool.place, taken[key], "x/y", key.encode())
            assert await socket.recv() == key.encode()


async def test_no_more_than_a_few_envelopes_are_under_way_on_a_connection(
    store_server: EmbeddedServer,
) -> None:
    async with open_relay(store_server.address) as world, connect(world.ws) as socket:
        for i in range(UNDER_WAY_MAX + 5):
            await socket.send(v1(f"k{i}", **WANTED))
        taken: list[str] = []
        while len(taken) < UNDER_WAY_MAX:
            taken += [dict(each.headers)[ANSWER_TO] for _, each in await world.take()]
        await asyncio.sleep(0.1)
        assert await world.take() == [], "the others are not read yet"
        for each in taken:
            await world.answers.put(world.pool.place, each, "x/y", b"1")
        assert len(await until_taken(world, 5)) == 5


async def closed_with(socket: object) -> tuple[int, str]:
    with pytest.raises(ConnectionClosed) as caught:
        await socket.recv()  # type: ignore[attr-defined]
    assert caught.value.rcvd is not None
    return caught.value.rcvd.code, caught.value.rcvd.reason


async def test_a_frame_that_is_no_envelope_closes_and_those_before_it_stay(
    store_server: EmbeddedServer,
) -> None:
    async with open_relay(store_server.address) as world, connect(world.ws) as socket:
        await socket.send(v1("k"))
        await socket.send(b"[]")
        assert await closed_with(socket) == (4400, "relay.envelope-invalid")
        assert await until_taken(world, 1) == [v1("k")]


async def test_a_frame_that_is_too_large_closes(store_server: EmbeddedServer) -> None:
    async with open_relay(store_server.address, body_bytes_max=1000) as world:
        async with connect(world.ws) as socket:
            await socket.send(v1("k", more="x" * 2000))
            assert (await closed_with(socket))[0] == 1009
        assert await world.take() == []


async def test_a_pool_that_is_gone_closes_with_try_again(store_server: EmbeddedServer) -> None:
    async with open_relay(store_server.address) as world, connect(world.ws) as socket:
        await world.store.call("FLUSHALL")
        await socket.send(v1("k"))
        assert (await closed_with(socket))[0] == 4503


async def test_a_silent_connection_is_closed_but_not_one_that_waits_for_an_answer(
    store_server: EmbeddedServer,
) -> None:
    async with (
        open_relay(store_server.address, idle_seconds=2) as world,
        connect(world.ws) as silent,
        connect(world.ws) as waiting,
    ):
        await waiting.send(v1("k", **WANTED))
        assert await closed_with(silent) == (1001, "idle")
        await asyncio.sleep(2.2)
        await world.respond(b"late")
        assert await waiting.recv() == b"late"


async def test_the_server_pings(store_server: EmbeddedServer) -> None:
    async with (
        open_relay(store_server.address) as world,
        world.client.ws_connect(world.ws, autoping=False) as socket,
    ):
        message = await socket.receive(timeout=6)
        assert message.type is aiohttp.WSMsgType.PING


async def test_other_paths_and_plain_requests_are_refused(store_server: EmbeddedServer) -> None:
    async with open_relay(store_server.address) as world:
        for url in (world.ws + "other", world.http.replace("http", "ws")):
            with pytest.raises(InvalidStatus) as caught:
                await connect(url)
            assert caught.value.response.status_code == 404
        async with world.client.get(world.ws.replace("ws", "http")) as reply:
            assert reply.status == 426
