"""The writer of one server: its connection, and the calls that wait for it or for their replies.

All calls made in one turn of the event loop leave in one write. What happens to a call that meets
an error, a lost connection or its deadline is the contract of the client: see `client.py`.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from typing import Protocol

from waystation.errors import (
    BusyError,
    OutcomeUnknownError,
    StoreDataLostError,
    StoreFullError,
    StoreUnavailableError,
)
from waystation.runtime.logging import logger
from waystation.store.address import Address
from waystation.store.connecting import connect
from waystation.store.connection import Call, Connection, end, end_unapplied, end_with_reply
from waystation.store.data_set import DataSet
from waystation.store.replies import Meaning, meaning
from waystation.store.wire import pack
from waystation.telemetry import metrics

_log = logger("store")

#: An attempt brings all scripts along, over a megabyte: whoever may take less time for that than
#: a busy machine needs would begin again for ever.
_CONNECT_SECONDS_LEAST = 2.0
#: How often deadlines are looked at; one timer for all calls, a timer each would cost 5 µs.
_WATCH_SECONDS = 0.25
#: Pause before a call is sent again to a store that is loading or busy.
BUSY_PAUSE_SECONDS = 0.05
#: Calls of one process on their way to a server; more is a sign that it does not keep up.
CALLS_MAX = 50_000


class Owner(Protocol):
    """Who has several writers and knows where else a call can go."""

    def elsewhere(self, writer: Writer, call: Call, reply: str) -> bool:
        """Takes over a call that got an error; false: the error is for the writer to handle."""

    def troubled(self) -> None:
        """A server was lost, or cannot be reached."""


class Writer:
    """Sends calls to one server, in order."""

    def __init__(
        self,
        address: Address,
        *,
        variant: int,
        call_seconds_max: float,
        rng: random.Random,
        data_set: DataSet,
        owner: Owner | None = None,
    ) -> None:
        self.address = address
        self._data_set = data_set
        self._variant = variant
        self._call_seconds_max = call_seconds_max
        self._rng = rng
        self._owner = owner
        # The mutable state: the connection in use, the calls that wait for it, those that a loading
        # or busy store sent back, the reason why the server is refused, and three marks.
        self._connection: Connection | None = None
        self._waiting: deque[Call] = deque()
        self._paused: list[tuple[Call, str]] = []
        self._data_lost: StoreDataLostError | None = None
        self._flush_due = False
        self._closed = False
        self.last_problem = ""
        self._connector: asyncio.Task[None] | None = None
        self._watch: asyncio.TimerHandle | None = None

    @property
    def connected(self) -> bool:
        """Whether there is a connection right now."""
        return self._connection is not None

    @property
    def waiting(self) -> int:
        """Calls that were not sent yet."""
        return len(self._waiting)

    @property
    def sent(self) -> int:
        """Calls that have no reply yet."""
        return len(self._connection.unanswered) if self._connection is not None else 0

    # -- Calling -----------------------------------------------------------------------------

    def submit(self, call: Call) -> None:
        """Sends a call with the others of this turn; BusyError when too many are on their way."""
        connection, waiting = self._connection, self._waiting
        if connection is None:
            self._submit_unconnected(call)
            return
        if len(waiting) + len(connection.unanswered) >= CALLS_MAX:
            raise too_busy()
        waiting.append(call)
        if not self._flush_due:
            self._flush_due = True
            call.future.get_loop().call_soon(self._flush)

    def _submit_unconnected(self, call: Call) -> None:
        if self._closed:
            raise closed()
        if len(self._waiting) >= CALLS_MAX:
            raise too_busy()
        self.again(call)

    def again(self, *calls: Call) -> None:
        """Sends calls that were accepted before; together, with nothing between them."""
        if self._closed:
            for call in calls:
                end_unapplied(call, closed())
            return
        if self._data_lost is not None:
            # The connector goes on asking; until the server has the data set, nothing is sent.
            for call in calls:
                end_unapplied(call, self._data_lost)
            return
        self._waiting.extend(calls)
        if self._flush_due:
            return
        if self._connection is not None:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)
        else:
            self._start_connecting()

    def give_up(self) -> list[Call]:
        """Takes back what was not sent, in order, so that another can send it."""
        calls = [*self._waiting, *(call for call, _ in self._paused)]
        self._waiting.clear()
        self._paused.clear()
        return calls

    def drop_connection(self) -> None:
        """Drop the connection; the next one is checked before a call is sent."""
        if self._connection is not None:
            self._connection.abort()
            if not self._closed:
                self._start_connecting()

    async def close(self) -> None:
        """Ends every call that has no reply, and the connection."""
        if self._closed:
            return
        self._data_set.forget(self.address)
        self._closed = True
        for call in self.give_up():
            end_unapplied(call, closed())
        if self._watch is not None:
            self._watch.cancel()
        if self._connector is not None:
            self._connector.cancel()
            await asyncio.gather(self._connector, return_exceptions=True)
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()
            # The transport reports its end, and the sent calls theirs, in the next turn.
            await asyncio.sleep(0)

    # -- The machinery -----------------------------------------------------------------------

    def _flush(self) -> None:
        """Writes what this turn has gathered, less what was cancelled meanwhile."""
        self._flush_due = False
        if self._connection is None or self._connection.closing or not self._waiting:
            # On a closing connection nothing would be sent; its end is reported in a moment, and
            # what waits then goes to the next one.
            return
        calls = [call for call in self._waiting if not call.future.done()]
        self._waiting.clear()
        if calls:
            metrics.store_writes.inc()
            metrics.store_calls.inc(len(calls))
            self._connection.write(calls)

    def _on_error(self, call: Call, reply: str) -> None:
        if self._owner is not None and self._owner.elsewhere(self, call, reply):
            return
        match meaning(reply):
            case Meaning.NO_SCRIPT if call.script is not None:
                # EVAL runs it and loads it, so this happens once per flush of the script cache.
                source = call.script.sources[self._variant]
                call.packed = pack((b"EVAL", source, *call.arguments))
                self.again(call)
            case Meaning.NOT_NOW:
                if not self._paused:
                    asyncio.get_running_loop().call_later(BUSY_PAUSE_SECONDS, self._send_paused)
                self._paused.append((call, reply))
            case Meaning.UNAVAILABLE:
                end_unapplied(call, refused(reply))
            case Meaning.READ_ONLY:
                end_unapplied(call, refused(reply))
                if self._connection is not None:
                    self._connection.abort()
            case Meaning.FULL:
                end_unapplied(call, StoreFullError(f"The store answered: {reply}"))
            case _:
                end_with_reply(call, reply)

    def _send_paused(self) -> None:
        paused, self._paused = self._paused, []
        now = asyncio.get_running_loop().time()
        for call, reply in paused:
            if now > call.deadline:
                end_unapplied(call, refused(reply))
            elif not call.future.done():
                self.again(call)

    def _on_lost(self, connection: Connection, lost: list[Call]) -> None:
        if connection is self._connection:
            self._connection = None
            self.last_problem = "the connection was lost"
            if not self._closed:
                metrics.store_reconnects.inc()
                _log.warning("store connection lost", unanswered=len(lost))
        now = asyncio.get_running_loop().time()
        again = []
        for call in lost:
            if call.repeatable and not self._closed and now <= call.deadline:
                call.maybe_ran = True
                again.append(call)
            else:
                end(call, OutcomeUnknownError("The connection to the store died before its reply."))
        # In front and in order: what was sent first is sent first again.
        self._waiting.extendleft(reversed(again))
        if self._waiting and not self._closed:
            self._start_connecting()
            if self._owner is not None:
                self._owner.troubled()

    # -- Connecting --------------------------------------------------------------------------

    def _start_connecting(self) -> None:
        if self._connector is None or self._connector.done():
            self._connector = asyncio.get_running_loop().create_task(self._connect())
        if self._watch is None:
            self._look_at_deadlines()

    async def _connect(self) -> None:
        connection = await connect(
            self.address,
            variant=self._variant,
            attempt_seconds_max=max(self._call_seconds_max, _CONNECT_SECONDS_LEAST),
            on_lost=self._on_lost,
            on_problem=self._note_problem,
            data_set=self._data_set,
            on_data_lost=self._refuse_calls,
            rng=self._rng,
        )
        connection.on_error = self._on_error
        self._connection = connection
        self.last_problem = ""
        if self._data_lost is not None:
            self._data_lost = None
            _log.info("data set found", server=str(self.address), dataset=self._data_set.known)
        self._flush()

    def _refuse_calls(self, error: StoreDataLostError) -> None:
        """End all calls that wait, and those to come, until a connection passes the check."""
        if self._data_lost is None:
            _log.error("data set lost", server=str(self.address), problem=error.message)
        self._data_lost = error
        self.last_problem = error.message
        for call in self.give_up():
            end_unapplied(call, error)
        if self._owner is not None:
            self._owner.troubled()

    def _note_problem(self, problem: str) -> None:
        self.last_problem = problem
        if self._owner is not None:
            self._owner.troubled()

    def _look_at_deadlines(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        connection = self._connection
        if (
            connection is not None
            and connection.unanswered
            and now - connection.heard_at > self._call_seconds_max
        ):
            _log.warning("store does not answer, dropping the connection")
            connection.abort()
        if self._connection is None:
            self._expire_waiting(now)
        self._watch = loop.call_later(_WATCH_SECONDS, self._look_at_deadlines)

    def _expire_waiting(self, now: float) -> None:
        kept: deque[Call] = deque()
        for call in self._waiting:
            if call.deadline >= now:
                kept.append(call)
                continue
            reason = (self.last_problem or "no connection").rstrip(".")
            away = StoreUnavailableError(f"The store at {self.address} is away: {reason}.")
            end_unapplied(call, away)
        self._waiting = kept


def closed() -> StoreUnavailableError:
    """The end of a call to a client that was closed."""
    return StoreUnavailableError("The store client was closed.")


def refused(reply: str) -> StoreUnavailableError:
    """The end of a call that a server did not run, in its words."""
    return StoreUnavailableError(f"The store answered: {reply}")


def too_busy() -> BusyError:
    """The end of a call that was not even accepted."""
    return BusyError("Too many calls wait for the store.")
