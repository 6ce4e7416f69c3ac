"""The states of groups, messages and shards, and the one table of what leads a group where.

Scripts enforce it; this is what they are compared with, and what the chart of the docs is made
from.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec

#: What becomes of a group whose message will never be delivered.
Poison = Literal["park", "skip"]


class GroupState(StrEnum):
    """Where a group is."""

    CLEAN = "clean"
    RETRYING = "retrying"
    PARKED = "parked"
    REDRIVING = "redriving"


class MessageState(StrEnum):
    """Where a message is."""

    WAITING = "waiting"
    UNDER_WAY = "under_way"
    RETRYING = "retrying"
    BEHIND = "behind"
    PARKED = "parked"
    ALONE = "alone"
    SETTLED = "settled"


class ShardState(StrEnum):
    """What a shard does, or why it does not."""

    UNOWNED = "unowned"
    RUNNING = "running"
    PAUSED = "paused"
    FULL = "full"
    AT_BARRIER = "at_barrier"
    HELD = "held"
    FROZEN = "frozen"


class OperationState(StrEnum):
    """How far an operation is."""

    BEGUN = "begun"
    PAUSED = "paused"
    CANCELLED = "cancelled"
    DONE = "done"


class Verdict(StrEnum):
    """What a commit makes of a message."""

    DONE = "done"
    AGAIN = "again"
    LATE = "late"
    BEHIND = "behind"
    DEAD = "dead"
    RELEASE = "release"


class Transition(msgspec.Struct, frozen=True):
    """One row: what happens to a group in a state leads to a state."""

    from_: GroupState
    what: str
    to: GroupState
    condition: str


_G = GroupState

TRANSITIONS: tuple[Transition, ...] = (
    Transition(_G.CLEAN, "main done", _G.CLEAN, "acknowledged"),
    Transition(_G.CLEAN, "main again", _G.RETRYING, "one attempt is counted"),
    Transition(_G.CLEAN, "main late", _G.RETRYING, "no attempt is counted"),
    Transition(_G.CLEAN, "main behind", _G.RETRYING, "an operation made it clean: due now"),
    Transition(_G.CLEAN, "main dead", _G.PARKED, "policy `park`"),
    Transition(_G.CLEAN, "main dead", _G.CLEAN, "policy `skip`: the dead letter stands alone"),
    Transition(_G.RETRYING, "main behind", _G.RETRYING, "after the last in retry"),
    Transition(_G.RETRYING, "head done", _G.RETRYING, "the next is due now"),
    Transition(_G.RETRYING, "head done", _G.CLEAN, "it was the last"),
    Transition(_G.RETRYING, "head again", _G.RETRYING, "stays the head"),
    Transition(_G.RETRYING, "head late", _G.RETRYING, "stays the head, not counted"),
    Transition(_G.RETRYING, "head release", _G.RETRYING, "due now, not counted"),
    Transition(_G.RETRYING, "head dead", _G.RETRYING, "`park`: the rest follows by steps"),
    Transition(_G.RETRYING, "head dead", _G.PARKED, "`park`: all has followed"),
    Transition(_G.RETRYING, "head dead", _G.CLEAN, "`skip`: it was the last"),
    Transition(_G.RETRYING, "follow", _G.RETRYING, "more is left than one call may move"),
    Transition(_G.RETRYING, "follow", _G.PARKED, "all has followed"),
    Transition(_G.RETRYING, "redrive", _G.REDRIVING, "its dead letters are older than its retries"),
    Transition(_G.PARKED, "main behind", _G.PARKED, "after the last dead letter"),
    Transition(_G.PARKED, "redrive", _G.REDRIVING, "the head is due now"),
    Transition(_G.REDRIVING, "main behind", _G.REDRIVING, "into retry if there is any, else dead"),
    Transition(_G.REDRIVING, "head done", _G.REDRIVING, "the next is due now"),
    Transition(_G.REDRIVING, "head done", _G.PARKED, "as far as was asked for"),
    Transition(_G.REDRIVING, "head done", _G.RETRYING, "no dead letter is left, or others follow"),
    Transition(_G.REDRIVING, "head done", _G.CLEAN, "nothing is left"),
    Transition(_G.REDRIVING, "head again", _G.REDRIVING, "in place"),
    Transition(_G.REDRIVING, "head late", _G.REDRIVING, "in place, not counted"),
    Transition(_G.REDRIVING, "head release", _G.REDRIVING, "due now, not counted"),
    Transition(_G.REDRIVING, "head dead", _G.PARKED, "in place, whatever the policy is"),
    Transition(_G.REDRIVING, "head dead", _G.RETRYING, "the same, and what is in retry follows"),
    *(
        Transition(each, "skip", to, "the head is settled, the rest is due")
        for each, to in (
            (_G.RETRYING, _G.RETRYING),
            (_G.RETRYING, _G.REDRIVING),
            (_G.RETRYING, _G.CLEAN),
            (_G.PARKED, _G.REDRIVING),
            (_G.PARKED, _G.CLEAN),
            (_G.REDRIVING, _G.REDRIVING),
            (_G.REDRIVING, _G.RETRYING),
            (_G.REDRIVING, _G.CLEAN),
        )
    ),
    *(
        Transition(each, "purge", _G.CLEAN, "all is settled")
        for each in (_G.RETRYING, _G.PARKED, _G.REDRIVING)
    ),
)


def chart() -> str:
    """The table as a Mermaid state chart: one arrow for all that leads the same way."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for each in TRANSITIONS:
        names = arrows.setdefault((each.from_, each.to), [])
        if each.what not in names:
            names.append(each.what)
    lines = [f"    {from_} --> {to}: {', '.join(names)}" for (from_, to), names in arrows.items()]
    return "\n".join(("stateDiagram-v2", f"    [*] --> {_G.CLEAN}", *lines))
