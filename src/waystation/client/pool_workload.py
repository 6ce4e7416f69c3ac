"""What a pool's worker has: taken and not begun, with a handler, finished, being settled.

Plain bookkeeping without waits; whoever uses it holds a lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

from waystation.client.pool_messages import PoolMessage, Taken


class Finished(NamedTuple):
    """A message, and what becomes of it."""

    taken: Taken
    verdict: Literal["done", "again", "dead", "release"]
    cause: str = ""
    #: Before it is tried again; None: as the pool says.
    wait_seconds: float | None = None

    @property
    def nack(self) -> dict[str, Any]:
        """As it is given back."""
        told: dict[str, Any] = {**self.taken.receipt, "verdict": self.verdict}
        return {**told, "cause": self.cause, "wait_seconds": self.wait_seconds}


class Workload:
    """The messages of one worker."""

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._queue: deque[Taken] = deque()
        #: What is with a handler; of a key that was lost and came back there may be two.
        self._begun: list[tuple[Taken, PoolMessage]] = []
        #: What has crashed a worker before: it waits until it is alone, and nothing begins then.
        self._suspect: Taken | None = None
        self._finished: deque[Finished] = deque()
        self._settling: list[Finished] = []
        #: Whether nothing is begun any more.
        self.closed = False

    @property
    def room(self) -> int:
        """How many more could be taken."""
        if self._suspect is not None:
            return 0
        return self._concurrency - len(self._queue) - len(self._begun) - self.unsettled

    @property
    def unsettled(self) -> int:
        """What is finished, and the pool does not know it yet."""
        return len(self._finished) + len(self._settling)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is begun, and the pool knows of all that was."""
        return not self._begun and not self.unsettled

    @property
    def wants_more(self) -> bool:
        """Whether the next messages of keys are welcome."""
        return self._suspect is None and not self.closed

    @property
    def hands(self) -> int:
        """How many could be at work."""
        wanted = len(self._queue) + len(self._begun) + (self._suspect is not None)
        return min(wanted, self._concurrency)

    @property
    def held(self) -> list[Taken]:
        """Everything that the pool thinks is with this worker."""
        found = [taken for taken, _ in self._begun]
        found += [*self._queue, *(each.taken for each in (*self._finished, *self._settling))]
        if self._suspect is not None and not any(each is self._suspect for each in found):
            found.append(self._suspect)
        return found

    def add(self, items: Iterable[Taken]) -> None:
        """Messages that came; what cannot be begun now is given back."""
        for each in items:
            if self.closed or self._suspect is not None:
                self._give_back([each])
            elif each.crashes:
                self._suspect = each
                self._give_back(self._queue)
                self._queue.clear()
            else:
                self._queue.append(each)

    def next(self) -> Taken | None:
        """What can be begun now: never two of a key, and a suspect alone."""
        if self.closed:
            return None
        if self._suspect is not None:
            return self._suspect if self.is_idle else None
        busy = {taken.key for taken, _ in self._begun}
        return next((each for each in self._queue if each.key not in busy), None)

    def begin(self, taken: Taken, message: PoolMessage) -> None:
        """A handler has it."""
        if taken is not self._suspect:
            self._queue.remove(taken)
        self._begun.append((taken, message))

    def finish(self, finished: Finished) -> None:
        """A handler has ended."""
        self._begun = [each for each in self._begun if each[0] is not finished.taken]
        self._finished.append(finished)
        if self._suspect is finished.taken:
            self._suspect = None

    def settle(self, most: int) -> list[Finished]:
        """What the pool is to be told now."""
        count = min(len(self._finished), most)
        self._settling = [self._finished.popleft() for _ in range(count)]
        return self._settling

    def settled(self) -> None:
        """The pool knows it."""
        self._settling = []

    def close(self) -> None:
        """Gives back what is not begun; nothing is from now on."""
        self.closed = True
        begun = any(taken is self._suspect for taken, _ in self._begun)
        if self._suspect is not None and not begun:
            self._give_back([self._suspect])
        self._give_back(self._queue)
        self._queue.clear()
        self._suspect = None

    def lose(self) -> None:
        """Another has everything by now; handlers that look see it."""
        self._queue.clear()
        self._suspect = None
        for _, message in self._begun:
            message.lost = True

    def mark_lost(self, lost: Iterable[Taken]) -> None:
        """Another has these by now."""
        gone = {(each.key, each.number, each.token) for each in lost}
        for taken, message in self._begun:
            message.lost |= (taken.key, taken.number, taken.token) in gone

    def _give_back(self, items: Iterable[Taken]) -> None:
        self._finished.extend(Finished(each, "release") for each in items)
