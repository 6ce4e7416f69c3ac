"""What a holder proves itself with, and what scripts answer to him."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from waystation.transactions.restoring import Missing

Outcome = Literal[
    "cancelled",
    "done",
    "fan-incomplete",
    "known",
    "not-running",
    "queued",
    "refused",
    "stale",
    "status-invalid",
    "tree-full",
    "unknown",
    "waiting",
]
VERDICTS: tuple[Outcome, ...] = get_args(Outcome)


class Held(msgspec.Struct, frozen=True, gc=False):
    """A transaction under an epoch; `commits` is how many moves its holder has had confirmed."""

    id: str
    epoch: int
    commits: int


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """What came of one item of a call."""

    #: `known`: it was applied before. `refused`: another holds it, or nobody.
    outcome: Outcome
    #: Of the transaction; 0 where there is none.
    version: int
    #: The record log's end, as the call left it.
    log_end: int


class Due(msgspec.Struct, frozen=True):
    """What came of a pass over what is due."""

    done: int
    #: Ms until the next is due; -1: nothing is.
    next_ms: int
    #: Those without a state: they are to be loaded from the archive.
    missing: tuple[Missing, ...] = ()
