"""The workers of a pool: how they come, tell that they are there, and go.

A worker that goes leaves nothing behind: what it had taken is given back, its keys go to others in
order. Each script moves some keys at a time; whoever dies in between has left marks by which the
next call, anybody's, goes on.
"""

from __future__ import annotations

from waystation.errors import WorkersFullError, WorkerUnknownError
from waystation.pools.held import Beat, Session
from waystation.pools.names import Place
from waystation.pools.refusals import check
from waystation.pools.states import WorkerKind, WorkerState
from waystation.pools.terms import Terms
from waystation.runtime.ids import require_name
from waystation.store.client import Store
from waystation.store.scripts import script

_OPEN = script(__package__, "open_pool")
_REGISTER = script(__package__, "register")
_BEAT = script(__package__, "beat")
_DRAIN = script(__package__, "drain")
_LEAVE = script(__package__, "leave")

#: Keys that one call moves: about 3 ms of the store.
KEYS_MAX = 100


class Members:
    """Runs the scripts of workers."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def open(
        self, place: Place, terms: Terms, *, incarnation: int = 1, mirror: bool = False
    ) -> bool:
        """Opens a pool; false if it was there, or has been closed since."""
        arguments = (terms.argument, incarnation, int(mirror))
        return bool(await self._store.run(_OPEN, [place.head], arguments))

    async def register(
        self,
        place: Place,
        terms: Terms,
        uid: str,
        *,
        nonce: str,
        kind: WorkerKind = WorkerKind.NATIVE,
    ) -> Session:
        """Makes a worker get keys. The nonce is its process: another one takes its place."""
        require_name(uid, field="uid")
        require_name(nonce, field="nonce")
        arguments = (terms.argument, uid, nonce, kind)
        reply = await self._store.run(_REGISTER, [place.head], arguments)
        if reply == [b"full"]:
            raise WorkersFullError(f"Pool {place.pool} has {terms.workers_max} workers.")
        return Session(uid, int(check(reply, place)[0]))

    async def beat(self, place: Place, terms: Terms, session: Session) -> Beat:
        """The worker is there; WorkerUnknownError or WorkerEvictedError: it has to register."""
        arguments = (terms.argument, session.uid, session.number)
        reply = check(await self._store.run(_BEAT, [place.head], arguments), place)
        return Beat(WorkerState(reply[0].decode()), int(reply[1]), int(reply[2]))

    async def drain(self, place: Place, terms: Terms, session: Session) -> int:
        """The worker finishes what it has taken, and gets no more; how many that are."""
        arguments = (terms.argument, session.uid, session.number, KEYS_MAX)
        while True:
            reply = check(await self._store.run(_DRAIN, [place.head], arguments), place)
            if reply[0] <= 0:
                return int(reply[1])

    async def leave(self, place: Place, terms: Terms, session: Session) -> None:
        """The worker goes. One that is not there, or has another session by now, has gone."""
        arguments = (terms.argument, session.uid, session.number, KEYS_MAX)
        while True:
            reply = await self._store.run(_LEAVE, [place.head], arguments)
            try:
                if check(reply, place)[0] == 0:
                    return
            except WorkerUnknownError:
                return
