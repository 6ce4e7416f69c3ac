"""Wake-up hints: one subscription connection per process, shared by everyone who waits.

Pub/sub loses messages when a connection drops, so a wake-up is only ever a hint to look again.
The order that never misses one: take a waiter, `clear()` it, look, and only then `wait()`.

- A topic is subscribed when its first waiter comes, and for a while after the last has gone, since
  pollers come back. Subscriptions of one turn of the event loop travel together.
- Whoever waits is woken when the subscription takes effect, again after every reconnect, and now
  and then without any reason. Each wake-up costs one look; each missed one would cost a message
  its latency.
- A listener is called with what was published. When it may have missed something, it is called
  with None: it then has to look at everything that it cares for.
- The nodes of a cluster pass on to all others what is published at one of them, so one connection
  to any of them hears everything. When that node goes, or leaves the cluster, another one is taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import hiredis

from waystation.runtime.logging import logger
from waystation.store.address import Address
from waystation.store.wire import pack

_log = logger("wakeups")

#: A waiter looks again after this long even if nobody called: pub/sub is lossy.
RECHECK_SECONDS = 10.0
#: How long a topic without waiters stays subscribed, and how often that is looked at.
_LINGER_SECONDS = 30.0
_TICK_SECONDS = 3.0
#: A connection that is silent for this many ticks, pings included, is dead.
_SILENT_TICKS_MAX = 3
_RECONNECT_SECONDS = 0.2
_CONNECT_SECONDS_MAX = 5.0

#: Called with what was published; with None when something may have been missed.
Listener = Callable[[bytes | None], None]


class Waiter:
    """One who waits for a topic: a flag that can be set, cleared and waited for."""

    __slots__ = ("_future", "_woken")

    def __init__(self) -> None:
        self._woken = False
        self._future: asyncio.Future[None] | None = None

    def clear(self) -> None:
        """Forgets wake-ups so far. Look after this, not before."""
        self._woken = False

    def wake(self) -> None:
        """Sets the flag; also ends a wait that is under way."""
        self._woken = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self, seconds: float) -> None:
        """Returns when woken, or after `seconds`, or after a while without a reason."""
        if self._woken or seconds <= 0:
            return
        loop = asyncio.get_running_loop()
        self._future = loop.create_future()
        timer = loop.call_later(min(seconds, RECHECK_SECONDS), self.wake)
        try:
            await self._future
        finally:
            timer.cancel()
            self._future = None


class _Topic:
    __slots__ = ("idle_since", "listeners", "waiters")

    def __init__(self) -> None:
        self.waiters: set[Waiter] = set()
        self.listeners: set[Listener] = set()
        self.idle_since = 0.0

    @property
    def used(self) -> bool:
        """Whether somebody would miss it."""
        return bool(self.waiters or self.listeners)

    def call(self, payload: bytes | None) -> None:
        """Wakes and tells everyone."""
        for waiter in self.waiters:
            waiter.wake()
        for listener in list(self.listeners):
            listener(payload)


class Wakeups(asyncio.Protocol):
    """The subscription connection and all waiters of this process."""

    def __init__(self, address: Address) -> None:
        self.address = address
        #: Where the connection is, or was tried last.
        self._node = address
        self._rng = random.Random()
        self._topics: dict[bytes, _Topic] = {}
        self._to_subscribe: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._parser = hiredis.Reader()
        self._silent_ticks = 0
        self._closed = False
        #: Ends the keeper's pause between ticks: a lost connection is replaced at once.
        self._lost = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        waiters = sum(len(topic.waiters) for topic in self._topics.values())
        return f"<Wakeups [{len(self._topics)} topics, {waiters} waiters]>"

    async def start(self) -> None:
        """Keeps a connection from now on."""
        self._keeper = asyncio.get_running_loop().create_task(self._keep_connected())

    async def close(self) -> None:
        """Ends the connection and wakes everyone."""
        self._closed = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if self._transport is not None:
            self._transport.abort()
        self.wake_all()

    @contextmanager
    def waiting(self, topic: bytes) -> Iterator[Waiter]:
        """Registers a waiter for `topic` for the length of the block."""
        entry = self._entry(topic)
        waiter = Waiter()
        entry.waiters.add(waiter)
        try:
            yield waiter
        finally:
            entry.waiters.discard(waiter)
            if not entry.used:
                entry.idle_since = asyncio.get_running_loop().time()

    @contextmanager
    def following(self, topic: bytes) -> Iterator[Waiter]:
        """The same for a task that lives as long as its process: it is no client's wait."""
        waiter = Waiter()
        end = self.listen(topic, lambda _: waiter.wake())
        try:
            yield waiter
        finally:
            end()

    def listen(self, topic: bytes, listener: Listener) -> Callable[[], None]:
        """Calls `listener` with all that is published to `topic`; the returned function ends it."""
        entry = self._entry(topic)
        entry.listeners.add(listener)

        def end() -> None:
            entry.listeners.discard(listener)
            if not entry.used:
                entry.idle_since = asyncio.get_running_loop().time()

        return end

    def wake_all(self) -> None:
        """Makes everyone look again: after a reconnect, a jump in time, or at shutdown."""
        for topic in list(self._topics.values()):
            topic.call(None)

    # -- The connection ----------------------------------------------------------------------

    async def _keep_connected(self) -> None:
        while not self._closed:
            self._lost.clear()
            await self._connect()
            while self._transport is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_TICK_SECONDS):
                        await self._lost.wait()
                if self._transport is not None:
                    self._tick(self._transport)
            await asyncio.sleep(_RECONNECT_SECONDS)

    async def _connect(self) -> None:
        self._parser = hiredis.Reader()
        self._silent_ticks = 0
        self._node = self._next_node()
        try:
            async with asyncio.timeout(_CONNECT_SECONDS_MAX):
                await self._node.open(self)
        except (OSError, UnicodeError) as error:
            _log.debug("no subscription connection", problem=str(error))
            return
        if self._transport is not None and self._topics:
            self._transport.write(pack(("SUBSCRIBE", *self._topics)))

    def _next_node(self) -> Address:
        """Of a cluster any node but the last one, where there is another."""
        if self.address.cluster is None:
            return self.address
        nodes = self.address.cluster.candidates(self._rng)
        return next((node for node in nodes if node != self._node), nodes[0])

    def _tick(self, transport: asyncio.Transport) -> None:
        cluster = self.address.cluster
        if cluster is not None and cluster.known and not cluster.has(self._node):
            _log.warning("the node of the subscription left the cluster", node=str(self._node))
            transport.abort()
            return
        self._silent_ticks += 1
        if self._silent_ticks > _SILENT_TICKS_MAX:
            _log.warning("subscription connection is silent, dropping it")
            transport.abort()
            return
        transport.write(pack(("PING",)))
        now = asyncio.get_running_loop().time()
        idle = [
            name
            for name, topic in self._topics.items()
            if not topic.used and now - topic.idle_since > _LINGER_SECONDS
        ]
        for name in idle:
            del self._topics[name]
        if idle:
            transport.write(pack(("UNSUBSCRIBE", *idle)))

    def _entry(self, topic: bytes) -> _Topic:
        entry = self._topics.get(topic)
        if entry is None:
            entry = self._topics[topic] = _Topic()
            self._subscribe(topic)
        return entry

    def _subscribe(self, topic: bytes) -> None:
        if not self._to_subscribe:
            asyncio.get_running_loop().call_soon(self._flush)
        self._to_subscribe.append(topic)

    def _flush(self) -> None:
        topics, self._to_subscribe = self._to_subscribe, []
        if self._transport is not None:
            self._transport.write(pack(("SUBSCRIBE", *topics)))

    # -- asyncio.Protocol --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # At once: a subscription that is asked for in this turn must not come before it.
        for command in self._node.handshake():
            self._transport.write(pack(command))

    def data_received(self, data: bytes) -> None:
        self._silent_ticks = 0
        self._parser.feed(data)
        while (reply := self._parser.gets()) is not False:
            self._on_reply(reply)

    def _on_reply(self, reply: Any) -> None:
        if not isinstance(reply, list):
            # The handshake's OKs; an error here means that we may not subscribe at all.
            if isinstance(reply, hiredis.ReplyError):
                _log.warning("the store refused a subscription", problem=str(reply))
            return
        entry = self._topics.get(reply[1])
        if entry is not None and reply[0] == b"message":
            entry.call(reply[2])
        elif entry is not None and reply[0] == b"subscribe":
            # It takes effect now: what was published before, we did not hear.
            entry.call(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lost.set()
        if not self._closed:
            _log.warning("subscription connection lost")
