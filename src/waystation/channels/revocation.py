"""Revoked tokens: by their id, until they would have expired anyway."""

from __future__ import annotations

from waystation.errors import InvalidInputError
from waystation.store import Store, keys

#: Seconds since the epoch that any program can count to.
_EXPIRY_MAX = 2**53 - 1


class Revocation:
    """The list of revoked tokens, in the store, under the keys of DSPS."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def revoke(self, token_id: str, expires_s: int) -> None:
        """Revokes a token until it expires; one that has expired needs no revoking."""
        if not 0 <= expires_s <= _EXPIRY_MAX:
            raise InvalidInputError("exp must be seconds since the epoch.", field="exp")
        key = keys.token_revocation(token_id)
        # EXAT of the past deletes at once, which is just right.
        await self._store.call(
            "SET", key, str(expires_s), "EXAT", max(1, expires_s), repeatable=True
        )

    async def is_revoked(self, token_id: str) -> bool:
        """Whether a token was revoked."""
        key = keys.token_revocation(token_id)
        return bool(await self._store.call("EXISTS", key, repeatable=True))
