"""Revoked tokens: by their id, until they would have expired anyway.

The list is in the store, under the keys of DSPS, so that all stations, and DSPS servers beside
them, share it. Not every request asks it: what it said is remembered for two seconds. A revocation
holds at once in the process that was told, and within two seconds in the others.
"""

from __future__ import annotations

from waystation.channels import keys
from waystation.errors import InvalidInputError
from waystation.runtime.clock import Clock
from waystation.store.client import Store
from waystation.store.scripts import script

_REVOKE = script(__package__, "revoke")

#: How old an answer of the store may be. Tokens, as keys, must stop working within five seconds.
_KNOWN_SECONDS_MAX = 2.0
#: Answers that are remembered; anybody can show tokens with new ids.
_KNOWN_MAX = 16_384
#: Seconds since the epoch that any program can count to.
EXPIRY_MAX = 2**53 - 1


class Revocation:
    """The list of revoked tokens."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        #: Key in the store → whether it was there, and when we asked.
        self._known: dict[str, tuple[bool, float]] = {}

    async def revoke(self, token_id: str, expires_s: int) -> None:
        """Revokes a token until it expires; one that has expired needs no revoking."""
        if not token_id:
            raise InvalidInputError("A token without an id cannot be revoked.", field="jti")
        if abs(expires_s) > EXPIRY_MAX:
            raise InvalidInputError("exp must be seconds since the epoch.", field="exp")
        if expires_s * 1000 <= self._clock.now_ms():
            return
        key = keys.token_revocation(token_id)
        # A time machine moves what is in the store, but not the store's idea of the present.
        dies_s = expires_s - self._clock.shift_ms // 1000
        await self._store.run(_REVOKE, [key], [expires_s, dies_s])
        self._known.pop(key, None)

    async def is_revoked(self, token_id: str) -> bool:
        """Whether a token was revoked, as far as was known two seconds ago."""
        key = keys.token_revocation(token_id)
        # As old as the question, not as the answer.
        now = self._clock.uptime_s()
        known = self._known.get(key)
        if known is not None and now - known[1] <= _KNOWN_SECONDS_MAX:
            return known[0]
        revoked = bool(await self._store.call("EXISTS", key, repeatable=True))
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        self._known[key] = (revoked, now)
        return revoked
