"""Load on one receiver: our sender, a bare loop on the same library, aiohttp, and our deliverer.

One operation = one delivery that was answered, 64 at a time, over connections that are kept. Each
delivery has a body of its own and its status is looked at: less would be no delivery.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

import aiohttp
import pycurl

from waystation.delivery.addresses import AddressGuard
from waystation.delivery.deliverer import Deliverer
from waystation.delivery.endpoint import Endpoint
from waystation.delivery.outbox import Item, Outbox, endpoint_of
from waystation.delivery.request import Outcome, Outgoing
from waystation.delivery.sender import Sender
from waystation.runtime.clock import Clock
from waystation.store.client import Store
from waystation.store.pubsub import PubSub
from waystation_bench.benchmark import BenchmarkError
from waystation_bench.http_load import CONTENT
from waystation_bench.report import Sample
from waystation_bench.target import Target, Window, measured

CONCURRENT = 64
_WARM_SECONDS = 0.1
_HEADERS = (("content-type", "application/json"),)
_LANE = "{bench}.out.e"
#: About what a deliverer can send in a second; one that is faster is measured for less time.
_ITEMS_PER_SECOND = 15_000
_ADDS_AT_ONCE = 500


class _Answered(Protocol):
    """Whatever tells the status of a reply."""

    @property
    def status(self) -> int: ...


async def send_ours(target: Target, seconds: float) -> Sample:
    """Through `Sender.begin`, as subscriptions send: each that has ended begins the next."""
    sender, url, numbers = Sender(AddressGuard(loopback=True)), _url(target), itertools.count()
    done, problem = 0, ""

    def begin() -> None:
        outgoing = Outgoing(url=url, headers=_HEADERS, body=_body(next(numbers)))
        assert sender.begin(outgoing, ended) is not None

    def ended(outcome: Outcome) -> None:
        nonlocal done, problem
        if outcome.status == 200:
            done += 1
            begin()
        else:
            problem = f"The receiver answered {outcome.status}."

    gc.enable()
    try:
        # The first one finds the address: only what is known can begin at once.
        _check((await sender.send(Outgoing(url=url, headers=_HEADERS))).status)
        for _ in range(CONCURRENT):
            begin()
        await asyncio.sleep(_WARM_SECONDS)
        sample = await measured(target, os.getpid(), seconds, lambda: done)
        if problem:
            raise BenchmarkError(problem)
        return sample
    finally:
        gc.disable()
        await sender.close()


async def send_awaited(target: Target, seconds: float) -> Sample:
    """Through `Sender.send`, by a task for each that is under way."""
    sender, url = Sender(AddressGuard(loopback=True)), _url(target)
    try:
        return await senders(
            target,
            seconds,
            lambda body: sender.send(Outgoing(url=url, headers=_HEADERS, body=body)),
        )
    finally:
        await sender.close()


async def send_aiohttp(target: Target, seconds: float) -> Sample:
    """Through aiohttp, as its documentation shows it."""
    headers, url = dict(_HEADERS), _url(target)
    async with aiohttp_session() as session:

        async def send(body: bytes) -> _Answered:
            async with session.post(url, data=body, headers=headers) as reply:
                await reply.read()
                return reply

        return await senders(target, seconds, send)


def aiohttp_session() -> aiohttp.ClientSession:
    """A session that keeps as many connections as requests are under way."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=CONCURRENT))


async def send_bare(target: Target, seconds: float) -> Sample:
    """The limit of the library: libcurl's own loop and nothing else."""
    numbers, headers = itertools.count(), [f"{name}: {value}" for name, value in _HEADERS]

    def prepare(handle: pycurl.Curl) -> None:
        handle.setopt(pycurl.POSTFIELDS, _body(next(numbers)))

    # It blocks the event loop, on which nothing else runs: that is what makes it the limit.
    return send_bare_loop(target, seconds, _url(target), prepare, headers)


async def deliver_ours(target: Target, seconds: float) -> Sample:
    """From a lane of the outbox through the deliverer: claimed, sent, settled, recorded."""
    async with delivering(target) as outbox:
        item = Item(url=_url(target), headers=_HEADERS, body=CONTENT)
        await outbox.register(_LANE)
        depth = int((seconds + _WARM_SECONDS) * _ITEMS_PER_SECOND)
        for first in range(0, depth, _ADDS_AT_ONCE):
            adds = (outbox.add(_LANE, f"m{first + n}", item) for n in range(_ADDS_AT_ONCE))
            await asyncio.gather(*adds)
        # The lane is found by then, and its endpoint has earned its slots.
        while await outbox.waiting(_LANE) > depth - depth // 20:
            await asyncio.sleep(0.01)
        window, begun = Window(target, os.getpid()), await outbox.waiting(_LANE)
        clock, left = Clock(), begun
        until = clock.monotonic() + seconds
        while clock.monotonic() < until and left > depth // 10:
            await asyncio.sleep(0.01)
            left = await outbox.waiting(_LANE)
        if not left:
            raise BenchmarkError("The lane ran dry: nothing can be said about its rate.")
        return window.close(begun - left)


@asynccontextmanager
async def delivering(target: Target, *, seconds_max: float = 30.0) -> AsyncIterator[Outbox]:
    """A deliverer at work in this process; every endpoint that items name is there."""
    store, wakeups = Store(target.store_address), PubSub(target.store_address)
    outbox = Outbox(store)
    sender = Sender(AddressGuard(loopback=True))

    def book(lane: str) -> Endpoint:
        return Endpoint(name=endpoint_of(lane), total_seconds_max=seconds_max)

    deliverer = Deliverer(outbox, wakeups, sender, book, clock=Clock())
    await wakeups.start()
    await deliverer.start()
    try:
        yield outbox
    finally:
        await deliverer.stop()
        await sender.close()
        await wakeups.stop()
        await store.close()


async def senders(
    target: Target, seconds: float, send: Callable[[bytes], Awaitable[_Answered]]
) -> Sample:
    """Sends again and again, 64 at a time, bodies that differ."""
    numbers = itertools.count()
    done = 0
    stopping = False

    async def send_again_and_again() -> None:
        nonlocal done
        while not stopping:
            _check((await send(_body(next(numbers)))).status)
            done += 1

    # The garbage of those who are measured is their own: it is collected as it always is.
    gc.enable()
    tasks = [asyncio.ensure_future(send_again_and_again()) for _ in range(CONCURRENT)]
    try:
        await asyncio.sleep(_WARM_SECONDS)
        _raise_failures(tasks)
        sample = await measured(target, os.getpid(), seconds, lambda: done)
        stopping = True
        await asyncio.gather(*tasks)
    finally:
        gc.disable()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return sample


def _raise_failures(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        if task.done():
            task.result()


def send_bare_loop(
    target: Target,
    seconds: float,
    url: str,
    prepare: Callable[[pycurl.Curl], None],
    headers: Sequence[str] = (),
) -> Sample:
    """libcurl's own loop; `prepare` gives a handle its next request, `headers` are those of all."""
    clock = Clock()
    multi = pycurl.CurlMulti()
    handles = [_bare_handle(url, headers) for _ in range(CONCURRENT)]

    def begin(handle: pycurl.Curl) -> None:
        prepare(handle)
        multi.add_handle(handle)

    def turn() -> int:
        multi.perform()
        _, succeeded, failed = multi.info_read(CONCURRENT)
        if failed:
            raise BenchmarkError(f"A delivery failed: {failed[0][2]}")
        for handle in succeeded:
            _check(handle.getinfo(pycurl.RESPONSE_CODE))
            multi.remove_handle(handle)
            begin(handle)
        multi.select(1.0)
        return len(succeeded)

    for handle in handles:
        begin(handle)
    until = clock.monotonic() + _WARM_SECONDS
    while clock.monotonic() < until:
        turn()
    window, done, until = Window(target, os.getpid()), 0, clock.monotonic() + seconds
    while clock.monotonic() < until:
        done += turn()
    sample = window.close(done)
    for handle in handles:
        multi.remove_handle(handle)
        handle.close()
    multi.close()
    return sample


def _bare_handle(url: str, headers: Sequence[str]) -> pycurl.Curl:
    handle = pycurl.Curl()
    handle.setopt(pycurl.URL, url)
    handle.setopt(pycurl.NOSIGNAL, 1)
    handle.setopt(pycurl.POST, 1)
    handle.setopt(pycurl.USERAGENT, "waystation")
    handle.setopt(pycurl.HTTPHEADER, [*headers])
    handle.setopt(pycurl.WRITEFUNCTION, len)
    return handle


def _body(number: int) -> bytes:
    return b'{"number":%d,"content":%b}' % (number, CONTENT)


def _url(target: Target) -> str:
    return f"http://127.0.0.1:{target.port}/hook"


def _check(status: int) -> None:
    if status != 200:
        raise BenchmarkError(f"The receiver answered {status}.")
