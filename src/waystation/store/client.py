"""The store client: concurrent callers share round trips.

All calls made in one turn of the event loop leave in one write. Its contract, tested in
`tests/store/test_client.py` and told in `docs/internals/store-client.md`:

- Order: calls reach the store in the order they were made, whoever made them. One that has to be
  sent again comes behind those that were sent meanwhile.
- Cancellation: a call cancelled before its turn ends is never sent; later, its reply is dropped
  and its outcome is unknown to the caller, who gave it up.
- Errors are per call: one caller's error never reaches another.
- NOSCRIPT: the script is sent whole, once; it had not run.
- LOADING and BUSY: the call had not run; it is sent again until its deadline.
- A lost connection: calls not yet sent wait for the next one; a sent call without a reply is sent
  again, within its deadline, if it is repeatable, else it ends with OutcomeUnknownError.
- Deadline: a call that could not be sent in time ends with StoreUnavailableError (it did not
  run). A store that owes replies and is silent for that long costs the connection.
- StoreUnavailableError and StoreFullError promise that the call was not applied; a call that may
  have run before its reply was lost never ends with them.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from waystation.errors import (
    BusyError,
    OutcomeUnknownError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
)
from waystation.store.address import Address
from waystation.store.connecting import connect
from waystation.store.connection import (
    Call,
    Connection,
    Reply,
    end,
    end_unapplied,
    end_with_reply,
)
from waystation.store.replies import Meaning, meaning
from waystation.store.scripts import Script
from waystation.store.wire import pack
from waystation.telemetry import metrics
from waystation.telemetry.logging import logger

_log = logger("store")

#: How often deadlines are looked at; one timer for all calls, a timer each would cost 5 µs.
_WATCH_SECONDS = 0.25
#: Pause before a call is sent again to a store that is loading or busy.
_BUSY_PAUSE_SECONDS = 0.05
#: Calls of one process on their way; more is a sign that the store does not keep up.
CALLS_MAX = 50_000


class Store:
    """A connection to the store that all coroutines of one event loop share."""

    def __init__(
        self,
        address: Address,
        *,
        call_seconds_max: float = 5.0,
        test_mode: bool = False,
        rng: random.Random | None = None,
    ) -> None:
        self.address = address
        self.test_mode = test_mode
        self._call_seconds_max = call_seconds_max
        self._rng = rng or random.Random()
        # The mutable state: the connection in use, the calls that wait for it, those that a loading
        # or busy store sent back, and three marks.
        self._connection: Connection | None = None
        self._waiting: deque[Call] = deque()
        self._paused: list[tuple[Call, str]] = []
        self._flush_due = False
        self._closed = False
        self._last_problem = ""
        self._connector: asyncio.Task[None] | None = None
        self._watch: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        state = "closed" if self._closed else "connected" if self.connected else "connecting"
        sent = len(self._connection.unanswered) if self._connection else 0
        return f"<Store {self.address} [{state}, {len(self._waiting)} waiting, {sent} sent]>"

    @property
    def connected(self) -> bool:
        """Whether there is a connection right now."""
        return self._connection is not None

    @property
    def last_problem(self) -> str:
        """Why the last attempt to connect failed; empty when connected."""
        return self._last_problem

    # -- Calling -----------------------------------------------------------------------------

    def call(
        self, *command: str | bytes | int | float, repeatable: bool = False
    ) -> asyncio.Future[Reply]:
        """Sends one command. Say `repeatable` only if running it twice does no harm."""
        return self._submit(pack(command), repeatable=repeatable)

    def run(
        self, script: Script, keys: Sequence[str | bytes], arguments: Sequence[str | bytes | int]
    ) -> asyncio.Future[Reply]:
        """Runs a script."""
        rest = (len(keys), *keys, *arguments)
        packed = pack((b"EVALSHA", script.shas[self.test_mode], *rest))
        return self._submit(packed, repeatable=script.repeatable, script=script, arguments=rest)

    async def pipeline(
        self, commands: Iterable[Sequence[str | bytes | int | float]], *, repeatable: bool = False
    ) -> list[Reply | StoreError]:
        """Sends commands in one write; an error stands in the place of its reply.

        Scripts in a pipeline are `run` calls gathered by the caller: a command list cannot heal
        NOSCRIPT, `run` does.
        """
        calls = [self.call(*command, repeatable=repeatable) for command in commands]
        replies = await asyncio.gather(*calls, return_exceptions=True)
        for reply in replies:
            if isinstance(reply, BaseException) and not isinstance(reply, StoreError):
                raise reply
        return replies

    async def ping(self) -> None:
        """One round trip, or an error."""
        await self.call("PING", repeatable=True)

    # -- Life --------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Connects now, so that a wrong address is noticed at start."""
        await self.ping()

    async def close(self) -> None:
        """Ends every call that has no reply, and the connection."""
        if self._closed:
            return
        self._closed = True
        for call in (*self._waiting, *(call for call, _ in self._paused)):
            end_unapplied(call, _closed())
        self._waiting.clear()
        self._paused.clear()
        if self._watch is not None:
            self._watch.cancel()
        if self._connector is not None:
            self._connector.cancel()
            await asyncio.gather(self._connector, return_exceptions=True)
        if self._connection is not None:
            self._connection.abort()
            # The transport reports its end, and the sent calls theirs, in the next turn.
            await asyncio.sleep(0)

    # -- The machinery -----------------------------------------------------------------------

    def _submit(
        self,
        packed: bytes,
        *,
        repeatable: bool,
        script: Script | None = None,
        arguments: tuple[Any, ...] = (),
    ) -> asyncio.Future[Reply]:
        loop = asyncio.get_running_loop()
        if self._closed:
            raise _closed()
        sent = len(self._connection.unanswered) if self._connection is not None else 0
        if len(self._waiting) + sent >= CALLS_MAX:
            raise BusyError("Too many calls wait for the store.")
        future: asyncio.Future[Reply] = loop.create_future()
        deadline = loop.time() + self._call_seconds_max
        self._enqueue(
            Call(
                packed, future, deadline, repeatable=repeatable, script=script, arguments=arguments
            )
        )
        return future

    def _enqueue(self, call: Call) -> None:
        if self._closed:
            end_unapplied(call, _closed())
            return
        self._waiting.append(call)
        if self._flush_due:
            return
        if self._connection is not None:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)
        else:
            self._start_connecting()

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
        match meaning(reply):
            case Meaning.NO_SCRIPT if call.script is not None:
                # EVAL runs it and loads it, so this happens once per flush of the script cache.
                source = call.script.sources[self.test_mode]
                call.packed = pack((b"EVAL", source, *call.arguments))
                self._enqueue(call)
            case Meaning.NOT_NOW:
                if not self._paused:
                    asyncio.get_running_loop().call_later(_BUSY_PAUSE_SECONDS, self._send_paused)
                self._paused.append((call, reply))
            case Meaning.UNAVAILABLE:
                end_unapplied(call, StoreUnavailableError(f"The store answered: {reply}"))
            case Meaning.READ_ONLY:
                end_unapplied(call, StoreUnavailableError(f"The store answered: {reply}"))
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
                end_unapplied(call, StoreUnavailableError(f"The store answered: {reply}"))
            elif not call.future.done():
                self._enqueue(call)

    def _on_lost(self, connection: Connection, lost: list[Call]) -> None:
        if connection is self._connection:
            self._connection = None
            self._last_problem = "the connection was lost"
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

    # -- Connecting --------------------------------------------------------------------------

    def _start_connecting(self) -> None:
        if self._connector is None or self._connector.done():
            self._connector = asyncio.get_running_loop().create_task(self._connect())
        if self._watch is None:
            self._look_at_deadlines()

    async def _connect(self) -> None:
        connection = await connect(
            self.address,
            test_mode=self.test_mode,
            attempt_seconds_max=self._call_seconds_max,
            on_lost=self._on_lost,
            on_problem=self._note_problem,
            rng=self._rng,
        )
        connection.on_error = self._on_error
        self._connection = connection
        self._last_problem = ""
        self._flush()

    def _note_problem(self, problem: str) -> None:
        self._last_problem = problem

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
            reason = (self._last_problem or "no connection").rstrip(".")
            away = StoreUnavailableError(f"The store at {self.address} is away: {reason}.")
            end_unapplied(call, away)
        self._waiting = kept


def _closed() -> StoreUnavailableError:
    return StoreUnavailableError("The store client was closed.")
