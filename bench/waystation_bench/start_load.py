"""Load of starts: in batches beside a bare script with the same bytes, and over HTTP."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import hiredis

from waystation.runtime.clock import Clock
from waystation.runtime.ids import RandomIds
from waystation.store.connection import pack
from waystation.store.keys import DEFAULT_PROJECT
from waystation.transactions import names
from waystation.transactions.order import Order
from waystation.transactions.start import Receipt, Start
from waystation_bench.bench_app import NO_OP
from waystation_bench.drain_load import opened
from waystation_bench.http_connection import packed_request
from waystation_bench.http_load import CONNECTIONS, CONTENT, repeating, run_scripts
from waystation_bench.log_load import repeated
from waystation_bench.report import Sample
from waystation_bench.target import Target, Window

#: Transactions of one call of ours, and script calls of one pipeline.
BATCH = 100
_RECEIVE_BYTES = 65536
_PATH = "/v1/transactions"
_BODY = b'{"type":"%b","data":%b}' % (NO_OP.encode(), CONTENT)
#: The least that a start is: a state that was not there, an entry in a queue, one in a log.
_BARE_START = """
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('HSET', KEYS[1], 'head', ARGV[1], 'state', ARGV[2])
  redis.call('RPUSH', KEYS[2], ARGV[3])
  redis.call('XADD', KEYS[3], '*', 'm', ARGV[4])
end
return 1
"""
#: As long as one of ours.
_HEAD = b"1790000000000 queued 1 0 0 - master in no-op default - 0 - 0 - -"


async def start_ours(target: Target, seconds: float) -> Sample:
    """`Starter.start_many` with a hundred orders, from a few callers at once."""
    async with opened(target) as node:
        orders = [Order(type=NO_OP, data=CONTENT)] * BATCH

        async def start() -> int:
            for result in await node.engine.starter.start_many(DEFAULT_PROJECT, orders):
                assert isinstance(result, Receipt), result
            return BATCH

        return await repeated(target, seconds, start)


async def start_raw(target: Target, seconds: float) -> Sample:
    """The bare script with the same bytes, a call for each, in pipelines of a hundred."""
    async with opened(target) as node:
        start = Start(DEFAULT_PROJECT, Order(type=NO_OP, data=CONTENT), None)
        start.id = names.new_id(0, RandomIds())
        start.pipeline = await node.engine.pipelines.active(DEFAULT_PROJECT, NO_OP)
        item = start.item(Clock().now_ms(), state_bytes_max=len(CONTENT) * 100)
    with socket.socket(socket.AF_UNIX) as wire:
        wire.connect(target.store_path)
        # It blocks the loop, on which nothing else runs: that is what makes it the limit.
        return _start_raw(wire, target, seconds, (item.state, item.detail))


async def start_http(target: Target, seconds: float) -> Sample:
    """One operation = one start of its own request."""
    async with opened(target):
        request = packed_request("POST", _PATH, target.key, _BODY)
        return await run_scripts(target, [repeating(request) for _ in range(CONNECTIONS)], seconds)


JOBS: dict[str, Callable[[Target, Any], Awaitable[Sample]]] = {
    "start_http": start_http,
    "start_ours": start_ours,
    "start_raw": start_raw,
}


def _start_raw(
    wire: socket.socket, target: Target, seconds: float, parts: tuple[bytes, bytes]
) -> Sample:
    replies, numbers, (state, detail) = hiredis.Reader(), itertools.count(), parts
    wire.sendall(pack(("SCRIPT", "LOAD", _BARE_START)))
    replies.feed(wire.recv(_RECEIVE_BYTES))
    sha = replies.gets()
    queue, log = names.queue_in(0, "bare"), f"{names.tag(0)}bare"

    def packed() -> bytes:
        id_ = f"tx-0000{next(numbers):036x}"
        arguments = (_HEAD, state, id_, detail)
        return pack((b"EVALSHA", sha, 3, names.state(id_), queue, log, *arguments))

    def round_trip() -> None:
        wire.sendall(b"".join([packed() for _ in range(BATCH)]))
        for _ in range(BATCH):
            while (reply := replies.gets()) is False:
                replies.feed(wire.recv(_RECEIVE_BYTES))
            if isinstance(reply, hiredis.ReplyError):
                raise reply

    round_trip()
    clock = Clock()
    window, operations, until = Window(target, os.getpid()), 0, clock.monotonic() + seconds
    while clock.monotonic() < until:
        round_trip()
        operations += BATCH
    return window.close(operations)
