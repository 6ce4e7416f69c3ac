"""Long polls: an end or a report wakes who asked for it, and a client is noted as told once."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from pathlib import Path

from tests.helpers.http import async_ask
from tests.helpers.waiting import eventually
from tests.transactions.archive_helpers import Shelf
from tests.transactions.helpers import CELL, TERMS, open_transactions
from tests.transactions.service_helpers import Outside, open_outside
from waystation import App
from waystation.store.embedded.server import EmbeddedServer
from waystation.testing.station import quick_settings, serving
from waystation.transactions import names
from waystation.transactions.order import Order
from waystation.transactions.progress import Sleep
from waystation.transactions.signals import Signals
from waystation.transactions.waiters import WaitingRoom

FAR = 60.0
SOON = 5.0
#: F-31.
POLLS = 5_000


async def until_waiting(outside: Outside, count: int) -> None:
    """Wait until `count` requests wait and the store has them."""

    async def are_waiting() -> bool:
        if f"[{count} waiters]" not in repr(outside.engine.waiting):
            return False
        stored = await outside.store.call("ZCARD", names.sorted_set(0, "waitersZ"))
        return bool(stored) or not count

    await eventually(are_waiting, timeout=30)


async def until_heard(outside: Outside, topic: bytes) -> None:
    """Wait until a client of the store subscribes to a pub/sub topic."""

    async def is_subscribed() -> bool:
        return bool((await outside.store.call("PUBSUB", "NUMSUB", topic))[1])

    await eventually(is_subscribed, timeout=SOON)


# -- Progress --------------------------------------------------------------------------------


async def test_a_report_wakes_those_who_ask_for_progress_and_no_others(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_outside(store_server.address, tmp_path) as outside:
        await outside.define()
        claimed = await outside.running()
        room, seen = (
            outside.engine.waiting,
            (
                await outside.engine.transactions.get("default", claimed.id)
            ).metadata.sequence_of_update,
        )
        curious = [asyncio.ensure_future(room.news(claimed.id, FAR, after=seen)) for _ in range(3)]
        patient = asyncio.ensure_future(room.ended(claimed.id, FAR))
        await until_waiting(outside, 4)
        await until_heard(outside, names.progress_topic(0))
        verdict = await outside.progress.report(claimed.held, b'{"half":true}')
        async with asyncio.timeout(SOON):
            assert await asyncio.gather(*curious) == [True] * 3
        assert not patient.done()
        async with asyncio.timeout(SOON):
            assert await room.news(claimed.id, FAR, after=verdict.version - 1), "it was before"
        assert not await room.news(claimed.id, 0.02, after=verdict.version), "that one is known"
        await outside.finish(claimed)
        async with asyncio.timeout(SOON):
            assert await patient
            assert await room.news(claimed.id, FAR, after=10**9), "an end is always news"
        assert "[0 waiters]" in repr(room)


async def test_progress_is_listened_to_only_while_somebody_asks_for_it(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_outside(store_server.address, tmp_path) as outside:
        await outside.define()
        claimed = await outside.running()
        room, wakeups = outside.engine.waiting, outside.engine.waiting._wakeups

        def listeners() -> int:
            topic = wakeups._topics.get(names.progress_topic(0))
            return 0 if topic is None else len(topic.listeners)

        await room.ended(claimed.id, 0.01)
        assert listeners() == 0
        waits = [asyncio.ensure_future(room.news(claimed.id, FAR, after=0)) for _ in range(2)]
        await until_waiting(outside, 2)
        assert listeners() == 1
        for each in waits:
            each.cancel()
            await asyncio.gather(each, return_exceptions=True)
            assert listeners() == (each is waits[0])
        # And once more: what was left is heard again.
        again = asyncio.ensure_future(room.news(claimed.id, FAR, after=0))
        await until_waiting(outside, 1)
        await outside.progress.report(claimed.held, b"1")
        async with asyncio.timeout(SOON):
            assert await again


async def test_a_report_between_the_note_and_the_look_is_not_missed(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_outside(store_server.address, tmp_path) as outside:
        await outside.define()
        for number in range(20):
            claimed = await outside.running()
            room = outside.engine.waiting
            asked = asyncio.ensure_future(room.news(claimed.id, FAR, after=0))
            for _ in range(number):
                await asyncio.sleep(0)
            await outside.progress.report(claimed.held, b"1")
            async with asyncio.timeout(SOON):
                assert await asked
            await outside.finish(claimed)


# -- Everywhere ------------------------------------------------------------------------------


async def test_who_waits_at_any_node_hears_of_the_end(tmp_path: Path) -> None:
    app = App()
    app.pipeline("ask", [("util/wait", {"switch": "go"})])
    settings = quick_settings(str(tmp_path))
    async with serving(settings, app=app) as one, serving(settings) as other:
        started = await one.node.engine.starter.start("default", Order(type="ask"))
        path = f"/v1/transactions/{started.id}?wait=20s"
        waits = [
            asyncio.ensure_future(async_ask(each.url, "GET", path))
            for each in (one, other)
            for _ in range(5)
        ]
        async with asyncio.timeout(SOON):
            while any("[5 w" not in repr(each.node.engine.waiting) for each in (one, other)):
                await asyncio.sleep(0.005)
        begun = asyncio.get_running_loop().time()
        await other.node.engine.transactions.set_switch("default", started.id, "go", True)
        told = [(await each).json()["metadata"] for each in waits]
        assert asyncio.get_running_loop().time() - begun < SOON
        assert {each["status"] for each in told} == {"success"}
        assert len({each["notifiedTime"] for each in told}) == 1, "the first of them"


# -- Archived --------------------------------------------------------------------------------


async def test_what_sleeps_in_the_archive_has_not_ended(store_server: EmbeddedServer) -> None:
    async with open_transactions(store_server) as tx:
        shelf = Shelf(tx)
        asleep = await shelf.sleeper()
        signals = Signals(tx.store, TERMS, shelf)
        room = WaitingRoom(tx.store, tx.wakeups, signals, clock=tx.clock)
        assert not await room.ended(asleep, 0.02)
        assert await room.ended("tx-0000" + "f" * 36, FAR), "what is nowhere is gone"
        waiting = asyncio.ensure_future(room.ended(asleep, FAR))
        await signals.cancel("default", [asleep], cause="me", grace_ms=0)
        async with asyncio.timeout(SOON):
            assert await waiting
        room.close()


async def test_who_waits_for_a_sleeper_hears_of_its_end_after_it_was_away(
    store_server: EmbeddedServer,
) -> None:
    async with open_transactions(store_server) as tx:
        shelf = Shelf(tx)
        held = await tx.running()
        signals = Signals(tx.store, TERMS, shelf)
        room = WaitingRoom(tx.store, tx.wakeups, signals, clock=tx.clock)
        waiting = asyncio.ensure_future(room.ended(held.id, 4_000.0))
        async with asyncio.timeout(SOON):
            while not await tx.store.call("ZCARD", names.sorted_set(CELL, "waitersZ")):
                await asyncio.sleep(0.001)
        sleep = Sleep(held=held, state=b"s", delay_ms=3_600_000)
        await tx.progress.sleep(CELL, [sleep])
        await tx.machine.advance(TERMS.archive_delay_ms / 1000 + 1)
        await shelf.archive()
        assert not waiting.done()
        await signals.cancel("default", [held.id], cause="me", grace_ms=0)
        async with asyncio.timeout(SOON):
            assert await waiting
        room.close()


# -- Who was told ----------------------------------------------------------------------------


async def test_a_look_is_no_reply_and_a_wait_that_tells_the_end_is_one(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_outside(store_server.address, tmp_path) as outside:
        await outside.define()
        claimed = await outside.running()
        transactions = outside.engine.transactions
        alive = await transactions.get("default", claimed.id, wait_seconds=0.01)
        assert (alive.metadata.completion_time, alive.metadata.notified_time) == (None, None)
        waiting = asyncio.ensure_future(transactions.get("default", claimed.id, wait_seconds=FAR))
        await until_waiting(outside, 1)
        await outside.finish(claimed)
        async with asyncio.timeout(SOON):
            told = (await waiting).metadata
        assert told.notified_time is not None
        looked = (await transactions.get("default", claimed.id)).metadata
        assert looked == told, "what is told is what is kept"
        again = (await transactions.get("default", claimed.id, wait_seconds=0.0)).metadata
        assert again == told


async def test_a_look_without_a_wait_never_notes_that_somebody_was_told(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_outside(store_server.address, tmp_path) as outside:
        await outside.define()
        claimed = await outside.running()
        await outside.finish(claimed)
        summary = await outside.engine.transactions.get("default", claimed.id)
        assert summary.metadata.notified_time is None
        field = await outside.store.call("HGET", names.state(claimed.id), "notifiedTime")
        assert field is None


async def test_a_client_that_is_gone_by_the_end_was_not_told(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """F-31."""
    async with open_outside(store_server.address, tmp_path) as outside:
        await outside.define()
        claimed = await outside.running()
        gone: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        watched = asyncio.Event()

        def watch() -> asyncio.Future[object]:
            watched.set()
            return gone

        waiting = asyncio.ensure_future(
            outside.engine.transactions.get(
                "default", claimed.id, wait_seconds=FAR, abandonment=watch
            )
        )
        await watched.wait()
        gone.set_result(None)
        await outside.finish(claimed)
        await waiting
        field = await outside.store.call("HGET", names.state(claimed.id), "notifiedTime")
        assert field is None


async def test_thousands_of_polls_that_are_cut_leave_nothing_behind(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """F-31: neither here nor in the store, and the second time takes no more than the first."""
    async with open_outside(store_server.address, tmp_path) as outside:
        await outside.define()
        items = [await outside.start() for _ in range(10)]
        grown = []
        before = 0
        # A leak shows in every round; other parts of the process may create objects in one.
        for _ in range(4):
            await cut(outside, items)
            gc.collect()
            grown.append(len(gc.get_objects()) - before)
            before += grown[-1]
        assert min(grown[1:]) < POLLS // 10, grown
        left_ms = await outside.store.call("PTTL", names.sorted_set(0, "waitersZ"))
        assert 0 < left_ms <= (FAR + 1) * 1000, "the note goes with the longest of them"


async def test_a_note_that_somebody_waits_is_gone_a_second_after_the_wait(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """F-31: by itself, though nobody ever waits again."""
    async with open_outside(store_server.address, tmp_path) as outside:
        await outside.define()
        ids = [await outside.start() for _ in range(2)]
        waits = asyncio.gather(*(outside.engine.waiting.ended(each, 2.0) for each in ids))
        waiters = names.sorted_set(0, "waitersZ")
        async with asyncio.timeout(20):
            while await outside.store.call("ZCARD", waiters) < 2:
                await asyncio.sleep(0.005)
            assert 0 < await outside.store.call("PTTL", waiters) <= 3000
            assert not any(await waits)
            while await outside.store.call("EXISTS", waiters):
                await asyncio.sleep(0.02)


async def cut(outside: Outside, ids: Sequence[str]) -> None:
    """Thousands wait, idle, and hang up."""
    loop, idle = asyncio.get_running_loop(), asyncio.Event()
    hanging_up: list[asyncio.Future[object]] = []

    def abandonment() -> asyncio.Future[object]:
        hanging_up.append(loop.create_future())
        if len(hanging_up) == POLLS:
            idle.set()
        return hanging_up[-1]

    room = outside.engine.waiting
    waits = [
        asyncio.ensure_future(
            room.news(ids[number % len(ids)], FAR, after=0, abandonment=abandonment)
        )
        for number in range(POLLS)
    ]
    async with asyncio.timeout(60):
        await idle.wait()
        assert f"[{POLLS} waiters]" in repr(room)
        for each in hanging_up:
            each.set_result(None)
        assert not any(await asyncio.gather(*waits))
    assert "[0 waiters]" in repr(room)
