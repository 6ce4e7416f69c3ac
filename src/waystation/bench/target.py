"""What the driver aims at, and the window in which it counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from waystation.bench.processes import cpu_seconds
from waystation.bench.report import Sample
from waystation.channels import Channels
from waystation.clock import Clock
from waystation.settings import ChannelSettings
from waystation.store import Store, Wakeups
from waystation.store.address import Address


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A server, the store behind it, and a key that opens the server's door."""

    store_path: str
    store_process: int
    #: Zero where no server takes part.
    port: int = 0
    process: int = 0
    key: str = ""

    @property
    def store_address(self) -> Address:
        """Where the store listens."""
        return Address(path=self.store_path)

    def open_channels(self) -> tuple[Store, Channels]:
        """Channels without HTTP in between; the caller closes the store. They cannot wait."""
        store = Store(self.store_address)
        wakeups = Wakeups(self.store_address)
        return store, Channels(store, wakeups, clock=Clock(), settings=ChannelSettings())


async def measured(
    target: Target, measured_process: int, seconds: float, count: Callable[[], int]
) -> Sample:
    """Counts what happens within `seconds`, and what CPU time it took meanwhile."""
    loop = asyncio.get_running_loop()

    def look() -> tuple[float, int, float, float]:
        cpu = cpu_seconds(measured_process)
        return loop.time(), count(), cpu, cpu_seconds(target.store_process)

    before = look()
    await asyncio.sleep(seconds)
    spent, operations, cpu, store_cpu = (
        after - earlier for after, earlier in zip(look(), before, strict=True)
    )
    assert operations > 0, "nothing happened within the window"
    return Sample(
        operations=int(operations), seconds=spent, cpu_seconds=cpu, store_cpu_seconds=store_cpu
    )
