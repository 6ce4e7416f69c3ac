"""Pub/sub: wake-up hints over one subscription connection that the whole process shares.

Pub/sub loses messages when a connection drops, so a message is only a hint to read the state again.
The order that misses no hint: take a wake-up, `clear()` it, read the state, then `wait()`.

- A pub/sub topic is subscribed when its first waiter comes, and stays subscribed for a while after
  the last one has left, because pollers return. Subscriptions of one turn of the event loop are
  sent together.
- A waiter is woken when its subscription takes effect, after every reconnect, and after
  `RECHECK_S` without a hint. A needless wake-up costs one read; a missed one delays a message.
- A listener is called with each published payload. It is called with None if it may have missed
  some, and then has to read all state that it follows.
- Cluster nodes forward published messages to each other, so one connection to any node receives
  all of them. If that node fails or leaves the cluster, the next connection goes to another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import hiredis

from waystation.runtime.clock import Clock
from waystation.runtime.service import Service, Wakeup
from waystation.store.address import Address
from waystation.store.connection import pack

#: Longest wait for a hint, because pub/sub can lose it.
RECHECK_S = 10.0
#: Time for which a topic without waiters stays subscribed; period of the connection checks.
_LINGER_S = 30.0
_CHECK_S = 3.0
#: Number of consecutive checks in which the server may send nothing. Each check sends a ping. The
#: check after them closes the connection.
_SILENT_CHECKS_MAX = 3
_RECONNECT_S = 0.2
_CONNECT_S_MAX = 5.0

#: A function that gets each published payload, and None if it may have missed some.
Listener = Callable[[bytes | None], None]


class _Topic:
    """The wake-ups and listeners of one pub/sub topic."""

    __slots__ = ("idle_since", "listeners", "wakeups")

    def __init__(self) -> None:
        self.wakeups: set[Wakeup] = set()
        self.listeners: set[Listener] = set()
        self.idle_since = 0.0

    @property
    def used(self) -> bool:
        """Whether the topic has a waiter or a listener."""
        return bool(self.wakeups or self.listeners)

    def call(self, payload: bytes | None) -> None:
        """Wake all waiters and call all listeners."""
        for wakeup in self.wakeups:
            wakeup.set()
        for listener in list(self.listeners):
            listener(payload)


class PubSub(Service, asyncio.Protocol):
    """The subscription connection of this process.

    The mutable state is the topics with their wake-ups and listeners, and the connection.
    """

    #: No grace time, because a stop drops the connection.
    grace_s = 0.0

    def __init__(self, address: Address, *, clock: Clock | None = None) -> None:
        super().__init__("pubsub", clock=clock or Clock())
        self.address = address
        #: The node of the current or the last connection.
        self._node = address
        self._rng = random.Random()
        self._topics: dict[bytes, _Topic] = {}
        self._to_subscribe: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._parser = hiredis.Reader()
        self._silent_checks = 0
        #: Set when the connection is lost. The pause between checks then ends immediately.
        self._lost = asyncio.Event()

    def __repr__(self) -> str:
        waiters = sum(len(topic.wakeups) for topic in self._topics.values())
        return f"<PubSub [{len(self._topics)} topics, {waiters} waiters]>"

    async def run(self) -> None:
        """Keep a connection until the service stops."""
        await self.repeat(self._use_connection, every_s=_RECONNECT_S)

    async def on_stop(self) -> None:
        """Drop the connection and wake all waiters."""
        if self._transport is not None:
            self._transport.abort()
        self.wake_all()

    @contextmanager
    def waiting(self, topic: bytes) -> Iterator[Wakeup]:
        """Yield a wake-up for a task that serves a client's wait on a pub/sub topic."""
        entry = self._entry(topic)
        wakeup = Wakeup(recheck_s=RECHECK_S)
        entry.wakeups.add(wakeup)
        try:
            yield wakeup
        finally:
            entry.wakeups.discard(wakeup)
            if not entry.used:
                entry.idle_since = asyncio.get_running_loop().time()

    @contextmanager
    def listening(self, topic: bytes) -> Iterator[Wakeup]:
        """Yield a wake-up for a background task, which `repr` does not count as a waiter."""
        wakeup = Wakeup(recheck_s=RECHECK_S)
        end = self.listen(topic, lambda _: wakeup.set())
        try:
            yield wakeup
        finally:
            end()

    def listen(self, topic: bytes, listener: Listener) -> Callable[[], None]:
        """Call `listener` for each message of a pub/sub topic; return a function that ends this."""
        entry = self._entry(topic)
        entry.listeners.add(listener)

        def end() -> None:
            entry.listeners.discard(listener)
            if not entry.used:
                entry.idle_since = asyncio.get_running_loop().time()

        return end

    def wake_all(self) -> None:
        """Wake all waiters and listeners, such as after a jump of test time or at a stop."""
        for topic in list(self._topics.values()):
            topic.call(None)

    # -- The connection ----------------------------------------------------------------------

    async def _use_connection(self) -> None:
        """Connect, then check the connection until it is lost."""
        self._lost.clear()
        await self._connect()
        while self._transport is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_S):
                    await self._lost.wait()
            if self._transport is not None:
                self._check(self._transport)

    async def _connect(self) -> None:
        self._parser = hiredis.Reader()
        self._silent_checks = 0
        self._node = self._next_node()
        try:
            async with asyncio.timeout(_CONNECT_S_MAX):
                await self._node.open(self)
        except (OSError, UnicodeError) as error:
            self._log.debug("subscription connection failed", reason=str(error))
            return
        if self._transport is not None and self._topics:
            self._transport.write(pack(("SUBSCRIBE", *self._topics)))

    def _next_node(self) -> Address:
        """Return the node to connect to; in a cluster not the last one, if there is another."""
        if self.address.cluster is None:
            return self.address
        nodes = self.address.cluster.candidates(self._rng)
        return next((node for node in nodes if node != self._node), nodes[0])

    def _check(self, transport: asyncio.Transport) -> None:
        cluster = self.address.cluster
        if cluster is not None and cluster.known and not cluster.has(self._node):
            self._log.warning("subscription node removed from cluster", node=str(self._node))
            transport.abort()
            return
        self._silent_checks += 1
        if self._silent_checks > _SILENT_CHECKS_MAX:
            self._log.warning("subscription connection closed", reason="silent")
            transport.abort()
            return
        transport.write(pack(("PING",)))
        now = asyncio.get_running_loop().time()
        idle = [
            name
            for name, topic in self._topics.items()
            if not topic.used and now - topic.idle_since > _LINGER_S
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
        # Write it in this turn of the loop, because a subscription flushed in it must come later.
        for command in self._node.handshake():
            self._transport.write(pack(command))

    def data_received(self, data: bytes) -> None:
        self._silent_checks = 0
        self._parser.feed(data)
        while (reply := self._parser.gets()) is not False:
            self._on_reply(reply)

    def _on_reply(self, reply: Any) -> None:
        if not isinstance(reply, list):
            # Replies to the handshake and to pings. An error means that the store allows no
            # subscription.
            if isinstance(reply, hiredis.ReplyError):
                self._log.warning("subscription rejected", reason=str(reply))
            return
        entry = self._topics.get(reply[1])
        if entry is not None and reply[0] == b"message":
            entry.call(reply[2])
        elif entry is not None and reply[0] == b"subscribe":
            # The subscription takes effect now: earlier messages were missed.
            entry.call(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lost.set()
        if not self.stopping:
            self._log.warning("subscription connection lost")
