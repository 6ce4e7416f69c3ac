"""An endpoint: where deliveries go, how they are signed, and how patient we are with it."""

from __future__ import annotations

import msgspec

from waystation.delivery.schedule import Schedule
from waystation.delivery.signing import Secret


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """What all items of a lane have in common. Items name it; it is looked up when they are sent.

    So a rotated secret or a changed schedule holds for what waits already.
    """

    name: str
    schedule: Schedule = Schedule()
    #: Empty: requests are not signed.
    secrets: tuple[Secret, ...] = ()
    connect_seconds_max: float = 5.0
    total_seconds_max: float = 30.0
    enabled: bool = True
