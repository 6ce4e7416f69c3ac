"""The window of a partition: what was read of it and is not acknowledged yet.

Bodies may be let go of while a message waits; its place stays. What is below `low` is acknowledged,
as the store has it.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from waystation.messages.envelope import Envelope
from waystation.subscriptions.positions import Position, at_of


class Waiting(msgspec.Struct, eq=False, repr_omit_defaults=True):
    """A message of the topic that has been read and is not acknowledged."""

    window: Window
    offset: int
    #: Empty: it keeps no order.
    group: str
    #: None while its body is not here; and for one that cannot be read.
    envelope: Envelope | None
    #: Bytes that it was stored in.
    size: int
    #: Of one that cannot be read: what was stored, and why not.
    raw: bytes = b""
    cause: str = ""

    @property
    def member(self) -> str:
        """What the sets of the shard call it."""
        return f"m{self.window.at}.{self.offset}"

    @property
    def is_here(self) -> bool:
        """Whether all that was stored of it is in memory."""
        return self.envelope is not None or bool(self.cause)

    def position(self, incarnation: int) -> Position:
        """Where it is in its topic."""
        window = self.window
        return Position(incarnation, window.storage, window.partition, self.offset)


class Window:
    """What a shard has read of one partition."""

    __slots__ = (
        "acked",
        "at",
        "behind",
        "held",
        "holes",
        "low",
        "next",
        "partition",
        "sealed_end",
        "storage",
        "trimmed_to",
        "waiting",
    )

    def __init__(self, storage: int, partition: int, low: int, acks: Iterable[int] = ()) -> None:
        self.storage = storage
        self.partition = partition
        self.at = at_of(storage, partition)
        #: All below is acknowledged; and what is acknowledged above it.
        self.low = low
        self.acked = set(acks)
        #: What is read next.
        self.next = low
        self.waiting: dict[int, Waiting] = {}
        #: Whether there may be more to read.
        self.behind = True
        #: Where it ends, once it takes nothing more.
        self.sealed_end: int | None = None
        #: What the topic was told last that is still needed.
        self.held: int | None = None
        #: All below is gone, delivered or not; 0: nothing that we know of.
        self.trimmed_to = 0
        #: Ranges that are missing from the log, from an offset up to another, until low has passed
        #: them.
        self.holes: list[tuple[int, int]] = []

    def __repr__(self) -> str:
        return f"<Window {self.at} {self.low}…{self.next}, {len(self.waiting)} waiting>"

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left of it, and nothing will come."""
        return self.sealed_end is not None and self.low >= self.sealed_end

    def acknowledge(self, offset: int) -> None:
        """A message was settled, or is in retry or among dead letters."""
        if self.waiting.pop(offset, None) is None:
            return
        if offset != self.low:
            self.acked.add(offset)
            return
        self._join(offset + 1)

    def skip(self) -> None:
        """Goes on behind what a former owner acknowledged; it is not even read."""
        while self.next in self.acked:
            self.next += 1

    def pass_to(self, offset: int) -> None:
        """All below was acknowledged at once."""
        self.acked = {each for each in self.acked if each >= offset}
        self._join(max(self.low, offset))

    def note_hole(self, start: int, end: int) -> bool:
        """Go on reading behind a range that is missing; whether it was not known yet."""
        self.next = max(self.next, end)
        known = any(first <= start and end <= last for first, last in self.holes)
        if not known:
            self.holes.append((start, end))
        return not known

    def hole_at_low(self) -> int | None:
        """Return the end of a missing range that begins at low; None if there is none.

        It ends before a message that was read while it was still there: that one has its own end.
        """
        self.holes = [each for each in self.holes if each[1] > self.low]
        end = max((end for start, end in self.holes if start <= self.low), default=self.low)
        end = min([end, *(offset for offset in self.waiting if offset >= self.low)])
        return end if end > self.low else None

    def _join(self, low: int) -> None:
        acked = self.acked
        while low in acked:
            acked.remove(low)
            low += 1
        self.low = low
        # What a former owner acknowledged is joined before it was read.
        self.next = max(self.next, low)
