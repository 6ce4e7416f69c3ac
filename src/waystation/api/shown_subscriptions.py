"""Subscriptions and their operations as the API shows them."""

from __future__ import annotations

from typing import Any

import msgspec

from waystation.subscriptions.definition import Subscription, SubscriptionOptions, SubscriptionState
from waystation.subscriptions.letters import FailedMessage, failed_message
from waystation.subscriptions.operation import Asked, Operation, OperationKind
from waystation.subscriptions.states import OperationState


class ShownSubscription(msgspec.Struct, kw_only=True):
    """A subscription as the API shows it."""

    name: str
    version: int
    topic: str
    endpoint: str
    shards: int
    options: SubscriptionOptions
    state: SubscriptionState
    #: One more with every reset.
    incarnation: int
    paused: bool
    #: 0: until somebody resumes it.
    paused_until_ms: int
    paused_reason: str
    created_ms: int


class CreatedSubscription(ShownSubscription, kw_only=True):
    """A subscription that was just created, with what is told once."""

    #: What its requests are signed with; None where nothing is signed.
    secret: str | None
    #: Why its number of shards cannot follow when its topic grows; None if it can.
    warning: str | None = None


class Progress(msgspec.Struct, kw_only=True):
    """How far an operation is, over all shards."""

    #: Groups, and dead letters that stand alone, that it has met.
    matched: int
    #: Messages that it has marked, and those of them that are settled.
    marked: int
    settled: int
    #: Heads that have failed again, and heads that are not settled yet.
    parked_again: int
    open: int
    #: Shards that it has gone over.
    shards_done: int


class ShownOperation(msgspec.Struct, kw_only=True):
    """An operation as the API shows it."""

    #: Empty for a dry run, of which nothing is kept.
    id: str
    kind: OperationKind
    #: What was asked for; what was not is left out.
    asked: dict[str, Any]
    state: OperationState
    begun_ms: int
    ended_ms: int
    #: Messages: that it is about, in a dry run; else that it has marked, or settled.
    count: int
    progress: Progress
    #: Of a dry run, the first ones.
    sample: list[FailedMessage]


def shown(subscription: Subscription) -> ShownSubscription:
    """A subscription."""
    return ShownSubscription(**_fields(subscription))


def created(
    subscription: Subscription, secret: str | None, warning: str | None
) -> CreatedSubscription:
    """A subscription with its secret."""
    return CreatedSubscription(**_fields(subscription), secret=secret, warning=warning)


def shown_operation(operation: Operation, project: str) -> ShownOperation:
    """An operation."""
    return ShownOperation(
        id=operation.id,
        kind=operation.asked.kind,
        asked=_asked(operation.asked),
        state=operation.state,
        begun_ms=operation.begun_ms,
        ended_ms=operation.ended_ms,
        count=operation.count,
        progress=Progress(
            **{name: getattr(operation, name) for name in Progress.__struct_fields__}
        ),
        sample=[failed_message(each.record, project) for each in operation.sample],
    )


def _fields(subscription: Subscription) -> dict[str, Any]:
    return {name: getattr(subscription, name) for name in ShownSubscription.__struct_fields__}


def _asked(asked: Asked) -> dict[str, Any]:
    usual = msgspec.structs.asdict(Asked(kind=asked.kind))
    given = msgspec.structs.asdict(asked)
    return {
        name.removesuffix("_ms"): value for name, value in given.items() if value != usual[name]
    }
