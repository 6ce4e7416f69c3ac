"""The states of a transaction and the one table of their transitions.

Scripts enforce it; this is what they are compared with, and what the chart of the docs is made
from. A transition that is not in the table is an error that names both states.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from waystation.errors import IllegalTransitionError


class State(StrEnum):
    """Where a transaction is."""

    QUEUED = "queued"
    HELD = "held"
    SCHEDULED = "scheduled"
    RUNNING = "running"
    SLEEPING = "sleeping"
    WAITING_SWITCH = "waiting_switch"
    WAITING_CHILDREN = "waiting_children"
    COMPLETE = "complete"


class Status(StrEnum):
    """How a transaction has ended."""

    SUCCESS = "success"
    FAILED = "failed"
    ABORTED = "aborted"
    INTERNAL_ERROR = "internal-error"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"


class Transition(msgspec.Struct, frozen=True):
    """One row: a verb leads from a state (None: from nothing) to a state."""

    from_: State | None
    verb: str
    to: State
    condition: str


_S = State
#: Asleep in one way or another, or not yet begun: nobody holds it, and no child is under way.
_IDLE = (_S.QUEUED, _S.HELD, _S.SCHEDULED, _S.SLEEPING, _S.WAITING_SWITCH)

TRANSITIONS: tuple[Transition, ...] = (
    Transition(None, "start", _S.QUEUED, "pipeline of that version; external id free"),
    Transition(None, "start", _S.SCHEDULED, "the same, with a delay"),
    Transition(None, "fan_out", _S.QUEUED, "the caller holds the parent; no sibling has failed"),
    Transition(_S.QUEUED, "claim", _S.RUNNING, "pipeline not paused, or it comes by `qOutL`"),
    Transition(_S.QUEUED, "claim", _S.HELD, "from `qInL`, pipeline paused"),
    Transition(_S.HELD, "resume", _S.QUEUED, "to the head of `qInL`, in order"),
    Transition(_S.SCHEDULED, "wake_due", _S.QUEUED, "due"),
    Transition(_S.SCHEDULED, "wake", _S.QUEUED, "by hand"),
    Transition(_S.RUNNING, "commit", _S.RUNNING, "holder; not cancelled"),
    Transition(_S.RUNNING, "begin", _S.RUNNING, "holder"),
    Transition(_S.RUNNING, "once", _S.RUNNING, "holder"),
    Transition(_S.RUNNING, "report", _S.RUNNING, "holder"),
    Transition(_S.RUNNING, "pass_on", _S.QUEUED, "holder: child to `qInL`, return to `qOutL`"),
    Transition(_S.RUNNING, "sleep", _S.SLEEPING, "holder, no switch named"),
    Transition(_S.RUNNING, "sleep", _S.WAITING_SWITCH, "holder, switch without `!`"),
    Transition(_S.RUNNING, "sleep", _S.QUEUED, "holder, switch with `!`"),
    Transition(_S.RUNNING, "fan_open", _S.RUNNING, "holder; counter and list are written"),
    Transition(_S.RUNNING, "fan_out", _S.RUNNING, "holder; children are created"),
    Transition(_S.RUNNING, "fan_wait", _S.WAITING_CHILDREN, "holder, done < total"),
    Transition(_S.RUNNING, "fan_wait", _S.QUEUED, "holder, done = total; `qOutL`"),
    Transition(_S.RUNNING, "finish", _S.COMPLETE, "holder; final status"),
    *(
        Transition(_S.RUNNING, verb, _S.COMPLETE, "holder; flag `c` or `t`")
        for verb in ("commit", "pass_on", "sleep", "fan_open", "fan_wait", "release")
    ),
    Transition(_S.RUNNING, "release", _S.QUEUED, "holder; head of its queue, not counted"),
    Transition(_S.RUNNING, "rescue", _S.QUEUED, "lease over; head of its queue, suspect"),
    Transition(
        _S.RUNNING, "rescue", _S.COMPLETE, "lease over; rescued too often, or flag `c` or `t`"
    ),
    Transition(_S.RUNNING, "cancel", _S.RUNNING, "flag `c`; `deadlineZ` gets the grace time"),
    Transition(_S.RUNNING, "expire", _S.RUNNING, "flag `t`; `deadlineZ` gets the grace time"),
    Transition(_S.RUNNING, "expire", _S.COMPLETE, "flag, and the grace time is over"),
    Transition(_S.SLEEPING, "wake_due", _S.QUEUED, "due"),
    Transition(_S.SLEEPING, "wake", _S.QUEUED, "by hand"),
    Transition(_S.SLEEPING, "callback", _S.QUEUED, "its step may be called back"),
    Transition(_S.WAITING_SWITCH, "callback", _S.QUEUED, "the same"),
    Transition(_S.WAITING_SWITCH, "switch", _S.QUEUED, "the awaited one has changed or is gone"),
    Transition(_S.WAITING_SWITCH, "wake_due", _S.QUEUED, "due"),
    Transition(_S.WAITING_SWITCH, "wake", _S.QUEUED, "by hand"),
    Transition(_S.WAITING_CHILDREN, "child_end", _S.QUEUED, "the last one; by `qOutL`; no flag"),
    Transition(_S.WAITING_CHILDREN, "child_end", _S.COMPLETE, "the last one; flag `c` or `t`"),
    Transition(_S.WAITING_CHILDREN, "cancel", _S.WAITING_CHILDREN, "flag; `sweepZ`"),
    Transition(_S.WAITING_CHILDREN, "expire", _S.WAITING_CHILDREN, "flag; `sweepZ`"),
    Transition(_S.WAITING_CHILDREN, "expire", _S.COMPLETE, "flag, and the grace time is over"),
    *(Transition(each, "cancel", _S.COMPLETE, "as cancelled") for each in _IDLE),
    *(Transition(each, "expire", _S.COMPLETE, "deadline passed") for each in _IDLE),
)

_ALLOWED = frozenset((each.from_, each.verb, each.to) for each in TRANSITIONS)


def check(from_: State | None, verb: str, to: State) -> None:
    """Raises IllegalTransitionError for what is not in the table."""
    if (from_, verb, to) not in _ALLOWED:
        raise IllegalTransitionError(from_state=from_ or "nothing", to_state=to)


def chart() -> str:
    """The table as a Mermaid state chart: one arrow for all verbs that lead the same way."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for each in TRANSITIONS:
        verbs = arrows.setdefault((each.from_ or "[*]", each.to), [])
        if each.verb not in verbs:
            verbs.append(each.verb)
    lines = [f"    {from_} --> {to}: {', '.join(verbs)}" for (from_, to), verbs in arrows.items()]
    return "\n".join(("stateDiagram-v2", *lines, f"    {_S.COMPLETE} --> [*]"))
