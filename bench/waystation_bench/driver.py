"""The driver: a process of its own that makes the load and measures while it does.

    python -m waystation_bench.driver

A question is `{"job", "target", "amount"}`: the amount is seconds, or a number of whatever the
job counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from waystation.store import keys
from waystation.store.client import Store
from waystation_bench import (
    archive_load,
    delivery_load,
    depth_load,
    drain_load,
    http_load,
    lane_load,
    log_load,
    poll_load,
    pool_load,
    reply_load,
    send_load,
    sleeper_depth_load,
    start_load,
    store_load,
)
from waystation_bench.children import answer_questions
from waystation_bench.report import Sample
from waystation_bench.target import Target

Job = Callable[[Target, Any], Awaitable[Sample]]

JOBS: dict[str, Job] = {
    "call_ours": store_load.call_ours,
    "call_redis_py": store_load.call_redis_py,
    "deliver_ours": send_load.deliver_ours,
    "deliver_steadily": lane_load.deliver_steadily,
    "fetch_ack_http": http_load.fetch_ack,
    "polls_wait": poll_load.wait,
    "polls_wake": poll_load.wake,
    "produce_http": http_load.produce,
    "produce_http_batches": http_load.produce_batches,
    "publish_http": http_load.publish,
    "publish_ours": store_load.publish_ours,
    "publish_plain": http_load.publish_plain,
    "publish_raw": store_load.publish_raw,
    "publish_webhook": http_load.publish_webhook,
    "send_aiohttp": send_load.send_aiohttp,
    "send_awaited": send_load.send_awaited,
    "send_bare": send_load.send_bare,
    "send_ours": send_load.send_ours,
    **archive_load.JOBS,
    **delivery_load.JOBS,
    **depth_load.JOBS,
    **drain_load.FILLS,
    **drain_load.LOOKS,
    **log_load.JOBS,
    **pool_load.JOBS,
    **reply_load.JOBS,
    **sleeper_depth_load.JOBS,
    **start_load.JOBS,
}

#: These do not see what is in the store, or need what the job before has left there.
_SENDS = {"send_aiohttp", "send_awaited", "send_bare", "send_ours"}
_LEAVES_THE_STORE = _SENDS | set(drain_load.LOOKS)


async def answer(question: dict[str, Any]) -> Sample:
    """Does one job, on an empty store unless it is one of those that leave it."""
    target = msgspec.convert(question["target"], Target)
    if question["job"] not in _LEAVES_THE_STORE:
        await _empty(target)
    return await JOBS[question["job"]](target, question["amount"])


async def _empty(target: Target) -> None:
    """Begin every round alike: no data, an append-only file that holds nothing, a quiet disk.

    The stamp of the data set stays, because the catalogue of the measured server knows its id.
    """
    store = Store(target.store_address)
    try:
        # A rewrite in the middle of a window would hit one contender by chance.
        await store.call("CONFIG", "SET", "auto-aof-rewrite-percentage", "0")
        names = ("version", "dataset", "created_ms")
        stamp = dict(zip(names, await store.call("HMGET", keys.FORMAT, *names), strict=True))
        await store.call("FLUSHALL", "SYNC")
        if stamp["dataset"] is not None:
            await store.call(
                "HSET", keys.FORMAT, *(word for pair in stamp.items() for word in pair)
            )
        await store.call("BGREWRITEAOF")
        while b"aof_rewrite_in_progress:1" in await store.call("INFO", "persistence"):
            await asyncio.sleep(0.005)
    finally:
        await store.close()
    # What the round before wrote is still on its way to the disk, and would stall the store's
    # first writes.
    await asyncio.to_thread(os.sync)
    gc.collect()


def main() -> None:
    """Works until standard input ends."""
    # Between rounds alone: a pause of the one who measures would be taken for one of the measured.
    gc.disable()
    answer_questions(contextlib.nullcontext(answer))


if __name__ == "__main__":
    main()
