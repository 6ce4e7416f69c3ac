"""Producer: receipts, group order over a switch, full partitions, limits of pending messages."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence

import pytest

from tests.helpers.interleavings import count_calls
from tests.topics.conftest import OpenProcess, TopicProcess
from waystation.errors import (
    BusyError,
    LogFullError,
    LogSealedError,
    TopicBlockedError,
    TopicNotFoundError,
)
from waystation.logs.protocol import Appended
from waystation.logs.streams import StreamLogs
from waystation.messages.envelope import Envelope
from waystation.runtime.clock import Clock
from waystation.store.client import Store
from waystation.topics.dedup import Deduplicator
from waystation.topics.model import TopicDefinition
from waystation.topics.producer import Producer
from waystation.topics.router import Router, hash_of
from waystation.types.message import Receipt
from waystation.types.topic import TopicOptions


def hundreds(count: int) -> list[Envelope]:
    """Return messages of one partition, each with slightly more than 100 bytes."""
    return [
        Envelope(id=f"m{n:03}", project="default", data=b"x" * 100, group="g") for n in range(count)
    ]


async def test_produce_returns_receipt_with_location_of_message(process: TopicProcess) -> None:
    topic = await process.topics.create("default", "orders", partitions=4)
    receipts = await process.produce("orders", *(f"m{n}" for n in range(50)))
    for receipt in receipts:
        spread = topic.target.router
        assert receipt.partition == spread.partition_of(hash_of(receipt.id))
        log = topic.log(topic.storage[receipt.storage])
        batch = await process.logs.read(log, receipt.partition, receipt.offset, limit=1)
        (entry,) = batch.entries()
        assert receipt.id.encode() in entry.payload
        assert receipt.time_ms == entry.ms
    assert [receipt.id for receipt in receipts] == [f"m{n}" for n in range(50)]
    assert {receipt.partition for receipt in receipts} == {0, 1, 2, 3}


async def test_produce_after_switch_appends_to_next_storage_topic(
    process: TopicProcess,
) -> None:
    await process.topics.create("default", "orders", partitions=2)
    await process.produce("orders", "a", "b", group="g")
    added = await process.topics.add_storage_topic("default", "orders", 10)
    assert (added.produce_pointer, added.storage[1].factor) == (0, 5)
    assert (await process.produce("orders", "c", group="g"))[0].storage == 0
    switched = await process.topics.switch_produce("default", "orders")
    assert switched.produce_pointer == 1
    assert (await process.produce("orders", "d", group="g"))[0].storage == 1
    # The pointer stays at the last storage topic.
    assert (await process.topics.switch_produce("default", "orders")).produce_pointer == 1
    await process.check(switched, {"g": ["a", "b", "c", "d"]})


async def test_produce_with_outdated_pointer_follows_switch(
    process: TopicProcess, open_process: OpenProcess
) -> None:
    async with open_process() as other:
        await process.topics.create("default", "orders", partitions=4)
        await other.produce("orders", "a", group="g")
        await process.topics.add_storage_topic("default", "orders", 12)
        topic = await process.topics.switch_produce("default", "orders")
        # The other process read the topic before the switch and caches it for two seconds.
        (receipt,) = await other.produce("orders", "b", group="g")
        assert receipt.storage == 1
        await process.check(topic, {"g": ["a", "b"]})


async def test_produce_to_partly_sealed_topic_finishes_switch(
    process: TopicProcess,
) -> None:
    await process.topics.create("default", "orders", partitions=4)
    groups = [f"g{n}" for n in range(16)]
    for group in groups:
        await process.produce("orders", f"{group}-1", group=group)
    topic = await process.topics.add_storage_topic("default", "orders", 8)
    # A process crashed after it sealed one partition.
    await process.logs.seal(topic.log(topic.target), 2, 1)
    for group in groups:
        await process.produce("orders", f"{group}-2", group=group)
    topic = await process.topics.get("default", "orders")
    assert topic.produce_pointer == 1
    for partition in range(4):
        state = await process.logs.state(topic.log(topic.storage[0]), partition)
        assert state.sealed == 1
    await process.check(topic, {group: [f"{group}-1", f"{group}-2"] for group in groups})


async def test_produce_by_processes_during_switches_keeps_group_order(
    open_process: OpenProcess,
) -> None:
    sent: dict[str, list[str]] = defaultdict(list)
    async with open_process() as one, open_process() as other, open_process() as operator:
        await one.topics.create("default", "orders", partitions=2)
        done = asyncio.Event()

        async def send(process: TopicProcess, name: str) -> None:
            """Produce up to nine batches at a time, so that some are in flight at a seal."""
            under_way: list[asyncio.Task[list[Receipt]]] = []
            number = 0
            while not done.is_set() or number < 100:
                ids = [f"{name}-{number + i}" for i in range(3)]
                number += 3
                sent[name] += ids
                under_way.append(asyncio.ensure_future(process.produce("orders", *ids, group=name)))
                if len(under_way) > 8:
                    await under_way.pop(0)
                await asyncio.sleep(0)
            await asyncio.gather(*under_way)

        async def operate() -> None:
            for partitions in (4, 8, 12, 24, 5, 10):
                await operator.topics.add_storage_topic("default", "orders", partitions)
                await asyncio.sleep(0.02)
                await operator.topics.switch_produce("default", "orders")
            done.set()

        await asyncio.gather(
            operate(), *(send(process, f"g{n}") for n, process in enumerate([one, other] * 4))
        )
        topic = await operator.topics.get("default", "orders")
        assert topic.produce_pointer == 6
        await operator.check(topic, dict(sent))


class HeldLogs(StreamLogs):
    """Logs in which a test can delay the appends to some partitions."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.held: dict[tuple[str, int], asyncio.Event] = {}
        self.arrived = asyncio.Event()

    async def append(self, log: str, partition: int, payloads: Sequence[bytes]) -> Appended:
        if gate := self.held.get((log, partition)):
            self.arrived.set()
            await gate.wait()
        return await super().append(log, partition, payloads)


def held_producer(process: TopicProcess) -> HeldLogs:
    """Give the process a producer whose appends the test can delay."""
    logs = HeldLogs(process.store)
    deduplication = Deduplicator(process.store, clock=Clock())
    process.producer = Producer(process.topics, logs, deduplication)
    return logs


async def test_produce_after_switch_waits_for_earlier_message_of_group(
    process: TopicProcess,
) -> None:
    topic = await process.topics.create("default", "orders", partitions=1)
    logs = held_producer(process)
    # The group has another partition, and so another queue, after the switch.
    group = next(name for name in "abcdef" if Router(2, 2).partition_of(hash_of(name)) == 1)
    await process.produce("orders", "a", group=group)
    gate = logs.held[topic.log(topic.target), 0] = asyncio.Event()
    first = asyncio.ensure_future(process.produce("orders", "b", group=group))
    await logs.arrived.wait()
    # The switch is complete, and this process knows it, before b reaches the store.
    await process.topics.add_storage_topic("default", "orders", 2)
    topic = await process.topics.switch_produce("default", "orders")
    second = asyncio.ensure_future(process.produce("orders", "c", group=group))
    await asyncio.wait([second], timeout=0.1)
    assert not second.done()
    gate.set()
    await asyncio.wait_for(asyncio.gather(first, second), 10)
    await process.check(topic, {group: ["a", "b", "c"]})


async def test_produce_to_sealed_partition_waits_for_appends_in_flight(
    process: TopicProcess,
) -> None:
    topic = await process.topics.create("default", "orders", partitions=2)
    logs = held_producer(process)
    spread = topic.target.router
    groups = {spread.partition_of(hash_of(name)): name for name in ("a", "b", "c", "d", "e")}
    await process.topics.add_storage_topic("default", "orders", 2)
    gate = logs.held[topic.log(topic.target), 1] = asyncio.Event()
    slow = [asyncio.ensure_future(process.produce("orders", "1", group=groups[1]))]
    await logs.arrived.wait()
    slow.append(asyncio.ensure_future(process.produce("orders", "2", group=groups[1])))
    await process.logs.seal(topic.log(topic.target), 0, 1)
    refused = asyncio.ensure_future(process.produce("orders", "x", group=groups[0]))
    await asyncio.wait([refused], timeout=0.1)
    assert not refused.done()
    gate.set()
    await asyncio.wait_for(asyncio.gather(*slow, refused), 10)
    topic = await process.topics.get("default", "orders")
    await process.check(topic, {groups[1]: ["1", "2"], groups[0]: ["x"]})
    assert slow[0].result()[0].storage == 0


async def test_produce_with_cancelled_caller_completes_other_calls(
    process: TopicProcess,
) -> None:
    await process.topics.create("default", "orders", partitions=1)
    await process.produce("orders", "first")
    topic = await process.topics.add_storage_topic("default", "orders", 1)
    await process.logs.seal(topic.log(topic.target), 0, 1)
    quitter = asyncio.ensure_future(process.produce("orders", "a"))
    stayer = asyncio.ensure_future(process.produce("orders", "b"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    quitter.cancel()
    (receipt,) = await asyncio.wait_for(stayer, 10)
    assert (receipt.storage, receipt.offset) == (1, 1)
    assert (await process.produce("orders", "c"))[0].storage == 1


@pytest.mark.parametrize("turns", range(6))
async def test_produce_with_cancelled_caller_appends_its_message(
    process: TopicProcess, turns: int
) -> None:
    await process.topics.create("default", "orders", partitions=1)
    await process.produce("orders", "first")
    topic = await process.topics.add_storage_topic("default", "orders", 1)
    await process.logs.seal(topic.log(topic.target), 0, 1)
    quitter = asyncio.ensure_future(process.produce("orders", "a"))
    for _ in range(turns + 1):
        await asyncio.sleep(0)
    quitter.cancel()
    async with asyncio.timeout(10):
        while not await process.logs.read(topic.log(topic.storage[1]), 0, 0, limit=1):
            await asyncio.sleep(0.005)


async def test_produce_by_concurrent_callers_shares_appends_and_keeps_order(
    process: TopicProcess,
) -> None:
    topic = await process.topics.create("default", "orders", partitions=4)
    await process.produce("orders", "first", group="g0")
    calls = count_calls(process.store)
    groups = [f"g{n % 8}" for n in range(200)]
    receipts = await asyncio.gather(
        *(process.produce("orders", f"m{n}", group=group) for n, group in enumerate(groups))
    )
    assert [receipt.id for (receipt,) in receipts] == [f"m{n}" for n in range(200)]
    assert calls() <= 4
    sent: dict[str, list[str]] = defaultdict(list, {"g0": ["first"]})
    for n, group in enumerate(groups):
        sent[group].append(f"m{n}")
    await process.check(topic, sent)


async def test_produce_to_full_partition_rejects_only_caller_without_space(
    process: TopicProcess,
) -> None:
    options = TopicOptions(max_bytes=1000)
    await process.topics.create("default", "orders", partitions=1, options=options)

    async def produce(message_id: str, size: int) -> object:
        envelope = Envelope(id=message_id, project="default", data=b"x" * size)
        return (await process.producer.produce("default", "orders", [envelope]))[0]

    results = await asyncio.gather(
        produce("a", 300), produce("b", 900), produce("c", 300), produce("d", 1)
    )
    assert [isinstance(each, Receipt) for each in results] == [True, False, True, True]
    assert isinstance(results[1], LogFullError)
    offsets = [each.offset for each in results if isinstance(each, Receipt)]
    assert offsets == [0, 1, 2]


async def test_produce_above_pending_messages_limit_is_rejected(
    open_process: OpenProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waystation.topics.producer.PENDING_MESSAGES_MAX", 5)
    async with open_process() as process:
        topic = await process.topics.create("default", "orders", partitions=1)
        first = asyncio.ensure_future(process.produce("orders", "a", "b", "c"))
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await process.produce("orders", "d", "e", "f")
        await first
        await process.produce("orders", *"ghijkl")
        assert len(await process.contents(topic)) == 9


async def test_produce_above_pending_bytes_limit_of_process_is_rejected(
    open_process: OpenProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waystation.topics.producer.PENDING_BYTES_MAX", 1000)
    async with open_process() as process:
        for name in ("one", "two"):
            await process.topics.create("default", name, partitions=1)
        first = asyncio.ensure_future(process.producer.produce("default", "one", hundreds(6)))
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await process.producer.produce("default", "two", hundreds(6))
        await first
        assert len(await process.producer.produce("default", "two", hundreds(6))) == 6


async def test_produce_after_purge_and_recreation_ignores_seal_of_purged_topic(
    process: TopicProcess, open_process: OpenProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_process() as other:
        old = await process.topics.create("default", "orders", partitions=1)
        await process.produce("orders", "a")
        await process.logs.seal(old.log(old.target), 0, 1)
        get = process.topics.get

        async def late(project: str, name: str) -> TopicDefinition:
            monkeypatch.setattr(process.topics, "get", get)
            # The producer reads the topic after its append was rejected.
            await other.topics.delete(project, name)
            await other.topics.purge(project, name)
            await other.topics.create(project, name, partitions=1)
            return await get(project, name)

        monkeypatch.setattr(process.topics, "get", late)
        (receipt,) = await process.produce("orders", "b")
        new = await other.topics.get("default", "orders")
        assert [each.id for _, _, each in await other.contents(new)] == ["b"]
        assert (receipt.storage, receipt.offset) == (0, 0)
        assert (await other.logs.state(new.log(new.target), 0)).sealed is None


async def test_produce_to_sealed_last_storage_topic_fails_until_one_is_added(
    process: TopicProcess,
) -> None:
    topic = await process.topics.create("default", "orders", partitions=2)
    for partition in range(2):
        await process.logs.seal(topic.log(topic.target), partition, 1)
    envelope = Envelope(id="a", project="default", data=b"")
    (result,) = await process.producer.produce("default", "orders", [envelope])
    assert isinstance(result, LogSealedError)
    assert "has no further storage topic" in str(result)
    await process.topics.add_storage_topic("default", "orders", 2)
    await process.topics.switch_produce("default", "orders")
    assert (await process.produce("orders", "a"))[0].storage == 1


async def test_produce_to_missing_logs_creates_them(process: TopicProcess) -> None:
    topic = await process.topics.create("default", "orders", partitions=2)
    await process.produce("orders", "a", "b", "c")
    await process.logs.delete(topic.log(topic.target), 2)
    receipts = await process.produce("orders", *(f"n{n}" for n in range(20)))
    assert sorted({receipt.partition for receipt in receipts}) == [0, 1]
    assert len(await process.contents(topic)) == 20


async def test_produce_to_full_partition_accepts_messages_of_other_partition(
    process: TopicProcess,
) -> None:
    options = TopicOptions(max_bytes=2000)
    await process.topics.create("default", "orders", partitions=2, options=options)
    partition_of = Router(2).partition_of
    there, elsewhere = (
        next(name for name in "abcdef" if partition_of(hash_of(name)) == partition)
        for partition in range(2)
    )
    results = await process.producer.produce(
        "default",
        "orders",
        [
            Envelope(id=name, project="default", data=b"x" * 1500, group=group)
            for name, group in (("a", there), ("b", there), ("c", elsewhere))
        ],
    )
    assert [type(each) for each in results] == [Receipt, LogFullError, Receipt]
    # A small message fits after the rejected ones.
    assert (await process.produce("orders", "s", group=there))[0].offset == 1


@pytest.mark.parametrize("dedup_seconds", [0, 60])
async def test_produce_of_batch_above_partition_limit_rejects_rest(
    process: TopicProcess, dedup_seconds: int
) -> None:
    options = TopicOptions(max_bytes=2000, dedup_seconds=dedup_seconds)
    topic = await process.topics.create("default", "orders", partitions=1, options=options)
    results = await process.producer.produce("default", "orders", hundreds(20))
    kept = [type(each) for each in results].index(LogFullError)
    assert [type(each) for each in results] == [Receipt] * kept + [LogFullError] * (20 - kept)
    assert "stores at most 2,000 bytes" in str(results[-1])
    state = await process.logs.state(topic.log(topic.target), 0)
    size = state.bytes // kept
    assert state.end == kept
    assert state.bytes <= 2000 < state.bytes + size


async def test_produce_with_drop_and_count_keeps_partition_within_limit(
    process: TopicProcess,
) -> None:
    options = TopicOptions(max_bytes=2000, full_policy="drop_and_count")
    topic = await process.topics.create("default", "orders", partitions=1, options=options)
    results = await process.producer.produce("default", "orders", hundreds(100))
    assert [type(each) for each in results] == [Receipt] * 100
    state = await process.logs.state(topic.log(topic.target), 0)
    assert state.end == 100
    assert state.bytes <= 2000
    # A message above the limit replaces all others.
    large = Envelope(id="large", project="default", data=b"x" * 3000)
    await process.producer.produce("default", "orders", [large])
    state = await process.logs.state(topic.log(topic.target), 0)
    assert (state.first, state.end) == (100, 101)


async def test_produce_to_missing_blocked_or_deleted_topic_is_rejected(
    process: TopicProcess,
) -> None:
    with pytest.raises(TopicNotFoundError):
        await process.produce("orders", "a")
    await process.topics.create("default", "orders", partitions=1)
    await process.topics.block("default", "orders")
    with pytest.raises(TopicBlockedError):
        await process.produce("orders", "a")
    await process.topics.unblock("default", "orders")
    await process.produce("orders", "b")
    await process.topics.delete("default", "orders")
    with pytest.raises(TopicNotFoundError):
        await process.produce("orders", "c")
    await process.topics.restore("default", "orders")
    assert (await process.produce("orders", "d"))[0].offset == 1


async def test_produce_of_large_batch_keeps_order(process: TopicProcess) -> None:
    topic = await process.topics.create("default", "orders", partitions=1)
    receipts = await process.produce("orders", *(f"m{n}" for n in range(1700)), group="g")
    assert [receipt.offset for receipt in receipts] == list(range(1700))
    await process.check(topic, {"g": [f"m{n}" for n in range(1700)]})


async def test_produce_of_batch_rejects_messages_after_a_rejected_one(
    process: TopicProcess,
) -> None:
    # Otherwise a caller that repeats the rejected message would change the order.
    options = TopicOptions(max_bytes=20_000)
    topic = await process.topics.create("default", "orders", partitions=1, options=options)
    # The producer appends each message alone. The second does not fit, although the third
    # would.
    first, second, third = (
        Envelope(id=name, project="default", data=b"x" * size)
        for name, size in (("first", 9000), ("second", 15_000), ("third", 6000))
    )
    small = Envelope(id="small", project="default", data=b"x")

    theirs, others = await asyncio.gather(
        process.producer.produce("default", "orders", [first, second, third]),
        process.producer.produce("default", "orders", [small]),
    )

    assert [type(result) for result in theirs] == [Receipt, LogFullError, LogFullError]
    assert [type(result) for result in others] == [Receipt], "nobody else suffers"
    kept = [each.id for _, _, each in await process.contents(topic)]
    assert kept == ["first", "small"]


async def test_produce_by_100_callers_to_full_partition_costs_one_append_each(
    process: TopicProcess,
) -> None:
    options = TopicOptions(max_bytes=20_000)
    await process.topics.create("default", "orders", partitions=1, options=options)
    filled = await process.producer.produce("default", "orders", hundreds(300))
    assert isinstance(filled[-1], LogFullError)
    calls = count_calls(process.store)

    results = await asyncio.gather(
        *(process.producer.produce("default", "orders", [envelope]) for envelope in hundreds(100))
    )

    assert {type(result) for (result,) in results} == {LogFullError}
    assert calls() <= 103


async def test_produce_after_unexpected_error_during_switch_succeeds(
    process: TopicProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    await process.topics.create("default", "orders", partitions=1)
    await process.produce("orders", "a", group="g")
    topic = await process.topics.add_storage_topic("default", "orders", 1)
    await process.logs.seal(topic.log(topic.target), 0, 1)

    async def fail(project: str, name: str) -> TopicDefinition:
        raise RuntimeError("unexpected")

    with monkeypatch.context() as patch:
        patch.setattr(process.topics, "get", fail)
        with pytest.raises(RuntimeError):
            await process.produce("orders", "b", group="g")

    (receipt,) = await asyncio.wait_for(process.produce("orders", "c", group="g"), 10)
    assert receipt.storage == 1


async def test_produce_during_slow_append_continues_on_other_partition(
    process: TopicProcess,
) -> None:
    topic = await process.topics.create("default", "orders", partitions=2)
    logs = held_producer(process)
    router = topic.target.router
    groups = {router.partition_of(hash_of(name)): name for name in ("a", "b", "c", "d", "e")}
    await process.produce("orders", "1", group=groups[0])
    gate = logs.held[topic.log(topic.target), 0] = asyncio.Event()
    slow = asyncio.ensure_future(process.produce("orders", "2", group=groups[0]))
    await logs.arrived.wait()

    # After two seconds the producer reads the topic again, which has not changed.
    await asyncio.sleep(2.1)
    await asyncio.wait_for(process.produce("orders", "3", group=groups[1]), 5)

    assert not slow.done()
    gate.set()
    await slow
