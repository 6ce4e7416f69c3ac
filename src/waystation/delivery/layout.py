"""Layouts: which keys a lane has, and by which registers it is found.

A channel's lane is a key prefix, with a gate, and a register in another slot. A lane whose register
is in its own slot needs no gate: to add and to register is one script, to retire is another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

#: The register of gated lanes; and what all deliverers listen to for news of endpoints.
REGISTER = "waystation.{outbox}.lanes"


class LaneKeys(NamedTuple):
    """The keys of a lane. Some may be shared with other lanes of its slot."""

    due: str
    items: str
    failed: str
    untold: str
    #: Of a lane without a gate: where it is counted what was dropped.
    gate: str
    attempts: str
    #: Empty where there is none: what is added is due at once.
    inbox: str


class Layout(Protocol):
    """How the lanes of an outbox lie in the store."""

    @property
    def gated(self) -> bool:
        """Whether lanes have gates; else their registers are in their own slots."""

    @property
    def shares_failed(self) -> bool:
        """Whether a failed list is of several lanes; a claim does not count it then."""

    @property
    def records_max(self) -> int:
        """About how many records of attempts are kept under one key."""

    @property
    def registers(self) -> Sequence[str]:
        """All registers of lanes."""

    def keys(self, lane: str) -> LaneKeys:
        """The keys of a lane."""

    def register_of(self, lane: str) -> str:
        """The register that a lane is in."""


class GatedLayout:
    """A key prefix for each lane, one register for all."""

    gated = True
    shares_failed = False
    records_max = 1000
    registers = (REGISTER,)

    def keys(self, lane: str) -> LaneKeys:
        """All of them are the lane's own."""
        parts = ("due", "items", "failed", "untold", "gate", "attempts", "in")
        return LaneKeys(*(f"{lane}.{part}" for part in parts))

    def register_of(self, lane: str) -> str:
        """There is one."""
        return REGISTER


GATED = GatedLayout()
