"""By what a receiver knows a message again: the same in every attempt, another after a rewind."""

from __future__ import annotations

from waystation.subscriptions.endpoints.protocol import Parcel


def known_as(parcel: Parcel) -> str:
    """The id of the message; from the second incarnation on with its number behind.

    A repetition is then known as one, while a subscription that was rewound is processed again.
    """
    if parcel.incarnation == 1:
        return parcel.message.id
    return f"{parcel.message.id}.{parcel.incarnation}"
