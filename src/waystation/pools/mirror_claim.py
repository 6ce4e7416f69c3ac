"""Which pool agents serve: one of a store, since the plugin's keys have no names of their own."""

from __future__ import annotations

from waystation.errors import MirrorTakenError
from waystation.pools.names import Place
from waystation.store.client import Store
from waystation.store.scripts import script

_CLAIM = script(__package__, "claim_mirror")
_RELEASE = script(__package__, "release_mirror")

CLAIM = "{waystation.mirror}:pool"
#: Whoever died between his claim and the pool's first key has lost it by then.
_OPENED_MS_MAX = 60_000


class MirrorClaim:
    """Claims and releases."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def take(self, place: Place) -> None:
        """The pool is the one that agents serve; MirrorTakenError: another is."""
        wanted, gone = _word(place), ""
        while True:
            reply = await self._store.run(_CLAIM, [CLAIM], [wanted, gone])
            holder = reply[0].decode()
            if holder == wanted:
                return
            project, _, pool = holder.partition(".")
            head = Place(project, pool).head
            opened = await self._store.call("HEXISTS", head, "opened_ms", repeatable=True)
            if opened or int(reply[1]) < _OPENED_MS_MAX:
                raise MirrorTakenError(f"Agents serve pool {pool} of project {project} already.")
            gone = holder

    async def release(self, place: Place) -> None:
        """The pool is gone; one that had no claim changes nothing."""
        await self._store.run(_RELEASE, [CLAIM], [_word(place)])


def _word(place: Place) -> str:
    return f"{place.project}.{place.pool}"
