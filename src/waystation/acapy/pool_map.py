"""The map of a mirrored pool, as it was at one moment: who has which keys, and what waits."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import msgspec

from waystation.pools.mirrored import Holdings, Mirrored
from waystation.pools.names import NOBODY, Place
from waystation.pools.terms import Terms

#: A map that changes all the time is taken as it is by then, under the lowest of its versions.
_READS_MAX = 5


class PoolMap(msgspec.Struct, frozen=True):
    """Who has what."""

    version: int
    #: Agent that got a key last.
    iterator: str
    #: Agent, or `-` for nobody, → its keys.
    lists: dict[str, frozenset[str]]
    #: Key → agent, or `-`.
    owners: dict[str, str]
    #: Keys of which messages wait.
    ready: list[str]


class MapReader:
    """Reads the map of one pool, what has not changed only once."""

    def __init__(self, mirrored: Mirrored, place: Place) -> None:
        self._mirrored = mirrored
        self._place = place
        self._last: PoolMap | None = None

    async def read(self, terms: Terms, uids: Collection[str]) -> PoolMap:
        """The map of these agents, and of nobody."""
        everyone = [*uids, NOBODY]
        last = self._last
        known = last.version if last and last.lists.keys() == set(everyone) else None
        for _ in range(_READS_MAX):
            found = await asyncio.gather(
                *(
                    self._mirrored.holdings(self._place, terms, uid, known_version=known)
                    for uid in everyone
                )
            )
            if len({each.version for each in found}) == 1:
                break
            known = None
        version = min(each.version for each in found)
        if known is None or version != known or last is None:
            lists = {
                uid: frozenset(each.keys or ()) for uid, each in zip(everyone, found, strict=True)
            }
            owners = {key: uid for uid, keys in lists.items() for key in keys}
        else:
            lists, owners = last.lists, last.owners
        ready = [key for each in found for key in each.ready]
        self._last = PoolMap(version, _iterator(found), lists, owners, ready)
        return self._last


def _iterator(found: Collection[Holdings]) -> str:
    return max(found, key=lambda each: each.version).iterator
