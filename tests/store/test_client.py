"""The contract of the store client while the store is well: order, sharing, cancelling, errors."""

from __future__ import annotations

import asyncio

import pytest

from tests.helpers.store_faults import Fate, proxy_to, store_at
from waystation.errors import (
    BusyError,
    InvalidInputError,
    OutcomeUnknownError,
    StoreReplyError,
    StoreUnavailableError,
)
from waystation.runtime.metrics import registry
from waystation.store import connection
from waystation.store.client import Store
from waystation.store.connection import Call, RespProtocol
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.scripts import script

COUNT = script("tests.store", "count")


@pytest.fixture
def echoes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many ECHO calls each write carried; other stores of this process may write as well."""
    counts: list[int] = []
    write = RespProtocol.write

    def counting(connection: RespProtocol, calls: list[Call]) -> None:
        if count := sum(b"ECHO" in call.packed for call in calls):
            counts.append(count)
        write(connection, calls)

    monkeypatch.setattr(RespProtocol, "write", counting)
    return counts


def count_of(name: str) -> float:
    value = registry.get_sample_value(f"waystation_store_{name}_total")
    assert value is not None
    return value


async def test_calls_arrive_in_the_order_they_were_made_whoever_made_them(
    store_server: EmbeddedServer,
) -> None:
    made: list[bytes] = []

    async def caller(store: Store, name: str) -> None:
        for number in range(20):
            made.append(f"{name}-{number}".encode())
            await store.call("RPUSH", "order", made[-1])

    async with store_at(store_server.address) as store:
        await store.call("DEL", "order")
        # Given callers that begin before there is a connection, and go on at their own pace
        await asyncio.gather(*(caller(store, f"caller-{each}") for each in range(50)))

        assert await store.call("LRANGE", "order", 0, -1) == made


async def test_calls_of_one_turn_share_one_write(
    store_server: EmbeddedServer, echoes: list[int]
) -> None:
    async with proxy_to(store_server.address) as proxy, store_at(proxy.address) as store:
        await store.connect()
        chunks, calls, writes = proxy.chunks, count_of("calls"), count_of("writes")

        async def caller(number: int) -> bytes:
            return bytes(await store.call("ECHO", number))

        # When a hundred coroutines call in the same turn
        replies = await asyncio.gather(*(caller(number) for number in range(100)))

        # Then each has its own reply, and one write carried them all
        assert replies == [str(number).encode() for number in range(100)]
        assert echoes == [100]
        assert count_of("calls") >= calls + 100
        assert count_of("writes") > writes
        assert proxy.chunks == chunks + 1


async def test_calls_made_before_the_connection_share_one_write_too(
    store_server: EmbeddedServer, echoes: list[int]
) -> None:
    async with store_at(store_server.address) as store:
        replies = await asyncio.gather(*(store.call("ECHO", number) for number in range(10)))
        assert replies == [str(number).encode() for number in range(10)]
        assert echoes == [10]


async def test_a_call_cancelled_before_its_turn_ends_is_never_sent(
    store_server: EmbeddedServer,
) -> None:
    async with proxy_to(store_server.address) as proxy, store_at(proxy.address) as store:
        # Given one call cancelled while there is no connection yet, one in the turn of its making
        early = store.call("SET", "cancelled-early", 1)
        early.cancel()
        await store.connect()
        late = store.call("SET", "cancelled-late", 1)
        kept = store.call("SET", "kept", 1)
        late.cancel()

        assert await kept == b"OK"
        assert b"cancelled-early" not in proxy.received
        assert b"cancelled-late" not in proxy.received


async def test_the_reply_of_a_call_cancelled_later_is_dropped_and_disturbs_nobody(
    store_server: EmbeddedServer,
) -> None:
    async with proxy_to(store_server.address) as proxy, store_at(proxy.address) as store:
        await store.call("DEL", "counter")
        await proxy.set_fates(replies=Fate.HOLD)
        given_up = asyncio.ensure_future(store.call("INCR", "counter"))
        behind = asyncio.ensure_future(store.call("ECHO", "mine"))
        await proxy.met.wait()

        # When its caller gives it up after it was sent
        given_up.cancel()
        await proxy.set_fates()

        # Then it ran all the same, and the others have their own replies
        assert await behind == b"mine"
        assert given_up.cancelled()
        assert await store.call("GET", "counter") == b"1"


async def test_an_error_reaches_its_own_caller_only(store_server: EmbeddedServer) -> None:
    async with store_at(store_server.address) as store:
        await store.call("SET", "text", "word")
        good, bad, also_good = await asyncio.gather(
            store.call("GET", "text"),
            store.call("INCR", "text"),
            store.call("GET", "text"),
            return_exceptions=True,
        )
        assert (good, also_good) == (b"word", b"word")
        assert isinstance(bad, StoreReplyError)
        assert bad.reply.startswith("ERR value is not an integer")


async def test_a_pipeline_has_errors_in_the_place_of_replies(store_server: EmbeddedServer) -> None:
    async with store_at(store_server.address) as store:
        await store.call("SET", "text", "word")
        replies = await store.pipeline([("GET", "text"), ("INCR", "text"), ("STRLEN", "text")])
        assert replies[0] == b"word"
        assert isinstance(replies[1], StoreReplyError)
        assert replies[2] == 4


async def test_a_flushed_script_is_sent_whole_and_applied_once(
    store_server: EmbeddedServer,
) -> None:
    """F-23."""
    async with store_at(store_server.address) as store:
        await store.call("DEL", "count")
        assert await store.run(COUNT, ["count"], []) == 1

        await store.call("SCRIPT", "FLUSH")

        assert await store.run(COUNT, ["count"], []) == 2
        assert await store.call("GET", "count") == b"2"
        # And the store knows it again: the next call is short.
        assert await store.call("SCRIPT", "EXISTS", COUNT.shas[0]) == [1]


async def test_a_pipeline_of_flushed_scripts_is_applied_once_each_and_in_order(
    store_server: EmbeddedServer,
) -> None:
    """F-23."""
    async with store_at(store_server.address) as store:
        await store.call("DEL", "count")
        # When the scripts are flushed in the middle of a pipeline
        before = [store.run(COUNT, ["count"], []) for _ in range(10)]
        flush = store.call("SCRIPT", "FLUSH")
        after = [store.run(COUNT, ["count"], []) for _ in range(50)]

        counts = await asyncio.gather(*before, *after)

        assert await flush == b"OK"
        assert counts == list(range(1, 61))


async def test_a_script_error_is_the_error_of_its_call(store_server: EmbeddedServer) -> None:
    async with store_at(store_server.address) as store:
        await store.call("SET", "count", "word")
        with pytest.raises(StoreReplyError, match="not an integer"):
            await store.run(COUNT, ["count"], [])


async def test_pages_show_every_key_and_all_can_be_deleted(store_server: EmbeddedServer) -> None:
    async with store_at(store_server.address) as store:
        wanted = {f"page.{n}".encode() for n in range(500)}
        await asyncio.gather(*(store.call("SET", name, 1) for name in wanted))
        found, cursor = set(), ""
        while cursor != "0":
            cursor, names = await store.scan(cursor or "0", match="page.*", count=100)
            found |= set(names)
        assert found == wanted
        await store.unlink(list(found))
        await store.unlink([])
        assert await store.call("EXISTS", *found) == 0
        for bad in ("", "-1", "x", "1" * 25, str(2**64)):
            with pytest.raises(InvalidInputError):
                await store.scan(bad, match="*", count=1)


async def test_more_calls_than_the_bound_are_refused_before_they_are_made(
    store_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CALLS_MAX", 10)
    async with proxy_to(store_server.address) as proxy, store_at(proxy.address) as store:
        await store.connect()
        await proxy.set_fates(replies=Fate.HOLD)
        # Given as many calls as allowed, five of them already on their way
        first = [store.call("PING") for _ in range(5)]
        await proxy.met.wait()
        second = [store.call("PING") for _ in range(5)]

        with pytest.raises(BusyError):
            store.call("PING")

        # And when they are answered there is room again
        await proxy.set_fates()
        await asyncio.gather(*first, *second)
        assert await store.call("PING") == b"PONG"


async def test_closing_ends_every_call_with_the_truth_about_it(
    store_server: EmbeddedServer,
) -> None:
    async with proxy_to(store_server.address) as proxy:
        store = Store(proxy.address)
        await store.connect()
        await proxy.set_fates(replies=Fate.HOLD)
        sent = store.call("SET", "closing", 1, repeatable=True)
        await proxy.met.wait()
        unsent = store.call("SET", "closing-unsent", 1)

        await store.close()

        with pytest.raises(OutcomeUnknownError):
            await sent
        with pytest.raises(StoreUnavailableError):
            await unsent
        with pytest.raises(StoreUnavailableError, match="closed"):
            store.call("PING")
        assert b"closing-unsent" not in proxy.received
        await store.close()
        assert repr(store).endswith("[closed, 0 waiting, 0 sent]>")


async def test_closing_while_connecting_ends_the_attempt(store_server: EmbeddedServer) -> None:
    async with proxy_to(store_server.address) as proxy:
        await proxy.set_fates(requests=Fate.HOLD)
        store = Store(proxy.address)
        waiting = store.call("PING")
        await proxy.met.wait()
        assert "connecting, 1 waiting" in repr(store)

        await store.close()

        with pytest.raises(StoreUnavailableError):
            await waiting
