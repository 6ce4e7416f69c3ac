"""Store client on a healthy store: order of calls, shared writes, cancellation, errors, close."""

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
    """Record the number of ECHO calls of each write. Other clients send no ECHO."""
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


async def test_call_of_concurrent_callers_keeps_the_order_of_calls(
    store_server: EmbeddedServer,
) -> None:
    made: list[bytes] = []

    async def caller(store: Store, name: str) -> None:
        for number in range(20):
            made.append(f"{name}-{number}".encode())
            await store.call("RPUSH", "order", made[-1])

    async with store_at(store_server.address) as store:
        await store.call("DEL", "order")
        # The callers start before the client is connected.
        await asyncio.gather(*(caller(store, f"caller-{each}") for each in range(50)))

        assert await store.call("LRANGE", "order", 0, -1) == made


async def test_call_in_the_same_turn_shares_one_write(
    store_server: EmbeddedServer, echoes: list[int]
) -> None:
    async with proxy_to(store_server.address) as proxy, store_at(proxy.address) as store:
        await store.connect()
        chunks, calls, writes = proxy.chunks, count_of("calls"), count_of("writes")

        async def caller(number: int) -> bytes:
            return bytes(await store.call("ECHO", number))

        # A hundred coroutines call in the same turn.
        replies = await asyncio.gather(*(caller(number) for number in range(100)))

        # Each gets its own reply, and all calls share one write.
        assert replies == [str(number).encode() for number in range(100)]
        assert echoes == [100]
        assert count_of("calls") >= calls + 100
        assert count_of("writes") > writes
        assert proxy.chunks == chunks + 1


async def test_calls_made_before_connection_are_sent_in_one_write(
    store_server: EmbeddedServer, echoes: list[int]
) -> None:
    async with store_at(store_server.address) as store:
        replies = await asyncio.gather(*(store.call("ECHO", number) for number in range(10)))
        assert replies == [str(number).encode() for number in range(10)]
        assert echoes == [10]


async def test_call_cancelled_in_its_turn_is_not_sent(
    store_server: EmbeddedServer,
) -> None:
    async with proxy_to(store_server.address) as proxy, store_at(proxy.address) as store:
        # One call is cancelled before the connection, the other in the turn in which it is made.
        early = store.call("SET", "cancelled-early", 1)
        early.cancel()
        await store.connect()
        late = store.call("SET", "cancelled-late", 1)
        kept = store.call("SET", "kept", 1)
        late.cancel()

        assert await kept == b"OK"
        assert b"cancelled-early" not in proxy.received
        assert b"cancelled-late" not in proxy.received


async def test_call_cancelled_after_sending_runs_and_drops_its_reply(
    store_server: EmbeddedServer,
) -> None:
    async with proxy_to(store_server.address) as proxy, store_at(proxy.address) as store:
        await store.call("DEL", "counter")
        await proxy.set_fates(replies=Fate.HOLD)
        given_up = asyncio.ensure_future(store.call("INCR", "counter"))
        behind = asyncio.ensure_future(store.call("ECHO", "mine"))
        await proxy.met.wait()

        # The caller cancels the call after the client has sent it.
        given_up.cancel()
        await proxy.set_fates()

        # The store ran the cancelled call, and the other call gets its own reply.
        assert await behind == b"mine"
        assert given_up.cancelled()
        assert await store.call("GET", "counter") == b"1"


async def test_call_with_error_reply_raises_for_its_caller_only(
    store_server: EmbeddedServer,
) -> None:
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


async def test_pipeline_with_failed_call_returns_error_in_its_place(
    store_server: EmbeddedServer,
) -> None:
    async with store_at(store_server.address) as store:
        await store.call("SET", "text", "word")
        replies = await store.pipeline([("GET", "text"), ("INCR", "text"), ("STRLEN", "text")])
        assert replies[0] == b"word"
        assert isinstance(replies[1], StoreReplyError)
        assert replies[2] == 4


async def test_script_after_flush_is_sent_as_text_and_runs_once(
    store_server: EmbeddedServer,
) -> None:
    # The store may lose its scripts at any time.
    async with store_at(store_server.address) as store:
        await store.call("DEL", "count")
        assert await store.run(COUNT, ["count"], []) == 1

        await store.call("SCRIPT", "FLUSH")

        assert await store.run(COUNT, ["count"], []) == 2
        assert await store.call("GET", "count") == b"2"
        # The store has the script again, so the next call sends only its hash.
        assert await store.call("SCRIPT", "EXISTS", COUNT.shas[0]) == [1]


async def test_script_flushed_during_pipeline_runs_once_per_call_in_order(
    store_server: EmbeddedServer,
) -> None:
    # The store may lose its scripts at any time.
    async with store_at(store_server.address) as store:
        await store.call("DEL", "count")
        # SCRIPT FLUSH is sent between the script calls.
        before = [store.run(COUNT, ["count"], []) for _ in range(10)]
        flush = store.call("SCRIPT", "FLUSH")
        after = [store.run(COUNT, ["count"], []) for _ in range(50)]

        counts = await asyncio.gather(*before, *after)

        assert await flush == b"OK"
        assert counts == list(range(1, 61))


async def test_script_with_error_raises_for_its_caller(store_server: EmbeddedServer) -> None:
    async with store_at(store_server.address) as store:
        await store.call("SET", "count", "word")
        with pytest.raises(StoreReplyError, match="not an integer"):
            await store.run(COUNT, ["count"], [])


async def test_scan_returns_every_key_and_unlink_deletes_all(store_server: EmbeddedServer) -> None:
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


async def test_call_above_limit_raises_busy_error(
    store_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CALLS_MAX", 10)
    async with proxy_to(store_server.address) as proxy, store_at(proxy.address) as store:
        await store.connect()
        await proxy.set_fates(replies=Fate.HOLD)
        # The calls reach the limit. Five of them are sent.
        first = [store.call("PING") for _ in range(5)]
        await proxy.met.wait()
        second = [store.call("PING") for _ in range(5)]

        with pytest.raises(BusyError):
            store.call("PING")

        # After their replies the client accepts calls again.
        await proxy.set_fates()
        await asyncio.gather(*first, *second)
        assert await store.call("PING") == b"PONG"


async def test_close_ends_sent_calls_as_unknown_and_unsent_as_unavailable(
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


async def test_close_while_connecting_ends_the_attempt(store_server: EmbeddedServer) -> None:
    async with proxy_to(store_server.address) as proxy:
        await proxy.set_fates(requests=Fate.HOLD)
        store = Store(proxy.address)
        waiting = store.call("PING")
        await proxy.met.wait()
        assert "connecting, 1 waiting" in repr(store)

        await store.close()

        with pytest.raises(StoreUnavailableError):
            await waiting
