"""An operation: what was asked for, and how far it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from waystation.errors import InvalidInputError
from waystation.subscriptions.definition import StartAt
from waystation.subscriptions.looks import DeadLetter, OperationLook
from waystation.subscriptions.states import OperationState

OperationKind = Literal["redrive", "skip", "purge", "reset"]
#: Where an operation does nothing any more.
ENDED = (OperationState.CANCELLED, OperationState.DONE)


class Asked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to be done, to which messages; without a filter to all dead letters."""

    kind: OperationKind
    group: str = ""
    #: Redriven with all of its group before it; purged only if it stands alone.
    message: str = ""
    #: When the head of a group failed, by the store's clock; before: exclusive, 0: whenever.
    failed_after_ms: Annotated[int, Meta(ge=0, le=2**53 - 1)] = 0
    failed_before_ms: Annotated[int, Meta(ge=0, le=2**53 - 1)] = 0
    #: Of a reset.
    to: StartAt | None = None
    #: Messages in a second, of all shards; None: as fast as it goes.
    rate: Annotated[float, Meta(gt=0, le=1_000_000)] | None = None
    #: Counts, and does nothing.
    dry_run: bool = False


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """An operation as it is now. What is counted is the sum over all shards."""

    #: Empty for a dry run, of which nothing is kept.
    id: str
    asked: Asked
    state: OperationState
    begun_ms: int
    ended_ms: int = 0
    #: Messages: that it is about, in a dry run; else that it has marked, or settled.
    count: int = 0
    #: Groups, and dead letters that stand alone, that it has met.
    matched: int = 0
    marked: int = 0
    settled: int = 0
    parked_again: int = 0
    #: Heads that are marked and not settled yet.
    open: int = 0
    #: Shards that it has gone over.
    shards_done: int = 0
    #: Of a dry run, the first ones.
    sample: list[DeadLetter] = []


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What an operation does, as it was decided when it began; this is what is kept."""

    asked: Asked
    #: The one shard that it is about; None: all.
    shard: int | None = None
    #: Of one message: its group, empty if it stands alone, and its number.
    group: str = ""
    number: int | None = None
    #: Of a skip: the head, such as `r5`.
    head: str = ""
    #: Of a reset: the incarnation that it makes.
    incarnation: int = 0

    @property
    def single(self) -> bool:
        """Whether it is about one group or one message, and done by a step or a few."""
        return self.shard is not None

    def shards(self, count: int) -> list[int]:
        """The shards that it goes over."""
        return list(range(count)) if self.shard is None else [self.shard]

    def covers(self, shard: int) -> bool:
        """Whether it goes over a shard."""
        return self.shard in (None, shard)

    def is_over(self, look: OperationLook) -> bool:
        """Whether a shard has no step left to do; what was marked may still be under way."""
        return look.ended or "ran" in look.notes or (self.single and self._has_marked(look))

    def _has_marked(self, look: OperationLook) -> bool:
        # The steps of a purge note themselves where they end; others are one step.
        return self.asked.kind != "purge" and bool(look.marked or look.settled)


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """An operation as the store has it."""

    id: str
    plan: Plan
    state: OperationState
    begun_ms: int
    ended_ms: int


def check_asked(asked: Asked) -> None:
    """Refuses what can never be done, by field."""
    chosen = [name for name in ("group", "message") if getattr(asked, name)]
    times = asked.failed_after_ms or asked.failed_before_ms
    if asked.kind == "skip" and not asked.group:
        raise InvalidInputError("A skip names the group whose head it settles.", field="group")
    if asked.kind in ("skip", "reset") and (asked.message or times):
        raise InvalidInputError(f"A {asked.kind} does not select messages.", field="message")
    if asked.kind == "reset" and (asked.group or asked.to is None):
        raise InvalidInputError(
            "A reset is one of the whole subscription, and says where to.", field="to"
        )
    if asked.kind != "reset" and asked.to is not None:
        raise InvalidInputError("Only a reset goes somewhere.", field="to")
    if asked.message and times:
        raise InvalidInputError("A message is selected by its id alone.", field="message")
    if len(chosen) == 1 and times:
        raise InvalidInputError(
            f"Select by {chosen[0]} or by time, not by both.", field="failed_after"
        )
    if 0 < asked.failed_before_ms <= asked.failed_after_ms:
        raise InvalidInputError("No time is before it and after it.", field="failed_before")


def show(kept: Kept, looks: Sequence[OperationLook]) -> Operation:
    """An operation with what its shards say of it."""
    done = kept.state is OperationState.DONE
    return Operation(
        id=kept.id,
        asked=kept.plan.asked,
        state=kept.state,
        begun_ms=kept.begun_ms,
        ended_ms=kept.ended_ms,
        count=sum(each.marked or each.settled for each in looks),
        matched=sum(each.groups for each in looks),
        marked=sum(each.marked for each in looks),
        settled=sum(each.settled for each in looks),
        parked_again=sum(each.parked_again for each in looks),
        open=sum(each.open for each in looks),
        shards_done=len(looks) if done else sum(map(kept.plan.is_over, looks)),
    )
