"""What all processes know about endpoints: which are disabled, which asked to be left alone.

Both are in the store, so they outlive restarts. An endpoint that answered 410 stays disabled until
somebody enables it; what is to be sent to it waits. One that said `Retry-After` is held back until
that has passed, by the store's clock. Deliverers of other processes hear of it within moments.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import msgspec

from waystation.delivery.notices import NOTICES, NOTICES_MAX, Notice, encode_notice
from waystation.delivery.outbox import REGISTER
from waystation.errors import StoreError
from waystation.store import Store, script

_DISABLE = script(__package__, "disable")
_HOLD = script(__package__, "hold")
_SURVEY = script(__package__, "survey")

DISABLED = "delivery.{endpoints}.disabled"
HELD = "delivery.{endpoints}.held"


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


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Disabled).decode


class EndpointStates:
    """Reads and changes the states."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def survey(self) -> Survey:
        """All that is known."""
        disabled, held = await self._store.run(_SURVEY, [DISABLED, HELD], [])
        return Survey(
            {disabled[i].decode(): _decode(disabled[i + 1]) for i in range(0, len(disabled), 2)},
            {held[i].decode(): int(held[i + 1]) for i in range(0, len(held), 2)},
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
        """Enables an endpoint, and forgets that it asked to be left alone; false if it was not."""
        found = await self._store.call("HDEL", DISABLED, target, repeatable=True)
        found += await self._store.call("HDEL", HELD, target, repeatable=True)
        with contextlib.suppress(StoreError):  # Only a hint: deliverers look again by themselves.
            await self._store.call("PUBLISH", REGISTER, "enabled", repeatable=True)
        return bool(found)

    async def hold(self, target: str, seconds: float) -> None:
        """Nothing is sent to it before that has passed."""
        await self._store.run(_HOLD, [HELD], [target, round(seconds * 1000), REGISTER])
