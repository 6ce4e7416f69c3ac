"""The Python clients: `Waystation` for ordinary code, `AsyncWaystation` for asyncio, same names.

`sync_*.py` is generated from `async_*.py` by `make docs`, so the two cannot drift apart; only the
transports, which speak HTTP, are written twice.
"""

from __future__ import annotations

from waystation.client.async_client import AsyncWaystation
from waystation.client.messages import (
    Batch,
    ChannelInfo,
    Published,
    Received,
    Sought,
    SubscriberInfo,
)
from waystation.client.sync_client import Waystation

__all__ = [
    "AsyncWaystation",
    "Batch",
    "ChannelInfo",
    "Published",
    "Received",
    "Sought",
    "SubscriberInfo",
    "Waystation",
]
