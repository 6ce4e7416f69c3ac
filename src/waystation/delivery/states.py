"""What all processes know about endpoints: which are disabled, or left alone for a while.

All is in the store, so it outlives restarts. An endpoint that answered 410 stays disabled until
somebody enables it; what is to be sent to it waits. If it answers 429 with `Retry-After`, and no
message of the process succeeds, all processes pause it for up to 30 seconds by the store's clock.
Deliverers of other processes read the state within moments.

An operator can declare an endpoint repaired: every process then closes its breaker. Nodes report
open breakers, so that every node can show them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from waystation.delivery.layout import REGISTER
from waystation.delivery.notices import NOTICES, NOTICES_MAX, Notice, encode_notice
from waystation.store.client import Store
from waystation.store.scripts import script

_BREAKERS = script(__package__, "breakers")
_DISABLE = script(__package__, "disable")
_ENABLE = script(__package__, "enable")
_HOLD = script(__package__, "hold")
_SURVEY = script(__package__, "survey")

DISABLED = "delivery.{endpoints}.disabled"
HELD = "delivery.{endpoints}.held"
REPAIRED = "delivery.{endpoints}.repaired"
BREAKERS = "delivery.{endpoints}.breakers"

#: A process reads the states every second. A declaration that none has read for so long is void.
_REPAIRED_MS_MAX = 3_600_000
_REPAIRED_MAX = 1000
#: A report of a node is valid for so long; a node whose breaker stays open repeats it.
_REPORT_MS = 5000
#: Breakers that one node reports.
_REPORTED_MAX = 1000


class Disabled(msgspec.Struct, frozen=True):
    """Why and since when an endpoint is disabled."""

    cause: str
    at_ms: int


@dataclass(frozen=True)
class Survey:
    """The states of all endpoints that have one."""

    disabled: dict[str, Disabled]
    #: Endpoint → ms that it is held back yet.
    held_ms: dict[str, int]
    #: Endpoint → when an operator declared it repaired, in ms of the store.
    repaired_ms: dict[str, int] = field(default_factory=dict)
    #: Node → endpoint whose breaker is open there → ms from its report until the next probe.
    breakers: dict[str, dict[str, int]] = field(default_factory=dict)


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Disabled).decode
_encode_report = msgspec.json.Encoder().encode
_decode_report = msgspec.json.Decoder(dict[str, int]).decode


class EndpointStates:
    """Reads and changes the states."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def survey(self) -> Survey:
        """All that is known."""
        keys = [DISABLED, HELD, REPAIRED, BREAKERS]
        disabled, held, repaired, reports = await self._store.run(_SURVEY, keys, [])
        return Survey(
            {disabled[i].decode(): _decode(disabled[i + 1]) for i in range(0, len(disabled), 2)},
            {held[i].decode(): int(held[i + 1]) for i in range(0, len(held), 2)},
            {repaired[i].decode(): int(float(repaired[i + 1])) for i in range(0, len(repaired), 2)},
            {
                reports[i].decode(): _decode_report(reports[i + 1])
                for i in range(0, len(reports), 2)
            },
        )

    async def disable(self, target: str, notice: Notice) -> bool:
        """Disables an endpoint and notes it; false when it was disabled before."""
        why = Disabled(notice.cause, notice.at_ms)
        arguments: list[str | bytes | int] = [
            target,
            _encode(why),
            encode_notice(notice),
            NOTICES_MAX,
            REGISTER,
        ]
        return bool(await self._store.run(_DISABLE, [DISABLED, NOTICES], arguments))

    async def enable(self, target: str) -> bool:
        """Enable an endpoint, forget its Retry-After, and close its breakers.

        Return False if it was neither disabled nor held.
        """
        return await self._declare_repaired(target, enable=True)

    async def declare_repaired(self, target: str) -> None:
        """Close the breakers that an endpoint has in any process."""
        await self._declare_repaired(target, enable=False)

    async def _declare_repaired(self, target: str, *, enable: bool) -> bool:
        keys = [DISABLED, HELD, REPAIRED]
        arguments: list[str | bytes | int] = [
            target,
            int(enable),
            _REPAIRED_MS_MAX,
            _REPAIRED_MAX,
            REGISTER,
        ]
        return bool(await self._store.run(_ENABLE, keys, arguments))

    async def report_breakers(self, node: str, probe_ms: Mapping[str, int]) -> None:
        """Replace the open breakers of a node: endpoint → ms until its next probe."""
        reported = dict(sorted(probe_ms.items())[:_REPORTED_MAX])
        report = _encode_report(reported) if reported else b""
        await self._store.run(_BREAKERS, [BREAKERS], [node, _REPORT_MS, report])

    async def hold(self, target: str, seconds: float) -> None:
        """Nothing is sent to it before that has passed."""
        await self._store.run(_HOLD, [HELD], [target, round(seconds * 1000), REGISTER])
