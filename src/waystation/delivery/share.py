"""Fair share: how many attempts may be under way, in all and to one endpoint.

An endpoint begins with 8 slots. Each success earns it a fraction of another, up to 128. Signs of an
overload are 429, 502, 504, a time-out and a broken connection. They halve the slots, down to one, if
more than half of the attempts of a round show them, and more than half of the attempts of late. A round
are the attempts that were under way when it began. So groups that fail cost the others no slots while
most attempts succeed, and an endpoint that hangs is soon down to one slot.
"""

from __future__ import annotations

from waystation.delivery.request import Failure, Outcome
from waystation.delivery.schedule import THROTTLING

#: Slots of an endpoint that nothing is known of, and the most that it can earn.
_SLOTS_FIRST = 8.0
_SLOTS_MAX = 128.0
#: Failures that a receiver with too much to do causes; a wrong name or address is none of them.
_OVERLOADED = frozenset({Failure.BUSY, Failure.CONNECTION, Failure.TIMEOUT})
#: Weight of an attempt in the average of late. A small round is no proof: where four of ten attempts
#: fail, most attempts of a round of three often do. 44 failures in a row bring an average of 0 to half.
_WEIGHT = 1 / 64
#: Attempts under way in one process.
TOTAL_MAX = 1024


class Share:
    """The slots of one endpoint."""

    __slots__ = ("_average", "_ended", "_overloaded", "_round", "in_use", "slots")

    def __init__(self) -> None:
        self.slots = _SLOTS_FIRST
        self.in_use = 0
        #: Attempts of the round, how many of them have ended, and how many with an overload.
        self._round = self._ended = self._overloaded = 0
        #: Share of attempts with an overload of late. An endpoint that nothing is known of gets no
        #: credit: its first attempts decide alone.
        self._average = 1.0

    def __repr__(self) -> str:
        return f"<Share {self.in_use} of {self.slots:.1f}>"

    @property
    def free(self) -> int:
        """How many attempts may begin now."""
        free = int(self.slots) - self.in_use
        return free if free > 0 else 0

    def take(self, slots: int = 1) -> None:
        """So many attempts are about to begin."""
        self.in_use += slots

    def give_back_unused(self, slots: int) -> None:
        """So many attempts were not made after all."""
        self.in_use -= slots
        assert self.in_use >= 0, "gave back more than was taken"

    def give_back(self, outcome: Outcome) -> None:
        """Free the slot of an attempt that has ended; its outcome changes the number of slots."""
        under_way = self.in_use
        self.in_use -= 1
        assert under_way > 0, "gave back more than was taken"
        if self._ended == self._round:
            self._begin_round(under_way)
        elif under_way < self._round - self._ended:
            # Some attempts of the round were not made: the others decide.
            self._round = self._ended + under_way
        self._ended += 1
        if outcome.failure in _OVERLOADED or outcome.status in THROTTLING:
            self._overloaded += 1
            self._average += (1 - self._average) * _WEIGHT
            if self._overloaded * 2 > self._round and self._average > 1 / 2:
                self.slots = max(1.0, self.slots / 2)
                self._begin_round(self.in_use)
            return
        self._average -= self._average * _WEIGHT
        if outcome.succeeded and self.slots < _SLOTS_MAX:
            # Additive: one more slot after a round of all present ones.
            self.slots = min(_SLOTS_MAX, self.slots + 1 / self.slots)

    def _begin_round(self, attempts: int) -> None:
        self._round, self._ended, self._overloaded = attempts, 0, 0
