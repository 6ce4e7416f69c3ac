"""The section `[pools]` of the settings."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from waystation.setting_section import Seconds
from waystation.setting_section import Section as _Section


class PoolSettings(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Pools: how they are looked after, and what one of them can have."""

    #: How often leases that are over, stale workers and idle keys are looked for.
    sweep_seconds: Seconds = 1.0
    #: Messages that one worker may have taken; a script goes over all of them at once.
    taken_max: Annotated[int, Meta(ge=1, le=500)] = 500
    #: Workers of one pool; a script goes over all of them at once.
    workers_max: Annotated[int, Meta(ge=1, le=500)] = 500
