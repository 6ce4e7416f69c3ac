"""Load on the store without HTTP: many callers of our client, redis-py, and the raw limit."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from collections.abc import Awaitable, Callable

import hiredis
import redis.asyncio

from waystation.channels import keys
from waystation.channels.model import encode_message
from waystation.runtime.clock import Clock
from waystation.store.connection import pack
from waystation.store.keys import DEFAULT_PROJECT
from waystation.store.scripts import script
from waystation_bench.http_load import CONTENT
from waystation_bench.report import Sample
from waystation_bench.target import Target, Window, measured

#: For the bar on the cost of one coalesced call.
CALLERS = 64
#: For the bar on throughput: as many callers as the raw pipeline has commands.
PUBLISHERS = 256
_WARM_SECONDS = 0.05
_TTL_SECONDS = 1815
_RECEIVE_BYTES = 65536
_PUBLISH = script("waystation.channels", "publish")

#: What each caller repeats: it gets a fresh number each time.
Operation = Callable[[int], Awaitable[object]]


async def publish_ours(target: Target, seconds: float) -> Sample:
    """`Channels.publish` from many callers at once."""
    store, channels = target.open_channels()
    try:
        return await _callers(
            target,
            seconds,
            PUBLISHERS,
            lambda number: channels.publish(DEFAULT_PROJECT, "bench", f"m{number}", CONTENT),
        )
    finally:
        await store.close()


async def publish_raw(target: Target, seconds: float) -> Sample:
    """The limit: the same script call, pipelined over a blocking socket, nothing else."""
    with socket.socket(socket.AF_UNIX) as wire:
        wire.connect(target.store_path)
        # It blocks the loop, on which nothing else runs: that is what makes it the limit.
        return _publish_raw(wire, target, seconds)


async def call_ours(target: Target, seconds: float) -> Sample:
    """The store client alone: the script calls of many callers, coalesced."""
    store, _ = target.open_channels()
    try:
        return await _callers(
            target, seconds, CALLERS, lambda number: store.run(_PUBLISH, *_arguments(number))
        )
    finally:
        await store.close()


async def call_redis_py(target: Target, seconds: float) -> Sample:
    """The same calls through redis-py as it comes."""
    client = redis.asyncio.Redis(unix_socket_path=target.store_path, max_connections=CALLERS)
    sha = _PUBLISH.shas[0].decode()

    def operation(number: int) -> Awaitable[object]:
        names, arguments = _arguments(number)
        return client.evalsha(sha, len(names), *names, *arguments)

    try:
        return await _callers(target, seconds, CALLERS, operation)
    finally:
        await client.aclose()


def _publish_raw(wire: socket.socket, target: Target, seconds: float) -> Sample:
    replies = hiredis.Reader()
    numbers = itertools.count()

    def round_trip() -> None:
        wire.sendall(b"".join([_packed(next(numbers)) for _ in range(PUBLISHERS)]))
        for _ in range(PUBLISHERS):
            while (reply := replies.gets()) is False:
                replies.feed(wire.recv(_RECEIVE_BYTES))
            if isinstance(reply, hiredis.ReplyError):
                raise reply

    wire.sendall(pack(("SCRIPT", "LOAD", _PUBLISH.sources[0])))
    replies.feed(wire.recv(_RECEIVE_BYTES))
    replies.gets()
    round_trip()
    clock = Clock()
    window, operations, until = Window(target, os.getpid()), 0, clock.monotonic() + seconds
    while clock.monotonic() < until:
        round_trip()
        operations += PUBLISHERS
    return window.close(operations)


def _packed(number: int) -> bytes:
    names, arguments = _arguments(number)
    return pack((b"EVALSHA", _PUBLISH.shas[0], 2, *names, *arguments))


async def _callers(target: Target, seconds: float, callers: int, operation: Operation) -> Sample:
    numbers = itertools.count()
    done = 0
    stopping = False

    async def call_again_and_again() -> None:
        nonlocal done
        while not stopping:
            await operation(next(numbers))
            done += 1

    tasks = [asyncio.ensure_future(call_again_and_again()) for _ in range(callers)]
    await asyncio.sleep(_WARM_SECONDS)
    sample = await measured(target, os.getpid(), seconds, lambda: done)
    stopping = True
    await asyncio.gather(*tasks)
    return sample


_TAG = keys.channel_tag(DEFAULT_PROJECT, "bench")
_CLOCK = keys.clock(_TAG)
_MESSAGES = keys.message_prefix(_TAG)
_TOPIC = keys.pubsub_topic(_TAG)


def _arguments(number: int) -> tuple[list[str], list[str | bytes | int]]:
    """Keys and arguments of one publish, with as little Python as there can be."""
    message_id = f"m{number}"
    return [_CLOCK, keys.message_id(_TAG, message_id)], [
        _MESSAGES,
        encode_message(message_id, CONTENT),
        _TTL_SECONDS,
        _TOPIC,
        # No record log, and no names for its entries.
        "",
        b"",
    ]
