"""The script that brings states back from the archive; no other writes what a caller has loaded.

A state that is not in the store is told as missing, with a load nonce. Whoever wants it reads the
archive, and brings what was found back under that nonce. A nonce is good for one save: if somebody
else was faster, and the transaction has moved on and left the store again, the answer is `again`.
So two that load at once, or a load that is late, never put an old state into a newer one's place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from waystation.archive import ArchivedState
from waystation.store.client import Store
from waystation.store.scripts import script
from waystation.transactions import names
from waystation.transactions.cells import BATCH_MAX, Terms

_RESTORE = script(__package__, "restore")

#: A call has about as many bytes; a larger state is alone in its call.
RESTORE_BYTES_MAX = 4 * 1_048_576

#: `restored`: with a TTL. `woken`: queued. `cached`: it was there. `again`: another has saved it
#: since, and it is gone once more. `lost`: nowhere, though it sleeps or has a deadline. `unknown`:
#: nowhere at all. `alive`: the archive has a snapshot of what the store has lost while it ran.
Restored = Literal["restored", "woken", "cached", "again", "lost", "unknown", "alive"]
#: Those of which nothing can be brought back.
GONE = frozenset(["lost", "unknown", "alive", "foreign"])
#: Why it is brought back: `wake`: it has slept long enough. `deadline`: it is to be ended.
LoadMode = Literal["", "wake", "deadline"]


class Missing(msgspec.Struct, frozen=True):
    """A transaction that is not in the store, and the nonce under which it can be brought back."""

    id: str
    nonce: str


class Restoration(msgspec.Struct, frozen=True):
    """What the archive had for one that was missing."""

    missing: Missing
    #: The whole hash; None: nothing was found.
    fields: Mapping[bytes, bytes] | None


class Loaded(msgspec.Struct, frozen=True):
    """What came of a load; `no-room`: the store is full, and the row is all that there is."""

    outcome: Restored | Literal["foreign", "no-room"]
    row: ArchivedState | None = None


class Loads(Protocol):
    """Who can read the archive and bring back what is missing; `loader.Loader` does."""

    async def bring(
        self, owner: str, missing: Sequence[Missing], *, mode: LoadMode = ""
    ) -> dict[str, Loaded]:
        """What came of each id; an archive that is away raises."""
        ...


class Restoring:
    """Runs the script."""

    def __init__(self, store: Store, terms: Terms) -> None:
        self._store = store
        self._terms = terms

    async def restore(
        self, cell: int, items: Sequence[Restoration], *, mode: LoadMode = ""
    ) -> list[Restored]:
        """Brings back states of one cell, any number: all calls leave in one write.

        StoreFullError: there is no room; some of them may be back, and it may be repeated.
        """
        replies = await asyncio.gather(
            *(
                self._store.run(
                    _RESTORE,
                    [names.log(cell)],
                    [self._terms.argument, self._terms.cache_ms, *words],
                )
                for words in _calls(items, mode)
            )
        )
        return [each.decode() for reply in replies for each in reply[1:]]


def _calls(items: Sequence[Restoration], mode: LoadMode) -> Iterator[list[str | bytes | int]]:
    """The arguments of each call: 100 items, or as many as its bytes allow."""
    call: list[str | bytes | int] = []
    count = size = 0
    for each in items:
        fields = each.fields or {}
        length = sum(map(len, fields)) + sum(map(len, fields.values()))
        if count == BATCH_MAX or (count and size + length > RESTORE_BYTES_MAX):
            yield call
            call, count, size = [], 0, 0
        call += (each.missing.id, each.missing.nonce, mode)
        call += _words(fields)
        count, size = count + 1, size + length
    if count:
        yield call


def _words(fields: Mapping[bytes, bytes]) -> list[bytes | int]:
    """How many words, the head, then the other fields: the script changes the head alone."""
    if not fields:
        return [0]
    rest = [word for field in fields.items() if field[0] != b"head" for word in field]
    return [1 + len(rest), fields.get(b"head", b""), *rest]
