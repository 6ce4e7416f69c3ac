"""Subscriptions: shards that deliver a topic to an endpoint, in the order of its groups."""

from __future__ import annotations

from waystation.subscriptions.definition import (
    NewSubscription,
    RetryPolicy,
    Subscription,
    SubscriptionOptions,
)
from waystation.subscriptions.shards import (
    ShardAssignment,
    assignments,
    check_shards,
    default_shards,
    inner_partition,
    partition_owner,
)

__all__ = [
    "NewSubscription",
    "RetryPolicy",
    "ShardAssignment",
    "Subscription",
    "SubscriptionOptions",
    "assignments",
    "check_shards",
    "default_shards",
    "inner_partition",
    "partition_owner",
]
