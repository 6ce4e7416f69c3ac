"""What the scripts of a shard are told first: who asks, and what holds for this call."""

from __future__ import annotations

import msgspec

from waystation.subscriptions.states import Poison
from waystation.types.common import FullPolicy

#: The epoch of those who own no shard: a taker, who proves itself by the token of its take.
NO_EPOCH = 0


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms of a call; options of the definition hold from the next call on."""

    dataset: str
    epoch: int
    incarnation: int
    policy: Poison
    retry_bytes_max: int | None
    dead_bytes_max: int | None
    dead_full_policy: FullPolicy

    @property
    def argument(self) -> str:
        """As the first argument of a script; the include `shard` reads it."""
        words = (
            self.dataset,
            self.epoch,
            self.incarnation,
            self.policy,
            "-" if self.retry_bytes_max is None else self.retry_bytes_max,
            "-" if self.dead_bytes_max is None else self.dead_bytes_max,
            self.dead_full_policy,
        )
        return " ".join(map(str, words))


def anyone(dataset: str = "-") -> Terms:
    """The terms of those who own nothing: operations, and who takes work under a lease.

    The data set is for the record log; nothing else of it decides anything.
    """
    return Terms(
        dataset=dataset,
        epoch=NO_EPOCH,
        incarnation=0,
        policy="park",
        retry_bytes_max=None,
        dead_bytes_max=None,
        dead_full_policy="refuse",
    )
