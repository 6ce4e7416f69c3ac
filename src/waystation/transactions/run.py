"""A run: one transaction that this process holds, in memory.

It is ahead of the store by what has happened since the last confirmed move, and by no more than one
step that may have had an effect. It proves itself with its epoch; when that is another's, all that
it knows is worth nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from waystation.transactions import names
from waystation.transactions.held import Held, Verdict
from waystation.transactions.holding import Claimed
from waystation.transactions.journal import note_attempt
from waystation.transactions.log_entry import AttemptDetail
from waystation.transactions.outcomes import Call, Calls, Failure, Outcome, Pause, Success
from waystation.transactions.pipeline import Pipeline, StepUse
from waystation.transactions.record import Attempt, Frame, decode
from waystation.transactions.services import Services
from waystation.transactions.states import Status
from waystation.transactions.step_call import Records, StepCall, TransactionFacts
from waystation.transactions.switches import Scalar, parse_switches

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Ending(msgspec.Struct, frozen=True):
    """The end of a transaction, whoever brings it about."""

    status: Status
    output: bytes
    note: str = ""
    #: For the journal alone.
    trace: str = ""


class Ended(msgspec.Struct, frozen=True):
    """What came of a step; it is kept until the move that it leads to is confirmed."""

    outcome: Outcome | Ending
    #: Fields of the step that go with its end.
    drop: tuple[str, ...] = ()
    #: What the step has seen of switches, as `Sleep.acknowledged` has it.
    seen: str = ""
    #: Whether its commit can wait for the next one.
    pure: bool = False


#: What `word_of` can say.
WORDS = (
    *("success", "failed", "aborted", "internal-error", "timeout"),
    *("waiting", "retry", "child", "parallel"),
)


def word_of(outcome: Outcome | Ending) -> str:
    """How a journal calls an outcome."""
    match outcome:
        case Success():
            return "success"
        case Failure() | Ending():
            return str(outcome.status)
        case Pause(switch=switch):
            return "waiting" if switch else "retry"
        case Call():
            return "child"
        case Calls():
            return "parallel"


class Run:
    """A transaction that is ours, until it is moved away or lost."""

    __slots__ = (
        "attempts",
        "cell",
        "child",
        "claimed_ms",
        "definitions",
        "ended",
        "epoch",
        "extras",
        "facts",
        "held",
        "hung_at",
        "id",
        "kept",
        "log_end",
        "lost",
        "moving",
        "owner",
        "state",
        "stopping",
        "suspect",
        "switches",
        "version",
    )

    def __init__(self, claimed: Claimed, *, log_end: int) -> None:
        """ValueError for a state that cannot be read."""
        head = claimed.head
        self.id = claimed.id
        self.cell = names.cell_of(claimed.id)
        self.owner = head.owner
        self.epoch = head.epoch
        #: What proves that it is ours.
        self.held = claimed.held
        self.version = head.version
        #: By the store's clock: what a step is told is as of this moment.
        self.claimed_ms = head.since
        self.log_end = log_end
        self.state = decode(claimed.state)
        self.extras = claimed.extras
        #: Whether another transaction waits for its result.
        self.child = "p" in head.flags
        self.suspect = head.suspect
        #: Whether it is to end at the next boundary of a step.
        self.stopping = head.cancelling
        #: Whether it is another's by now; nothing is to be done for it any more.
        self.lost = False
        #: Whether its step was given up because the process ends: it is still ours, to give back.
        self.kept = False
        #: Whether a move is on its way: its verdict will tell whether the run is ours.
        self.moving = False
        #: When a step of it is over its time for good; the thread that keeps leases reads it.
        self.hung_at = math.inf
        #: Of each frame, once they are known.
        self.definitions: list[Pipeline] = []
        #: Since the last confirmed move.
        self.attempts: list[AttemptDetail] = []
        self.ended: Ended | None = None
        self.facts = TransactionFacts(
            id=self.id,
            type=self.state.type,
            project=self.owner,
            external_id=self.state.external_id,
            data_json=self.state.data,
            metadata_json=self.state.metadata,
            deadline_ms=self.state.deadline_ms,
            traceparent=self.state.traceparent,
        )
        text = claimed.extras.get(b"switches") if claimed.extras else None
        self.switches: Mapping[str, Scalar] = parse_switches(text) if text else _NOTHING

    def __repr__(self) -> str:
        return f"<Run {self.id} [{self.frame.pipeline} {self.frame.place}, epoch {self.epoch}]>"

    @property
    def frame(self) -> Frame:
        """The frame that runs."""
        return self.state.frames[-1]

    @property
    def use(self) -> StepUse:
        """The step that is next, as its pipeline has it."""
        return self.definitions[-1].steps[self.frame.step]

    @property
    def timed_out(self) -> bool:
        """Whether `at_most` has passed of the switch that the step has waited for last."""
        waits = self.frame.waits
        until = self.extras.get(f"wait:{self.frame.place}:{waits}".encode()) if waits else None
        return until is not None and int(until) <= self.claimed_ms

    def call(
        self, records: Records, now_ms: Callable[[], int], services: Services | None = None
    ) -> StepCall:
        """A call of the next step."""
        frame = self.frame
        place = frame.place
        recorded: Mapping[str, bytes] = _NOTHING
        callback = b""
        if self.extras:
            callback = self.extras.get(f"callback:{place}".encode(), b"")
            once = f"once:{place}:".encode()
            recorded = {
                name[len(once) :].decode(): value
                for name, value in self.extras.items()
                if name.startswith(once)
            }
        return StepCall(
            transaction=self.facts,
            held=self.held,
            place=place,
            records=records,
            now_ms=now_ms,
            switches=self.switches,
            timed_out=self.timed_out,
            retries=frame.retries,
            recorded=recorded,
            callback=callback,
            services=services,
        )

    def note(self, call: StepCall, step_type: str, attempt: Attempt, *, begun_after: int) -> None:
        """Puts a call of the next step into the journal, and into the next record."""
        kept = note_attempt(self.state, call.place, step_type, attempt, call.log_lines)
        if self.definitions[-1].recording.record == "none":
            return  # The record may be made when its pipeline has ended, and is not asked any more.
        self.attempts.append(
            AttemptDetail(
                place=call.place,
                step_type=step_type,
                number=kept.number,
                outcome=kept.outcome,
                begun_ms=kept.begun_ms,
                ended_ms=kept.ended_ms,
                node=kept.node,
                note=kept.note,
                begun_after=begun_after,
            )
        )

    def step_fields(self, call: StepCall) -> tuple[str, ...]:
        """Fields that the store keeps for a step until it ends."""
        place = call.place
        fields = [f"once:{place}:{name}" for name in call.once_names]
        if call.callback:
            fields.append(f"callback:{place}")
        if self.extras:
            starts = (f"once:{place}:", f"wait:{place}:")
            kept = (name.decode() for name in self.extras)
            fields += [name for name in kept if name.startswith(starts) and name not in fields]
        return tuple(fields)

    def confirm(self, verdict: Verdict) -> None:
        """A move of ours was applied, and the transaction is still ours."""
        self.held = Held(self.id, self.epoch, self.held.commits + 1)
        self.version = verdict.version
        self.log_end = verdict.log_end
        self.suspect = False
        self.attempts = []
        self.ended = None
