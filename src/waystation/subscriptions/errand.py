"""An errand: a message that is to be delivered, and what is written down of it.

It is a message of the topic, or a head: one in retry, or a dead letter that is redriven.
"""

from __future__ import annotations

import msgspec

from waystation.delivery.request import Outcome
from waystation.messages import envelope
from waystation.messages.envelope import Envelope
from waystation.subscriptions.endpoints.protocol import Parcel
from waystation.subscriptions.held import Head, Settlement
from waystation.subscriptions.log_entry import AttemptDetail, pack_detail
from waystation.subscriptions.record import RetryRecord, pack
from waystation.subscriptions.record import unpack as unpack_record
from waystation.subscriptions.states import Poison, Verdict
from waystation.subscriptions.verdicts import Decided
from waystation.subscriptions.window import Waiting


class Errand(msgspec.Struct, eq=False, gc=False):
    """One message on its way; either `waiting` or `head` is there."""

    group: str
    waiting: Waiting | None = None
    head: Head | None = None
    record: RetryRecord | None = None
    #: None while its body has to be read again.
    parcel: Parcel | None = None

    @property
    def member(self) -> str:
        """What the sets of the shard call it."""
        if self.waiting is not None:
            return self.waiting.member
        assert self.head is not None
        return self.head.member


def main_parcel(waiting: Waiting, message: Envelope, subscription: str, incarnation: int) -> Parcel:
    """The first attempt of a message of the topic."""
    return Parcel(
        message=message,
        position=waiting.position(incarnation),
        attempt=1,
        subscription=subscription,
        incarnation=incarnation,
    )


def head_errand(head: Head, subscription: str, project: str) -> Errand:
    """The next attempt of a head; ValueError if its record cannot be read.

    Without a parcel, if the record can be read but not the message in it.
    """
    record = unpack_record(head.record)
    try:
        message = envelope.unpack(record.envelope, project=project)
    except ValueError:
        return Errand(head.group, None, head, record)
    parcel = Parcel(
        message=message,
        position=record.position,
        attempt=head.tries + 1,
        subscription=subscription,
        incarnation=record.position.incarnation,
        first_ms=record.first_failure_ms,
    )
    return Errand(head.group, None, head, record, parcel)


def attempted(
    errand: Errand,
    decided: Decided,
    outcome: Outcome,
    *,
    begun_ms: int,
    ended_ms: int,
    begun_after: int,
    node: str,
    endpoint: str,
    topic: str,
    policy: Poison,
) -> Settlement:
    """What is written down of an attempt."""
    parcel = errand.parcel
    assert parcel is not None
    verdict = decided.verdict
    if verdict is Verdict.RELEASE:
        assert errand.head is not None, "what is in the topic is not released, it stays there"
        return Settlement(member=errand.head.member, group=errand.group, verdict=verdict)
    done = verdict is Verdict.DONE
    at = parcel.position
    detail = AttemptDetail(
        id=parcel.message.id,
        group=errand.group,
        failure=str(outcome.status) if done else decided.failure,
        cause=decided.cause,
        excerpt=outcome.receipt.encode() if done else outcome.excerpt,
        begun_ms=begun_ms,
        ended_ms=ended_ms,
        begun_after=begun_after,
        node=node,
        endpoint=endpoint,
        position=f"{topic}/{at.storage}/{at.partition}/{at.offset}",
    )
    waiting = errand.waiting
    # A head that is tried again is kept as it is, but for its first failure; one that dies tells
    # what it died of.
    record = b""
    if verdict is Verdict.DEAD or (not done and (waiting is not None or not parcel.first_ms)):
        record = _failed(errand, decided, outcome.excerpt, ended_ms, policy)
    return Settlement(
        member=errand.member,
        group=errand.group,
        verdict=verdict,
        wait_ms=decided.wait_ms,
        record=record,
        detail=pack_detail(detail),
    )


def _failed(
    errand: Errand, decided: Decided, excerpt: bytes, failed_ms: int, policy: Poison
) -> bytes:
    parcel, record = errand.parcel, errand.record
    assert parcel is not None
    return pack(
        RetryRecord(
            group=errand.group,
            position=parcel.position,
            envelope=record.envelope if record else envelope.pack(parcel.message),
            attempts=parcel.attempt,
            first_failure_ms=parcel.first_ms or failed_ms,
            last_failure_ms=failed_ms,
            failure=decided.failure,
            cause=decided.cause,
            excerpt=excerpt,
            policy=policy,
            due_ms=record.due_ms if record else 0,
        )
    )


def unattempted(
    waiting: Waiting, message: Envelope, verdict: Verdict, *, incarnation: int, policy: Poison
) -> Settlement:
    """What is written down of a message that goes behind others, or is not due yet."""
    due_ms = message.not_before_ms
    record = RetryRecord(
        group=waiting.group,
        position=waiting.position(incarnation),
        envelope=envelope.pack(message),
        policy=policy,
        due_ms=due_ms,
    )
    return Settlement(
        member=waiting.member,
        group=waiting.group,
        verdict=verdict,
        wait_ms=due_ms if verdict is Verdict.LATE else 0,
        record=pack(record),
        detail=pack_detail(AttemptDetail(id=message.id, group=waiting.group)),
    )


def unreadable(waiting: Waiting, *, incarnation: int, policy: Poison, at_ms: int) -> Settlement:
    """A message that cannot be read: nobody can deliver it, and nobody knows its group."""
    record = RetryRecord(
        group="",
        position=waiting.position(incarnation),
        envelope=waiting.raw,
        first_failure_ms=at_ms,
        last_failure_ms=at_ms,
        failure="unreadable",
        cause=waiting.cause,
        policy=policy,
    )
    detail = AttemptDetail(id="", group="", failure="unreadable", cause=waiting.cause)
    return Settlement(
        member=waiting.member,
        group="",
        verdict=Verdict.DEAD,
        record=pack(record),
        detail=pack_detail(detail),
    )


def unreadable_head(errand: Errand) -> Settlement:
    """A head whose message cannot be read: it stays dead, whoever redrives it."""
    assert errand.head is not None
    detail = AttemptDetail(
        id="", group=errand.group, failure="unreadable", cause="the message cannot be read"
    )
    return Settlement(
        member=errand.head.member,
        group=errand.group,
        verdict=Verdict.DEAD,
        detail=pack_detail(detail),
    )


def put_off(head: Head, until_ms: int) -> Settlement:
    """A head that is not due yet, or of a newer release that wrote its record: waits, uncounted."""
    return Settlement(member=head.member, group=head.group, verdict=Verdict.LATE, wait_ms=until_ms)
