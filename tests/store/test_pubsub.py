"""PubSub: no waiter misses a publish, neither between read and wait nor over a reconnect."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from tests.helpers.store_faults import Fate, plain_server, proxy_to, store_at
from waystation.runtime.service import Wakeup
from waystation.store import pubsub
from waystation.store.address import Address
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.pubsub import PubSub

TOPIC = b"topic"
#: Time limit in which a wake-up counts as sent. It is shorter than RECHECK_S, which is 10.
SOON = 8.0


@asynccontextmanager
async def pubsub_at(address: Address) -> AsyncIterator[PubSub]:
    async with PubSub(address) as pubsub:
        yield pubsub


async def woken(waiter: Wakeup) -> bool:
    """Return True if a wake-up arrives earlier than the recheck would end the wait."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    await waiter.wait(SOON)
    return loop.time() - began < SOON


async def settled(waiter: Wakeup) -> None:
    """Wait for the wake-up that each new subscription causes, and clear it."""
    assert await woken(waiter)
    waiter.clear()


async def test_publish_wakes_waiters_of_its_topic_only(
    store_server: EmbeddedServer,
) -> None:
    async with pubsub_at(store_server.address) as ours, store_at(store_server.address) as store:
        with ours.waiting(TOPIC) as one, ours.waiting(TOPIC) as two, ours.waiting(b"x") as other:
            for waiter in (one, two, other):
                await settled(waiter)

            await store.call("PUBLISH", TOPIC, "new message")

            assert await woken(one)
            assert await woken(two)
            other_wait = asyncio.ensure_future(other.wait(60))
            done, _ = await asyncio.wait([other_wait], timeout=0.1)
            assert not done
            other_wait.cancel()


async def test_publish_between_read_and_wait_ends_the_wait(
    store_server: EmbeddedServer,
) -> None:
    async with pubsub_at(store_server.address) as ours, store_at(store_server.address) as store:
        with ours.waiting(TOPIC) as waiter, ours.waiting(TOPIC) as witness:
            await settled(waiter)
            await settled(witness)
            waiter.clear()
            # The caller has read and found nothing. A publish arrives before it waits.
            await store.call("PUBLISH", TOPIC, "new message")
            assert await woken(witness)
            # The later wait ends immediately.
            assert await woken(waiter)


async def test_subscription_taking_effect_wakes_waiter(
    store_server: EmbeddedServer,
) -> None:
    async with proxy_to(store_server.address) as proxy, pubsub_at(proxy.address) as ours:
        with ours.waiting(b"first") as first:
            await settled(first)
        await proxy.set_fates(requests=Fate.HOLD)
        with ours.waiting(b"second") as waiter:
            await proxy.met.wait()
            # The subscription has not arrived, so this publish has no receiver.
            async with store_at(store_server.address) as store:
                assert await store.call("PUBLISH", "second", "lost") == 0
            await proxy.set_fates()
            assert await woken(waiter)


async def test_waiter_during_many_publishes_misses_none(store_server: EmbeddedServer) -> None:
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    async with pubsub_at(store_server.address) as ours, store_at(store_server.address) as store:
        await store.call("SET", "counter", 0)

        async def publish() -> None:
            for _ in range(300):
                await store.pipeline([("INCR", "counter"), ("PUBLISH", TOPIC, "")])
                for _ in range(rng.randrange(4)):
                    await asyncio.sleep(0)

        async def follow() -> None:
            seen = 0
            with ours.waiting(TOPIC) as waiter:
                while seen < 300:
                    waiter.clear()
                    found = int(await store.call("GET", "counter"))
                    if found == seen:
                        assert await woken(waiter), f"missed one at {seen}, seed {seed}"
                    seen = found

        await asyncio.gather(publish(), *(follow() for _ in range(10)))


async def test_reconnect_wakes_all_waiters(store_server: EmbeddedServer) -> None:
    async with proxy_to(store_server.address) as proxy, pubsub_at(proxy.address) as ours:
        with ours.waiting(b"one") as one, ours.waiting(b"two") as two:
            await settled(one)
            await settled(two)

            proxy.cut()

            # Both wake immediately, because messages during the reconnect are lost.
            assert await woken(one)
            assert await woken(two)
            # The new connection receives wake-ups.
            one.clear()
            async with store_at(store_server.address) as store:
                assert await store.call("PUBLISH", "one", "") == 1
            assert await woken(one)
            assert proxy.connections == 2


async def test_pubsub_with_silent_connection_reconnects(
    store_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pubsub, "_CHECK_S", 0.05)
    async with proxy_to(store_server.address) as proxy, pubsub_at(proxy.address) as ours:
        with ours.waiting(TOPIC) as waiter:
            await settled(waiter)
            await proxy.set_fates(replies=Fate.SWALLOW)
            while proxy.connections_open:
                await asyncio.sleep(0.005)
            await proxy.set_fates()
            assert await woken(waiter)
            assert proxy.connections == 2


async def test_topic_without_waiters_is_unsubscribed_later(
    store_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pubsub, "_CHECK_S", 0.02)
    # A busy machine must not drop the connection, which would end the subscription too.
    monkeypatch.setattr(pubsub, "_SILENT_CHECKS_MAX", 1000)
    async with pubsub_at(store_server.address) as ours, store_at(store_server.address) as store:

        async def subscribers() -> int:
            return int((await store.call("PUBSUB", "NUMSUB", TOPIC))[1])

        with ours.waiting(TOPIC) as waiter:
            await settled(waiter)
        # The topic stays subscribed for a while, for a poller that waits again.
        await asyncio.sleep(0.1)
        assert await subscribers() == 1
        assert repr(ours) == "<PubSub [1 topics, 0 waiters]>"

        # End the time without a waiter.
        monkeypatch.setattr(pubsub, "_LINGER_S", 0.0)
        while await subscribers():
            await asyncio.sleep(0.01)
        assert repr(ours) == "<PubSub [0 topics, 0 waiters]>"

        # The next waiter subscribes again.
        with ours.waiting(TOPIC) as waiter:
            await settled(waiter)
            await store.call("PUBLISH", TOPIC, "")
            assert await woken(waiter)


async def test_waiters_share_one_connection_and_leave_no_state(
    store_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pubsub, "_CHECK_S", 60.0)  # No health check, because it sends a PING.
    async with proxy_to(store_server.address) as proxy, pubsub_at(proxy.address) as ours:
        with ours.waiting(TOPIC) as first:
            await settled(first)
            chunks = proxy.chunks
            async with AsyncExitStack() as stack:
                waiters = [
                    stack.enter_context(ours.waiting(b"topic-%d" % (number % 500)))
                    for number in range(2000)
                ]
                for waiter in waiters:
                    await settled(waiter)
                # The subscriptions of one turn share one write.
                assert proxy.chunks == chunks + 1
                assert repr(ours) == "<PubSub [501 topics, 2001 waiters]>"
                async with store_at(store_server.address) as store:
                    await store.pipeline([("PUBLISH", f"topic-{n}", "") for n in range(500)])
                for waiter in waiters:
                    assert await woken(waiter)
        assert repr(ours) == "<PubSub [501 topics, 0 waiters]>"
        assert proxy.connections == 1


async def test_wait_without_wake_up_ends_after_recheck_time(
    store_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pubsub, "RECHECK_S", 0.05)
    async with pubsub_at(store_server.address) as ours:
        with ours.waiting(TOPIC) as waiter:
            await settled(waiter)
            assert await woken(waiter)


async def test_wait_ends_on_timeout_cancellation_and_stop(
    store_server: EmbeddedServer,
) -> None:
    async with pubsub_at(store_server.address) as ours:
        with ours.waiting(TOPIC) as waiter:
            await settled(waiter)
            await waiter.wait(0)
            await waiter.wait(0.01)
            waiter.clear()
            cancelled = asyncio.ensure_future(waiter.wait(60))
            await asyncio.sleep(0)
            cancelled.cancel()
            await asyncio.wait([cancelled])
            assert cancelled.cancelled()

            last = asyncio.ensure_future(woken(waiter))
            await asyncio.sleep(0)
            await ours.stop()
            assert await last


async def test_pubsub_started_before_store_connects_later() -> None:
    with plain_server() as server:
        server.kill()
        async with pubsub_at(server.address) as ours:
            with ours.waiting(TOPIC) as waiter:
                # Wait until an attempt to connect has failed.
                await asyncio.sleep(0.05)
                await asyncio.to_thread(server.start)
                assert await woken(waiter)


async def test_subscription_while_connecting_follows_handshake(
    tmp_path: Path,
) -> None:
    # Before the handshake the store would refuse the subscription or the handshake.
    heard: list[bytes] = []
    path = str(tmp_path / "s")

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            while said := await reader.read(4096):
                heard.append(said)
                if b"last" in said:
                    return

    async with await asyncio.start_unix_server(listen, path):
        waits = PubSub(Address(path=path, password="open sesame"))
        await waits.start()
        for turn in range(100):
            # Subscribe in every turn, including the turn in which the client connects.
            with waits.waiting(f"topic-{turn}".encode()):
                await asyncio.sleep(0)
        with waits.waiting(b"last"):
            async with asyncio.timeout(SOON):
                while b"last" not in b"".join(heard):
                    await asyncio.sleep(0.005)
        await waits.stop()

    said = b"".join(heard)
    assert said.index(b"AUTH") < said.index(b"SUBSCRIBE")


# -- Listeners -------------------------------------------------------------------------------


async def heard_until(heard: list[bytes | None], count: int) -> None:
    async with asyncio.timeout(SOON):
        while len(heard) < count:
            await asyncio.sleep(0.002)


async def test_listener_gets_payloads_of_its_topic_in_order(
    store_server: EmbeddedServer,
) -> None:
    async with pubsub_at(store_server.address) as ours, store_at(store_server.address) as store:
        one: list[bytes | None] = []
        two: list[bytes | None] = []
        ends = [ours.listen(TOPIC, one.append), ours.listen(TOPIC, two.append)]
        await heard_until(one, 1)
        # The subscription takes effect now. Earlier messages may be lost.
        assert one == two == [None]
        for payload in (b"a", b"", b"b c"):
            await store.call("PUBLISH", TOPIC, payload)
        await store.call("PUBLISH", "another", b"x")
        await heard_until(one, 4)
        assert one == two == [None, b"a", b"", b"b c"]

        ends[0]()
        with ours.waiting(TOPIC) as waiter:
            await store.call("PUBLISH", TOPIC, b"d")
            await heard_until(two, 5)
            assert await woken(waiter)
        assert len(one) == 4
        assert two[-1] == b"d"


async def test_listener_is_called_with_none_after_reconnect(
    store_server: EmbeddedServer,
) -> None:
    async with (
        proxy_to(store_server.address) as proxy,
        pubsub_at(proxy.address) as ours,
        store_at(store_server.address) as store,
    ):
        heard: list[bytes | None] = []
        ours.listen(TOPIC, heard.append)
        await heard_until(heard, 1)
        proxy.cut()
        await heard_until(heard, 2)
        assert heard == [None, None]
        await store.call("PUBLISH", TOPIC, b"after")
        await heard_until(heard, 3)
        assert heard[-1] == b"after"


async def test_topic_with_listener_stays_subscribed(
    store_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pubsub, "_LINGER_S", 0.0)
    monkeypatch.setattr(pubsub, "_CHECK_S", 0.02)
    async with pubsub_at(store_server.address) as ours, store_at(store_server.address) as store:
        heard: list[bytes | None] = []
        end = ours.listen(b"kept", heard.append)
        await heard_until(heard, 1)
        with ours.waiting(b"left"):
            pass
        async with asyncio.timeout(SOON):
            while b"left" in await store.call("PUBSUB", "CHANNELS", "*"):
                await asyncio.sleep(0.01)
        assert b"kept" in await store.call("PUBSUB", "CHANNELS", "*")
        end()
        async with asyncio.timeout(SOON):
            while b"kept" in await store.call("PUBSUB", "CHANNELS", "*"):
                await asyncio.sleep(0.01)
