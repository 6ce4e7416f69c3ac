"""Helpers for tests of channels: a channel service on an empty store, and access to its keys."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from waystation.channels.service import ChannelService
from waystation.config import ChannelConfig, ChannelRule
from waystation.delivery.outbox import WAITING_MAX
from waystation.runtime.clock import Clock
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.pubsub import PubSub
from waystation.store.time_machine import TimeMachine

CLOCK_MAX = 2**53 - 1
CLOCK_MIN = -CLOCK_MAX


@dataclass(frozen=True)
class ChannelStore:
    """A channel service with its store, pub/sub connection, time machine and clock."""

    channels: ChannelService
    store: Store
    wakeups: PubSub
    machine: TimeMachine
    clock: Clock

    async def text(self, key: str) -> str | None:
        """Return the value of a key as text. Return None if the key does not exist."""
        value = await self.store.call("GET", key)
        return value if value is None else value.decode()

    async def number(self, key: str) -> int:
        """Return the value of a clock or cursor key."""
        return int(await self.store.call("GET", key))

    async def keys(self) -> dict[str, tuple[str, float]]:
        """Return the keys of all channels with their values and remaining seconds."""
        names = sorted(name.decode() for name in await self.store.call("KEYS", "c.*"))
        replies = await self.store.pipeline(
            [command for name in names for command in (("GET", name), ("PTTL", name))]
        )
        return {
            name: (value.decode(), ms / 1000)
            for name, value, ms in zip(names, replies[::2], replies[1::2], strict=True)
        }

    async def set_clock(self, channel: str, clock: int, *, seconds: int = 3600) -> None:
        """Set the clock of a channel to its value after `clock` published messages."""
        await self.store.call("SET", f"c.{{{channel}}}.clock", clock, "EX", seconds)

    async def ids(self, channel: str, subscriber: str, *, limit: int = 64) -> list[str]:
        """Fetch messages and return their ids."""
        fetched = await self.channels.fetch("default", channel, subscriber, limit=limit)
        return [message.id for message in fetched.messages]


@asynccontextmanager
async def open_channels(
    server: EmbeddedServer,
    *,
    expire_seconds: float = 1800.0,
    fetch_bytes_max: int = 8_388_608,
    rules: tuple[ChannelRule, ...] = (),
    waiting_max: int = WAITING_MAX,
    flush: bool = True,
    store: Store | None = None,
) -> AsyncIterator[ChannelStore]:
    """Open a channel service in test mode. Empty the store first unless `flush` is False."""
    store = store or Store(server.address, test_mode=True)
    wakeups = PubSub(server.address)
    clock = Clock()
    machine = TimeMachine(store, wakeups, clock)
    settings = ChannelConfig(
        expire_seconds=expire_seconds, fetch_bytes_max=fetch_bytes_max, rules=rules
    )
    channels = ChannelService(
        store, wakeups, clock=clock, settings=settings, waiting_max=waiting_max
    )
    try:
        if flush:
            await store.call("FLUSHALL")
        await wakeups.start()
        await machine.start()
        yield ChannelStore(channels, store, wakeups, machine, clock)
    finally:
        channels.close()
        await machine.stop()
        await wakeups.stop()
        await store.close()
