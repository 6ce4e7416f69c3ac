"""The errors of subscriptions; the tree that they belong to is in `errors.py`."""

from __future__ import annotations

from waystation.errors import ConflictError, InvalidInputError, NotFoundError, WaystationError


class SubscriptionNotFoundError(NotFoundError):
    """There is no such subscription in the project."""

    code = "subscription.not-found"


class GroupMismatchError(InvalidInputError):
    """A grouped subscription was asked for, to a topic that is not grouped; nothing was written."""

    code = "subscription.group-mismatch"


class EndpointInvalidError(InvalidInputError):
    """A subscription cannot deliver to such an endpoint; nothing was written."""

    code = "subscription.endpoint-invalid"


class ShardsInvalidError(InvalidInputError):
    """A subscription cannot have so many shards; nothing was written."""

    code = "subscription.shards-invalid"


class NotParkedError(ConflictError):
    """What was to be redriven is not among the dead letters, or is not parked there."""

    code = "subscription.not-parked"


class GroupCleanError(ConflictError):
    """The head of a group was to be skipped or purged, and the group has none."""

    code = "subscription.group-clean"


class OperationNotFoundError(NotFoundError):
    """There is no such operation of the subscription, or it was forgotten."""

    code = "subscription.operation-not-found"


class OperationEndedError(ConflictError):
    """An operation was to be paused, resumed or cancelled that has come to its end."""

    code = "subscription.operation-ended"


class ResetOutOfRangeError(InvalidInputError):
    """A subscription cannot be reset to there; nothing was written.

    Its topic has no messages there, or the subscription's number of shards cannot follow the
    growth of the topic from there on.
    """

    code = "subscription.reset-out-of-range"


class ShardFrozenError(ConflictError):
    """A shard takes nothing while it is frozen; nothing was written."""

    code = "subscription.frozen"


class ShardLostError(ConflictError):
    """A shard is not the caller's any more, or is not there; nothing was written."""

    code = "subscription.lease-lost"


class WaitOverError(WaystationError):
    """What a client waited for did not come in time; it may still come."""

    code = "wait.over"
