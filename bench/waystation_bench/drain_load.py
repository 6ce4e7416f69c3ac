"""Load of transactions: starts many, then watches a station work them off.

Who starts is a node without an app in the data folder of the station; who works is the station.
What is counted is what the store has as complete.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from waystation.config import AuthConfig, Config, StoreConfig
from waystation.node import Node, open_node
from waystation.runtime.clock import Clock
from waystation.store import keys
from waystation.store.client import Store
from waystation.store.keys import DEFAULT_PROJECT
from waystation.transactions import names
from waystation.transactions.nodes import Nodes
from waystation.transactions.order import ORDERS_MAX, Order
from waystation.transactions.start import Receipt
from waystation_bench.bench_app import NO_OP, NO_OP_3, SLEEPER, TIMED, app
from waystation_bench.benchmark import BenchmarkError
from waystation_bench.http_load import CONTENT as DATA
from waystation_bench.log_load import used_bytes
from waystation_bench.report import Sample
from waystation_bench.target import Target, Window

#: Data of one that sleeps: 300 bytes.
SLEEPER_DATA = b'{"order":"%b"}' % (b"x" * 288)
#: Of the measurement of delays.
STARTS_PER_SECOND = 200
_GROUP = "master"
#: Requests of a thousand that are under way together.
_FILLERS = 2
_LOOK_SECONDS = 0.005
_PAGE = 1000
#: Without any progress for so long, a worker hangs.
_STUCK_SECONDS = 20.0


@contextlib.asynccontextmanager
async def opened(target: Target) -> AsyncIterator[Node]:
    """A node of the station's data folder that runs no steps; all pipelines are defined."""
    settings = Config(
        auth=AuthConfig(insecure=True),
        data=target.data,
        history=target.history,
        store=StoreConfig(durability=target.level),
    )
    node = await open_node(settings)
    try:
        for pipeline in app.pipelines:
            await node.engine.pipelines.put(DEFAULT_PROJECT, pipeline)
        # The store was emptied under the catalogue.
        await node.engine.mend()
        yield node
    finally:
        await node.close()


async def fill(target: Target, count: int, *, pipeline: str) -> Sample:
    """Starts so many, by requests of a thousand. At level `disk` the disk is not waited for.

    The node group is paused: a station that comes can get ready before it works.
    """
    async with opened(target) as node:
        # Not before: a node looks whether the store is of its level.
        await relax(target, 0)
        await node.engine.nodes.tell(_GROUP, "paused", 1)
        window = Window(target, os.getpid())
        await _start(node, Order(type=pipeline, data=DATA), count)
        sample = window.close(count)
    await restrain(target, 0)
    return sample


async def relax(target: Target, _: float) -> Sample:
    """From now on the store does not wait for the disk: to fill a queue is not what we measure."""
    return await _configure(target, "everysec")


async def restrain(target: Target, _: float) -> Sample:
    """From now on the store does what its level says."""
    return await _configure(target, "always" if target.level == "disk" else "everysec")


async def _configure(target: Target, fsync: str) -> Sample:
    async with _looking(target) as look:
        window = Window(target, os.getpid())
        await look.configure("appendfsync", fsync)
        return window.close(1)


async def drain(target: Target, count: int) -> Sample:
    """One operation = one transaction that became complete, from the first claim to the last."""
    async with _looking(target) as look:
        await look.let_go()
        while await look.queued() >= count:
            await look.pause(0)
        window, before = Window(target, target.process), await look.complete()
        await look.until(look.complete, count)
        sample = window.close(count - before)
        await look.verify(count)
    return sample


async def weigh(target: Target, count: int) -> Sample:
    """What the store needs for one that sleeps: all of its keys; the record log has a bound."""
    async with opened(target) as node, _looking(target) as look:
        before = await look.bytes_without_log()
        window = Window(target, target.process)
        await _start(node, Order(type=SLEEPER, data=SLEEPER_DATA), count)
        await look.until(look.asleep, count)
        sample = window.close(count)
        grown = await look.bytes_without_log() - before
    return msgspec.structs.replace(sample, figures={"sleeper_bytes": grown / count})


async def pace(target: Target, seconds: float) -> Sample:
    """Starts one after the other at a steady rate; the station knows how long each took."""
    count, clock = int(seconds * STARTS_PER_SECOND), Clock()
    async with opened(target) as node, _looking(target) as look:
        before, starts = await look.complete(), []
        window, begun = Window(target, target.process), clock.monotonic()
        for number in range(count):
            await asyncio.sleep(begun + number / STARTS_PER_SECOND - clock.monotonic())
            order = Order(type=TIMED, data=msgspec.json.encode(clock.monotonic()))
            starts.append(asyncio.ensure_future(node.engine.starter.start(DEFAULT_PROJECT, order)))
        await asyncio.gather(*starts)
        await look.until(look.complete, before + count)
        return window.close(count)


async def idle(target: Target, seconds: float) -> Sample:
    """What a station that has nothing to do takes of a core."""
    window = Window(target, target.process)
    await asyncio.sleep(seconds)
    sample = window.close(1)
    percent = sample.cpu_seconds / sample.seconds * 100
    return msgspec.structs.replace(sample, figures={"cpu_percent": percent})


Job = Callable[[Target, Any], Awaitable[Sample]]
#: These begin on an empty store.
FILLS: dict[str, Job] = {
    "fill_1": partial(fill, pipeline=NO_OP),
    "fill_3": partial(fill, pipeline=NO_OP_3),
    "relax": relax,
}
#: These find what others have left there, and a station that works.
LOOKS: dict[str, Job] = {
    "drain": drain,
    "idle": idle,
    "pace": pace,
    "restrain": restrain,
    "weigh": weigh,
}


async def _start(node: Node, order: Order, count: int) -> None:
    full, rest = divmod(count, ORDERS_MAX)
    sizes = iter([ORDERS_MAX] * full + [rest] * (rest > 0))

    async def start() -> None:
        for size in sizes:
            for result in await node.engine.starter.start_many(DEFAULT_PROJECT, [order] * size):
                if not isinstance(result, Receipt):
                    raise result

    await asyncio.gather(*(start() for _ in range(_FILLERS)))


@contextlib.asynccontextmanager
async def _looking(target: Target) -> AsyncIterator[_Look]:
    store = Store(target.store_address)
    try:
        yield _Look(store)
    finally:
        await store.close()


class _Look:
    """Counts in the store what has become of transactions."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._clock = Clock()
        self._cells: range | None = None
        self._seen = -1
        self._seen_at = self._clock.monotonic()

    async def configure(self, option: str, value: str) -> None:
        await self._store.call("CONFIG", "SET", option, value)

    async def let_go(self) -> None:
        """The node group works from now on."""
        await Nodes(self._store, clock=self._clock).tell(_GROUP, "paused", 0)

    async def cells(self) -> range:
        """Return the cells of the data set."""
        if self._cells is None:
            self._cells = range(int(await self._store.call("HGET", keys.FORMAT, "cells")))
        return self._cells

    async def total(self, command: str, key: Callable[[int], str]) -> int:
        """Return the sum of a command's replies for one key of each cell."""
        return await self.summed([(command, key(cell)) for cell in await self.cells()])

    async def summed(self, commands: Sequence[tuple[Any, ...]]) -> int:
        """Return the sum of the replies; a missing key counts as 0."""
        total = 0
        for reply in await self._store.pipeline(commands, repeatable=True):
            if isinstance(reply, Exception):
                raise reply
            total += int(reply or 0)
        return total

    async def queued(self) -> int:
        return await self.total("LLEN", lambda cell: names.queue_in(cell, _GROUP))

    async def complete(self) -> int:
        """Return the number of transactions that can be archived and are not asleep."""
        archivable = await self.total("ZCARD", partial(names.sorted_set, name="toArchiveZ"))
        return archivable - await self.asleep()

    async def asleep(self) -> int:
        return await self.total("ZCARD", partial(names.sorted_set, name="sleepingZ"))

    async def bytes_without_log(self) -> int:
        """Return the memory of the store without the record logs."""
        logs = await self.summed(
            [("MEMORY", "USAGE", names.log(cell), "SAMPLES", 0) for cell in await self.cells()]
        )
        return await used_bytes(self._store) - logs

    async def until(self, seen: Callable[[], Awaitable[int]], count: int) -> None:
        """Waits until so many are seen."""
        while (now := await seen()) < count:
            await self.pause(now)

    async def pause(self, seen: int) -> None:
        """A moment; BenchmarkError where nothing moves."""
        now = self._clock.monotonic()
        if seen != self._seen:
            self._seen, self._seen_at = seen, now
        if now - self._seen_at > _STUCK_SECONDS:
            raise BenchmarkError(f"The station does not go on: {seen} so far.")
        await asyncio.sleep(_LOOK_SECONDS)

    async def verify(self, count: int) -> None:
        """Raise BenchmarkError unless `count` transactions have ended, all with success."""
        left = await self.queued() + await self.total(
            "ZCARD", partial(names.sorted_set, name="processingZ")
        )
        ids: list[bytes] = []
        for cell in await self.cells():
            key = names.sorted_set(cell, "toArchiveZ")
            ids += await self._store.call("ZRANGE", key, 0, -1)
        good = 0
        for at in range(0, len(ids), _PAGE):
            page = ids[at : at + _PAGE]
            gets = [("HGET", names.state(each.decode()), "head") for each in page]
            for head in await self._store.pipeline(gets, repeatable=True):
                assert isinstance(head, bytes), head
                good += b" complete " in head and b" success " in head
        if left or good != count or len(ids) != count:
            raise BenchmarkError(f"Of {count}, {good} have ended well, and {left} have not ended.")
