"""The states of workers and recipient keys, and the one table of what leads a key where.

Scripts enforce it; this is what they are compared with, and what the chart of the docs is made
from.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec

#: How a worker is chosen for a key.
Assignment = Literal["round_robin", "least_loaded", "consistent_hash"]
#: What a nack makes of a message.
Verdict = Literal["again", "dead", "release"]


class WorkerKind(StrEnum):
    """How a worker tells that it is there."""

    #: By what it does, and by beats.
    NATIVE = "native"
    #: By nothing but what the mirror sees of it.
    AGENT = "agent"


class WorkerState(StrEnum):
    """What a worker is to its pool."""

    LIVE = "live"
    #: Live, but not heard of lately: it gets no new keys, and keeps those that it has.
    SILENT = "silent"
    DRAINING = "draining"
    EVICTED = "evicted"
    LEAVING = "leaving"


class KeyState(StrEnum):
    """Where a recipient key is."""

    UNKNOWN = "unknown"
    WAITING = "waiting"
    IDLE = "idle"
    PENDING = "pending"
    TAKEN = "taken"
    DELAYED = "delayed"


class Transition(msgspec.Struct, frozen=True):
    """One row: what happens to a key in a state leads to a state."""

    from_: KeyState
    what: str
    to: KeyState
    condition: str


_K = KeyState

TRANSITIONS: tuple[Transition, ...] = (
    Transition(_K.UNKNOWN, "enqueue", _K.PENDING, "a live worker gets it"),
    Transition(_K.UNKNOWN, "enqueue", _K.WAITING, "nobody is live"),
    Transition(_K.UNKNOWN, "assign", _K.IDLE, "ahead of its first message"),
    Transition(_K.IDLE, "enqueue", _K.PENDING, "its worker keeps it, or another gets it"),
    Transition(_K.IDLE, "enqueue", _K.WAITING, "nobody is live"),
    Transition(_K.IDLE, "sweep", _K.UNKNOWN, "without a message for its retention"),
    Transition(_K.WAITING, "enqueue", _K.WAITING, "behind the others"),
    Transition(_K.WAITING, "adopt", _K.PENDING, "a worker came"),
    Transition(_K.PENDING, "enqueue", _K.PENDING, "behind the others"),
    Transition(_K.PENDING, "take", _K.TAKEN, "by its worker"),
    Transition(_K.PENDING, "move", _K.PENDING, "its worker is stale, drains or leaves"),
    Transition(_K.PENDING, "move", _K.WAITING, "the same, and nobody is live"),
    Transition(_K.TAKEN, "enqueue", _K.TAKEN, "behind the others"),
    Transition(_K.TAKEN, "ack", _K.IDLE, "it was the last"),
    Transition(_K.TAKEN, "ack", _K.TAKEN, "the next comes with the reply"),
    Transition(_K.TAKEN, "ack", _K.PENDING, "the next is ready"),
    Transition(_K.TAKEN, "nack again", _K.DELAYED, "stays the head, a try is counted"),
    Transition(_K.TAKEN, "nack again", _K.PENDING, "tries are used up: the next is ready"),
    Transition(_K.TAKEN, "nack again", _K.IDLE, "the same, and it was the last"),
    Transition(_K.TAKEN, "nack dead", _K.PENDING, "the next is ready"),
    Transition(_K.TAKEN, "nack dead", _K.IDLE, "it was the last"),
    Transition(_K.TAKEN, "nack release", _K.PENDING, "stays the head, not counted"),
    Transition(_K.TAKEN, "lease over", _K.PENDING, "stays the head, a crash is counted"),
    Transition(_K.TAKEN, "lease over", _K.IDLE, "tries are used up, and it was the last"),
    Transition(_K.TAKEN, "move", _K.PENDING, "its worker is stale or leaves"),
    Transition(_K.TAKEN, "move", _K.WAITING, "the same, and nobody is live"),
    Transition(_K.TAKEN, "move", _K.IDLE, "tries are used up, and it was the last"),
    Transition(_K.DELAYED, "enqueue", _K.DELAYED, "behind the others"),
    Transition(_K.DELAYED, "time", _K.PENDING, "its wait is over"),
    Transition(_K.DELAYED, "move", _K.DELAYED, "its worker is stale, drains or leaves"),
    Transition(_K.DELAYED, "move", _K.WAITING, "the same, and nobody is live"),
)


def chart() -> str:
    """The table as a Mermaid state chart: one arrow for all that leads the same way."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for each in TRANSITIONS:
        names = arrows.setdefault((each.from_, each.to), [])
        if each.what not in names:
            names.append(each.what)
    lines = [f"    {from_} --> {to}: {', '.join(names)}" for (from_, to), names in arrows.items()]
    return "\n".join(("stateDiagram-v2", f"    [*] --> {_K.UNKNOWN}", *lines))
