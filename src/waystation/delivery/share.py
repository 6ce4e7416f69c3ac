"""Fair share: how many attempts may be under way, in all and to one endpoint.

An endpoint begins with 8 slots. With each round of successes it earns one more, up to 128. A round
consists of the attempts that were under way when it began. An overload of the endpoint halves its
slots, down to one. Signs of an overload are 429, 502 and 504, and attempts without a reply:
time-outs and broken connections. They count against the endpoint, not against some groups, if more
than half of the attempts of a round show them, and more than half of the attempts of late. So an
endpoint that hangs is soon down to one slot, and groups that fail cost the others no slots.
"""

from __future__ import annotations

from waystation.delivery.request import Failure, Outcome
from waystation.delivery.schedule import THROTTLING

#: Slots of an endpoint that nothing is known of, and the most that it can earn.
_SLOTS_FIRST = 8.0
_SLOTS_MAX = 128.0
#: Failures to get a reply. A wrong name or address is no sign of an overload.
_UNANSWERED = frozenset({Failure.CONNECTION, Failure.TIMEOUT})
#: Weight of an attempt in the averages of late. Groups that share a defect fail one after another,
#: and most attempts of a small round fail by chance. So 177 replies in a row that show an overload
#: bring an average of 0 to one half; 44 attempts without a reply do so, because each took long.
_ANSWERED_WEIGHT = 1 / 256
_UNANSWERED_WEIGHT = 1 / 64
#: Attempts under way in one process.
TOTAL_MAX = 1024


class Share:
    """The slots of one endpoint."""

    __slots__ = ("_ended", "_overloaded", "_round", "_throttled", "_unanswered", "in_use", "slots")

    def __init__(self) -> None:
        self.slots = _SLOTS_FIRST
        self.in_use = 0
        #: Attempts of the round, those of them that have ended, those that showed an overload.
        self._round = self._ended = self._overloaded = 0
        #: Averages of late: the shares of attempts with an overload, and of those without a reply.
        #: At one half, the first attempts decide alone.
        self._throttled = self._unanswered = 1 / 2

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
        if outcome.failure in _UNANSWERED:
            self._unanswered += (1 - self._unanswered) * _UNANSWERED_WEIGHT
            self._note_overload()
            return
        self._unanswered -= self._unanswered * _UNANSWERED_WEIGHT
        if outcome.failure is Failure.BUSY or outcome.status in THROTTLING:
            self._note_overload()
            return
        self._throttled -= self._throttled * _ANSWERED_WEIGHT
        if outcome.succeeded and self.slots < _SLOTS_MAX:
            # Up to the first slots, each success earns a whole one; then a round of all slots does.
            earned = 1.0 if self.slots < _SLOTS_FIRST else 1 / self.slots
            self.slots = min(_SLOTS_MAX, self.slots + earned)

    def _note_overload(self) -> None:
        self._throttled += (1 - self._throttled) * _ANSWERED_WEIGHT
        self._overloaded += 1
        of_late = max(self._throttled, self._unanswered)
        if self._overloaded * 2 > self._round and of_late > 1 / 2:
            self.slots = max(1.0, self.slots / 2)
            self._begin_round(self.in_use)

    def _begin_round(self, attempts: int) -> None:
        self._round, self._ended, self._overloaded = attempts, 0, 0
