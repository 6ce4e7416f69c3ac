"""Channels and pools that record for history, as one node has them, for synchronous tests."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from tests.helpers.records import register_reader
from waystation.catalogue import SqliteCatalogue
from waystation.channels.model import encode_handle
from waystation.channels.service import ChannelService
from waystation.config import ChannelConfig, ChannelRule, PoolConfig
from waystation.delivery.addresses import AddressGuard
from waystation.errors import ConflictError
from waystation.logs.records import RecordLogs
from waystation.logs.streams import StreamLogs
from waystation.messages.envelope import Envelope, pack
from waystation.pools import Pool, PoolOptions, Pools
from waystation.pools.dead_letters import DeadLetters
from waystation.pools.held import Letter, Nack, Session, Taken
from waystation.runtime.clock import Clock
from waystation.store.address import parse_address
from waystation.store.client import Store
from waystation.store.pubsub import PubSub
from waystation.types.common import Record

_T = TypeVar("_T")
PROJECT, POOL = "default", "agents"


class PartLife:
    """Opens channels and a pool on a store with a data set, for which history is registered."""

    def __init__(
        self, url: str, folder: Path, *rules: ChannelRule, record: Record = "full"
    ) -> None:
        self._runner = asyncio.Runner()
        self._undo = AsyncExitStack()
        self._calls = 0
        try:
            self.run(self._open(url, folder, rules, record))
        except BaseException:
            self._close()
            raise

    async def _open(
        self, url: str, folder: Path, rules: tuple[ChannelRule, ...], record: Record
    ) -> None:
        clock = Clock()
        self.store = Store(parse_address(url))
        self._undo.push_async_callback(self.store.close)
        await register_reader(self.store)
        wakeups = PubSub(self.store.address)
        records = RecordLogs(self.store, StreamLogs(self.store), clock=clock)
        await self._undo.enter_async_context(records)
        self.channels = ChannelService(
            self.store,
            wakeups,
            clock=clock,
            settings=ChannelConfig(rules=rules),
            guard=AddressGuard(),
            records=records,
        )
        self._undo.callback(self.channels.close)
        catalogue = SqliteCatalogue(folder / "catalogue.db")
        await catalogue.open()
        self._undo.push_async_callback(catalogue.close)
        self.pools = Pools(
            catalogue, self.store, wakeups, clock=clock, settings=PoolConfig(), records=records
        )
        self._undo.push_async_callback(self.pools.close)
        try:
            self.pool = await self.pools.create(PROJECT, POOL, PoolOptions(record=record))
        except ConflictError:
            self.pool = await self.pools.get(PROJECT, POOL)
        self._session = await self._register(self.pool)

    def __enter__(self) -> PartLife:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def _close(self) -> None:
        self.run(self._undo.aclose())
        self._runner.close()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Return the result of a coroutine."""
        return self._runner.run(work)

    def publish(self, channel: str, *ids: str) -> None:
        """Publish messages with their ids as content."""
        for each in ids:
            self.run(self.channels.publish(PROJECT, channel, each, b'"%b"' % each.encode()))

    def subscribe(self, channel: str, subscriber: str) -> None:
        """Create a subscriber at the end of a channel."""
        self.run(self.channels.subscribe(PROJECT, channel, subscriber))

    def acknowledge(self, channel: str, subscriber: str, clock: int) -> None:
        """Acknowledge a channel up to a clock."""
        handle = encode_handle(channel, subscriber, clock)
        assert self.run(self.channels.ack(PROJECT, channel, subscriber, handle))

    def enqueue(self, *letters: tuple[str, str]) -> list[int]:
        """Enqueue messages, given as recipient key and id. Return their numbers."""
        packed = [
            Letter(each, key, pack(Envelope(id=each, project=PROJECT, data=each.encode())))
            for key, each in letters
        ]
        return [each.number for each in self.run(self.pools.enqueue(PROJECT, POOL, packed))]

    def take(self) -> list[Taken]:
        """Take one message of each recipient key that has one."""
        self._calls += 1
        taken = self.run(
            self.pools.mail.take(
                self.pool.place,
                self.pools.terms(self.pool),
                self._session,
                token=f"t-{self._calls}",
                most=100,
                bytes_max=10**6,
                lease_ms=self.pool.lease_ms,
            )
        )
        return list(taken.items)

    def settle(self, *taken: Taken) -> None:
        """Acknowledge taken messages."""
        terms = self.pools.terms(self.pool)
        self.run(self.pools.mail.ack(self.pool.place, terms, self._session, taken))

    def bury(self, *taken: Taken) -> None:
        """Make dead letters of taken messages."""
        nacks = [Nack(taken=each, verdict="dead", cause="no use") for each in taken]
        terms = self.pools.terms(self.pool)
        self.run(self.pools.mail.nack(self.pool.place, terms, self._session, nacks))

    def redrive(self, *numbers: int) -> None:
        """Enqueue dead letters again."""
        terms = self.pools.terms(self.pool)
        self.run(DeadLetters(self.store).redrive(self.pool.place, terms, numbers))

    async def _register(self, pool: Pool) -> Session:
        terms = self.pools.terms(pool)
        return await self.pools.members.register(pool.place, terms, "worker", nonce="n")
