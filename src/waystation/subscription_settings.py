"""The section `[subscriptions]` of the settings."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from waystation.setting_section import Count, Seconds
from waystation.setting_section import Section as _Section


class SubscriptionSettings(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Subscriptions: which node delivers them, and how it holds their shards."""

    #: Whether this node delivers; one that does not can still define and operate subscriptions.
    deliver: bool = True
    #: What a stopping node leaves requests that are under way; the rest is delivered by others.
    grace_seconds: Seconds = 5.0
    #: A shard is another's, if its owner was not heard for this long.
    lease_seconds: Annotated[float, Meta(ge=1, le=3600)] = 10.0
    #: What the record log of a shard keeps until history reads it; 16 MiB at most before a reader
    #: of history has registered.
    log_bytes_max: Annotated[int, Meta(ge=1_048_576, le=2**53 - 1)] = 268_435_456
    #: How long an operation that has ended is remembered.
    operation_days: Annotated[float, Meta(gt=0, le=365)] = 7.0
    #: Shards that one node owns at most.
    shards_max: Count = 1000
