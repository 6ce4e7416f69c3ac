"""An explanation: why something of a subscription is where it is; and the question it answers."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from waystation.subscriptions.definition import Subscription
from waystation.subscriptions.hindrances import Circumstances, HindranceCode
from waystation.subscriptions.letters import id_of
from waystation.subscriptions.record import RetryRecord

Subject = Literal["message", "group", "shard", "subscription"]
Code = (
    Literal[
        "clean",
        "dead",
        "delayed_until",
        "not_read_yet",
        "parked",
        "redriving",
        "retrying_at",
        "running",
        "settled",
        "under_way",
        "unknown",
        "waiting_behind",
    ]
    | HindranceCode
)


class Explanation(msgspec.Struct, kw_only=True):
    """Why."""

    subject: Subject
    code: Code
    text: str
    #: What the sentence is made of, by name.
    facts: dict[str, Any] = {}


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked about, with what was found out."""

    subject: Subject
    around: Circumstances

    @property
    def subscription(self) -> Subscription:
        """Whose."""
        return self.around.subscription

    def answer(self, code: Code, text: str, **facts: Any) -> Explanation:
        """An answer to it."""
        return Explanation(subject=self.subject, code=code, text=text, facts=facts)

    def told(self, record: RetryRecord) -> dict[str, Any]:
        """What there is to say of a message that failed."""
        return {
            "id": id_of(record, self.subscription.project),
            "attempts": record.attempts,
            "failure": record.failure,
            "cause": record.cause,
        }


def because(record: RetryRecord | None) -> str:
    """Why a message failed, for the middle of a sentence."""
    cause = "" if record is None else record.cause
    return f": {cause.removesuffix('.')}" if cause else ""
