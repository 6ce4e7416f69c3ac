"""A load: what one request carries, and the slot that it stands on."""

from __future__ import annotations

from collections.abc import Callable

from waystation.delivery.standing import Reservation, Standing
from waystation.subscriptions.endpoints.protocol import DirectEndpoint, Endpoint
from waystation.subscriptions.errand import Errand


class Load:
    """One request that is under way."""

    __slots__ = (
        "begun_after",
        "begun_ms",
        "direct",
        "endpoint",
        "errands",
        "give_up",
        "heads",
        "probe",
        "standing",
    )

    def __init__(
        self,
        errands: list[Errand],
        endpoint: Endpoint,
        direct: DirectEndpoint | None,
        standing: Standing,
        reserved: Reservation,
    ) -> None:
        self.errands = errands
        #: How many of them are heads.
        self.heads = 0
        for each in errands:
            if each.head is not None:
                self.heads += 1
        #: Where it goes; and the same, if it begins requests at once.
        self.endpoint = endpoint
        self.direct = direct
        self.standing = standing
        self.probe = reserved.probe
        #: When it began, and the newest end of the record log that had come back by then.
        self.begun_ms = 0
        self.begun_after = 0
        #: Breaks it off, if no task carries it.
        self.give_up: Callable[[], None] | None = None
