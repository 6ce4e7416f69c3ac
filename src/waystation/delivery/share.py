"""Fair share: how many attempts may be under way, in all and to one endpoint.

An endpoint begins with a few slots. Each success earns it a fraction of another; a sign of overload
(429, 502, 504, a time-out, a broken connection) halves them, down to one. So an endpoint that hangs
soon holds a single slot, and costs the others nothing but that.
"""

from __future__ import annotations

from waystation.delivery.request import Failure, Outcome
from waystation.delivery.schedule import THROTTLING

#: Slots of an endpoint that nothing is known of, and the most that it can earn.
_SLOTS_FIRST = 8.0
_SLOTS_MAX = 128.0
#: Failures that a receiver with too much to do causes; a wrong name or address is none of them.
_OVERLOADED = frozenset({Failure.BUSY, Failure.CONNECTION, Failure.TIMEOUT})
#: Attempts under way in one process.
TOTAL_MAX = 1024


class Share:
    """The slots of one endpoint."""

    __slots__ = ("in_use", "slots")

    def __init__(self) -> None:
        self.slots = _SLOTS_FIRST
        self.in_use = 0

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
        """An attempt has ended; what came of it decides about the next ones."""
        self.in_use -= 1
        assert self.in_use >= 0, "gave back more than was taken"
        if outcome.succeeded:
            # Additive: one more slot after a round of all present ones.
            if self.slots < _SLOTS_MAX:
                self.slots = min(_SLOTS_MAX, self.slots + 1 / self.slots)
        elif outcome.failure in _OVERLOADED or outcome.status in THROTTLING:
            self.slots = max(1.0, self.slots / 2)
