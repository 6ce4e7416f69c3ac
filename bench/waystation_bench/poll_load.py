"""Long polls: how soon they wake after a publish, and what they cost while they wait."""

from __future__ import annotations

import asyncio
import contextlib
import re
import resource
from collections.abc import AsyncIterator, Sequence

import msgspec

from waystation.runtime.clock import Clock
from waystation.store.keys import DEFAULT_PROJECT
from waystation_bench.benchmark import BenchmarkError
from waystation_bench.http_connection import HttpConnection, packed_request, raise_problems
from waystation_bench.http_load import CONTENT
from waystation_bench.processes import resident_bytes
from waystation_bench.report import Sample
from waystation_bench.target import Target, Window

PUBLISHES_PER_SECOND = 200
#: Channels with one poll each; every one gets a message four times a second.
_POLLERS = 50
_PUBLISHERS = 16
#: File descriptors beyond those of the polls.
_DESCRIPTORS_SPARE = 100
#: Connections opened at once: fewer than the server's backlog.
_OPENING = 200
#: Polls wait 30 s at most, so all of them must have come by then.
_WAIT_SECONDS_MAX = 25.0
_WAITING = re.compile(rb"^waystation_channel_polls_waiting (\d+)", re.MULTILINE)
_MESSAGE_ID = re.compile(rb'"messageID":"([^"]+)"')
_HANDLE = re.compile(rb'"ackHandle":"([^"]+)"')
_MEGABYTE = 1_000_000


async def wake(target: Target, seconds: float) -> Sample:
    """One operation = one publish that wakes one poll, from its sending to the poll's reply."""
    clock = Clock()
    sent_at: dict[bytes, float] = {}
    delays: list[float] = []

    async def poll(connection: HttpConnection, channel: str) -> None:
        while True:
            body = await connection.ask(_poll_request(target, channel))
            now = clock.monotonic()
            delays.extend(now - sent_at.pop(found) for found in _MESSAGE_ID.findall(body))
            if handle := _HANDLE.search(body):
                path = f"{_poll_path(channel)}/message?ackHandle={handle.group(1).decode()}"
                await connection.ask(packed_request("DELETE", path, target.key))

    channels = [f"wake-{number}" for number in range(_POLLERS)]
    await _subscribe(target, channels)
    async with _connected(target, _POLLERS + _PUBLISHERS + 1) as connections:
        control, polling = connections[0], connections[1 : _POLLERS + 1]
        pollers = [
            asyncio.ensure_future(poll(connection, channel))
            for connection, channel in zip(polling, channels, strict=True)
        ]
        await _until_waiting(control, target, _POLLERS)
        window = Window(target, target.process)
        await _publish_steadily(target, connections[_POLLERS + 1 :], channels, seconds, sent_at)
        while sent_at:
            _raise_failures(pollers)
            await asyncio.sleep(0.001)
        sample = window.close(len(delays))
        for poller in pollers:
            poller.cancel()
        await asyncio.gather(*pollers, return_exceptions=True)
    return msgspec.structs.replace(
        sample, figures={"p50_ms": _quantile(delays, 0.5), "p99_ms": _quantile(delays, 0.99)}
    )


async def wait(target: Target, polls: int) -> Sample:
    """One operation = one poll that waits, each on a channel of its own."""
    _allow_descriptors(polls + _DESCRIPTORS_SPARE)
    channels = [f"wait-{number}" for number in range(polls)]
    await _subscribe(target, channels)
    async with _connected(target, 1) as (control,):
        await _until_waiting(control, target, 0)
        before = resident_bytes(target.process)
        window = Window(target, target.process)
        async with _connected(target, polls) as connections:
            for connection, channel in zip(connections, channels, strict=True):
                connection.send(_poll_request(target, channel), _ignore)
            await _until_waiting(control, target, polls, connections)
            sample = window.close(polls)
            grown = resident_bytes(target.process) - before
        await _until_waiting(control, target, 0)
    return msgspec.structs.replace(sample, figures={"grown_mb": grown / _MEGABYTE})


async def _subscribe(target: Target, channels: list[str]) -> None:
    store, verbs = target.open_channels()
    try:
        await asyncio.gather(
            *(verbs.subscribe(DEFAULT_PROJECT, channel, "me") for channel in channels)
        )
    finally:
        await store.close()


async def _publish_steadily(
    target: Target,
    connections: Sequence[HttpConnection],
    channels: list[str],
    seconds: float,
    sent_at: dict[bytes, float],
) -> None:
    """At a fixed rate, whatever the replies take; each channel in turn."""
    clock = Clock()
    begun = clock.monotonic()
    tasks: dict[HttpConnection, asyncio.Task[bytes]] = {}
    for number in range(int(seconds * PUBLISHES_PER_SECOND)):
        await asyncio.sleep(begun + number / PUBLISHES_PER_SECOND - clock.monotonic())
        connection = connections[number % len(connections)]
        if connection in tasks:
            await tasks[connection]
        message_id = f"w{number}"
        path = f"/channel/{channels[number % len(channels)]}/message/{message_id}"
        sent_at[message_id.encode()] = clock.monotonic()
        request = packed_request("PUT", path, target.key, CONTENT)
        tasks[connection] = asyncio.ensure_future(connection.ask(request))
    await asyncio.gather(*tasks.values())


@contextlib.asynccontextmanager
async def _connected(target: Target, count: int) -> AsyncIterator[list[HttpConnection]]:
    connections: list[HttpConnection] = []
    try:
        while len(connections) < count:
            batch = min(_OPENING, count - len(connections))
            opening = (HttpConnection.open(target.port) for _ in range(batch))
            connections += await asyncio.gather(*opening)
        yield connections
    finally:
        for connection in connections:
            connection.close()


async def _until_waiting(
    control: HttpConnection, target: Target, polls: int, watched: Sequence[HttpConnection] = ()
) -> None:
    """Asks the server itself how many polls wait: no guessing, no pause that is too short."""
    request = packed_request("GET", "/metrics", target.key)
    async with asyncio.timeout(_WAIT_SECONDS_MAX):
        while True:
            raise_problems(watched)
            found = _WAITING.search(await control.ask(request))
            if found is not None and int(found.group(1)) == polls:
                return
            await asyncio.sleep(0.02)


def _ignore(body: bytes) -> None:
    """The reply to a poll that nobody needs."""


def _poll_path(channel: str) -> str:
    return f"/channel/{channel}/subscription/polling/me"


def _poll_request(target: Target, channel: str) -> bytes:
    return packed_request("GET", f"{_poll_path(channel)}?timeout=30s&max=32", target.key)


def _raise_failures(tasks: Sequence[asyncio.Future[None]]) -> None:
    for task in tasks:
        if task.done():
            task.result()


def _quantile(values: list[float], part: float) -> float:
    """In milliseconds; the nearest rank, so that it is a delay that really was."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(len(ranked) * part))] * 1000


def _allow_descriptors(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise BenchmarkError(f"{wanted} file descriptors are needed, the limit is {hard}.")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
