"""The Python clients: `Waystation` for ordinary code, `AsyncWaystation` for asyncio, same names.

`sync_*.py` is generated from `async_*.py` by `make docs`, so the two cannot drift apart; only the
transports, which speak HTTP, are written twice.
"""

from __future__ import annotations

from waystation.client.async_client import AsyncWaystation
from waystation.client.async_producer import AsyncProducer
from waystation.client.async_transactions import AsyncTransaction
from waystation.client.codec import Codec
from waystation.client.messages import (
    Batch,
    ChannelInfo,
    Published,
    Received,
    Sought,
    SubscriberInfo,
)
from waystation.client.parcels import NewMessage
from waystation.client.sync_client import Waystation
from waystation.client.sync_producer import Producer
from waystation.client.sync_transactions import Transaction
from waystation.client.topics import (
    MessagePage,
    Receipt,
    Topic,
    TopicMessage,
    TopicStanding,
    Whereabouts,
)
from waystation.client.transactions import Journal, Reason, TransactionInfo, TransactionSummary

__all__ = [
    "AsyncProducer",
    "AsyncTransaction",
    "AsyncWaystation",
    "Batch",
    "ChannelInfo",
    "Codec",
    "Journal",
    "MessagePage",
    "NewMessage",
    "Producer",
    "Published",
    "Reason",
    "Receipt",
    "Received",
    "Sought",
    "SubscriberInfo",
    "Topic",
    "TopicMessage",
    "TopicStanding",
    "Transaction",
    "TransactionInfo",
    "TransactionSummary",
    "Waystation",
    "Whereabouts",
]
