"""Connection to one server: sends calls in order, reconnects, decides the outcome of each call.

All calls of one turn of the event loop share one write. `client.py` states the contract: which
error a call ends with, and whether it may have run.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any, Protocol, cast

import hiredis
from prometheus_client import Counter

from waystation.errors import (
    BusyError,
    OutcomeUnknownError,
    StoreDamagedError,
    StoreDataLostError,
    StoreError,
    StoreFullError,
    StoreReplyError,
    StoreUnavailableError,
)
from waystation.runtime.logging import logger
from waystation.runtime.metrics import count_family, registry
from waystation.store.address import Address
from waystation.store.dataset import DataSet
from waystation.store.scripts import Script, registered_scripts

_log = logger("store")

store_calls = count_family("waystation_store_calls", "Calls sent to the store.").of()
store_writes = count_family(
    "waystation_store_writes", "Writes to store connections. One write carries several calls."
).of()
store_reconnects = Counter(
    "waystation_store_reconnects", "Lost connections to the store.", registry=registry
)

#: Reply of the store: bytes, an integer, None, or a list of these.
Reply = Any
#: Words of a command.
Command = tuple[str | bytes, ...]

#: Return the bytes of one command. The stub of the library admits only tuples of one element.
pack: Callable[[tuple[Any, ...]], bytes] = cast(Any, hiredis.pack_command)

#: Shortest time limit of one attempt to connect. An attempt may load all scripts, more than a
#: megabyte, and would never succeed with a limit that is too short for a busy machine.
_CONNECT_SECONDS_LEAST = 2.0
_RECONNECT_SECONDS_MIN = 0.01
_RECONNECT_SECONDS_MAX = 1.0
#: Period of the deadline check. One timer serves all calls; a timer per call would cost 5 µs.
_DEADLINE_CHECK_SECONDS = 0.25
#: Pause before a call is sent again to a server that is loading its data or busy.
BUSY_PAUSE_SECONDS = 0.05
#: Maximum number of unanswered calls per process and server.
CALLS_MAX = 50_000


# -- Calls and their outcomes ----------------------------------------------------------------


class Call:
    """One command in progress: its bytes, its future, its deadline, whether it may be repeated."""

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
        #: True if the call was sent and its reply was lost.
        self.maybe_ran = False
        #: Number of keys, keys and arguments of a script, to send it again after a NOSCRIPT.
        self.arguments = arguments


class ErrorKind(Enum):
    """Kind of an error reply. The call did not run, except for ERROR, which leaves that open."""

    #: The server does not have the script; send its source.
    NO_SCRIPT = auto()
    #: The server is loading its data or running a long script; send the call again.
    NOT_NOW = auto()
    #: The server lost its primary, its replicas or its cluster.
    UNAVAILABLE = auto()
    #: The server became a replica; a new connection may reach the new primary.
    READ_ONLY = auto()
    #: Another node of the cluster owns the slot.
    MOVED = auto()
    #: The slot is moving to another node, which accepts this one call.
    ASK = auto()
    #: Memory or disk is full.
    FULL = auto()
    #: Any other error of this call.
    ERROR = auto()


_ERROR_KINDS = {
    "ASK": ErrorKind.ASK,
    "BUSY": ErrorKind.NOT_NOW,
    "CLUSTERDOWN": ErrorKind.UNAVAILABLE,
    "LOADING": ErrorKind.NOT_NOW,
    "MASTERDOWN": ErrorKind.UNAVAILABLE,
    "MISCONF": ErrorKind.FULL,
    "MOVED": ErrorKind.MOVED,
    "NOREPLICAS": ErrorKind.UNAVAILABLE,
    "NOSCRIPT": ErrorKind.NO_SCRIPT,
    "OOM": ErrorKind.FULL,
    "READONLY": ErrorKind.READ_ONLY,
    "TRYAGAIN": ErrorKind.NOT_NOW,
}


def error_kind(reply: str) -> ErrorKind:
    """Return the kind of an error reply by its first word."""
    return _ERROR_KINDS.get(reply.partition(" ")[0], ErrorKind.ERROR)


def reply_error(reply: str) -> StoreError:
    """Return the error for a reply of kind ERROR.

    A script that finds a key of invalid type or value replies `DAMAGED <key>`, or
    `DAMAGED_LOG <key>` if the key belongs to a log; the store appends the place in the script.
    """
    kind, _, rest = reply.partition(" ")
    key = rest.partition(" ")[0]
    if kind == "DAMAGED":
        return StoreDamagedError(key=key)
    if kind == "DAMAGED_LOG":
        return StoreDamagedError.of_log(key)
    return StoreReplyError(reply)


def end(call: Call, error: StoreError) -> None:
    """End a call with an error, unless its caller has cancelled it."""
    if not call.future.done():
        call.future.set_exception(error)
        # Mark the error as read, because a cancelled caller never reads it and asyncio would warn.
        call.future.exception()


def end_unapplied(call: Call, error: StoreError) -> None:
    """End a call whose last attempt did not run.

    The outcome is unknown if an earlier attempt was sent and its reply was lost.
    """
    end(call, OutcomeUnknownError(error.message) if call.maybe_ran else error)


def end_with_reply(call: Call, reply: str) -> None:
    """End a call with the server's error reply."""
    end(call, reply_error(reply))


def closed_error() -> StoreUnavailableError:
    """Return the error of calls on a closed client."""
    return StoreUnavailableError("The store client is closed.")


def refused_error(reply: str) -> StoreUnavailableError:
    """Return the error of a call that the server refused to run."""
    return StoreUnavailableError(f"The store refused the call: {reply}")


def busy_error() -> BusyError:
    """Return the error of a call above `CALLS_MAX`."""
    return BusyError(f"{CALLS_MAX:,} calls are waiting for the store. Retry later.")


# -- Protocol --------------------------------------------------------------------------------


class RespProtocol(asyncio.Protocol):
    """One network connection: writes packed commands and matches replies to calls in order.

    The state: the transport, the parser, and the queue of unanswered calls. `on_lost` gets the
    unanswered calls when the connection ends.
    """

    def __init__(self, *, on_lost: Callable[[RespProtocol, list[Call]], None]) -> None:
        self.unanswered: deque[Call] = deque()
        self.transport: asyncio.Transport | None = None
        #: Handler of error replies. During the handshake an error ends its call.
        self.on_error: Callable[[Call, str], None] = end_with_reply
        #: Time of the last bytes from the server, or of the first write after all were answered.
        self.heard_at = 0.0
        self._loop = asyncio.get_running_loop()
        self._parser = hiredis.Reader()
        self._on_lost = on_lost

    async def open(self, address: Address) -> None:
        """Connect and authenticate. Raise OSError or StoreReplyError if that fails."""
        await address.open(self)
        await self.run(address.handshake())

    async def run(self, commands: Sequence[Command]) -> list[Reply]:
        """Send commands in one write and return their replies. Raise the first error reply."""
        replies = await self.ask(commands)
        for reply in replies:
            if isinstance(reply, BaseException):
                raise reply
        return replies

    async def ask(self, commands: Sequence[Command]) -> list[Reply | BaseException]:
        """Send commands in one write and return their replies, with errors in their places."""
        calls = [Call(pack(command), self._loop.create_future(), 0.0) for command in commands]
        if calls:
            self.write(calls)
        return await asyncio.gather(*(call.future for call in calls), return_exceptions=True)

    def write(self, calls: list[Call]) -> None:
        """Send calls in order with one system call."""
        assert self.transport is not None, "write before connection_made"
        if not self.unanswered:
            self.heard_at = self._loop.time()
        self.unanswered.extend(calls)
        self.transport.write(b"".join([call.packed for call in calls]))

    @property
    def closing(self) -> bool:
        """Whether the connection is closing. A closing connection drops all writes."""
        return self.transport is None or self.transport.is_closing()

    def abort(self) -> None:
        """Drop the connection without flushing; asyncio then calls `connection_lost`."""
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
                # A reply without a call: the stream is out of step, so no reply can be trusted.
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


# -- Connection to one server ----------------------------------------------------------------


class CallRouter(Protocol):
    """Client that owns several connections and can send a call to another one."""

    def redirect(self, connection: ServerConnection, call: Call, reply: str) -> bool:
        """Take over a call that got an error. Return False to leave it to the connection."""

    def on_disconnect(self) -> None:
        """Note that a server was lost or cannot be reached."""


class ServerConnection:
    """Sends calls to one server in order, reconnects, and decides the outcome of each call.

    The state: the network connection, the calls that were not sent, the calls that a loading or
    busy server returned, and the reason why the server is refused.
    """

    def __init__(
        self,
        address: Address,
        *,
        variant: int,
        call_seconds_max: float,
        rng: random.Random,
        data_set: DataSet,
        preload_scripts: bool = True,
        router: CallRouter | None = None,
    ) -> None:
        self.address = address
        self._data_set = data_set
        self._variant = variant
        self._call_seconds_max = call_seconds_max
        self._rng = rng
        self._preload_scripts = preload_scripts
        self._router = router
        self._protocol: RespProtocol | None = None
        self._unsent: deque[Call] = deque()
        self._paused: list[tuple[Call, str]] = []
        self._data_lost: StoreDataLostError | None = None
        self._flush_due = False
        self._closed = False
        self.last_problem = ""
        self._connector: asyncio.Task[None] | None = None
        self._deadline_check: asyncio.TimerHandle | None = None

    @property
    def connected(self) -> bool:
        """Whether the server is connected now."""
        return self._protocol is not None

    @property
    def waiting(self) -> int:
        """Number of calls that were not sent."""
        return len(self._unsent)

    @property
    def sent(self) -> int:
        """Number of calls that were sent and have no reply."""
        return len(self._protocol.unanswered) if self._protocol is not None else 0

    # -- Calling -----------------------------------------------------------------------------

    def submit(self, call: Call) -> None:
        """Send a call with the others of this turn. Raise BusyError above `CALLS_MAX`."""
        protocol, unsent = self._protocol, self._unsent
        if protocol is None:
            self._submit_unconnected(call)
            return
        if len(unsent) + len(protocol.unanswered) >= CALLS_MAX:
            raise busy_error()
        unsent.append(call)
        if not self._flush_due:
            self._flush_due = True
            call.future.get_loop().call_soon(self._flush)

    def _submit_unconnected(self, call: Call) -> None:
        if self._closed:
            raise closed_error()
        if len(self._unsent) >= CALLS_MAX:
            raise busy_error()
        self.resubmit(call)

    def resubmit(self, *calls: Call) -> None:
        """Send calls that were accepted before, without other calls between them."""
        if self._closed:
            for call in calls:
                end_unapplied(call, closed_error())
            return
        if self._data_lost is not None:
            # The connector keeps checking. Until the server has the data set, nothing is sent.
            for call in calls:
                end_unapplied(call, self._data_lost)
            return
        self._unsent.extend(calls)
        if self._flush_due:
            return
        if self._protocol is not None:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)
        else:
            self._start_connecting()

    def take_unsent(self) -> list[Call]:
        """Remove and return the calls that were not sent, in order, for another connection."""
        calls = [*self._unsent, *(call for call, _ in self._paused)]
        self._unsent.clear()
        self._paused.clear()
        return calls

    def drop_connection(self) -> None:
        """Reconnect, so that the data set is checked before the next call is sent."""
        if self._protocol is not None:
            self._protocol.abort()
            if not self._closed:
                self._start_connecting()

    async def close(self) -> None:
        """End all calls without a reply, and close the connection."""
        if self._closed:
            return
        self._data_set.forget(self.address)
        self._closed = True
        for call in self.take_unsent():
            end_unapplied(call, closed_error())
        if self._deadline_check is not None:
            self._deadline_check.cancel()
        if self._connector is not None:
            self._connector.cancel()
            await asyncio.gather(self._connector, return_exceptions=True)
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            protocol.abort()
            # The transport calls `connection_lost`, which ends the sent calls, in the next turn.
            await asyncio.sleep(0)

    # -- Sending and error replies -----------------------------------------------------------

    def _flush(self) -> None:
        """Write the calls of this turn, except those that were cancelled meanwhile."""
        self._flush_due = False
        if self._protocol is None or self._protocol.closing or not self._unsent:
            # A closing connection sends nothing. `_on_lost` follows and moves the unsent calls to
            # the next connection.
            return
        calls = [call for call in self._unsent if not call.future.done()]
        self._unsent.clear()
        if calls:
            store_writes.inc()
            store_calls.inc(len(calls))
            self._protocol.write(calls)

    def _on_error(self, call: Call, reply: str) -> None:
        if self._router is not None and self._router.redirect(self, call, reply):
            return
        match error_kind(reply):
            case ErrorKind.NO_SCRIPT if call.script is not None:
                # EVAL runs the script and loads it, so the next call by SHA finds it.
                source = call.script.sources[self._variant]
                call.packed = pack((b"EVAL", source, *call.arguments))
                self.resubmit(call)
            case ErrorKind.NOT_NOW:
                if not self._paused:
                    asyncio.get_running_loop().call_later(BUSY_PAUSE_SECONDS, self._send_paused)
                self._paused.append((call, reply))
            case ErrorKind.UNAVAILABLE:
                end_unapplied(call, refused_error(reply))
            case ErrorKind.READ_ONLY:
                end_unapplied(call, refused_error(reply))
                if self._protocol is not None:
                    self._protocol.abort()
            case ErrorKind.FULL:
                end_unapplied(call, StoreFullError(f"The store refused the call: {reply}"))
            case _:
                end_with_reply(call, reply)

    def _send_paused(self) -> None:
        paused, self._paused = self._paused, []
        now = asyncio.get_running_loop().time()
        for call, reply in paused:
            if now > call.deadline:
                end_unapplied(call, refused_error(reply))
            elif not call.future.done():
                self.resubmit(call)

    def _on_lost(self, protocol: RespProtocol, lost: list[Call]) -> None:
        if protocol is self._protocol:
            self._protocol = None
            self.last_problem = "the connection was lost"
            if not self._closed:
                store_reconnects.inc()
                _log.warning("store connection lost", unanswered=len(lost))
        now = asyncio.get_running_loop().time()
        repeated = []
        for call in lost:
            if call.repeatable and not self._closed and now <= call.deadline:
                call.maybe_ran = True
                repeated.append(call)
            else:
                end(
                    call,
                    OutcomeUnknownError("The connection to the store was lost before the reply."),
                )
        # Put repeated calls before the unsent calls, so that all calls keep their order.
        self._unsent.extendleft(reversed(repeated))
        if self._unsent and not self._closed:
            self._start_connecting()
            if self._router is not None:
                self._router.on_disconnect()

    # -- Connecting --------------------------------------------------------------------------

    def _start_connecting(self) -> None:
        if self._connector is None or self._connector.done():
            self._connector = asyncio.get_running_loop().create_task(self._connect())
        if self._deadline_check is None:
            self._check_deadlines()

    async def _connect(self) -> None:
        protocol = await self._connect_until_ready()
        protocol.on_error = self._on_error
        self._protocol = protocol
        self.last_problem = ""
        if self._data_lost is not None:
            self._data_lost = None
            _log.info("data set found", server=str(self.address), dataset=self._data_set.known)
        self._flush()

    async def _connect_until_ready(self) -> RespProtocol:
        """Connect with growing pauses until the server is ready.

        Ready means: authenticated, the database selected, the data set checked, all scripts
        loaded. Each attempt has a time limit, and a failed or cancelled one is closed.
        """
        pause = _RECONNECT_SECONDS_MIN
        while True:
            protocol = RespProtocol(on_lost=self._on_lost)
            try:
                async with asyncio.timeout(max(self._call_seconds_max, _CONNECT_SECONDS_LEAST)):
                    await protocol.open(self.address)
                    answers = await protocol.ask(self._data_set.questions(self.address))
                    self._data_set.check(self.address, answers)
                    await self._load_scripts(protocol)
                if not protocol.closing:
                    return protocol
                # The server closed it after its last reply and before this task continued.
                self._note_problem("the connection was lost")
            except StoreDataLostError as error:
                protocol.abort()
                self._refuse_calls(error)
            except (OSError, UnicodeError, StoreError) as error:
                protocol.abort()
                self._note_problem(str(error) or type(error).__name__)
            except BaseException:
                protocol.abort()
                raise
            # Random, so that processes that lost the same server do not reconnect all at once.
            await asyncio.sleep(pause * (0.5 + self._rng.random()))
            pause = min(pause * 2, _RECONNECT_SECONDS_MAX)

    async def _load_scripts(self, protocol: RespProtocol) -> None:
        """Load the scripts that the server lacks."""
        scripts = registered_scripts() if self._preload_scripts else []
        if not scripts:
            return
        shas = [each.shas[self._variant] for each in scripts]
        (known,) = await protocol.run([("SCRIPT", "EXISTS", *shas)])
        if not isinstance(known, list) or len(known) != len(scripts):
            raise StoreReplyError("the reply to SCRIPT EXISTS does not match the number of scripts")
        missing = [each for each, is_known in zip(scripts, known, strict=True) if not is_known]
        await protocol.run([("SCRIPT", "LOAD", each.sources[self._variant]) for each in missing])

    def _refuse_calls(self, error: StoreDataLostError) -> None:
        """End all unsent calls, and all later ones, until a connection passes the check."""
        if self._data_lost is None:
            _log.error("data set lost", server=str(self.address), reason=error.message)
        self._data_lost = error
        self.last_problem = error.message
        for call in self.take_unsent():
            end_unapplied(call, error)
        if self._router is not None:
            self._router.on_disconnect()

    def _note_problem(self, problem: str) -> None:
        self.last_problem = problem
        if self._router is not None:
            self._router.on_disconnect()

    # -- Deadlines ---------------------------------------------------------------------------

    def _check_deadlines(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        protocol = self._protocol
        if (
            protocol is not None
            and protocol.unanswered
            and now - protocol.heard_at > self._call_seconds_max
        ):
            _log.warning("store connection closed", reason="no reply", server=str(self.address))
            protocol.abort()
        if self._protocol is None:
            self._expire_unsent(now)
        self._deadline_check = loop.call_later(_DEADLINE_CHECK_SECONDS, self._check_deadlines)

    def _expire_unsent(self, now: float) -> None:
        kept: deque[Call] = deque()
        for call in self._unsent:
            if call.deadline >= now:
                kept.append(call)
                continue
            reason = (self.last_problem or "no connection").rstrip(".")
            error = StoreUnavailableError(f"The store at {self.address} is unavailable: {reason}.")
            end_unapplied(call, error)
        self._unsent = kept
