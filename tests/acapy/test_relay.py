"""The HTTP door: what is answered 200 is durable, and a sender never hangs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.acapy.relay_world import RelayWorld, open_relay, v1, v2
from tests.acapy.test_recipients import BAD
from tests.helpers.http import async_wire
from tests.helpers.store_faults import Fate, proxy_to
from tests.pools.pool_bench import open_bench
from waystation.config import RelayConfig
from waystation.errors import PoolFullError
from waystation.pools import Assignments, Mail, Members, PoolOptions
from waystation.pools.held import Letter
from waystation.relay.door import INVITATION
from waystation.relay.inbox import Inbox
from waystation.relay.opening import provide
from waystation.store.embedded.server import EmbeddedServer

WIRE = "application/ssi-agent-wire"


async def post(world: RelayWorld, body: bytes, **headers: str) -> tuple[int, bytes]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with world.client.post(world.http, data=body, headers=named) as reply:
        return reply.status, await reply.read()


async def test_an_envelope_reaches_the_worker_of_its_key_byte_for_byte(
    store_server: EmbeddedServer,
) -> None:
    async with open_relay(store_server.address) as world:
        bodies = [v1("7Zk"), v2("did:example:1#k"), v1("a", "b")]
        for body in bodies:
            assert await post(world, body, content_type=WIRE) == (200, b"")
        # Between keys no order is promised.
        found = dict(await world.take())
        keys = ["7Zk", "did:example:1#k", "a,b"]
        assert {key: each.data for key, each in found.items()} == dict(
            zip(keys, bodies, strict=True)
        )
        headers = dict(found["7Zk"].headers)
        assert headers == {"content-type": WIRE, "waystation-transport": "http"}


async def test_envelopes_of_one_key_keep_their_order(store_server: EmbeddedServer) -> None:
    async with open_relay(store_server.address) as world:
        bodies = [v1("k", number=i) for i in range(50)]
        for body in bodies:
            assert (await post(world, body))[0] == 200
        assert [each.data for _, each in await world.take()] == bodies


async def test_two_envelopes_that_are_alike_are_two(store_server: EmbeddedServer) -> None:
    async with open_relay(store_server.address) as world:
        for _ in range(2):
            assert (await post(world, v1("k")))[0] == 200
        assert len(await world.take()) == 2


async def test_many_senders_at_once_lose_nothing(store_server: EmbeddedServer) -> None:
    async with open_relay(store_server.address) as world:
        sent = await asyncio.gather(*(post(world, v1(f"k{i % 20}", n=i)) for i in range(300)))
        assert sent == [(200, b"")] * 300
        assert len({each.data for _, each in await world.take()}) == 300


async def test_every_malformed_envelope_is_400_says_why_and_writes_nothing(
    store_server: EmbeddedServer,
) -> None:
    async with open_relay(store_server.address) as world:
        before = await world.store.call("DBSIZE")
        for name, (body, problem) in BAD.items():
            async with world.client.post(world.http, data=body) as reply:
                told = await reply.json(content_type="application/problem+json")
            assert (reply.status, told["code"]) == (400, "relay.envelope-invalid"), name
            assert problem in told["detail"]
        assert await world.store.call("DBSIZE") == before


async def test_what_is_too_large_is_413_also_in_pieces(store_server: EmbeddedServer) -> None:
    async with open_relay(store_server.address, body_bytes_max=1000) as world:
        large = v1("k", more="x" * 2000)

        async def pieces() -> object:
            for start in range(0, len(large), 500):
                yield large[start : start + 500]

        assert (await post(world, large))[0] == 413
        async with world.client.post(world.http, data=pieces()) as reply:
            assert reply.status == 413
        assert (await post(world, v1("k")))[0] == 200


async def test_relay_request_with_many_trailers_is_431(store_server: EmbeddedServer) -> None:
    async with (
        open_relay(store_server.address) as world,
        async_wire(world.http.rstrip("/")) as connection,
    ):
        head = "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.send(head.encode() + b"1\r\n1\r\n0\r\n" + b"a:\r\n" * 1000)
        assert (await connection.answer()).status == 431
        assert await connection.closed()


async def test_the_pages_and_refusals_of_the_door(store_server: EmbeddedServer) -> None:
    async with open_relay(store_server.address) as world:

        async def ask(method: str, path: str) -> tuple[int, bytes]:
            url = world.http.rstrip("/") + path
            async with world.client.request(method, url) as reply:
                return reply.status, await reply.read()

        assert await ask("GET", "/?c_i=eyJ9") == (200, INVITATION)
        assert await ask("GET", "/") == (200, b"")
        assert await ask("HEAD", "/?c_i=1") == (200, b"")
        assert (await ask("POST", "/other"))[0] == 404
        assert (await ask("GET", "/other"))[0] == 404
        assert (await ask("DELETE", "/"))[0] == 405
        assert (await post(world, v1("k"), waystation_wait="soon"))[0] == 400


async def test_a_pool_without_room_is_503_and_says_when_to_come_again(
    store_server: EmbeddedServer,
) -> None:
    async with open_relay(store_server.address, options=PoolOptions(messages_max=1)) as world:
        assert (await post(world, v1("k")))[0] == 200
        async with world.client.post(world.http, data=v1("k")) as reply:
            told = await reply.json(content_type="application/problem+json")
        assert (reply.status, told["code"]) == (503, "pool.full")
        assert reply.headers["retry-after"] == "1"
        assert len(await world.take()) == 1


async def test_a_pool_that_is_gone_is_503_since_404_would_be_the_end_of_an_agent(
    store_server: EmbeddedServer,
) -> None:
    async with open_relay(store_server.address) as world:
        await world.store.call("FLUSHALL")
        assert (await post(world, v1("k")))[0] == 503


@pytest.mark.parametrize("fate", [Fate.SWALLOW, Fate.CUT])
async def test_a_store_that_is_away_is_503_and_never_a_hang(
    store_server: EmbeddedServer, fate: Fate
) -> None:
    async with (
        proxy_to(store_server.address) as proxy,
        open_relay(proxy.address, call_seconds_max=0.5) as world,
    ):
        await proxy.set_fates(requests=fate)
        async with asyncio.timeout(10), world.client.post(world.http, data=v1("k")) as reply:
            assert reply.status == 503
            assert reply.headers["retry-after"] == "1"
        await proxy.set_fates()
        while (await post(world, v1("k")))[0] != 200:
            pass
        assert await world.take()


async def test_a_lost_reply_of_the_store_enqueues_nothing_twice(
    store_server: EmbeddedServer,
) -> None:
    async with proxy_to(store_server.address) as proxy, open_relay(proxy.address) as world:
        await proxy.set_fates(replies=Fate.CUT)
        sending = asyncio.ensure_future(post(world, v1("k")))
        await proxy.met.wait()
        await proxy.set_fates()
        assert (await sending)[0] == 200
        assert len(await world.take()) == 1


async def test_a_stale_worker_is_relieved_by_the_envelope_that_finds_it(
    store_server: EmbeddedServer,
) -> None:
    """Of more keys than one call moves, all move."""
    options = PoolOptions(stale_seconds=3.0)
    async with open_relay(store_server.address, options=options) as world:
        place, terms = world.pool.place, world.terms
        for first in range(0, 250, 50):
            letters = [Letter(f"m{i}", f"k{i}", b"") for i in range(first, first + 50)]
            await Mail(world.store).enqueue(place, terms, letters, remember_ms=60_000)
        await asyncio.sleep(3.1)
        await Members(world.store).register(place, terms, "other", nonce="n")
        assert (await post(world, v1("k0")))[0] == 200
        expected = {"worker": (0, 0), "other": (250, 251)}
        async with asyncio.timeout(5):
            while True:
                look = await Assignments(world.store).look(place, terms)
                if {each.uid: (each.keys, each.pending) for each in look.workers} == expected:
                    break


async def test_relays_that_start_at_once_make_their_pool_once_and_take_its_options(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with (
        open_bench(store_server, tmp_path) as one,
        open_bench(store_server, tmp_path, empty=False) as other,
    ):
        made = await asyncio.gather(*(provide(each.pools, RelayConfig()) for each in (one, other)))
        assert made[0] == made[1] == await one.pools.get("default", "agents")
        options = PoolOptions(assignment="least_loaded", messages_max=1)
        changed = await one.pools.change("default", "agents", options, version=1)
        async with open_bench(store_server, tmp_path, empty=False) as late:
            assert await provide(late.pools, RelayConfig()) == changed
            inbox = Inbox(late.pools, changed.place)
            await inbox.enqueue(Letter("m-1", "k", b""))
            with pytest.raises(PoolFullError):
                await inbox.enqueue(Letter("m-2", "k", b""))
