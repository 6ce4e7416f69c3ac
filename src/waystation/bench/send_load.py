"""Load on one receiver: our sender, a bare loop on the same library, aiohttp, and our deliverer.

One operation = one delivery that was answered, 64 at a time, over connections that are kept. Each
delivery has a body of its own and its status is looked at: less would be no delivery.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol

import aiohttp
import pycurl

from waystation.bench.benchmark import BenchmarkError
from waystation.bench.http_load import CONTENT
from waystation.bench.report import Sample
from waystation.bench.target import Target, Window, measured
from waystation.clock import Clock
from waystation.delivery.addresses import AddressGuard
from waystation.delivery.deliverer import Deliverer
from waystation.delivery.endpoint import Endpoint
from waystation.delivery.outbox import Item, Outbox
from waystation.delivery.request import Outgoing
from waystation.delivery.sender import Sender
from waystation.store import Store, Wakeups

CONCURRENT = 64
_WARM_SECONDS = 0.1
_HEADERS = (("content-type", "application/json"),)
_LANE = "{bench}.out.e"
#: More than a deliverer can send in a second, so that its lane does not run dry.
_ITEMS_PER_SECOND = 12_000
_ADDS_AT_ONCE = 500


class _Answered(Protocol):
    """Whatever tells the status of a reply."""

    @property
    def status(self) -> int: ...


async def send_ours(target: Target, seconds: float) -> Sample:
    """Through `Sender.send`."""
    sender = Sender(AddressGuard(loopback=True))

    url = _url(target)
    try:
        return await _senders(
            target,
            seconds,
            lambda body: sender.send(Outgoing(url=url, headers=_HEADERS, body=body)),
        )
    finally:
        await sender.close()


async def send_aiohttp(target: Target, seconds: float) -> Sample:
    """Through aiohttp, as its documentation shows it."""
    connector = aiohttp.TCPConnector(limit=CONCURRENT)
    headers, url = dict(_HEADERS), _url(target)
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:

        async def send(body: bytes) -> _Answered:
            async with session.post(url, data=body) as reply:
                await reply.read()
                return reply

        return await _senders(target, seconds, send)


async def send_bare(target: Target, seconds: float) -> Sample:
    """The limit of the library: libcurl's own loop and nothing else."""
    # It blocks the event loop, on which nothing else runs: that is what makes it the limit.
    return _send_bare(target, seconds)


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
        await asyncio.sleep(seconds)
        left = await outbox.waiting(_LANE)
        if not left:
            raise BenchmarkError("The lane ran dry: nothing can be said about its rate.")
        return window.close(begun - left)


@asynccontextmanager
async def delivering(target: Target, *, seconds_max: float = 30.0) -> AsyncIterator[Outbox]:
    """A deliverer at work in this process; every endpoint that items name is there."""
    store, wakeups = Store(target.store_address), Wakeups(target.store_address)
    outbox = Outbox(store)
    sender = Sender(AddressGuard(loopback=True))

    def book(name: str) -> Endpoint:
        return Endpoint(name=name, total_seconds_max=seconds_max)

    deliverer = Deliverer(outbox, wakeups, sender, book, clock=Clock())
    await wakeups.start()
    await deliverer.start()
    try:
        yield outbox
    finally:
        await deliverer.stop()
        await sender.close()
        await wakeups.close()
        await store.close()


async def _senders(
    target: Target, seconds: float, send: Callable[[bytes], Awaitable[_Answered]]
) -> Sample:
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


def _send_bare(target: Target, seconds: float) -> Sample:
    clock = Clock()
    numbers = itertools.count()
    multi = pycurl.CurlMulti()
    handles = [_bare_handle(target) for _ in range(CONCURRENT)]

    def begin(handle: pycurl.Curl) -> None:
        handle.setopt(pycurl.POSTFIELDS, _body(next(numbers)))
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


def _bare_handle(target: Target) -> pycurl.Curl:
    handle = pycurl.Curl()
    handle.setopt(pycurl.URL, _url(target))
    handle.setopt(pycurl.NOSIGNAL, 1)
    handle.setopt(pycurl.POST, 1)
    handle.setopt(pycurl.HTTPHEADER, [f"{name}: {value}" for name, value in _HEADERS])
    handle.setopt(pycurl.WRITEFUNCTION, len)
    return handle


def _body(number: int) -> bytes:
    return b'{"number":%d,"content":%b}' % (number, CONTENT)


def _url(target: Target) -> str:
    return f"http://127.0.0.1:{target.port}/hook"


def _check(status: int) -> None:
    if status != 200:
        raise BenchmarkError(f"The receiver answered {status}.")
