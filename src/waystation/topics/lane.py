"""What waits for one partition: messages of many callers, in the order in which they came."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

import msgspec

from waystation.config import Durability
from waystation.errors import WaystationError
from waystation.messages.envelope import Headers

#: A script call gets at most so much, so that it holds the store up for a moment only.
_CALL_MESSAGES_MAX = 500
_CALL_BYTES_MAX = 1_048_576


class Receipt(msgspec.Struct, frozen=True, kw_only=True, gc=False, rename={"ms": "time_ms"}):
    """Where a message is; as JSON it is what its producer is told."""

    id: str
    #: Index of the storage topic.
    storage: int
    partition: int
    offset: int
    ms: int
    #: Its id was known: this is where the first one is, and nothing was written.
    duplicate: bool = False
    #: What it survives.
    durability: Durability = "memory"


Result = Receipt | WaystationError


class Batch:
    """Messages that one caller waits for together."""

    def __init__(self, size: int) -> None:
        self._results: list[Result | None] = [None] * size
        self._missing = size
        #: Done when every message has its result.
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        #: Called then, whether or not the caller still waits.
        self.on_settled: Callable[[], None] = _nothing

    def set(self, position: int, result: Result) -> None:
        """Says what became of a message."""
        self._results[position] = result
        self._missing -= 1
        if not self._missing:
            # A caller that gave up has cancelled it.
            if not self.done.done():
                self.done.set_result(None)
            self.on_settled()

    def end(self, error: BaseException) -> None:
        """Says that nothing became of the whole batch, or that nobody can tell."""
        if not self.done.done():
            self.done.set_exception(error)
            # Nobody may ask for it: that is no reason for a warning.
            self.done.exception()
        self.on_settled()
        self.on_settled = _nothing

    def results(self) -> list[Result]:
        """All results, once it is done."""
        assert not self._missing
        return [result for result in self._results if result is not None]


class Routed(msgspec.Struct, frozen=True, gc=False):
    """A message on its way, to be routed by its hash."""

    batch: Batch
    #: Position in its batch.
    position: int
    id: str
    group: str | None
    headers: Headers
    hashed: int
    packed: bytes

    def settle(self, result: Result) -> None:
        """Says what became of it."""
        self.batch.set(self.position, result)


class Lane:
    """Messages that wait to be appended, one call after the other."""

    def __init__(self, *, bytes_max: int | None = None) -> None:
        self._messages: deque[Routed] = deque()
        #: What a partition keeps is also what one call may bring: more would never find room, or
        #: be over the limit by as much as came at once.
        self._call_bytes_max = min(_CALL_BYTES_MAX, bytes_max or _CALL_BYTES_MAX)
        #: How many of the next messages go by themselves, each caller's in a call of their own.
        self._apart = 0

    def __bool__(self) -> bool:
        return bool(self._messages)

    def add(self, message: Routed) -> None:
        """Adds a message at the end."""
        self._messages.append(message)

    def next_call(self) -> list[Routed]:
        """Takes the next messages out, as many as one call may have."""
        waiting = self._messages
        if not self._apart and len(waiting) <= _CALL_MESSAGES_MAX:
            sizes = [len(message.packed) for message in waiting]
            if sum(sizes) <= self._call_bytes_max:
                return self.empty()
        call = [waiting.popleft()]
        size = len(call[0].packed)
        caller = call[0].batch if self._apart else None
        while waiting and len(call) < _CALL_MESSAGES_MAX:
            following = waiting[0]
            size += len(following.packed)
            if size > self._call_bytes_max or (caller and following.batch is not caller):
                break
            call.append(waiting.popleft())
        self._apart = max(0, self._apart - len(call))
        return call

    def put_back(self, messages: list[Routed], *, apart: bool = False) -> None:
        """Puts messages back where they were, to go together or each caller's apart."""
        self._messages.extendleft(reversed(messages))
        self._apart = len(messages) if apart else 0

    def rest_of(self, callers: set[Batch]) -> list[Routed]:
        """Takes out what callers still have here, when something of theirs before it failed.

        Else it would be there before what they send again.
        """
        rest = [message for message in self._messages if message.batch in callers]
        if rest:
            self._messages = deque(each for each in self._messages if each.batch not in callers)
        return rest

    def empty(self) -> list[Routed]:
        """Takes everything out."""
        messages = list(self._messages)
        self._messages.clear()
        return messages


def callers_of(messages: Iterable[Routed]) -> set[Batch]:
    """Whose messages these are."""
    return {message.batch for message in messages}


def _nothing() -> None:
    pass
