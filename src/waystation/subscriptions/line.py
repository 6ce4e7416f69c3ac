"""The line: whose turn it is. One message of a group is on its way at a time; groups take turns.

A group whose last commit left it anything but clean gets no request: its messages are to be pushed
behind those that wait in the store already. What is known of a group is kept while something of it
is in the window, and while a batch is being read whose look at groups may be older than that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from waystation.subscriptions.states import GroupState
from waystation.subscriptions.window import Waiting


class _Group:
    """The messages of one group that were read and not taken yet."""

    __slots__ = ("listed", "name", "on_way", "queue", "unclean")

    def __init__(self, name: str, *, unclean: bool) -> None:
        self.name = name
        self.queue: deque[Waiting] = deque()
        #: Messages that were taken and have not ended; one request, or several without any.
        self.on_way = 0
        self.unclean = unclean
        #: The queue that it stands in; it may be left over in the other one.
        self.listed: deque[Any] | None = None


class Line:
    """The messages of the topic that a shard has read, in the order of their turns."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}
        #: Groups that may have a request, and messages without a group: what `take` looks at.
        self.turns: deque[_Group | Waiting] = deque()
        #: Groups whose messages go behind.
        self._pushes: deque[_Group] = deque()
        #: Groups that have left while a batch is being read, and were not clean.
        self._left: set[str] = set()
        self._reading = False
        #: Groups whose heads are on their way.
        self._heads: set[str] = set()

    def __repr__(self) -> str:
        return f"<Line [{len(self._groups)} groups, {len(self.turns)} in line]>"

    @property
    def has_pushes(self) -> bool:
        """Whether `behind` may find something."""
        return bool(self._pushes)

    def is_known(self, group: str) -> bool:
        """Whether something of the group is in the window."""
        return group in self._groups

    # -- Coming ------------------------------------------------------------------------------

    def begin_read(self) -> None:
        """A batch is about to be read: what is learnt from now on is newer than what it tells."""
        self._reading = True

    def end_read(self) -> None:
        """All of the batch was added."""
        self._reading = False
        self._left.clear()

    def add(self, waiting: Waiting, *, unclean: bool) -> None:
        """A message that was read; `unclean` is what the store said of its group."""
        name = waiting.group
        if not name:
            self.turns.append(waiting)
            return
        group = self._groups.get(name)
        if group is None:
            unclean = unclean or name in self._left or name in self._heads
            group = self._groups[name] = _Group(name, unclean=unclean)
        group.queue.append(waiting)
        if group.listed is None and not group.on_way:
            self._list(group)

    # -- Going -------------------------------------------------------------------------------

    def take(self) -> Waiting | None:
        """The next message to be sent; its group is on its way from here on."""
        turns = self.turns
        while turns:
            entry = turns.popleft()
            if isinstance(entry, Waiting):
                return entry
            if entry.listed is not turns:
                continue
            entry.listed = None
            entry.on_way = 1
            return entry.queue.popleft()
        return None

    def behind(self, most: int) -> list[Waiting]:
        """Messages to be pushed without a request, those of one group in their order."""
        found: list[Waiting] = []
        while self._pushes and len(found) < most:
            group = self._pushes.popleft()
            if group.listed is not self._pushes:
                continue
            group.listed = None
            while group.queue and len(found) < most:
                found.append(group.queue.popleft())
                group.on_way += 1
        return found

    def put_back(self, waiting: Waiting) -> None:
        """One that was taken was not attempted after all: it is the next of its group."""
        if not waiting.group:
            self.turns.appendleft(waiting)
            return
        group = self._groups[waiting.group]
        group.queue.appendleft(waiting)
        group.on_way -= 1
        if not group.on_way:
            self._list(group, first=True)

    def ended(self, name: str, state: GroupState) -> None:
        """What the commit of a message that was taken said of its group."""
        if not name:
            return
        group = self._groups[name]
        group.unclean = state is not GroupState.CLEAN
        self._leave(group)

    def vanished(self, waiting: Waiting) -> None:
        """One that was taken is not there any more; its group is as it was."""
        if waiting.group:
            self._leave(self._groups[waiting.group])

    # -- Heads -------------------------------------------------------------------------------

    def head_begins(self, name: str) -> None:
        """Block a group: its messages go behind until the last of its heads has ended."""
        self._heads.add(name)
        group = self._groups.get(name)
        if group is not None and group.listed is not None:
            self._list(group)

    def head_ended(self, name: str, state: GroupState) -> None:
        """Adopt the state of a group from the commit of its head. No other head is here."""
        self._heads.discard(name)
        group = self._groups.get(name)
        if group is not None:
            group.unclean = state is not GroupState.CLEAN
            if group.listed is not None:
                self._list(group)

    # -- Room --------------------------------------------------------------------------------

    def stuck(self) -> Iterator[Waiting]:
        """Messages that wait for another of their group, the last first."""
        for group in self._groups.values():
            if group.on_way or group.unclean or group.name in self._heads:
                yield from reversed(group.queue)

    def _list(self, group: _Group, *, first: bool = False) -> None:
        # A clean group may have a head in flight that was skipped, or a taken one that was purged.
        is_blocked = group.unclean or group.name in self._heads
        wanted: deque[Any] = self._pushes if is_blocked else self.turns
        if group.listed is wanted:
            return
        group.listed = wanted
        if first:
            wanted.appendleft(group)
        else:
            wanted.append(group)

    def _leave(self, group: _Group) -> None:
        group.on_way -= 1
        if group.on_way:
            return
        if group.queue:
            self._list(group)
            return
        del self._groups[group.name]
        if self._reading and group.unclean:
            self._left.add(group.name)
