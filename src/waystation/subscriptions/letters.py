"""What people are shown of a message that was not delivered: why not, how often, what it is."""

from __future__ import annotations

from typing import Any

import msgspec

from waystation.messages.envelope import Envelope, unpack
from waystation.messages.formats import message_json
from waystation.subscriptions.looks import DeadLetter
from waystation.subscriptions.record import RetryRecord
from waystation.subscriptions.states import MessageState


class FailedMessage(msgspec.Struct, kw_only=True):
    """A message that was not delivered yet, and why."""

    #: Empty for one that cannot be read.
    id: str
    #: None: it has none.
    group: str | None
    #: Number of the storage topic, partition and offset, such as `0.3.17`; empty for one of which
    #: nothing can be read, since a newer release wrote it.
    position: str
    #: Attempts up to when this was written down.
    attempts: int
    first_failure_ms: int
    last_failure_ms: int
    #: A status code or the name of a failure; empty without an attempt.
    failure: str
    cause: str
    #: The beginning of what the endpoint replied; what is no text is shown as it can be.
    excerpt: str
    bytes: int
    #: Of a delayed message: when it is to be delivered; else 0.
    not_before_ms: int = 0


class ShownLetter(FailedMessage, kw_only=True):
    """A dead letter."""

    shard: int
    number: int
    #: Parked (the head of its group), behind it, or alone.
    state: MessageState
    #: When it failed; of one behind a head, when the head did.
    failed_ms: int
    #: How many of its group wait behind a head.
    behind: int
    #: The message itself, as topics show theirs; None unless it was asked for.
    message: dict[str, Any] | None = None


def failed_message(record: RetryRecord, project: str) -> FailedMessage:
    """What there is to say of a record."""
    return FailedMessage(**_fields(record, _envelope(record, project)))


def shown_letter(
    letter: DeadLetter, project: str, shard: int, *, payload: bool = False
) -> ShownLetter:
    """What there is to say of a dead letter."""
    envelope = _envelope(letter.record, project)
    return ShownLetter(
        **_fields(letter.record, envelope),
        shard=shard,
        number=letter.number,
        state=letter.state,
        failed_ms=letter.failed_ms,
        behind=letter.behind,
        message=message_json(envelope) if payload and envelope is not None else None,
    )


def id_of(record: RetryRecord, project: str) -> str:
    """The id of a message; empty for one that cannot be read."""
    envelope = _envelope(record, project)
    return "" if envelope is None else envelope.id


def _envelope(record: RetryRecord, project: str) -> Envelope | None:
    try:
        return unpack(record.envelope, project=project)
    except ValueError:
        return None


def _fields(record: RetryRecord, envelope: Envelope | None) -> dict[str, Any]:
    at = record.position
    return {
        "id": "" if envelope is None else envelope.id,
        "group": record.group or (envelope.group if envelope is not None else None),
        "position": f"{at.storage}.{at.partition}.{at.offset}" if at.incarnation else "",
        "attempts": record.attempts,
        "first_failure_ms": record.first_failure_ms,
        "last_failure_ms": record.last_failure_ms,
        "failure": record.failure,
        "cause": record.cause,
        "excerpt": record.excerpt.decode(errors="replace"),
        "bytes": len(record.envelope if envelope is None else envelope.data),
        "not_before_ms": record.due_ms,
    }
