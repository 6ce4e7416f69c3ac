"""Which worker has which recipient key: given, moved when a worker is stale, looked at.

`assign` and `reassign` are what the plugin calls assign_recip_key_to_new_uid and
reassign_recip_key_to_uid, each one atomic script. A move of many keys takes several calls; after
each of them every key is in exactly one worker's list.
"""

from __future__ import annotations

from waystation.errors import InvalidInputError
from waystation.pools.held import KeyLook, KeyRow, MapPage, PoolLook, Swept, WorkerLook
from waystation.pools.names import NOBODY, Place
from waystation.pools.recipient import check_key
from waystation.pools.refusals import check
from waystation.pools.states import KeyState, WorkerKind, WorkerState
from waystation.pools.terms import Terms
from waystation.store.client import Store
from waystation.store.connection import Reply
from waystation.store.scripts import script

_ASSIGN = script(__package__, "assign")
_REASSIGN = script(__package__, "reassign")
_SWEEP = script(__package__, "sweep")
_LOOK = script(__package__, "look")
_PAGE = script(__package__, "page")
_FORGET = script(__package__, "forget")

#: Keys that one call moves: about 3 ms of the store.
KEYS_MAX = 100


class Assignments:
    """Runs the scripts of the map."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def assign(
        self, place: Place, terms: Terms, key: str, *, uid: str = ""
    ) -> tuple[str, int]:
        """Gives a key a worker, if it has none, or the one named; its owner and epoch."""
        arguments = (terms.argument, check_key(key), uid)
        reply = check(await self._store.run(_ASSIGN, [place.head], arguments), place)
        return reply[0].decode(), int(reply[1])

    async def reassign(self, place: Place, terms: Terms, uid: str, *, asked: bool = False) -> int:
        """Evicts a worker that is stale, or any that an operator names; how many keys moved."""
        moved, left = 0, 1
        while left > 0:
            arguments = (terms.argument, uid, KEYS_MAX, "asked" if asked else "stale")
            reply = check(await self._store.run(_REASSIGN, [place.head], arguments), place)
            moved, left = moved + int(reply[0]), int(reply[1])
        return moved

    async def sweep(
        self, place: Place, terms: Terms, *, forget_ms: int, retention_ms: int | None
    ) -> Swept:
        """Looks after a pool once; `more`: there is more to be done at once."""
        retention = "-" if retention_ms is None else retention_ms
        arguments = (terms.argument, forget_ms, retention, KEYS_MAX)
        reply = check(await self._store.run(_SWEEP, [place.head], arguments), place)
        more, moved, forgotten, freed = (int(each) for each in reply[1:5])
        return Swept(bool(more), moved, forgotten, freed, [each.decode() for each in reply[5:]])

    async def look(self, place: Place, terms: Terms) -> PoolLook:
        """The pool and its workers."""
        reply = check(await self._store.run(_LOOK, [place.head], (terms.argument, "")), place)
        now_ms, version, keys, pending, waiting, oldest, size, dead, dropped = map(int, reply[:9])
        workers = [
            _worker(reply[i : i + 8], now_ms, terms.stale_ms) for i in range(9, len(reply), 8)
        ]
        return PoolLook(
            now_ms=now_ms,
            version=version,
            keys=keys,
            pending=pending,
            waiting=waiting,
            oldest_wait_ms=oldest,
            bytes=size,
            dead=dead,
            dropped=dropped,
            workers=sorted(workers, key=lambda each: each.uid),
        )

    async def look_at(self, place: Place, terms: Terms, key: str) -> KeyLook | None:
        """A recipient key; None if the pool does not know it."""
        arguments = (terms.argument, check_key(key))
        reply = check(await self._store.run(_LOOK, [place.head], arguments), place)
        return _key(reply, terms.stale_ms) if len(reply) > 1 else None

    async def page(
        self, place: Place, terms: Terms, *, uid: str = "", cursor: str = "", limit: int = 100
    ) -> MapPage:
        """A page of the map: keys of a worker (`-`: of nobody), or of all."""
        if not ((cursor.isdecimal() and cursor.isascii()) or cursor == "") or len(cursor) > 20:
            raise InvalidInputError("That is no cursor of a map.", field="cursor")
        arguments = (terms.argument, uid, cursor or "0", limit)
        reply = check(await self._store.run(_PAGE, [place.head], arguments), place)
        now_ms, following = int(reply[0]), reply[1].decode()
        rows = [_row(reply[i : i + 4], now_ms) for i in range(2, len(reply), 4)]
        return MapPage(rows, "" if following == "0" else following)

    async def forget(self, place: Place, terms: Terms, key: str) -> bool:
        """Forgets a key without messages; false if it was not known."""
        arguments = (terms.argument, check_key(key))
        return bool(check(await self._store.run(_FORGET, [place.head], arguments), place)[0])


def _row(words: list[Reply], now_ms: int) -> KeyRow:
    key, pending, due_ms, entry = words
    owner, epoch, token, _, _, since_ms, reason = entry.decode().split(" ")
    return KeyRow(
        key=key.decode(),
        state=_key_state(owner, token.encode(), int(pending), int(due_ms) > now_ms),
        owner=owner,
        epoch=int(epoch),
        pending=int(pending),
        since_ms=int(since_ms),
        reason=reason,
    )


def _worker(words: list[Reply], now_ms: int, stale_ms: int) -> WorkerLook:
    uid, state, kind, registered_ms, keys, pending, taken, seen = words
    last_access_ms = int(seen) if seen else None
    return WorkerLook(
        uid=uid.decode(),
        state=_state(state, kind, last_access_ms, now_ms - stale_ms),
        kind=WorkerKind(kind.decode()),
        keys=int(keys),
        pending=int(pending),
        taken=int(taken),
        last_access_ms=last_access_ms,
        registered_ms=int(registered_ms),
    )


def _state(state: bytes, kind: bytes, last_access_ms: int | None, before_ms: int) -> WorkerState:
    unheard = last_access_ms is None or last_access_ms < before_ms
    if state == b"live" and kind == b"native" and unheard:
        return WorkerState.SILENT
    return WorkerState(state.decode())


def _key(words: list[Reply], stale_ms: int) -> KeyLook:
    now_ms, pending, oldest_ms, due_ms = (int(each) for each in words[:4])
    seen, state, kind, owner, epoch, token, tries, crashes, since_ms, reason = words[4:]
    last_access_ms = int(seen) if seen else None
    worker = None if state == b"-" else _state(state, kind, last_access_ms, now_ms - stale_ms)
    return KeyLook(
        now_ms=now_ms,
        state=_key_state(owner.decode(), token, pending, due_ms > now_ms),
        owner=owner.decode(),
        epoch=int(epoch),
        pending=pending,
        tries=int(tries),
        crashes=int(crashes),
        since_ms=int(since_ms),
        reason=reason.decode(),
        oldest_ms=oldest_ms,
        due_ms=due_ms,
        last_access_ms=last_access_ms,
        worker=worker,
        kind=None if state == b"-" else WorkerKind(kind.decode()),
    )


def _key_state(owner: str, token: bytes, pending: int, later: bool) -> KeyState:
    if pending == 0:
        return KeyState.IDLE
    if owner == NOBODY:
        return KeyState.WAITING
    if token != b"-":
        return KeyState.TAKEN
    return KeyState.DELAYED if later else KeyState.PENDING
