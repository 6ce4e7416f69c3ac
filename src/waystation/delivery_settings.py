"""The section `[delivery]` of the settings."""

from __future__ import annotations

import msgspec

from waystation.setting_section import Count
from waystation.setting_section import Section as _Section


class DeliverySettings(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Outgoing requests: webhooks and everything that is delivered."""

    #: Networks outside the public internet that requests may reach, such as `10.1.0.0/16`.
    allowed_networks: list[str] = msgspec.field(default_factory=list)
    #: Whether requests may reach this machine itself; `dev` says yes.
    loopback: bool = False
    #: Where notices of deliveries that were given up, and of disabled endpoints, are sent.
    notice_url: str = ""
    #: Most deliveries that wait for one webhook of one channel; more are dropped, and counted.
    waiting_max: Count = 100_000
