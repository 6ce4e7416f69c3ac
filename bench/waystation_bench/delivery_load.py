"""Load of subscriptions: a whole node in this process delivers what a topic has.

Beside it bare clients, libcurl's own loop and aiohttp, with the very requests that a subscription
makes, made before they begin. One operation = one message that was delivered.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from itertools import cycle
from typing import Any

import aiohttp
import msgspec
import pycurl
import redis.asyncio

from waystation.delivery.request import Outgoing
from waystation.node import Node
from waystation.runtime.clock import Clock
from waystation.store.keys import DEFAULT_PROJECT
from waystation.subscriptions.definition import (
    RetryPolicy,
    SubscriptionOptions,
)
from waystation.subscriptions.endpoints.http import HttpEndpoint
from waystation.subscriptions.endpoints.protocol import Parcel
from waystation.subscriptions.positions import Position
from waystation.subscriptions.states import Verdict
from waystation_bench.bench_app import NO_OP, app
from waystation_bench.benchmark import BenchmarkError
from waystation_bench.delivery_node import (
    LANES,
    MESSAGES_PER_SECOND,
    NAME,
    PARTITIONS,
    collecting,
    data,
    delivered,
    delivering,
    feed,
    feed_each,
    message,
    produce,
    subscribe,
    until_acknowledged,
    until_delivered,
    url,
    weigh,
)
from waystation_bench.http_load import CONTENT
from waystation_bench.log_load import used_bytes
from waystation_bench.report import Sample
from waystation_bench.send_load import CONCURRENT, aiohttp_session, send_bare_loop, senders
from waystation_bench.target import Target, Window

#: Backoff after a failure, the same each time.
BACKOFF_SECONDS = 0.1
#: A hanging endpoint is given up on within the round: what that costs belongs to it.
_ATTEMPT_SECONDS_MAX = 0.4
#: A status that is tried again because the subscription says so: it tells nothing of the endpoint,
#: so that no breaker opens.
RETRIED, FATAL = 409, 422
#: A fast machine is through before the time is over.
_LOOK_SECONDS = 0.01
#: The stream of the plain loop, entries that are added and read at a time.
_STREAM = "bench-loop"
_ADDED = _READ = 1000
#: Requests of the bare client that differ; then they come again.
_REQUESTS = 5000


async def deliver_bare(target: Target, seconds: float) -> Sample:
    """The limit of the library: the same requests, and nothing else."""
    ready = cycle([(lines_of(each), each.body) for each in await _requests(target)])

    def prepare(handle: pycurl.Curl) -> None:
        lines, body = next(ready)
        handle.setopt(pycurl.HTTPHEADER, lines)
        handle.setopt(pycurl.POSTFIELDS, body)

    # It blocks the event loop, on which nothing else runs: that is what makes it the limit.
    return send_bare_loop(target, seconds, url(target), prepare)


async def deliver_aiohttp(target: Target, seconds: float) -> Sample:
    """The same requests by the client that most services of asyncio use, and nothing else."""
    requests = cycle(await _requests(target))
    async with aiohttp_session() as session:

        async def send(_: bytes) -> aiohttp.ClientResponse:
            each = next(requests)
            headers = dict(each.headers)
            async with session.post(each.url, data=each.body, headers=headers) as reply:
                await reply.read()
                return reply

        return await senders(target, seconds, send)


async def deliver_grouped(target: Target, amount: list[float]) -> Sample:
    """Messages of many groups, all of them delivered at once; measured in the middle of the way."""
    count, seconds = int(amount[0]), amount[1]
    async with delivering(target) as node, collecting():
        await produce(node, count)
        return await _midway(target, node, url(target), count, seconds)


async def deliver_failing(target: Target, amount: list[int]) -> Sample:
    """Deliver so many groups with so many messages each, whatever fails; from the first attempt."""
    groups, each = amount
    async with delivering(target) as node, collecting():
        await produce(node, groups * each, groups=groups)
        retry = RetryPolicy(first_seconds=BACKOFF_SECONDS, multiplier=1.0, attempts=100)
        before, attempted = delivered(), delivered(None)
        await subscribe(node, url(target), SubscriptionOptions(retry=retry))
        await until_delivered(attempted + 1, None)
        window = Window(target, os.getpid())
        await until_delivered(before + groups * each)
        sample = window.close(groups * each)
        await until_acknowledged(node, groups * each, clean=True)
        return sample


async def deliver_by_loop(target: Target, amount: list[int]) -> Sample:
    """Deliver the same as `deliver_failing` with a plain loop over a stream of the store.

    It keeps the order of groups, retries after the same backoff, and forgets all if it crashes.
    """
    groups, each = amount
    store: Any = redis.asyncio.Redis(unix_socket_path=target.store_path)
    for first in range(0, groups * each, _ADDED):
        adding = store.pipeline(transaction=False)
        for number in range(first, min(groups * each, first + _ADDED)):
            fields = {
                "group": f"order-{number % groups}",
                "id": f"m-{number}",
                "data": data(number),
            }
            adding.xadd(_STREAM, fields)
        await adding.execute()
    await store.xgroup_create(_STREAM, _STREAM, id="0")
    permits = asyncio.Semaphore(CONCURRENT)
    waiting: dict[bytes, asyncio.Queue[tuple[bytes, dict[bytes, bytes]]]] = {}
    ended: list[bytes] = []
    async with aiohttp_session() as session, asyncio.TaskGroup() as tasks, collecting():

        async def deliver_group(group: bytes) -> None:
            for _ in range(each):
                entry, fields = await waiting[group].get()
                attempt = 1
                while not await post(fields, attempt):
                    attempt += 1
                    await asyncio.sleep(BACKOFF_SECONDS)
                ended.append(entry)

        async def acknowledge() -> None:
            done = 0
            while done < groups * each:
                await asyncio.sleep(_LOOK_SECONDS)
                if entries := ended[done : done + _READ]:
                    await store.xack(_STREAM, _STREAM, *entries)
                    done += len(entries)

        async def post(fields: dict[bytes, bytes], attempt: int) -> bool:
            headers = {
                "content-type": "application/json",
                "webhook-id": fields[b"id"].decode(),
                "waystation-group": fields[b"group"].decode(),
                "waystation-attempt": str(attempt),
            }
            async with (
                permits,
                session.post(url(target), data=fields[b"data"], headers=headers) as reply,
            ):
                await reply.read()
                return reply.ok

        window, read = Window(target, os.getpid()), 0
        acknowledging = tasks.create_task(acknowledge())
        while read < groups * each:
            found = await store.xreadgroup(_STREAM, "loop", {_STREAM: ">"}, count=_READ)
            for entry, fields in found[0][1]:
                read += 1
                if (group := fields[b"group"]) not in waiting:
                    waiting[group] = asyncio.Queue()
                    tasks.create_task(deliver_group(group))
                waiting[group].put_nowait((entry, fields))
        await acknowledging
        sample = window.close(groups * each)
    await store.aclose()
    return sample


async def deliver_pipeline(target: Target, amount: list[float]) -> Sample:
    """One operation = one transaction that a message has started."""
    count, seconds = int(amount[0]), amount[1]
    async with delivering(target) as node, collecting():
        for pipeline in app.pipelines:
            await node.engine.pipelines.put(DEFAULT_PROJECT, pipeline)
        await produce(node, count, data=lambda _: CONTENT)
        return await _midway(target, node, f"pipeline:{NO_OP}", count, seconds)


async def deliver_many(target: Target, seconds: float) -> Sample:
    """Fifty subscriptions; one operation = one delivery to one other than the last."""
    assert len(target.ports) >= LANES
    async with delivering(target) as node, collecting():
        options = SubscriptionOptions(timeout_seconds=_ATTEMPT_SECONDS_MAX)
        for lane in range(LANES):
            endpoint = f"http://127.0.0.1:{target.ports[lane]}/hook"
            await subscribe(node, endpoint, options, name=f"{NAME}-{lane}", partitions=1)
        await feed_each(node, b"")
        await until_delivered(LANES - 1, lanes=LANES - 1)
        window, count = Window(target, os.getpid()), int(seconds * MESSAGES_PER_SECOND)
        before = delivered(lanes=LANES - 1)
        await feed(node, count)
        others = count * (LANES - 1) // LANES
        await until_delivered(before + others, lanes=LANES - 1)
        return window.close(others)


async def weigh_groups(target: Target, amount: list[int]) -> Sample:
    """What the store has for a group beside its message: one message each, answered alike."""
    count, status = amount
    async with delivering(target) as node, collecting():
        await produce(node, count, groups=count)
        store, before = node.opened.store, await used_bytes(node.opened.store)
        retry = RetryPolicy(first_seconds=3600, retry_codes=(RETRIED,), fatal_codes=(FATAL,))
        verdict = {RETRIED: Verdict.AGAIN, FATAL: Verdict.DEAD}.get(status, Verdict.DONE)
        done = delivered(verdict)
        options = SubscriptionOptions(retry=retry)
        subscription = await subscribe(node, url(target), options)
        window = Window(target, os.getpid())
        await until_delivered(done + count, verdict)
        await until_acknowledged(node, count)
        sample = window.close(count)
        weights = await weigh(store, subscription)
        # All that has grown, less what is a message's own or is there whatever groups do.
        grown = await used_bytes(store) - before - weights["records"]
    figures = {"group_bytes": weights["groups"] / count, "grown_bytes": grown / count}
    return msgspec.structs.replace(sample, figures=figures)


JOBS: dict[str, Callable[[Target, Any], Awaitable[Sample]]] = {
    "deliver_aiohttp": deliver_aiohttp,
    "deliver_bare": deliver_bare,
    "deliver_by_loop": deliver_by_loop,
    "deliver_failing": deliver_failing,
    "deliver_grouped": deliver_grouped,
    "deliver_many": deliver_many,
    "deliver_pipeline": deliver_pipeline,
    "weigh_groups": weigh_groups,
}


def lines_of(request: Outgoing) -> list[str]:
    """The headers of a request, as libcurl wants them; without a question before the body."""
    return [*(f"{name}: {value}" for name, value in request.headers), "Expect:"]


async def _midway(target: Target, node: Node, endpoint: str, count: int, seconds: float) -> Sample:
    """Subscribes, and counts from when the endpoint has earned its slots; before the topic ends."""
    before = delivered()
    await subscribe(node, endpoint)
    await until_delivered(before + count // 5)
    window, begun = Window(target, os.getpid()), delivered()
    clock, done = Clock(), begun
    until = clock.monotonic() + seconds
    while clock.monotonic() < until and done < before + count * 9 // 10:
        await asyncio.sleep(_LOOK_SECONDS)
        done = delivered()
    sample = window.close(done - begun)
    if done >= before + count:
        raise BenchmarkError("The topic ran dry: nothing can be said about its rate.")
    return sample


async def _requests(target: Target) -> list[Outgoing]:
    """What a subscription would send."""
    async with delivering(target) as node:
        subscription = await subscribe(node, url(target))
        endpoint = await node.subscriptions.endpoints.open(subscription)
        assert isinstance(endpoint, HttpEndpoint)
        return [_request(endpoint, number) for number in range(_REQUESTS)]


def _request(endpoint: HttpEndpoint, number: int) -> Outgoing:
    parcel = Parcel(
        message=message(number, data(number)),
        position=Position(1, 0, number % PARTITIONS, number // PARTITIONS),
        attempt=1,
        subscription=NAME,
        incarnation=1,
    )
    return endpoint.request(parcel)
