"""Delivery: every HTTP request that leaves the product. Safe, signed, patient, fair.

The machine is complete in itself: a guard for addresses, a sender, signatures, schedules, breakers,
fair shares, a durable outbox and its deliverer. Its first users are the webhooks of channels.
"""

from __future__ import annotations

from waystation.delivery.addresses import AddressGuard
from waystation.delivery.deliverer import Deliverer
from waystation.delivery.endpoint import Endpoint
from waystation.delivery.headers import check_headers
from waystation.delivery.outbox import Item, Outbox
from waystation.delivery.sender import Sender

__all__ = [
    "AddressGuard",
    "Deliverer",
    "Endpoint",
    "Item",
    "Outbox",
    "Sender",
    "check_headers",
]
