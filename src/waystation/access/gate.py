"""The gate: checks a bearer token against a cached ring of keys.

The ring is read again when the catalogue's generation has moved, looked at every two seconds, so a
revoked key stops working within five. If the catalogue cannot be read for that long, the gate
closes: it would no longer know what was revoked.
"""

from __future__ import annotations

import asyncio
import hmac
from dataclasses import dataclass
from functools import lru_cache

from waystation.access.keys import Scope, hash_secret, split_key
from waystation.catalogue import Catalogue, KeyRecord
from waystation.errors import CatalogueError, UnauthenticatedError
from waystation.runtime.clock import Clock
from waystation.runtime.service import Service
from waystation.store.keys import DEFAULT_PROJECT

_REFRESH_S = 2.0
#: A ring older than this is not trusted.
_RING_SECONDS_MAX = 5.0
#: An unknown key makes us look, since it may be new; strangers wait so that it is not too often.
_LOOK_SECONDS_MIN = 0.2
#: After a standstill a look is waited for so long, and no longer.
_LOOK_SECONDS_MAX = 1.0

_BEARER = b"Bearer "
#: Headers whose taking apart is remembered; clients send the same one with every request.
_HEADERS_KEPT = 4096


@dataclass(frozen=True)
class Access:
    """What a request may do, and in which project."""

    project: str
    scopes: frozenset[Scope]
    key_id: str = ""


EVERYTHING = Access(DEFAULT_PROJECT, Scope.ADMIN.included())


@dataclass(frozen=True)
class _Held:
    access: Access
    secret_hash: bytes
    expires_ms: int


class Gate(Service):
    """Turns an Authorization header into an Access, or refuses."""

    #: A read may be cancelled anywhere.
    grace_s = 0.0

    def __init__(self, catalogue: Catalogue, *, clock: Clock, insecure: bool = False) -> None:
        super().__init__("access", clock=clock)
        self._catalogue = catalogue
        self.insecure = insecure
        self._ring: dict[str, _Held] = {}
        self._generation = -1
        self._read_at = float("-inf")
        self._looked_at = float("-inf")
        #: Whether the last look failed.
        self._in_trouble = False
        self._reading = asyncio.Lock()
        self._looking = asyncio.Lock()

    async def on_start(self) -> None:
        """Read the keys. Raise CatalogueError if the catalogue cannot be read."""
        await self._read()

    async def run(self) -> None:
        """Read changed keys until the service stops."""
        await self.repeat(self._read, every_s=_REFRESH_S)

    @property
    def has_keys(self) -> bool:
        """Whether anybody could come in with a key."""
        now_ms = self.clock.now_ms()
        return any(not held.expires_ms or held.expires_ms > now_ms for held in self._ring.values())

    @property
    def fresh(self) -> bool:
        """Whether the ring is young enough to be trusted."""
        return self.clock.uptime_s() - self._read_at <= _RING_SECONDS_MAX

    @property
    def _looks_for_long(self) -> bool:
        """Whether the catalogue lets a look wait, which is no better than one that failed."""
        spent = self.clock.uptime_s() - self._looked_at
        return self._reading.locked() and spent > _LOOK_SECONDS_MAX

    def admit(self, authorization: bytes | None) -> Access | None:
        """The access of a request; None when only `admit_unknown` can tell. Never waits."""
        if self.insecure:
            return EVERYTHING
        parts = _credentials(authorization)
        if not self.fresh:
            if self._in_trouble or self._looks_for_long:
                raise _unreadable()
            return None  # Nobody has looked: this process stood still.
        held = self._ring.get(parts[0])
        if held is None:
            return None
        # Constant time, and the expiry only after it, so that nothing is told to a guesser.
        if not hmac.compare_digest(parts[1], held.secret_hash):
            raise UnauthenticatedError("The key is not valid.")
        if held.expires_ms and held.expires_ms <= self.clock.now_ms():
            raise UnauthenticatedError("The key has expired.")
        return held.access

    async def admit_unknown(self, authorization: bytes | None) -> Access:
        """The same after one more look at the catalogue, since the key may be new."""
        await self._look_since(self.clock.uptime_s())
        access = self.admit(authorization)
        if access is None and not self.fresh:
            raise _unreadable()
        if access is None:
            raise UnauthenticatedError("The key is not valid.")
        return access

    async def _look_since(self, asked_at: float) -> None:
        """Returns after a look that began no earlier; all who ask in the meantime share it."""
        async with self._looking:
            if self._looked_at <= asked_at:
                await asyncio.sleep(self._looked_at + _LOOK_SECONDS_MIN - asked_at)
                await self._read()
        if self._read_at < asked_at:
            raise _unreadable()

    async def _read(self) -> None:
        async with self._reading:
            # The ring is as old as the beginning of its reading, however long that takes.
            began = self._looked_at = self.clock.uptime_s()
            try:
                await self._read_ring()
            except Exception:
                self._in_trouble = True
                raise
            self._read_at, self._in_trouble = began, False

    async def _read_ring(self) -> None:
        generation = await self._catalogue.generation()
        if generation != self._generation:
            # The generation is read first: a change in between is read again next time.
            self._ring = {
                key.id: _held(key) for key in await self._catalogue.keys() if not key.revoked_ms
            }
            self._generation = generation


def _unreadable() -> CatalogueError:
    return CatalogueError("Keys cannot be checked: the catalogue is not readable.")


@lru_cache(_HEADERS_KEPT)
def _credentials(authorization: bytes | None) -> tuple[str, bytes]:
    """Id and hashed secret of a header. Kept for good and bad ones alike, so it tells nothing."""
    if authorization is None:
        raise UnauthenticatedError("A key is needed: send 'Authorization: Bearer ws_…'.")
    if not authorization.startswith(_BEARER):
        raise UnauthenticatedError("The Authorization header must be 'Bearer ws_…'.")
    parts = split_key(authorization[len(_BEARER) :].decode("latin-1"))
    if parts is None:
        raise UnauthenticatedError("The key is not valid.")
    return parts[0], hash_secret(parts[1])


def _held(key: KeyRecord) -> _Held:
    scopes = frozenset[Scope]().union(*(Scope(scope).included() for scope in key.scopes))
    return _Held(Access(key.project, scopes, key.id), key.secret_hash, key.expires_ms)
