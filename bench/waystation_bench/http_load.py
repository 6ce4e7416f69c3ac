"""Load over HTTP: many connections, each with one request in flight, as fast as replies come."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Generator

from waystation.logs.protocol import Retention
from waystation.logs.streams import StreamLogs
from waystation.store.client import Store
from waystation.store.keys import DEFAULT_PROJECT
from waystation_bench.bare import LOG, PARTITIONS
from waystation_bench.http_connection import HttpConnection, packed_request, raise_problems
from waystation_bench.report import Sample
from waystation_bench.target import Target, Window

CONNECTIONS = 64
#: Messages of one request that has a batch.
BATCH = 100
#: Before the window opens: connections are warm, queues have their length.
WARM_SECONDS = 0.15
#: The longest that replies may take after the window; more means that one was lost.
_DRAIN_SECONDS_MAX = 10.0
#: More than one connection can fetch in a second, so that no subscriber runs dry.
_MESSAGES_PER_SECOND = 1000
#: About 100 bytes, as a small event has.
CONTENT = b'{"order":"o-2026-000017","total":"149.90","currency":"EUR","status":"paid","items":3}'

_MESSAGES = "/v1/topics/bench/messages"

#: Requests of one connection: yields a request, is sent the body of its reply.
Script = Generator[bytes, bytes, None]


async def publish(target: Target, seconds: float) -> Sample:
    """One operation = one publish. Each connection has its own channel; every message is new."""
    scripts = [_publishing(target, f"bench-{number}", "m") for number in range(CONNECTIONS)]
    return await run_scripts(target, scripts, seconds)


async def publish_plain(target: Target, seconds: float) -> Sample:
    """One operation = one publish, to a channel that no webhook is told of."""
    return await _publish_to_one(target, seconds, "plain")


async def publish_webhook(target: Target, seconds: float) -> Sample:
    """The same, to a channel with a webhook: each message goes into the outbox as well."""
    return await _publish_to_one(target, seconds, "webhook")


async def fetch_ack(target: Target, seconds: float) -> Sample:
    """One operation = a fetch of one message and its ack. One channel, many subscribers."""
    store, channels = target.open_channels()
    try:
        names = [f"s{number}" for number in range(CONNECTIONS)]
        for name in names:
            await channels.subscribe(DEFAULT_PROJECT, "bench", name)
        depth = int((seconds + WARM_SECONDS + 1) * _MESSAGES_PER_SECOND)
        await asyncio.gather(
            *(channels.publish(DEFAULT_PROJECT, "bench", f"m{n}", CONTENT) for n in range(depth))
        )
    finally:
        await store.close()
    return await run_scripts(
        target, [_fetching(target, name) for name in names], seconds, requests=2
    )


async def produce(target: Target, seconds: float) -> Sample:
    """One operation = one message of its own request to topic `bench`."""
    await _make_log(target)
    request = packed_request("POST", _MESSAGES, target.key, CONTENT)
    return await run_scripts(target, [repeating(request) for _ in range(CONNECTIONS)], seconds)


async def produce_batches(target: Target, seconds: float) -> Sample:
    """One operation = one message; they come in batches of a hundred."""
    await _make_log(target)
    body = b'{"messages":[%b]}' % b",".join([b'{"data":%b}' % CONTENT] * BATCH)
    kind = "content-type: application/vnd.waystation.batch+json\r\n"
    request = packed_request("POST", _MESSAGES, target.key, body, headers=kind)
    scripts = [repeating(request) for _ in range(CONNECTIONS)]
    return await run_scripts(target, scripts, seconds, messages=BATCH)


async def _make_log(target: Target) -> None:
    """The store was emptied under the servers: the bare one does not mend that."""
    store = Store(target.store_address)
    try:
        await StreamLogs(store).create(LOG, PARTITIONS, Retention())
    finally:
        await store.close()


def repeating(request: bytes) -> Script:
    """One request, again and again."""
    while True:
        yield request


async def _publish_to_one(target: Target, seconds: float, channel: str) -> Sample:
    scripts = [_publishing(target, channel, f"m{number}-") for number in range(CONNECTIONS)]
    return await run_scripts(target, scripts, seconds)


def _publishing(target: Target, channel: str, ids: str) -> Script:
    for count in itertools.count():
        path = f"/channel/{channel}/message/{ids}{count}"
        yield packed_request("PUT", path, target.key, CONTENT)


def _fetching(target: Target, subscriber: str) -> Script:
    path = f"/channel/bench/subscription/polling/{subscriber}"
    fetch = packed_request("GET", f"{path}?max=1", target.key)
    while True:
        body = yield fetch
        handle = body.partition(b'"ackHandle":"')[2].partition(b'"')[0]
        assert handle, "a subscriber ran dry"
        yield packed_request("DELETE", f"{path}/message?ackHandle={handle.decode()}", target.key)


class _Load:
    """All connections of a round: how many replies have come, and whether more are wanted."""

    def __init__(self) -> None:
        self.replies = 0
        self.stopping = False
        self.busy = 0
        self.idle = asyncio.Event()

    def start(self, connection: HttpConnection, script: Script) -> None:
        def on_reply(body: bytes) -> None:
            self.replies += 1
            if not self.stopping:
                connection.send(script.send(body), on_reply)
                return
            self.busy -= 1
            if not self.busy:
                self.idle.set()

        self.busy += 1
        connection.send(next(script), on_reply)


async def run_scripts(
    target: Target, scripts: list[Script], seconds: float, *, requests: int = 1, messages: int = 1
) -> Sample:
    """One connection for each script; an operation is so many requests, of so many messages."""
    connections = [await HttpConnection.open(target.port) for _ in scripts]
    load = _Load()
    try:
        for connection, script in zip(connections, scripts, strict=True):
            load.start(connection, script)
        await asyncio.sleep(WARM_SECONDS)
        window, begun = Window(target, target.process), load.replies
        await asyncio.sleep(seconds)
        raise_problems(connections)
        sample = window.close((load.replies - begun) * messages // requests)
        # The next round empties the store: nothing of this one may be under way then.
        load.stopping = True
        async with asyncio.timeout(_DRAIN_SECONDS_MAX):
            await load.idle.wait()
    finally:
        for connection in connections:
            connection.close()
    return sample
