"""Direct response: the worker's answer comes back to the very sender, through whichever relay."""

from __future__ import annotations

import asyncio

import pytest

from tests.acapy.relay_world import RelayWorld, open_relay, v1, v2
from waystation.errors import InvalidInputError, PoolNotFoundError, TooLargeError
from waystation.pools.answers import ANSWER_BYTES_MAX, Answers
from waystation.pools.names import Place
from waystation.store.embedded.server import EmbeddedServer

WANTED = {"~transport": {"return_route": "all"}}


async def ask(world: RelayWorld, body: bytes, **headers: str) -> tuple[int, bytes, str]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with world.client.post(world.http, data=body, headers=named) as reply:
        return reply.status, await reply.read(), reply.headers.get("content-type", "")


@pytest.mark.parametrize("body", [v1("k", **WANTED), v2("k", return_route="all")])
async def test_the_reply_has_the_bytes_and_the_type_of_the_answer(
    store_server: EmbeddedServer, body: bytes
) -> None:
    async with open_relay(store_server.address) as world:
        asking = asyncio.ensure_future(ask(world, body))
        await world.respond(b"\x00answer\n\xff", "application/didcomm-envelope-enc")
        assert await asking == (200, b"\x00answer\n\xff", "application/didcomm-envelope-enc")
        assert await world.store.call("KEYS", "*:answer:*") == []


async def test_a_caller_can_say_by_a_header_that_it_waits(store_server: EmbeddedServer) -> None:
    async with open_relay(store_server.address) as world:
        asking = asyncio.ensure_future(ask(world, v1("k"), waystation_wait="5s"))
        await world.respond(b"1")
        assert (await asking)[:2] == (200, b"1")


async def test_without_an_answer_in_time_the_reply_is_200_and_empty(
    store_server: EmbeddedServer,
) -> None:
    async with open_relay(store_server.address, answer_seconds=0.3) as world:
        assert (await ask(world, v1("k", **WANTED)))[:2] == (200, b"")
        assert (await ask(world, v1("k"), waystation_wait="1h"))[:2] == (200, b"")
        assert len(await world.take()) == 2, "and the messages are there"


async def test_an_answer_of_nothing_ends_the_wait(store_server: EmbeddedServer) -> None:
    async with open_relay(store_server.address) as world:
        asking = asyncio.ensure_future(ask(world, v1("k", **WANTED)))
        await world.respond(b"")
        async with asyncio.timeout(5):
            assert (await asking)[:2] == (200, b"")


async def test_two_relays_each_return_the_answer_to_their_own_sender(
    store_server: EmbeddedServer,
) -> None:
    async with open_relay(store_server.address) as one:
        async with open_relay(store_server.address, fresh=False) as two:
            asking = [
                asyncio.ensure_future(ask(world, v1(f"k{number}", n=number, **WANTED)))
                for number in range(20)
                for world in (one, two)
            ]
            answered = 0
            while answered < 40:
                for key, envelope in await one.take():
                    answer_to = dict(envelope.headers)["waystation-answer-to"]
                    # Given through the other process of the two, which is all the same.
                    await two.answers.put(one.pool.place, answer_to, "text/plain", key.encode())
                    answered += 1
            replies = await asyncio.gather(*asking)
        assert [body for _, body, _ in replies] == [b"k%d" % (i // 2) for i in range(40)]


async def test_an_answer_that_came_before_anyone_waited_is_there(
    store_server: EmbeddedServer,
) -> None:
    async with open_relay(store_server.address) as world:
        place = world.pool.place
        await world.answers.put(place, "a-1", "text/plain", b"1")
        await world.answers.put(place, "a-1", "text/plain", b"2")
        other = Answers(world.store, world.wakeups)
        found = await other.wait(place, "a-1", seconds=1)
        assert found is not None
        assert found.data == b"1", "the first one stays"
        assert await other.wait(place, "a-1", seconds=0.01) is None
        other.end_waits()


async def test_an_answer_that_nobody_wants_is_forgotten_after_a_minute(
    store_server: EmbeddedServer,
) -> None:
    async with open_relay(store_server.address) as world:
        await world.answers.put(world.pool.place, "a-1", "text/plain", b"1")
        (key,) = await world.store.call("KEYS", "*:answer:*")
        assert 0 < await world.store.call("PTTL", key) <= 60_000


async def test_what_can_be_no_answer_is_refused(store_server: EmbeddedServer) -> None:
    async with open_relay(store_server.address) as world:
        put, place = world.answers.put, world.pool.place
        with pytest.raises(TooLargeError):
            await put(place, "a", "text/plain", b"x" * (ANSWER_BYTES_MAX + 1))
        with pytest.raises(InvalidInputError, match="content type"):
            await put(place, "a", "text/plain\r\nx: y", b"")
        with pytest.raises(InvalidInputError, match="not a valid name"):
            await put(place, "a b", "text/plain", b"")
        with pytest.raises(PoolNotFoundError):
            await put(Place("default", "absent"), "a", "text/plain", b"")


async def test_a_sender_that_hangs_up_is_not_waited_for(store_server: EmbeddedServer) -> None:
    async with open_relay(store_server.address) as world:
        asking = asyncio.ensure_future(ask(world, v1("k", **WANTED)))
        await world.take_one()
        while not world.answers._waiting:
            await asyncio.sleep(0.01)
        asking.cancel()
        async with asyncio.timeout(5):
            while world.answers._waiting:
                await asyncio.sleep(0.01)


async def test_a_relay_that_stops_keeps_nobody_waiting(store_server: EmbeddedServer) -> None:
    async with open_relay(store_server.address) as world:
        asking = asyncio.ensure_future(ask(world, v1("k", **WANTED)))
        while not world.answers._waiting:
            await asyncio.sleep(0.01)
        world.answers.end_waits()
        async with asyncio.timeout(5):
            assert (await asking)[:2] == (200, b"")
