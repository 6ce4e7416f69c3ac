"""Load on logs and topics without HTTP, beside the plain stream commands of the same client."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import statistics
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from waystation.catalogue import SqliteCatalogue
from waystation.logs import keys
from waystation.logs.protocol import Retention
from waystation.logs.streams import StreamLogs
from waystation.messages.envelope import Envelope, pack
from waystation.runtime.clock import Clock
from waystation.store.client import Store
from waystation.store.keys import DEFAULT_PROJECT
from waystation.subscriptions.definitions import SubscriptionDefinitions
from waystation.subscriptions.topic_readers import SubscriptionReaders
from waystation.topics.dedup import Deduplicator
from waystation.topics.producer import Producer
from waystation.topics.service import TopicService
from waystation.types.message import Receipt
from waystation_bench.report import Sample
from waystation_bench.target import Target, Window, measured

#: Payload of a message, and messages of one append.
DATA = b"x" * 100
BATCH = 100
#: Messages of one read.
READ = 500
#: Appends or reads that are under way together.
CALLERS = 4
#: Producers of a topic, each with a batch under way.
PRODUCERS = 64
#: Messages in a log that is short or long when its cost is measured.
SHORT, LONG = 1_000, 1_000_000
_LONG_BATCH = 500
_WARM_SECONDS = 0.1
_READ_FROM = 20_000
_MEASURED_MESSAGES = 64_000
_PACKED = pack(Envelope(id="0" * 12, project=DEFAULT_PROJECT, data=DATA))

#: What each caller repeats; how many messages it was.
Operation = Callable[[], Awaitable[int]]


async def append_ours(target: Target, seconds: float) -> Sample:
    """Batches, each in one script call."""
    async with _opened(target) as (_, logs):
        await logs.create("log", 1, Retention())

        async def append() -> int:
            await logs.append("log", 0, [_PACKED] * BATCH)
            return BATCH

        return await repeated(target, seconds, append)


async def append_raw(target: Target, seconds: float) -> Sample:
    """Pipelines of as many XADD, without offsets, limits or seals."""
    async with _opened(target) as (store, _):
        commands = [("XADD", "{log.0}:log", "*", "m", _PACKED)] * BATCH

        async def append() -> int:
            for reply in await store.pipeline(commands):
                assert isinstance(reply, bytes), reply
            return BATCH

        return await repeated(target, seconds, append)


async def read_ours(target: Target, seconds: float) -> Sample:
    """Reads of a log from moving offsets, as messages."""
    async with _opened(target) as (_, logs):
        await logs.create("log", 1, Retention())
        await _fill(logs, "log", _READ_FROM)
        offsets = _offsets()

        async def read() -> int:
            batch = await logs.read("log", 0, next(offsets), limit=READ)
            return len(list(batch.entries()))

        return await repeated(target, seconds, read)


async def read_raw(target: Target, seconds: float) -> Sample:
    """The same reads as plain XRANGE, the reply as it comes."""
    async with _opened(target) as (store, logs):
        await logs.create("log", 1, Retention())
        await _fill(logs, "log", _READ_FROM)
        name = keys.entries("log", 0)
        offsets = _offsets()

        async def read() -> int:
            return len(await store.call("XRANGE", name, next(offsets), "+", "COUNT", READ))

        return await repeated(target, seconds, read)


async def grow(target: Target, pairs: int) -> Sample:
    """Appends and reads at the end of a short log and of a long one, in turn.

    A pair of measurements is one beside the other in time; the figure is the median of their
    ratios, since what slows one down slows the other down too.
    """
    async with _opened(target) as (_, logs):
        await logs.create("long", 1, Retention())
        await _fill(logs, "long", LONG)
        clock = Clock()
        window = Window(target, os.getpid())
        times: list[tuple[float, float]] = []
        for pair in range(pairs + 1):
            short = f"short.{pair}"
            await logs.create(short, 1, Retention())
            await _fill(logs, short, SHORT)
            took = []
            for log in (short, "long"):
                begun = clock.monotonic()
                for _ in range(20):
                    appended = await logs.append(log, 0, [_PACKED] * BATCH)
                    await logs.read(log, 0, appended.offsets[0], limit=BATCH)
                took.append((clock.monotonic() - begun) / 20 / BATCH * 1e6)
            times.append((took[0], took[1]))
        sample = window.close(pairs * 40 * BATCH)
    # The first pair warms the interpreter up.
    ratios = [long / short for short, long in times[1:]]
    return Sample(
        operations=sample.operations,
        seconds=sample.seconds,
        cpu_seconds=sample.cpu_seconds,
        store_cpu_seconds=sample.store_cpu_seconds,
        figures={
            "short_us": statistics.median(short for short, _ in times[1:]),
            "long_us": statistics.median(long for _, long in times[1:]),
            "long_vs_short": statistics.median(ratios),
        },
    )


async def produce(target: Target, seconds: float, *, partitions: int) -> Sample:
    """Many producers of one topic, each with a batch under way; routed by message ids."""
    async with _opened(target) as (store, logs), _producer(store, logs, partitions) as producer:
        numbers = itertools.count()

        async def send() -> int:
            await _produce(producer, numbers)
            return BATCH

        return await repeated(target, seconds, send, callers=PRODUCERS)


async def weigh(target: Target, _: float) -> Sample:
    """What the store needs for a message, all of a topic's keys included."""
    async with _opened(target) as (store, logs), _producer(store, logs, 4) as producer:
        numbers = itertools.count()
        before = await used_bytes(store)
        window = Window(target, os.getpid())
        for _ in range(_MEASURED_MESSAGES // BATCH // PRODUCERS):
            await asyncio.gather(*(_produce(producer, numbers) for _ in range(PRODUCERS)))
        sent = next(numbers)
        sample = window.close(sent)
        grown = await used_bytes(store) - before
    return Sample(
        operations=sent,
        seconds=sample.seconds,
        cpu_seconds=sample.cpu_seconds,
        store_cpu_seconds=sample.store_cpu_seconds,
        figures={"message_bytes": grown / sent},
    )


JOBS: dict[str, Callable[[Target, Any], Awaitable[Sample]]] = {
    "log_append_ours": append_ours,
    "log_append_raw": append_raw,
    "log_grow": grow,
    "log_read_ours": read_ours,
    "log_read_raw": read_raw,
    "produce_1": partial(produce, partitions=1),
    "produce_64": partial(produce, partitions=64),
    "topic_weigh": weigh,
}


@contextlib.asynccontextmanager
async def _opened(target: Target) -> AsyncIterator[tuple[Store, StreamLogs]]:
    store = Store(target.store_address, call_seconds_max=60.0)
    try:
        yield store, StreamLogs(store)
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def _producer(store: Store, logs: StreamLogs, partitions: int) -> AsyncIterator[Producer]:
    with tempfile.TemporaryDirectory(prefix="waystation-bench-") as folder:
        catalogue, clock = SqliteCatalogue(Path(folder) / "catalogue.db"), Clock()
        await catalogue.open()
        try:
            definitions = SubscriptionDefinitions(catalogue, store, clock=clock)
            readers = SubscriptionReaders(definitions, logs)
            topics = TopicService(catalogue, store, logs, readers, clock=clock)
            await topics.create(DEFAULT_PROJECT, "bench", partitions=partitions)
            yield Producer(topics, logs, Deduplicator(store, clock=clock))
        finally:
            await catalogue.close()


async def _produce(producer: Producer, numbers: itertools.count[int]) -> None:
    envelopes = [
        Envelope(id=f"{next(numbers):012}", project=DEFAULT_PROJECT, data=DATA)
        for _ in range(BATCH)
    ]
    for result in await producer.produce(DEFAULT_PROJECT, "bench", envelopes):
        assert isinstance(result, Receipt), result


async def _fill(logs: StreamLogs, log: str, messages: int) -> None:
    batches = itertools.repeat([_PACKED] * _LONG_BATCH, messages // _LONG_BATCH)

    async def worker() -> None:
        for batch in batches:
            await logs.append(log, 0, batch)

    await asyncio.gather(*(worker() for _ in range(CALLERS)))


def _offsets() -> itertools.cycle[int]:
    return itertools.cycle(range(0, _READ_FROM - READ, READ))


async def used_bytes(store: Store) -> int:
    """Memory that the store has in use."""
    for line in (await store.call("INFO", "memory")).splitlines():
        if line.startswith(b"used_memory:"):
            return int(line.partition(b":")[2])
    raise AssertionError("the store does not tell its memory")


async def repeated(
    target: Target, seconds: float, operation: Operation, *, callers: int = CALLERS
) -> Sample:
    """What many callers do, each one operation after the other."""
    done = 0
    stopping = False

    async def call_again_and_again() -> None:
        nonlocal done
        while not stopping:
            # Not in one line: the sum would be read before the wait.
            messages = await operation()
            done += messages

    tasks = [asyncio.ensure_future(call_again_and_again()) for _ in range(callers)]
    await asyncio.sleep(_WARM_SECONDS)
    sample = await measured(target, os.getpid(), seconds, lambda: done)
    stopping = True
    await asyncio.gather(*tasks)
    return sample
