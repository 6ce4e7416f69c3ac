"""Store client on a failing store: lost replies, silent connections, error replies, restarts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.helpers.store_faults import HANG_UP, Fate, peer_that, plain_server, proxy_to, store_at
from waystation.errors import (
    OutcomeUnknownError,
    StoreFullError,
    StoreReplyError,
    StoreUnavailableError,
)
from waystation.store.address import Address
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.scripts import registered_scripts, script

COUNT = script("tests.store", "count")
KEEP = script("tests.store", "keep")


# -- A lost connection -----------------------------------------------------------------------


async def test_call_with_lost_reply_raises_outcome_unknown(
    store_server: EmbeddedServer,
) -> None:
    async with proxy_to(store_server.address) as proxy, store_at(proxy.address) as store:
        await store.call("DEL", "count")
        await proxy.set_fates(replies=Fate.CUT)

        with pytest.raises(OutcomeUnknownError):
            await store.run(COUNT, ["count"], [])

        # The call was not repeated. The next call uses a new connection.
        await proxy.set_fates()
        assert await store.call("GET", "count") == b"1"
        assert proxy.connections == 2


async def test_repeatable_script_with_lost_reply_is_repeated(
    store_server: EmbeddedServer,
) -> None:
    async with proxy_to(store_server.address) as proxy, store_at(proxy.address) as store:
        await store.call("DEL", "runs")
        await proxy.set_fates(replies=Fate.CUT)
        running = asyncio.ensure_future(store.run(KEEP, ["value", "runs"], ["v"]))
        await proxy.met.wait()
        await proxy.set_fates()

        assert await running == b"v"
        assert await store.call("GET", "runs") == b"2"


async def test_repeated_calls_keep_their_order(store_server: EmbeddedServer) -> None:
    async with proxy_to(store_server.address) as proxy, store_at(proxy.address) as store:
        await store.call("DEL", "list")
        await proxy.set_fates(requests=Fate.CUT)
        calls = [store.call("RPUSH", "list", number, repeatable=True) for number in range(5)]
        await proxy.met.wait()
        # The last call is made while the client is disconnected.
        calls.append(store.call("RPUSH", "list", 5, repeatable=True))
        await proxy.set_fates()

        await asyncio.gather(*calls)

        assert await store.call("LRANGE", "list", 0, -1) == [b"0", b"1", b"2", b"3", b"4", b"5"]


async def test_unsent_call_raises_unavailable_with_address_and_reason(
    tmp_path: Path,
) -> None:
    nobody = Address(path=str(tmp_path / "nobody.sock"), password="hush")
    async with store_at(nobody, call_seconds_max=2.0) as store:
        with pytest.raises(StoreUnavailableError) as caught:
            await store.call("PING", repeatable=True)
        assert "nobody.sock" in str(caught.value)
        assert "No such file" in str(caught.value)
        assert "hush" not in str(caught.value) + repr(store)
        assert not store.connected
        assert store.last_problem


async def test_call_waits_for_restart_of_server() -> None:
    with plain_server("--appendonly", "yes") as server:
        async with store_at(server.address) as store:
            await store.call("SET", "kept", "1")
            server.kill()
            while store.connected:
                await asyncio.sleep(0)
            # The call is not repeatable, and the server is unavailable when it is made.
            waiting = asyncio.ensure_future(store.call("GET", "kept"))

            await asyncio.to_thread(server.start)

            assert await waiting == b"1"
            # The client loads its scripts into the restarted server.
            assert await store.run(COUNT, ["count"], []) == 1


async def test_half_open_connection_is_replaced(
    store_server: EmbeddedServer,
) -> None:
    async with (
        proxy_to(store_server.address) as proxy,
        store_at(proxy.address, call_seconds_max=1.0) as store,
    ):
        await store.connect()
        await proxy.set_fates(requests=Fate.SWALLOW, replies=Fate.SWALLOW)
        loop = asyncio.get_running_loop()
        began = loop.time()

        # Each call on a silent connection ends within its deadline.
        with pytest.raises(OutcomeUnknownError):
            await store.call("INCR", "half-open")
        assert loop.time() - began < 5

        # The next call uses a new connection.
        await proxy.set_fates()
        assert await store.call("ECHO", "again") == b"again"
        assert proxy.connections == 2


async def test_connection_to_slow_store_is_kept(
    store_server: EmbeddedServer,
) -> None:
    async with (
        proxy_to(store_server.address) as proxy,
        store_at(proxy.address, call_seconds_max=2.0) as store,
    ):
        await store.connect()
        proxy.delay_seconds = 0.3
        # Each reply takes less than the deadline, all together take longer.
        for number in range(4):
            assert await store.call("ECHO", number) == str(number).encode()
        assert proxy.connections == 1


async def test_call_with_lost_reply_and_no_store_raises_outcome_unknown(
    store_server: EmbeddedServer,
) -> None:
    async with (
        proxy_to(store_server.address) as proxy,
        store_at(proxy.address, call_seconds_max=2.0) as store,
    ):
        await store.call("DEL", "runs")
        # The call runs, but its reply is lost each time.
        await proxy.set_fates(replies=Fate.CUT)
        with pytest.raises(OutcomeUnknownError):
            await store.run(KEEP, ["value", "runs"], ["v"])


async def test_call_repeated_on_loading_store_raises_outcome_unknown() -> None:
    sets = 0

    def answer(command: list[bytes]) -> bytes | None:
        nonlocal sets
        if command[0] != b"SET":
            return None
        sets += 1
        return HANG_UP if sets == 1 else b"-LOADING the dataset"

    async with peer_that(answer) as address, store_at(address, call_seconds_max=2.0) as store:
        with pytest.raises(OutcomeUnknownError):
            await store.call("SET", "k", "v", repeatable=True)
        assert sets > 1


async def test_connection_lost_with_last_handshake_reply_is_replaced() -> None:
    connections = loads = 0

    def answer(command: list[bytes]) -> bytes | None:
        nonlocal connections, loads
        if command[0] == b"CLIENT":
            connections, loads = connections + 1, 0
        elif command[:2] == [b"SCRIPT", b"LOAD"]:
            loads += 1
            if connections == 1 and loads == len(registered_scripts()):
                return b"+OK\r\n" + HANG_UP
        return b"+hello" if command[0] == b"ECHO" else None

    async with peer_that(answer) as address, store_at(address, call_seconds_max=2) as store:
        assert await store.call("ECHO", "hello", repeatable=True) == b"hello"
        assert connections == 2


async def test_connection_to_store_that_does_not_list_its_scripts_is_refused() -> None:
    def answer(command: list[bytes]) -> bytes | None:
        return b"+OK" if command[0] == b"SCRIPT" else None

    async with peer_that(answer) as address, store_at(address, call_seconds_max=2.0) as store:
        with pytest.raises(StoreUnavailableError, match="does not match the number of scripts"):
            await store.call("INCR", "count")


@pytest.mark.parametrize("noise", [b"?what", b"+one\r\n+two"], ids=["garbage", "one too many"])
async def test_client_with_unexpected_reply_reconnects(noise: bytes) -> None:
    confused = True

    def answer(command: list[bytes]) -> bytes | None:
        nonlocal confused
        if command[0] == b"ECHO":
            if confused:
                confused = False
                return noise
            return b"+" + command[1]
        return None

    async with peer_that(answer) as address, store_at(address) as store:
        await asyncio.gather(store.call("ECHO", "first"), return_exceptions=True)
        # The second call must not get a reply to the first one.
        assert await store.call("ECHO", "second", repeatable=True) == b"second"


# -- Error replies ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        ("CLUSTERDOWN Hash slot not served", StoreUnavailableError),
        ("MASTERDOWN Link with MASTER is down", StoreUnavailableError),
        ("NOREPLICAS Not enough good replicas to write.", StoreUnavailableError),
        ("READONLY You can't write against a read only replica.", StoreUnavailableError),
        ("OOM command not allowed when used memory > 'maxmemory'.", StoreFullError),
        ("MISCONF Errors writing to the AOF file: No space left on device", StoreFullError),
        ("BUSYGROUP Consumer Group name already exists", StoreReplyError),
        ("WRONGTYPE Operation against a key holding the wrong kind", StoreReplyError),
    ],
)
async def test_error_reply_raises_the_error_of_its_kind(reply: str, error: type[Exception]) -> None:
    def answer(command: list[bytes]) -> bytes | None:
        return f"-{reply}".encode() if command[0] == b"SET" else None

    async with peer_that(answer) as address, store_at(address) as store:
        with pytest.raises(error) as caught:
            await store.call("SET", "k", "v")
        assert type(caught.value) is error
        assert reply in str(caught.value)


async def test_client_reconnects_after_its_server_became_replica() -> None:
    connections = 0

    def answer(command: list[bytes]) -> bytes | None:
        nonlocal connections
        connections += command[0] == b"CLIENT"
        primary = connections > 1
        return None if command[0] != b"SET" or primary else b"-READONLY replica"

    async with peer_that(answer) as address, store_at(address) as store:
        with pytest.raises(StoreUnavailableError):
            await store.call("SET", "k", "v")
        assert await store.call("SET", "k", "v") == b"OK"


async def test_call_on_full_store_raises_store_full_and_does_not_run() -> None:
    with plain_server("--maxmemory", "1") as server:
        async with store_at(server.address) as store:
            with pytest.raises(StoreFullError):
                await store.call("SET", "more", "x")
            with pytest.raises(StoreFullError):
                await store.run(COUNT, ["count"], [])
            assert await store.call("EXISTS", "more", "count") == 0


async def test_call_on_loading_store_is_retried_until_it_has_loaded() -> None:
    said: list[bytes] = []

    def answer(command: list[bytes]) -> bytes | None:
        # The store is loading once during the handshake and once at the first call.
        if command[0] in (b"SCRIPT", b"INCR") and said.count(command[0]) < 2:
            said.append(command[0])
            return b"-LOADING Valkey is loading the dataset in memory"
        return b":1" if command[0] == b"INCR" else None

    async with peer_that(answer) as address, store_at(address) as store:
        # A call that is not repeatable is sent again too, because a loading store did not run it.
        assert await store.call("INCR", "count") == 1
        assert said.count(b"SCRIPT") == 2
        assert said.count(b"INCR") == 2


@pytest.mark.parametrize("word", [b"SCRIPT", b"INCR"], ids=["at the handshake", "at the call"])
async def test_call_on_store_that_loads_beyond_the_deadline_raises_unavailable(word: bytes) -> None:
    def answer(command: list[bytes]) -> bytes | None:
        return b"-LOADING the dataset" if command[0] == word else None

    async with peer_that(answer) as address, store_at(address, call_seconds_max=2.0) as store:
        with pytest.raises(StoreUnavailableError, match="LOADING the dataset"):
            await store.call("INCR", "count")


async def test_call_on_busy_store_is_retried_and_runs_once() -> None:
    with plain_server("--busy-reply-threshold", "20") as server:
        async with store_at(server.address) as store, store_at(server.address) as other:
            await asyncio.gather(store.connect(), other.connect())
            endless = other.call("EVAL", "while true do end", 0)
            await _until_busy(server.address)

            counting = asyncio.gather(*(store.call("INCR", "count") for _ in range(3)))
            done, _ = await asyncio.wait([counting], timeout=0.2)
            assert not done, "a call ran while the store was busy"

            assert await _ask(server.address, b"SCRIPT KILL") == b"+OK\r\n"
            assert await counting == [1, 2, 3]
            with pytest.raises(StoreReplyError, match="killed"):
                await endless


async def _until_busy(address: Address) -> None:
    while not (await _ask(address, b"PING")).startswith(b"-BUSY"):
        await asyncio.sleep(0.005)


async def _ask(address: Address, command: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(address.path)
    writer.write(command + b"\r\n")
    reply = await reader.readline()
    writer.close()
    return reply
