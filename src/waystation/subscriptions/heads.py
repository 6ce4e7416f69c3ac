"""Heads: messages in retry, and dead letters that are redriven, whose time has come.

The store says what is due and when the next will be; what it gave is ours until it was settled or
given back. A group has one head on its way at a time: should a second one come, since the first was
skipped meanwhile, it waits for the first to end.
"""

from __future__ import annotations

from collections import deque

from waystation.errors import StoreError
from waystation.runtime.clock import Clock
from waystation.store.pubsub import RECHECK_S
from waystation.subscriptions.held import Head
from waystation.subscriptions.line import Line
from waystation.subscriptions.shard_store import ShardStore
from waystation.subscriptions.states import GroupState
from waystation.subscriptions.tenure import Tenure

#: Bytes of records after which no more is taken with one call.
_BYTES_MAX = 2 * 1_048_576
#: While something is due that this release cannot read, the store is asked this often.
_UNREADABLE_SECONDS = 1.0


class Heads:
    """What one owner of a shard has taken of what is due."""

    def __init__(self, store: ShardStore, tenure: Tenure, line: Line, *, clock: Clock) -> None:
        self._store = store
        self._tenure = tenure
        self._line = line
        self._clock = clock
        #: What can be attempted now.
        self.ready: deque[Head] = deque()
        #: Groups whose heads are here or on their way, with those that came after.
        self._groups: dict[str, deque[Head]] = {}
        #: All that the store has as taken by us.
        self._members: set[str] = set()
        #: Number of a call whose reply is owed to us; 0: none is.
        self._owed = 0
        #: When there is something to be asked for, by the clock's monotonic seconds.
        self.next_at = 0.0

    def __repr__(self) -> str:
        return f"<Heads [{len(self.ready)} ready of {len(self._members)} taken]>"

    @property
    def taken(self) -> list[str]:
        """What is to be given back if it cannot be settled."""
        return list(self._members)

    async def take(self, most: int) -> list[Head]:
        """Asks for what is due; what is to follow into dead letters is moved on the way.

        Asked again after an error, it gets what the first call took.
        """
        tenure = self._tenure
        self._owed = call = self._owed or tenure.next_call()
        # A hint comes by another way than the reply: what is expected from here on stays expected,
        # since the store may have answered before there was anything.
        self.next_at = float("inf")
        try:
            due = await self._store.due(
                tenure.place, tenure.terms, call=call, most=most, bytes_max=_BYTES_MAX
            )
        except BaseException:
            self.next_at = 0.0
            raise
        self._owed = 0
        tenure.told_due(due)
        now = self._clock.monotonic()
        self.expect(now + (due.next_ms / 1000 if due.next_ms >= 0 else RECHECK_S))
        heads = [head for head in due.heads if not head.follow]
        for head in heads:
            self.add(head)
        for head in due.heads:
            if head.follow and head.group:
                await self._follow(head)
            elif head.follow:
                # Its record cannot be read, so it stays due: others must not be asked for all day.
                self.next_at = max(self.next_at, now + _UNREADABLE_SECONDS)
        return heads

    async def _follow(self, head: Head) -> None:
        tenure = self._tenure
        try:
            while await self._store.follow(tenure.place, tenure.terms, head.group):
                pass
        except StoreError:
            self.expect(self._clock.monotonic())
            raise

    def expect(self, at: float) -> None:
        """Something will be due by then."""
        self.next_at = min(self.next_at, at)

    # -- What is here ------------------------------------------------------------------------

    def add(self, head: Head) -> None:
        """A head that was taken for us."""
        if head.member in self._members:
            return
        self._members.add(head.member)
        if head.group:
            behind = self._groups.get(head.group)
            if behind is not None:
                behind.append(head)
                return
            self._groups[head.group] = deque()
            self._line.head_begins(head.group)
        self.ready.append(head)

    def pop(self) -> Head:
        """The next head to be attempted; there is one if this is not empty."""
        return self.ready.popleft()

    def ended(self, head: Head, state: GroupState) -> None:
        """Continue the group of a head after its commit, which reported the group's state.

        If another head of the group was taken meanwhile, that one is next, and the messages of the
        group stay blocked even if the store reports the group as clean: an operator may have
        skipped the first head and purged the second one, which is attempted all the same.
        """
        self._members.discard(head.member)
        if not head.group:
            return
        if behind := self._groups[head.group]:
            self.ready.append(behind.popleft())
        else:
            del self._groups[head.group]
            self._line.head_ended(head.group, state)
