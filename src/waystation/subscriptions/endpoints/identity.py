"""Delivery ids: the identity under which an endpoint knows a message.

    billing:1:0-3-17:order-17       subscription:incarnation:storage-partition-offset:message id

A message id alone does not identify a message: a topic without deduplication stores one id many
times, and with deduplication an id is unique only within its group, its CloudEvents source and the
window. The position is unique, and stays the same over redelivery, retry, redrive and a change of
the delivering node. A reset counts the incarnation up, because it means to process messages again.

Outside of the default project, the project and a slash stand in front.

The message id comes last because it is free text: names of projects and subscriptions contain
neither colon nor slash, so no two messages can have delivery ids that read the same. It is part of
the delivery id because a store that lost its newest writes gives their positions to other messages.
"""

from __future__ import annotations

import hashlib

from waystation.store.keys import DEFAULT_PROJECT
from waystation.subscriptions.endpoints.protocol import Parcel


def delivery_id(parcel: Parcel) -> str:
    """Return the delivery id of a message."""
    project = parcel.message.project
    # Subscriptions of two projects can have one name, and one HTTP receiver.
    tenant = "" if project == DEFAULT_PROJECT else f"{project}/"
    return tenant + origin_of(parcel) + parcel.message.id


def hashed_delivery_id(parcel: Parcel) -> str:
    """Return a delivery id with a hash of the message id, for a receiver that rejects the id.

    It names no project: such receivers, pools and pipelines, belong to one.
    """
    return f"{origin_of(parcel)}h-{hashlib.sha256(parcel.message.id.encode()).hexdigest()}"


def origin_of(parcel: Parcel) -> str:
    """Return the part of the delivery id before the message id."""
    at = parcel.position
    where = f"{at.storage}-{at.partition}-{at.offset}"
    return f"{parcel.subscription}:{parcel.incarnation}:{where}:"
