"""Turns: which message is carried next, a head or one of the topic.

Heads come first, but have half of the slots at most while others wait. What needs no attempt, since
it is not due yet or cannot be read, is settled on the way.
"""

from __future__ import annotations

import random
from collections import deque

from waystation.runtime.logging import logger
from waystation.subscriptions.errand import (
    Errand,
    head_errand,
    main_parcel,
    put_off,
    unreadable_head,
)
from waystation.subscriptions.heads import Heads
from waystation.subscriptions.held import Head
from waystation.subscriptions.ledger import Ledger
from waystation.subscriptions.line import Line
from waystation.subscriptions.reader import Reader
from waystation.subscriptions.states import Verdict
from waystation.subscriptions.tenure import Tenure
from waystation.subscriptions.window import Waiting

_log = logger("subscriptions")

#: A head that this release cannot read is looked at again after this.
_UNREADABLE_MS = 60_000


def is_redriven(head: Head) -> bool:
    """Return whether a head is a dead letter, which only a redrive or a skip makes due."""
    return head.member.startswith("d")


class Turns:
    """The order in which one owner of a shard attempts messages."""

    def __init__(
        self, tenure: Tenure, line: Line, heads: Heads, reader: Reader, ledger: Ledger
    ) -> None:
        self._tenure = tenure
        self._line = line
        self._heads = heads
        self._reader = reader
        self._ledger = ledger
        #: Dead letters that are redriven, and wait for the rate of their redrive.
        self.held: deque[Head] = deque()
        #: How many of them the present `take` may still take; None: all.
        self._redriven_max: int | None = None

    @property
    def has_heads(self) -> bool:
        """True if there are heads, also ones that are held."""
        return bool(self._heads.ready or self.held)

    @property
    def count(self) -> int:
        """About how many messages `take` would find."""
        return len(self._line.turns) + len(self._heads.ready) + len(self.held)

    def __bool__(self) -> bool:
        """Whether `take` may find something."""
        return bool(self._line.turns or self._heads.ready)

    @property
    def has_messages(self) -> bool:
        """True if there may be a message of the topic, whose group has no failure pending."""
        return bool(self._line.turns)

    def shuffle(self, rng: random.Random) -> None:
        """Let any group be the next, because many that fail may stand side by side."""
        if turns := self._line.turns:
            turns.rotate(-rng.randrange(len(turns)))

    def take(self, most: int, *, heads_max: int, redriven_max: int | None = None) -> list[Errand]:
        """Return the next messages, all of different groups.

        Of dead letters that are redriven at most `redriven_max`; the others are held.
        """
        self._release(len(self.held) if redriven_max is None else redriven_max)
        self._redriven_max = redriven_max
        found: list[Errand] = []
        while len(found) < most and (errand := self._next(heads_max)) is not None:
            found.append(errand)
            heads_max -= errand.head is not None
        return found

    def _release(self, count: int) -> None:
        released = [self.held.popleft() for _ in range(min(count, len(self.held)))]
        self._heads.ready.extendleft(reversed(released))

    def _holds(self, head: Head) -> bool:
        """Hold a dead letter that is redriven, if its rate permits no more now."""
        if self._redriven_max is None or not is_redriven(head):
            return False
        if self._redriven_max > 0:
            self._redriven_max -= 1
            return False
        self.held.append(head)
        return True

    def _next(self, heads_max: int) -> Errand | None:
        line, heads = self._line, self._heads
        while True:
            errand: Errand | None = None
            if heads.ready and (heads_max > 0 or not line.turns):
                head = heads.pop()
                errand = None if self._holds(head) else self._of_head(head)
            elif (waiting := line.take()) is not None:
                errand = self._of_main(waiting)
            elif not heads.ready:
                return None
            if errand is not None:
                return errand

    def _of_main(self, waiting: Waiting) -> Errand | None:
        message, tenure = waiting.envelope, self._tenure
        if message is None:
            if waiting.is_here:
                _log.error("a message cannot be read", at=waiting.member, problem=waiting.cause)
                self._ledger.bury(waiting)
                return None
            return Errand(waiting.group, waiting)
        if self._is_early(message.not_before_ms):
            self._ledger.push(waiting, Verdict.LATE)
            return None
        name, incarnation = tenure.place.subscription, tenure.terms.incarnation
        parcel = main_parcel(waiting, message, name, incarnation)
        return Errand(waiting.group, waiting, parcel=parcel)

    def _of_head(self, head: Head) -> Errand | None:
        place = self._tenure.place
        try:
            errand = head_errand(head, place.subscription, place.project)
        except ValueError as error:
            _log.error("a record cannot be read, and is put off", head=head.member, error=error)
            until_ms = round(self._tenure.store_ms()) + _UNREADABLE_MS
            self._ledger.settle_head(put_off(head, until_ms), head)
            return None
        if errand.parcel is None:
            self._ledger.settle_head(unreadable_head(errand), head)
            return None
        # It may have waited behind others for less than it was delayed.
        if self._is_early(not_before_ms := errand.parcel.message.not_before_ms):
            self._ledger.settle_head(put_off(head, not_before_ms), head)
            return None
        return errand

    def _is_early(self, not_before_ms: int) -> bool:
        return bool(not_before_ms) and not_before_ms > self._tenure.store_ms()

    # -- Bodies ------------------------------------------------------------------------------

    async def with_bodies(self, errands: list[Errand]) -> list[Errand]:
        """Reads bodies again that were let go of; without those that need no attempt after all."""
        ready: list[Errand] = []
        for errand in errands:
            again: Errand | None = errand
            if errand.parcel is None and errand.waiting is not None:
                there = await self.fetch(errand.waiting)
                again = self._of_main(errand.waiting) if there else None
            if again is not None:
                ready.append(again)
        return ready

    async def fetch(self, waiting: Waiting) -> bool:
        """Whether the body of one that was taken from the line is here; it is read if it is not."""
        while not waiting.is_here:
            if await self._tenure.patiently(lambda: self._reader.body(waiting)) is None:
                self._reader.vanish(waiting)
                self._line.vanished(waiting)
                return False
        return True
