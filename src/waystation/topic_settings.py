"""The section `[topics]` of the settings."""

from __future__ import annotations

from waystation.setting_section import Count
from waystation.setting_section import Section as _Section


class TopicSettings(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Topics: what may be produced, and how they may be cut."""

    #: Requests that produce may be larger than others: a batch, or a large message in base64.
    body_bytes_max: Count = 8_388_608
    #: A message's payload, id, group and headers together; more is answered 413.
    message_bytes_max: Count = 5_242_880
    #: Refuse partition counts that are not 1, 2, 3 or a multiple of 4 or 6, instead of a warning.
    strict_partitions: bool = False
