"""A batch of messages on its way: what is settled by each answer, and what is sent again.

Without any input and output of its own, so both clients share it. What was not settled stays in its
order and is sent before anything else; what can never be accepted is told, and does not hold up the
rest; a station that is away, busy or over its limit is waited for, as long as the patience lasts.
"""

from __future__ import annotations

import re

from waystation.client.messages import Answer, decode_answer, error_for
from waystation.client.parcels import Parcel
from waystation.client.topics import BatchResults
from waystation.errors import (
    BusyError,
    CatalogueError,
    InvalidInputError,
    OutcomeUnknownError,
    RateLimitedError,
    StationUnreachableError,
    StoreUnavailableError,
    WaystationError,
)
from waystation.runtime.clock import Clock

#: Pauses before the second, third… try; then the last one again and again.
_PAUSES_SECONDS = (0.05, 0.2, 0.5, 1.0, 2.0)
#: Not now: another try can succeed.
_AGAIN = (
    BusyError,
    CatalogueError,
    OutcomeUnknownError,
    RateLimitedError,
    StationUnreachableError,
    StoreUnavailableError,
)
_position = re.compile(r"messages\[([0-9]+)\]").match


class Shipment:
    """Messages that are sent together; `left` is what has no result yet."""

    def __init__(self, parcels: list[Parcel], *, patience: float, clock: Clock) -> None:
        self.left = parcels
        #: Seconds to wait before the next try.
        self.pause = 0.0
        #: Why the rest was given up.
        self.lost: WaystationError | None = None
        self._clock = clock
        self._deadline = clock.uptime_s() + patience
        self._tries = 0

    def body(self) -> bytes:
        """The request for what is left."""
        return b'{"messages":[%b]}' % b",".join([parcel.body for parcel in self.left])

    def answered(self, answer: Answer) -> None:
        """Takes a station's answer in."""
        if answer.status >= 300:
            self._refused(error_for(answer))
            return
        try:
            results = decode_answer(answer, BatchResults).results
        except StationUnreachableError as error:
            self.failed(error)
            return
        if len(results) != len(self.left):
            self.failed(StationUnreachableError("The station answered for other messages."))
            return
        again: list[Parcel] = []
        problem: WaystationError | None = None
        for parcel, result in zip(self.left, results, strict=True):
            outcome = result.outcome()
            if isinstance(outcome, _AGAIN):
                problem = outcome
                again.append(parcel)
            else:
                parcel.settle(outcome)
        if len(again) < len(self.left):
            self._tries = 0
        self.left = again
        if problem is not None:
            self.failed(problem)

    def failed(self, error: WaystationError) -> None:
        """What is left did not come through this time; when patience is over, that is told."""
        least = error.retry_after_s if isinstance(error, RateLimitedError) else 0
        self.pause = max(least, _PAUSES_SECONDS[min(self._tries, len(_PAUSES_SECONDS) - 1)])
        self._tries += 1
        if self._clock.uptime_s() + self.pause > self._deadline:
            self.give_up(error)

    def give_up(self, error: WaystationError) -> None:
        """Settles all that is left with an error."""
        self.lost = error
        left, self.left = self.left, []
        for parcel in left:
            parcel.settle(error)

    def _refused(self, error: WaystationError) -> None:
        """Nothing of the request was produced: because of one message, or of all."""
        if isinstance(error, _AGAIN):
            self.failed(error)
            return
        bad = self._bad(error)
        if bad is None:
            self.give_up(error)
            return
        self.left.pop(bad).settle(error)
        self.pause = 0.0

    def _bad(self, error: WaystationError) -> int | None:
        """The message that an error is about; None when it is about all, or says of none."""
        if not isinstance(error, InvalidInputError):
            return None
        if len(self.left) == 1:
            # Also where its position is not told: a body that is too large is not even read.
            return 0
        found = _position(error.field)
        position = int(found.group(1)) if found else len(self.left)
        return position if position < len(self.left) else None
