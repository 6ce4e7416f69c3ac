"""One connection to the store: writes packed commands, matches replies to calls in order.

It knows nothing of retries or scripts; its owner decides what an error or a lost connection
means. All mutable state is the transport, the parser and the queue of unanswered calls.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

import hiredis

from waystation.errors import OutcomeUnknownError, StoreError
from waystation.store.address import Address
from waystation.store.replies import reply_error
from waystation.store.scripts import Script
from waystation.store.wire import pack

#: What the store can answer: a string, an integer, nothing, or a list of these.
Reply = Any
#: The words of a command.
Command = tuple[str | bytes, ...]


class Call:
    """One command on its way: its bytes, who waits for it, and what may be done if it is lost."""

    __slots__ = ("arguments", "deadline", "future", "maybe_ran", "packed", "repeatable", "script")

    def __init__(
        self,
        packed: bytes,
        future: asyncio.Future[Reply],
        deadline: float,
        *,
        repeatable: bool = False,
        script: Script | None = None,
        arguments: tuple[Any, ...] = (),
    ) -> None:
        self.packed = packed
        self.future = future
        self.deadline = deadline
        self.repeatable = repeatable
        self.script = script
        #: Whether it was once sent and its reply lost.
        self.maybe_ran = False
        #: For scripts: number of keys, keys, arguments; needed again after NOSCRIPT.
        self.arguments = arguments


class Connection(asyncio.Protocol):
    """The wire. `on_lost` gets the unanswered calls when it ends."""

    def __init__(self, *, on_lost: Callable[[Connection, list[Call]], None]) -> None:
        self.unanswered: deque[Call] = deque()
        self.transport: asyncio.Transport | None = None
        #: What an error reply does; until the handshake is over it simply ends its call.
        self.on_error: Callable[[Call, str], None] = end_with_reply
        #: When the store last said something, or was first asked after a silence.
        self.heard_at = 0.0
        self._loop = asyncio.get_running_loop()
        self._parser = hiredis.Reader()
        self._on_lost = on_lost

    async def open(self, address: Address) -> None:
        """Connect and shake hands. Raises OSError or StoreReplyError."""
        await address.open(self)
        await self.run(address.handshake())

    async def run(self, commands: Sequence[Command]) -> list[Reply]:
        """Send commands in one write and return their replies; raise the first that is an error."""
        replies = await self.ask(commands)
        for reply in replies:
            if isinstance(reply, BaseException):
                raise reply
        return replies

    async def ask(self, commands: Sequence[Command]) -> list[Reply | BaseException]:
        """Send commands in one write and return their replies, errors included."""
        calls = [Call(pack(command), self._loop.create_future(), 0.0) for command in commands]
        if calls:
            self.write(calls)
        return await asyncio.gather(*(call.future for call in calls), return_exceptions=True)

    def write(self, calls: list[Call]) -> None:
        """Sends calls with one system call, in order."""
        assert self.transport is not None, "write before connection_made"
        if not self.unanswered:
            self.heard_at = self._loop.time()
        self.unanswered.extend(calls)
        self.transport.write(b"".join([call.packed for call in calls]))

    @property
    def closing(self) -> bool:
        """Whether its end has begun: what is written now is not sent."""
        return self.transport is None or self.transport.is_closing()

    def abort(self) -> None:
        """Drops the connection at once; `on_lost` follows."""
        if self.transport is not None:
            self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.heard_at = self._loop.time()
        parser = self._parser
        parser.feed(data)
        unanswered = self.unanswered
        while True:
            try:
                reply = parser.gets()
            except hiredis.ProtocolError:
                self.abort()
                return
            if reply is False:
                return
            if not unanswered:
                # A reply that nobody asked for: the stream is out of step and cannot be trusted.
                self.abort()
                return
            call = unanswered.popleft()
            if isinstance(reply, hiredis.ReplyError):
                self.on_error(call, str(reply))
            elif not call.future.done():
                call.future.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        lost = list(self.unanswered)
        self.unanswered.clear()
        self._on_lost(self, lost)


def end(call: Call, error: StoreError) -> None:
    """Ends a call with an error, unless its caller gave it up."""
    if not call.future.done():
        call.future.set_exception(error)
        # A caller that was cancelled never asks; that is no reason for a warning at exit.
        call.future.exception()


def end_unapplied(call: Call, error: StoreError) -> None:
    """Ends a call that did not run this time; of one that was sent before, nobody can know."""
    end(call, OutcomeUnknownError(error.message) if call.maybe_ran else error)


def end_with_reply(call: Call, reply: str) -> None:
    """Ends a call with the store's own words."""
    end(call, reply_error(reply))
