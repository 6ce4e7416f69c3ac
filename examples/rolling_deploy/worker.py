"""A worker of pool `agents`: `python worker.py NAME`. It writes down what it is given.

SIGTERM is all that a deploy has to send: the worker takes nothing more, ends what it has begun,
hands its keys over in order, and leaves.
"""

import asyncio
import json
import sys

from waystation.client import AsyncWaystation, PoolMessage

NAME = sys.argv[1]
handled = open("handled.txt", "a", buffering=1)  # noqa: SIM115 (until the process ends)


async def handle(message: PoolMessage) -> None:
    """Given one message of a key at a time, in order; the next one comes when this returns."""
    await asyncio.sleep(0.002)  # The work.
    envelope = json.loads(message.payload)
    handled.write(f"{message.key} {envelope['ciphertext']} {NAME}\n")


async def main() -> None:
    async with AsyncWaystation() as ws, ws.pools.worker("agents", handle, uid=NAME) as worker:
        await worker.run()


asyncio.run(main())
