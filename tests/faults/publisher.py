"""A process that publishes as fast as it can until it is killed.

    python -m tests.faults.publisher DATA DURABILITY LOG

It prints its own process id and that of its embedded server once the load is on. LOG gets one line
for every acknowledged message: its id, and when that was.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

import msgspec

from waystation.channels.service import ChannelService
from waystation.config import StoreConfig
from waystation.errors import WaystationError
from waystation.node import open_node
from waystation.testing.station import quick_settings

_PUBLISHERS = 32


async def publish(channels: ChannelService, publisher: int, log: int) -> None:
    number = 0
    while True:
        number += 1
        message_id = f"p{publisher}-{number}"
        try:
            await channels.publish("default", "orders", message_id, b'"' + b"x" * 100 + b'"')
        except WaystationError:
            continue
        # A system call that the tracer does not look at, and that no buffer holds back.
        os.writev(log, [f"{message_id} {time.time()}\n".encode()])


async def main(data: str, durability: str, log: str) -> None:
    store = msgspec.convert({"durability": durability}, StoreConfig)
    node = await open_node(quick_settings(data, store=store))
    assert node.opened.server is not None
    await node.channels.subscribe("default", "orders", "me")
    print(os.getpid(), node.opened.server.process_id, flush=True)  # noqa: T201 (to the parent)
    acknowledged = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    await asyncio.gather(
        *(publish(node.channels, publisher, acknowledged) for publisher in range(_PUBLISHERS))
    )


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
