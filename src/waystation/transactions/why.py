"""Why a transaction is where it is: a reason with a stable code, and a sentence for people.

It tells what a transaction waits for now, or what it has ended with. It only looks: what is in the
archive stays there.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from waystation.errors import PipelineUnknownError, TransactionUnknownError
from waystation.runtime.clock import utc_text
from waystation.transactions import names
from waystation.transactions.finder import Finder
from waystation.transactions.found import Found
from waystation.transactions.kids import read_kids
from waystation.transactions.nodes import Nodes
from waystation.transactions.pipelines import Pipelines
from waystation.transactions.record import Frame, TransactionState, decode
from waystation.transactions.signals import PLACES_MAX, Signals
from waystation.transactions.states import State, Status
from waystation.transactions.switches import CALLBACK_SWITCH

Code = Literal[
    "archived",
    "archiving_failed",
    "cancelling",
    "final",
    "held",
    "no_node_for_step",
    "queued",
    "retrying",
    "running",
    "scheduled",
    "sleeping_until",
    "state_lost",
    "store_full",
    "suspect",
    "unknown",
    "waiting_children",
    "waiting_switch",
]
#: Steps that sleep because that is what they are for; others that sleep try again.
_SLEEPERS = frozenset({"util/delay"})
#: What may be in the archive alone.
_ASLEEP = frozenset({State.SCHEDULED, State.SLEEPING, State.WAITING_SWITCH})


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """Why."""

    id: str
    code: Code
    text: str
    #: What the sentence is made of, by name.
    facts: dict[str, Any] = {}


class _Look(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction, taken apart."""

    found: Found
    kept: TransactionState
    frame: Frame | None
    step_type: str

    @property
    def step(self) -> str:
        """The step that is next, as people are told."""
        if self.frame is None:
            return "no step"
        return f"step {self.frame.place} ({self.step_type}) of pipeline {self.frame.pipeline}"

    @property
    def facts(self) -> dict[str, Any]:
        """What belongs to the step."""
        if self.frame is None:
            return {}
        place, pipeline = self.frame.place, self.frame.pipeline
        return {"step": self.step_type, "place": place, "pipeline": pipeline}

    def reason(self, code: Code, text: str, **facts: Any) -> Reason:
        """A reason that has these facts beside the common ones."""
        common = {"state": self.found.head.state.value, **self.facts}
        return Reason(id=self.found.id, code=code, text=text, facts=common | facts)


class Why:
    """Explains transactions."""

    def __init__(
        self, signals: Signals, pipelines: Pipelines, nodes: Nodes, finder: Finder | None = None
    ) -> None:
        self._signals = signals
        self._pipelines = pipelines
        self._nodes = nodes
        #: Finds what has left the store; None without an archive.
        self._finder = finder

    async def explain(self, project: str, transaction_id: str) -> Reason:
        """The reason; `unknown` also for a transaction of another project."""
        try:
            (found,) = await self._signals.get(project, [transaction_id], places=True, load=False)
            if found is None and self._finder is not None:
                return await self._gone(self._finder, project, transaction_id)
        except TransactionUnknownError:
            found = None
        if found is None:
            return _unknown(transaction_id)
        look = await self._look(found)
        if found.archive_failed and found.head.archive in ("remove", "ttl"):
            # A snapshot that was refused holds nothing up.
            cause = found.archive_failed.split(" ", 2)[2]
            return look.reason(
                "archiving_failed",
                f"It could not be archived: {cause.removesuffix('.')}.",
                cause=cause,
            )
        if found.head.state is State.COMPLETE:
            return _final(look)
        if found.head.cancelling:
            return _cancelling(look)
        if found.head.suspect and found.head.state in (State.QUEUED, State.RUNNING):
            return _suspect(look)
        return await self._alive(look)

    async def _gone(self, finder: Finder, project: str, transaction_id: str) -> Reason:
        """Why it is not in the store."""
        found = await finder.in_archive(project, transaction_id)
        if found is not None and found.head.state is State.COMPLETE:
            return _final(await self._look(found))
        if found is not None and found.head.state in _ASLEEP:
            return _archived(await self._alive(await self._look(found)))
        if found is not None:
            # A snapshot of what the store has lost: to run it again from there is not for us.
            look = await self._look(found)
            at = _time(found.head.since)
            text = (
                f"The store has lost it; the archive has it as it was {found.head.state} at {at}."
            )
            return look.reason("state_lost", text, since_ms=found.head.since)
        wake = await finder.wake_ms(transaction_id)
        if wake is None:
            return _unknown(transaction_id)
        # Whose it was went with its state; but only who was told it knows its id.
        text = (
            "It sleeps, and its state is neither in the store nor in the archive; it is looked for"
            f" again at {_time(wake)}."
        )
        return Reason(id=transaction_id, code="state_lost", text=text, facts={"wake_ms": wake})

    async def _alive(self, look: _Look) -> Reason:
        match look.found.head.state:
            case State.QUEUED:
                return await self._queued(look)
            case State.HELD:
                return _held(look)
            case State.RUNNING:
                return await self._running(look)
            case State.SCHEDULED:
                wake = look.found.head.wake
                return look.reason("scheduled", f"It begins at {_time(wake)}.", wake_ms=wake)
            case State.WAITING_SWITCH:
                return _waiting_switch(look)
            case State.WAITING_CHILDREN:
                return _waiting_children(look)
            case _ if not await self._is_served(look):
                return _unserved(look)
            case _:
                return _asleep(look)

    async def _look(self, found: Found) -> _Look:
        kept = decode(found.state)
        frame = kept.frames[-1] if kept.frames else None
        step_type = "unknown"
        if frame is not None:
            try:
                pipeline = await self._pipelines.version(
                    found.head.owner, frame.pipeline, frame.version
                )
            except PipelineUnknownError:
                pass  # The definition is gone, which is no reason not to tell the rest.
            else:
                if frame.step < len(pipeline.steps):
                    step_type = pipeline.steps[frame.step].type
                else:
                    frame = None  # All steps are done.
        return _Look(found=found, kept=kept, frame=frame, step_type=step_type)

    async def _queued(self, look: _Look) -> Reason:
        head = look.found.head
        group = {"group": head.group}
        if (await self._nodes.settings(head.group)).paused:
            return look.reason("held", f"Node group {head.group} is paused.", **group)
        if not await self._is_served(look):
            return _unserved(look)
        if head.queue != "out" and not await self._signals.has_room(names.cell_of(look.found.id)):
            text = (
                "The store is full, so that transactions begin one at a time or not at all; next is"
                f" {look.step}."
            )
            return look.reason("store_full", text, **group)
        place, queue = look.found.place, "qOutL" if head.queue == "out" else "qInL"
        if place is None:
            text = f"More than {PLACES_MAX:,} are before it in {queue} of node group {head.group}."
            return look.reason("queued", text, **group, queue=queue)
        text = f"It is number {place + 1:,} in {queue} of node group {head.group}; next is"
        return look.reason(
            "queued", f"{text} {look.step}.", **group, queue=queue, position=place + 1
        )

    async def _is_served(self, look: _Look) -> bool:
        group = look.found.head.group
        return bool(await self._nodes.serving(look.step_type, group=group))

    async def _running(self, look: _Look) -> Reason:
        found = look.found
        node = found.head.node.partition(":")[0]
        facts = {"node": node, "since_ms": found.processing_ms, "lease_ms": found.lease_ms}
        if not await self._signals.has_room(names.cell_of(found.id)):
            text = (
                f"It runs on node {node}, {look.step}, and the store is full: it can end, but"
                " nothing can begin."
            )
            return look.reason("store_full", text, **facts)
        text = f"It runs on node {node} since {_time(found.processing_ms)}, {look.step}; its lease"
        return look.reason("running", f"{text} ends at {_time(found.lease_ms)}.", **facts)


def _unknown(transaction_id: str) -> Reason:
    text = "This project has no such transaction: it was never started, or it is another's."
    return Reason(id=transaction_id, code="unknown", text=text)


def _archived(reason: Reason) -> Reason:
    """The reason of one that sleeps in the archive; that nobody serves it is worse."""
    if reason.code == "no_node_for_step":
        return reason
    text = f"{reason.text} Until then it is in the archive alone, and takes no room in the store."
    facts = {**reason.facts, "reason": reason.code}
    return Reason(id=reason.id, code="archived", text=text, facts=facts)


def _unserved(look: _Look) -> Reason:
    group = look.found.head.group
    text = f"No living node of node group {group} serves {look.step}, which is next."
    return look.reason("no_node_for_step", text, group=group)


def _final(look: _Look) -> Reason:
    head = look.found.head
    status = head.status or Status.INTERNAL_ERROR
    cause = look.found.extras.get(b"cause", b"").decode(errors="replace")
    if not cause and status is not Status.SUCCESS:
        cause = look.kept.note
    because = f": {cause.removesuffix('.')}" if cause else ""
    text = f"It has ended as {status} at {_time(head.since)}{because}."
    return look.reason("final", text, status=status.value, cause=cause, ended_ms=head.since)


def _cancelling(look: _Look) -> Reason:
    found = look.found
    cause = found.extras.get(b"cause", b"").decode(errors="replace")
    begun = "Its deadline has passed"
    if "c" in found.head.flags:
        begun = f"A cancel was asked for ({cause})" if cause else "A cancel was asked for"
    until = f"; at {_time(found.deadline_ms)} it is ended anyway" if found.deadline_ms else ""
    rest = "it ends when its children have"
    if found.head.state is State.RUNNING:
        rest = "it ends with its next commit"
    text = f"{begun}: {rest}{until}."
    return look.reason("cancelling", text, cause=cause, until_ms=found.deadline_ms)


def _suspect(look: _Look) -> Reason:
    head = look.found.head
    node = head.node.partition(":")[0]
    doing = (
        f"it runs alone on node {node}" if head.state is State.RUNNING else "it waits to run alone"
    )
    text = f"The process that ran it was lost, so {doing}: {look.step}."
    if head.rescues:
        text = f"{text[:-1]}. So it went {head.rescues} times before."
    return look.reason("suspect", text, node=node, rescues=head.rescues)


def _held(look: _Look) -> Reason:
    place, pipeline = look.found.place, look.found.head.pipeline
    where = (
        f"more than {PLACES_MAX:,} are before it"
        if place is None
        else f"it is number {place + 1:,}"
    )
    text = f"Pipeline {pipeline} is paused; {where} of what it holds."
    return look.reason("held", text, position=None if place is None else place + 1)


def _waiting_switch(look: _Look) -> Reason:
    found = look.found
    switch, wake = found.head.switch, found.head.wake
    what = "to be called back" if switch == CALLBACK_SWITCH else f"for switch {switch}"
    text = f"It waits {what} in {look.step}; it looks again at {_time(wake)}"
    place = look.frame.place if look.frame is not None else ""
    ends = found.extras.get(f"wait:{place}:{switch}".encode())
    facts: dict[str, Any] = {"switch": switch, "wake_ms": wake}
    if ends is not None:
        facts["wait_ends_ms"] = int(ends)
        text = f"{text}, and waits until {_time(int(ends))} at most"
    return look.reason("waiting_switch", f"{text}.", **facts)


def _waiting_children(look: _Look) -> Reason:
    kids = read_kids(look.found.extras.get(b"kids", b""))
    done, total = (kids.done, kids.total) if kids is not None else (0, 0)
    text = f"{done:,} of {total:,} children have ended."
    return look.reason("waiting_children", text, done=done, total=total)


def _asleep(look: _Look) -> Reason:
    wake, frame = look.found.head.wake, look.frame
    if look.step_type in _SLEEPERS or frame is None:
        text = f"It sleeps until {_time(wake)} in {look.step}."
        return look.reason("sleeping_until", text, wake_ms=wake)
    note = look.kept.note
    told = f": {note.removesuffix('.')}" if note else ""
    text = f"It calls {look.step} again at {_time(wake)}, retry {frame.retries:,}{told}."
    return look.reason("retrying", text, wake_ms=wake, retries=frame.retries, note=note)


def _time(at_ms: int | None) -> str:
    return "an unknown time" if at_ms is None else utc_text(at_ms)
