"""What only a pool has that agents serve: its map for them, and what was seen of their lists.

A message stays in the pool's list of its key until it was seen to be gone from the agent's, which
stands for an acknowledgement: the plugin gives none. So all that holds for other pools holds here:
what waits moves with its key, and is counted once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from waystation.pools.names import Place
from waystation.pools.refusals import check
from waystation.pools.terms import Terms
from waystation.store.client import Store
from waystation.store.scripts import script

_HOLDINGS = script(__package__, "holdings")
_UNPUSHED = script(__package__, "unpushed")
_OBSERVE = script(__package__, "observe")
_ADOPT = script(__package__, "adopt_map")

#: Keys with messages of one worker that are looked at together.
READY_MAX = 500
#: Keys of one call.
KEYS_MAX = 100
#: Messages of a key that one call takes off, as the script has it.
DROPPED_MAX = 500
_PUSH_MAX = 100
_PUSH_BYTES_MAX = 4 * 1_048_576


class Holdings(msgspec.Struct, frozen=True):
    """What a worker has."""

    version: int
    #: Worker that got a key last.
    iterator: str
    #: Keys of which messages wait, the oldest first.
    ready: list[str]
    #: All its keys; None: those of the version that was known.
    keys: list[str] | None


class Seen(msgspec.Struct, frozen=True):
    """What was seen of the list of a key."""

    key: str
    #: Last number that was popped, and last that was pushed.
    gone: int
    pushed: int
    length: int


class Mirrored:
    """Runs the scripts of a pool that agents serve."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def holdings(
        self, place: Place, terms: Terms, uid: str, *, known_version: int | None = None
    ) -> Holdings:
        """What a worker has; `-`: what waits for one."""
        known = "" if known_version is None else known_version
        arguments = (terms.argument, uid, known, READY_MAX)
        reply = check(await self._store.run(_HOLDINGS, [place.head], arguments), place)
        version, end = int(reply[0]), 3 + int(reply[2])
        ready, keys = ([each.decode() for each in some] for some in (reply[3:end], reply[end:]))
        return Holdings(
            version, reply[1].decode(), ready, None if version == known_version else keys
        )

    async def unpushed(
        self, place: Place, terms: Terms, key: str, *, after: int
    ) -> list[tuple[int, bytes]]:
        """The next messages behind a number; none for a key that waits for a worker."""
        arguments = (terms.argument, key, after, _PUSH_MAX, _PUSH_BYTES_MAX)
        reply = check(await self._store.run(_UNPUSHED, [place.head], arguments), place)
        return [(int(reply[i]), reply[i + 1]) for i in range(1, len(reply), 2)]

    async def observe(
        self,
        place: Place,
        terms: Terms,
        accesses: Mapping[str, str],
        lists: Sequence[Seen],
        *,
        grace_ms: int,
    ) -> dict[str, int]:
        """Takes over what was seen; how many messages of each key are pending."""
        assert len(lists) <= KEYS_MAX, "more keys than one call may have"
        words: list[str | bytes | int] = [terms.argument, grace_ms, len(accesses)]
        for uid, written in accesses.items():
            words += (uid, written)
        for each in lists:
            words += (each.key, each.gone, each.pushed, each.length)
        reply = check(await self._store.run(_OBSERVE, [place.head], words), place)
        counted = zip(lists, reply[1:], strict=True)
        return {each.key: int(pending) for each, pending in counted}

    async def adopt(
        self, place: Place, terms: Terms, uid: str, keys: Sequence[str], *, version: int
    ) -> int | None:
        """Gives a worker keys that it was given outside; the new version, or None: not now."""
        assert len(keys) <= KEYS_MAX, "more keys than one call may have"
        arguments: list[str | bytes | int] = [terms.argument, version, uid, *keys]
        reply = await self._store.run(_ADOPT, [place.head], arguments)
        if reply[0] in (b"again", b"unknown"):
            return None
        return int(check(reply, place)[1])
