"""What all processes know about endpoints: which are disabled, left alone for a while, or failing.

All is in the store, so it outlives restarts. An endpoint that answered 410 stays disabled until
somebody enables it; what is to be sent to it waits. One that said `Retry-After` is held back until
that has passed, by the store's clock; so is one that failed too often in a row, where its failures
are counted. Deliverers of other processes hear of it within moments.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import msgspec

from waystation.delivery.fail_limit import FailLimit
from waystation.delivery.layout import REGISTER
from waystation.delivery.notices import NOTICES, NOTICES_MAX, Notice, encode_notice
from waystation.errors import StoreError
from waystation.store import Store, script

_DISABLE = script(__package__, "disable")
_FAIL = script(__package__, "fail")
_HOLD = script(__package__, "hold")
_SURVEY = script(__package__, "survey")

DISABLED = "delivery.{endpoints}.disabled"
HELD = "delivery.{endpoints}.held"
FAILS = "delivery.{endpoints}.fails"


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
    #: Endpoints whose last attempts have failed, where that is counted.
    failing: frozenset[str] = frozenset()


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Disabled).decode


class EndpointStates:
    """Reads and changes the states."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def survey(self) -> Survey:
        """All that is known."""
        disabled, held, failing = await self._store.run(_SURVEY, [DISABLED, HELD, FAILS], [])
        return Survey(
            {disabled[i].decode(): _decode(disabled[i + 1]) for i in range(0, len(disabled), 2)},
            {held[i].decode(): int(held[i + 1]) for i in range(0, len(held), 2)},
            frozenset(each.decode() for each in failing),
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
        await self.succeed(target)
        with contextlib.suppress(StoreError):  # Only a hint: deliverers look again by themselves.
            await self._store.call("PUBLISH", REGISTER, "enabled", repeatable=True)
        return bool(found)

    async def hold(self, target: str, seconds: float) -> None:
        """Nothing is sent to it before that has passed."""
        await self._store.run(_HOLD, [HELD], [target, round(seconds * 1000), REGISTER])

    async def fail(self, target: str, attempt: str, limit: FailLimit, notice: Notice) -> bool:
        """Counts a failure; true when it is held back for it. `attempt` makes a repetition one."""
        arguments: list[str | bytes | int] = [
            target,
            attempt,
            limit.limit,
            round(limit.period_seconds * 1000),
            round(limit.disable_seconds * 1000),
            encode_notice(notice),
            NOTICES_MAX,
            REGISTER,
        ]
        return bool(await self._store.run(_FAIL, [FAILS, HELD, NOTICES], arguments))

    async def succeed(self, target: str) -> None:
        """It works: failures so far do not count any more."""
        await self._store.call("HDEL", FAILS, target, repeatable=True)
