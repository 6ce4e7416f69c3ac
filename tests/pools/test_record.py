"""Record logs of pools: events that the scripts of a pool record for history."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.records import record_entries, register_reader, unrecorded_events
from tests.pools.pool_bench import NAME, PROJECT, PoolBench, open_bench
from tests.pools.pool_slot import LEASE_MS, PLACE, PoolSlot, open_pool_slot
from tests.pools.replay import Replay
from waystation.config import PoolConfig
from waystation.logs.records import RecordEntry, RecordLogs, log_key
from waystation.logs.streams import StreamLogs
from waystation.pools import PoolOptions, Pools
from waystation.pools.dead_letters import DeadLetters
from waystation.pools.held import Letter
from waystation.runtime.clock import Clock
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.pubsub import PubSub
from waystation.types.common import Record


async def events(slot: PoolSlot) -> list[tuple[str, object]]:
    """Return all recorded events of the pool, in order."""
    entries = await record_entries(slot.store, "pools")
    assert all((entry.project, entry.name) == (PLACE.project, PLACE.pool) for entry in entries)
    return [(text, detail) for entry in entries for text, detail in entry.events]


async def test_record_log_has_life_of_message(store_server: EmbeddedServer) -> None:
    async with open_pool_slot(store_server, record="full") as slot:
        await slot.register("a")
        await slot.send("k", "one", message_id="m-1")
        await slot.send("k", "again", message_id="m-1")
        await slot.send("k", "two", message_id="m-2")
        taken = await slot.take_one("a")
        (acked,) = await slot.ack("a", taken, next_lease_ms=LEASE_MS)
        assert acked.next is not None
        assert await slot.outcome("a", taken) == "known"
        assert await slot.nack("a", acked.next, "again", wait_ms=0) == "done"

        assert await events(slot) == [
            ("moved 1", ["k", "a", "new"]),
            ("enqueued 1", ["k", "m-1", b"one"]),
            ("enqueued 2", ["k", "m-2", b"two"]),
            ("taken 1 1 0", ["k", "a"]),
            ("acknowledged 1 1", ["k", "a"]),
            ("taken 2 1 0", ["k", "a"]),
            ("returned 2 1 1", ["k", "a"]),
        ]


async def test_record_log_has_dead_letters_and_their_end(store_server: EmbeddedServer) -> None:
    async with open_pool_slot(store_server, record="full", dead_max=2) as slot:
        letters = DeadLetters(slot.store)
        await slot.register("a")
        for number in (1, 2, 3):
            await slot.send("k", f"{number}")
            assert await slot.nack("a", await slot.take_one("a"), "dead", cause="no") == "dead"
        assert await letters.redrive(PLACE, slot.terms, [2]) == 1
        assert await letters.purge(PLACE, slot.terms, [3]) == 1
        assert await letters.purge(PLACE, slot.terms, [3]) == 0
        await slot.check()

        found = [text for text, _ in await events(slot)]
        assert [text for text in found if text.split(" ")[0] not in ("taken", "enqueued")] == [
            *("moved 1", "dead 1 1 0", "dead 2 1 0", "dead 3 1 0", "dropped 1"),
            *("redriven 2 4", "purged 3"),
        ]


async def test_record_log_has_crashes_and_moves(store_server: EmbeddedServer) -> None:
    async with open_pool_slot(store_server, record="full", attempts=2) as slot:
        await slot.register("a")
        await slot.send_all("k", "x")
        await slot.take("a")
        await slot.register("b")
        await slot.later(LEASE_MS / 1000 + 1)
        # The leases are over: the messages return, and their keys move to the other worker.
        await slot.beat("b")
        await slot.sweep()
        await slot.take("b")
        await slot.check()
        await slot.drain("b")
        await slot.leave("b")
        await slot.check()

        replay = Replay().apply(await record_entries(slot.store, "pools"))
        assert {"returned", "moved"} <= set(replay.kinds)


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ("headers", [("enqueued 1", ["k", "m-1"])]),
        ("none", []),
    ],
)
async def test_record_of_pool_withholds_messages(
    store_server: EmbeddedServer, record: Record, expected: list[tuple[str, list[str]]]
) -> None:
    async with open_pool_slot(store_server, record=record) as slot:
        await slot.send("k", "secret", message_id="m-1")
        await slot.register("a")
        await slot.ack("a", await slot.take_one("a"))

        entries = await record_entries(slot.store, "pools")
        if record == "none":
            assert entries == [RecordEntry(1, "", "", [])]
        else:
            found = [each for entry in entries for each in entry.events]
            assert [each for each in found if each[0].startswith("enqueued")] == expected


async def test_damaged_record_log_fails_no_call(store_server: EmbeddedServer) -> None:
    async with open_pool_slot(store_server, record="full") as slot:
        await slot.register("a")
        await slot.send("k")
        key = slot.terms.record.split(" ")[1]
        await slot.store.call("DEL", key)
        await slot.store.call("SET", key, "damaged")
        await slot.send("k")
        assert len(await slot.queue("k")) == 2
        assert await unrecorded_events(slot.store, "pools") == 1


async def recording_pools(bench: PoolBench) -> Pools:
    """Return the pools of another process, which records."""
    clock = Clock()
    records = RecordLogs(bench.store, StreamLogs(bench.store), clock=clock)
    await records.read_registration()
    wakeups = PubSub(bench.store.address)
    settings = PoolConfig()
    return Pools(
        bench.catalogue, bench.store, wakeups, clock=clock, settings=settings, records=records
    )


async def test_pool_records_from_registration_of_history_to_its_deletion(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        pools = await recording_pools(bench)
        await pools.create(PROJECT, NAME, PoolOptions())
        await pools.enqueue(PROJECT, NAME, [Letter("m-1", "k", b"1")])
        assert await StreamLogs(bench.store).names() == {}

        await register_reader(bench.store)
        pools = await recording_pools(bench)
        await pools.enqueue(PROJECT, NAME, [Letter("m-2", "k", b"2")])
        await pools.delete(PROJECT, NAME)
        await pools.create(PROJECT, NAME, PoolOptions(record="headers"))
        await pools.enqueue(PROJECT, NAME, [Letter("m-3", "k", b"3")])

        entries = await record_entries(bench.store, "pools")
        assert [(entry.project, entry.name) for entry in entries] == [(PROJECT, NAME)] * 3
        assert [each for entry in entries for each in entry.events] == [
            ("enqueued 2", ["k", "m-2", b"2"]),
            ("closed 2", None),
            ("enqueued 3", ["k", "m-3"]),
        ]


async def test_close_of_pool_is_recorded_once(store_server: EmbeddedServer, tmp_path: Path) -> None:
    """Delete a pool again, as after a crash between the close and the deletion of its keys."""
    async with open_bench(store_server, tmp_path) as bench:
        await register_reader(bench.store)
        pools = await recording_pools(bench)
        pool = await pools.create(PROJECT, NAME, PoolOptions())
        await pools.enqueue(PROJECT, NAME, [Letter("m-1", "k", b"1")])
        log = RecordLogs(bench.store, StreamLogs(bench.store), clock=Clock()).log_of(
            "pools", pool.place.tag
        )
        assert pools.terms(pool).record == f"f {log_key(log)}"
        await bench.store.call("HSET", pool.place.head, "closed", 1)
        await pools.delete(PROJECT, NAME)

        entries = await record_entries(bench.store, "pools")
        assert "closed 1" not in [text for entry in entries for text, _ in entry.events]
