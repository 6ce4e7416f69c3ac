"""The Python clients: `Waystation` for ordinary code, `AsyncWaystation` for asyncio, same names.

`sync_*.py` is generated from `async_*.py` by `make docs`, so the two cannot drift apart; only the
transports, which speak HTTP, are written twice.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from waystation.client.archive import ArchiveStatus
    from waystation.client.async_client import AsyncWaystation
    from waystation.client.async_operations import AsyncOperation
    from waystation.client.async_pool_worker import AsyncPoolWorker
    from waystation.client.async_producer import AsyncProducer
    from waystation.client.async_transactions import AsyncTransaction
    from waystation.client.codec import Codec
    from waystation.client.messages import Batch, Received
    from waystation.client.parcels import NewMessage
    from waystation.client.pool_messages import GiveUpError, PoolMessage, TryAgainError
    from waystation.client.pools import (
        Pool,
        PoolDeadLetter,
        PoolKey,
        PoolReason,
        PoolStanding,
        PoolWorkerInfo,
        Sent,
    )
    from waystation.client.replies import ReplyInfo, ReplyStanding
    from waystation.client.subscriptions import (
        DeadLetter,
        Explanation,
        GroupInfo,
        GroupStanding,
        OperationInfo,
        Sample,
        ShardStanding,
        Subscription,
        SubscriptionStanding,
    )
    from waystation.client.sync_client import Waystation
    from waystation.client.sync_operations import Operation
    from waystation.client.sync_pool_worker import PoolWorker
    from waystation.client.sync_producer import Producer
    from waystation.client.sync_transactions import Transaction
    from waystation.client.topics import MessagePage, TopicMessage
    from waystation.client.transactions import Journal, Reason, TransactionInfo, TransactionSummary
    from waystation.types.channel import Channel, PublishedMessage, Sought, Subscriber
    from waystation.types.message import JsonMessage, Receipt
    from waystation.types.topic import (
        GroupLocation,
        GroupPartition,
        MissingRange,
        Partition,
        RateLimit,
        StorageTopic,
        Topic,
        TopicOptions,
        TopicPartitions,
    )

__all__ = [
    "ArchiveStatus",
    "AsyncOperation",
    "AsyncPoolWorker",
    "AsyncProducer",
    "AsyncTransaction",
    "AsyncWaystation",
    "Batch",
    "Channel",
    "Codec",
    "DeadLetter",
    "Explanation",
    "GiveUpError",
    "GroupInfo",
    "GroupLocation",
    "GroupPartition",
    "GroupStanding",
    "Journal",
    "JsonMessage",
    "MessagePage",
    "MissingRange",
    "NewMessage",
    "Operation",
    "OperationInfo",
    "Partition",
    "Pool",
    "PoolDeadLetter",
    "PoolKey",
    "PoolMessage",
    "PoolReason",
    "PoolStanding",
    "PoolWorker",
    "PoolWorkerInfo",
    "Producer",
    "PublishedMessage",
    "RateLimit",
    "Reason",
    "Receipt",
    "Received",
    "ReplyInfo",
    "ReplyStanding",
    "Sample",
    "Sent",
    "ShardStanding",
    "Sought",
    "StorageTopic",
    "Subscriber",
    "Subscription",
    "SubscriptionStanding",
    "Topic",
    "TopicMessage",
    "TopicOptions",
    "TopicPartitions",
    "Transaction",
    "TransactionInfo",
    "TransactionSummary",
    "TryAgainError",
    "Waystation",
]

#: Public name → the module that it lives in. Late: who asks for the ordinary client needs none of
#: the libraries of the other one.
_HOMES = {
    "ArchiveStatus": "archive",
    "AsyncOperation": "async_operations",
    "AsyncPoolWorker": "async_pool_worker",
    "AsyncProducer": "async_producer",
    "AsyncTransaction": "async_transactions",
    "AsyncWaystation": "async_client",
    "Batch": "messages",
    "Channel": "waystation.types.channel",
    "Codec": "codec",
    "DeadLetter": "subscriptions",
    "Explanation": "subscriptions",
    "GiveUpError": "pool_messages",
    "GroupInfo": "subscriptions",
    "GroupLocation": "waystation.types.topic",
    "GroupPartition": "waystation.types.topic",
    "GroupStanding": "subscriptions",
    "Journal": "transactions",
    "JsonMessage": "waystation.types.message",
    "MessagePage": "topics",
    "MissingRange": "waystation.types.topic",
    "NewMessage": "parcels",
    "Operation": "sync_operations",
    "OperationInfo": "subscriptions",
    "Partition": "waystation.types.topic",
    "Pool": "pools",
    "PoolDeadLetter": "pools",
    "PoolKey": "pools",
    "PoolMessage": "pool_messages",
    "PoolReason": "pools",
    "PoolStanding": "pools",
    "PoolWorker": "sync_pool_worker",
    "PoolWorkerInfo": "pools",
    "Producer": "sync_producer",
    "PublishedMessage": "waystation.types.channel",
    "RateLimit": "waystation.types.topic",
    "Reason": "transactions",
    "Receipt": "waystation.types.message",
    "Received": "messages",
    "ReplyInfo": "replies",
    "ReplyStanding": "replies",
    "Sample": "subscriptions",
    "Sent": "pools",
    "ShardStanding": "subscriptions",
    "Sought": "waystation.types.channel",
    "StorageTopic": "waystation.types.topic",
    "Subscriber": "waystation.types.channel",
    "Subscription": "subscriptions",
    "SubscriptionStanding": "subscriptions",
    "Topic": "waystation.types.topic",
    "TopicMessage": "topics",
    "TopicOptions": "waystation.types.topic",
    "TopicPartitions": "waystation.types.topic",
    "Transaction": "sync_transactions",
    "TransactionInfo": "transactions",
    "TransactionSummary": "transactions",
    "TryAgainError": "pool_messages",
    "Waystation": "sync_client",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES[name]
    return getattr(import_module(home if "." in home else f"{__name__}.{home}"), name)
