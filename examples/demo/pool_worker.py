"""A worker of the demo's pool, a process of its own: writes down what it is given.

    python -m demo.pool_worker URL POOL NAME FILE

A line of the file is `<nanoseconds> <key> <number>`; the clock is one for the whole machine.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TextIO

from waystation.client import AsyncWaystation, PoolMessage

#: As long as some work takes.
_WORK_SECONDS = 0.005


async def work(url: str, pool: str, name: str, notes: TextIO) -> None:
    """Works until it is told to stop; then it hands its keys over, in order."""

    async def note(message: PoolMessage) -> None:
        notes.write(f"{time.monotonic_ns()} {message.key} {message.content['number']}\n")
        await asyncio.sleep(_WORK_SECONDS)

    async with (
        AsyncWaystation(url) as station,
        station.pools.worker(pool, note, uid=name, concurrency=8) as worker,
    ):
        await worker.run()


def main() -> None:
    """Writes line by line: what was handled is there, also when it is killed right after."""
    url, pool, name, file = sys.argv[1:]
    with open(file, "a", buffering=1, encoding="utf-8") as notes:
        asyncio.run(work(url, pool, name, notes))


if __name__ == "__main__":
    main()
