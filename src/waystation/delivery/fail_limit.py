"""The limit of failures: an endpoint that fails so often in a row is left alone for a while."""

from __future__ import annotations

import msgspec

from waystation.delivery.request import Outcome
from waystation.delivery.standing import UNASKED


class FailLimit(msgspec.Struct, frozen=True):
    """So many failures in a row within the period, by whichever process, and it rests."""

    limit: int = 10
    period_seconds: float = 120.0
    disable_seconds: float = 300.0

    def __str__(self) -> str:
        return (
            f"{self.limit} failures in a row within {self.period_seconds:g} s;"
            f" left alone for {self.disable_seconds:g} s"
        )


def is_failure(outcome: Outcome) -> bool:
    """Whether an attempt says that the endpoint does not work; what was not asked, does not."""
    return not outcome.succeeded and outcome.failure not in UNASKED
