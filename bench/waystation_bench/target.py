"""What the driver aims at, and the window in which it counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from waystation.channels.service import ChannelService
from waystation.config import ChannelConfig, HistoryConfig, RecordLogs
from waystation.runtime.clock import Clock
from waystation.store.address import Address
from waystation.store.client import Store
from waystation.store.pubsub import PubSub
from waystation.types.message import Durability
from waystation_bench.processes import cpu_seconds
from waystation_bench.report import Sample


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A server, the store behind it, and a key that opens the server's door."""

    store_path: str
    store_process: int
    #: Zero where no server takes part.
    port: int = 0
    process: int = 0
    key: str = ""
    #: Receivers of deliveries.
    ports: tuple[int, ...] = ()
    #: The folder that the store and its stations share, and the level of both.
    data: str = ""
    level: Durability = "memory"
    #: Whether what happens is written down for history.
    record: RecordLogs = "full"

    @property
    def store_address(self) -> Address:
        """Where the store listens."""
        return Address(path=self.store_path)

    @property
    def history(self) -> HistoryConfig:
        """For the settings of a node."""
        return HistoryConfig(record=self.record)

    def open_channels(self) -> tuple[Store, ChannelService]:
        """Channels without HTTP in between; the caller closes the store. They cannot wait."""
        store = Store(self.store_address)
        wakeups = PubSub(self.store_address)
        return store, ChannelService(store, wakeups, clock=Clock(), settings=ChannelConfig())


class Window:
    """A stretch of time in which operations are counted; it begins when it is made."""

    def __init__(self, target: Target, process: int) -> None:
        self._processes = (process, target.store_process)
        self._clock = Clock()
        self._before = self._look()

    def close(self, operations: int) -> Sample:
        """What the operations since then took."""
        assert operations > 0, "nothing happened within the window"
        after = self._look()
        spent, cpu, store_cpu = (b - a for a, b in zip(self._before, after, strict=True))
        return Sample(
            operations=operations, seconds=spent, cpu_seconds=cpu, store_cpu_seconds=store_cpu
        )

    def _look(self) -> tuple[float, float, float]:
        process, store = self._processes
        return self._clock.monotonic(), cpu_seconds(process), cpu_seconds(store)


async def measured(
    target: Target, process: int, seconds: float, count: Callable[[], int]
) -> Sample:
    """Counts what others do within the next `seconds`."""
    window, begun = Window(target, process), count()
    await asyncio.sleep(seconds)
    return window.close(count() - begun)
