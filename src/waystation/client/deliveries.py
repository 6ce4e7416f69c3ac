"""What clients get to see of deliveries."""

from __future__ import annotations

import msgspec


class DeliveryEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint in a list."""

    endpoint: str
    #: enabled, disabled, held (it said when to come again), or unknown: not in the settings.
    state: str
    cause: str
    since_ms: int
    held_ms: int
    #: closed, open, half open; empty when nothing was sent lately.
    breaker: str
    waiting: int
    failed: int
    dropped: int
    channels: int


class FailedDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery that was given up."""

    endpoint: str
    channel: str
    id: str
    cause: str
    attempts: int
    failed_ms: int


class DeliveryAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of a delivery."""

    id: str
    attempt: int
    at_ms: int
    #: What followed: done, retry, failed, disable.
    verdict: str
    #: 0 without a reply; then `failure` says why.
    status: int
    failure: str
    seconds: float
    #: The beginning of the reply.
    reply: str


class FailedPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of failed deliveries."""

    failed: list[FailedDelivery]
    cursor: str


class DeliveryCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many deliveries a verb was about."""

    count: int
