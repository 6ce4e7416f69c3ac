"""Data set of a store: its stamp, and the check of each connection that the data is still there.

A store that lost its data (an empty volume, a deleted append-only directory) looks like a new one.
The stamp (`waystation.format`) therefore contains the id of the data set, and each new connection
reads it before it sends a call. If the id is missing or differs, all calls end with
`StoreDataLostError` until the data is back or an operator accepts the loss. The stamp of the new
data set then lists the ids that it replaces.

On a cluster a single node can lose its data. `MARKERS` small keys in evenly spread slots therefore
contain the id too, and a connection to a node reads markers of that node.

The stamp also fixes the number of transaction cells and the archive of the data set.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from waystation.errors import (
    ArchiveForeignError,
    StoreDataLostError,
    StoreError,
    StoreRefusedError,
    StoreReplyError,
)
from waystation.runtime.ids import IdSource
from waystation.store import keys
from waystation.store.address import Address
from waystation.store.scripts import script
from waystation.store.slots import SLOTS, slot_of

if TYPE_CHECKING:
    # The client imports this module, so an import at run time would be circular.
    from waystation.store.client import Store

#: Format of the data that this release writes. Raise it with every change that an older release
#: would misread, and add a migration step.
FORMAT_VERSION = 1

_STAMP = script("waystation.store", "stamp_dataset")
_ACCEPT = script("waystation.store", "accept_loss")

#: Number of marker keys on a cluster. A primary with fewer than 1/64 of the slots may have none.
MARKERS = 64
#: Number of markers that a new connection reads: several, because a slot may be moving.
_ASKED = 3
#: Error replies of a cluster node that does not own the slot now.
_ELSEWHERE = ("MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN")
#: Maximum number of replaced ids in a stamp; the oldest are dropped.
REPLACED_MAX = 32

HINT = (
    "Restore the data of the store, or accept the loss with `waystation store accept-loss`"
    " (docs/operating/store-loss.md)."
)


@dataclass(frozen=True)
class Stamp:
    """Id of a data set, and the ids of the lost data sets that it replaces."""

    dataset: str
    replaces: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join((self.dataset, *self.replaces))


def parse_stamp(words: Sequence[bytes | None]) -> Stamp:
    """Return the stamp in a reply. Its id is empty if the reply contains none."""
    dataset, *replaces = b" ".join(word for word in words if word).decode().split() or [""]
    return Stamp(dataset, tuple(replaces))


@functools.cache
def marker_keys() -> tuple[str, ...]:
    """Return the marker keys, one for each of `MARKERS` equal ranges of slots."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < MARKERS:
        key = keys.data_set_marker(number)
        found.setdefault(slot_of(key) * MARKERS // SLOTS, key)
        number += 1
    return tuple(found[place] for place in range(MARKERS))


class DataSet:
    """The data set that a client expects in its store, and the servers that lack it."""

    def __init__(self, address: Address) -> None:
        self._slot_map = address.cluster
        #: Expected id. While it is empty, before the store is opened, nothing is checked.
        self.known = ""
        #: Whether this process continues with a data set that replaces its own. A process that
        #: stores more than the id must open the store again; `replaced` is set then.
        self.adopts = True
        self.replaced = asyncio.Event()
        #: Whether the settings accept every loss in advance.
        self.ephemeral = False
        #: Error of the last check, by server. A server that passed has no entry.
        self._lost: dict[Address, StoreDataLostError] = {}

    @property
    def lost(self) -> StoreDataLostError | None:
        """Error of a server without the data set; None if all servers have it."""
        return next(iter(self._lost.values()), None)

    def questions(self, server: Address) -> list[tuple[str, ...]]:
        """Return the commands that read the stamp over a new connection to a server."""
        if not self.known:
            return []
        if self._slot_map is None:
            return [("HMGET", keys.FORMAT, "dataset", "replaces")]
        mine = (key for key in marker_keys() if self._slot_map.node_of(slot_of(key)) == server)
        return [("GET", key) for key, _ in zip(mine, range(_ASKED), strict=False)]

    def check(self, server: Address, answers: Sequence[Any]) -> None:
        """Check the replies of a server. Raise StoreDataLostError if it lost the data set.

        Raise StoreReplyError if a cluster node replied to no question, because a node that has
        just restarted replies CLUSTERDOWN for a moment and must not get calls unchecked.
        """
        elsewhere = [
            each
            for each in answers
            if isinstance(each, StoreReplyError) and each.reply.startswith(_ELSEWHERE)
        ]
        if elsewhere and len(elsewhere) == len(answers):
            raise elsewhere[0]
        for answer in answers:
            if answer in elsewhere:
                continue
            if isinstance(answer, BaseException):
                raise answer
            try:
                self.judge(parse_stamp(answer if isinstance(answer, list) else [answer]))
            except StoreDataLostError as error:
                self._lost[server] = error
                raise
        self._lost.pop(server, None)

    def judge(self, found: Stamp) -> None:
        """Compare a stamp with the expected id. Raise StoreDataLostError if it differs."""
        if not self.known or found.dataset == self.known:
            return
        accepted = self.known in found.replaces
        if accepted and self.adopts:
            self.known = found.dataset
            return
        if accepted or self.ephemeral:
            self.replaced.set()
        raise lost_error(self.known, found, accepted=accepted)

    def forget(self, server: Address) -> None:
        """Drop the result of the last check of a server, because the client left the server."""
        self._lost.pop(server, None)


def lost_error(known: str, found: Stamp, *, accepted: bool = False) -> StoreDataLostError:
    """Return the error of a store that has another data set than the known one, or none."""
    if accepted:
        return StoreDataLostError(
            f"The loss of data set {known} was accepted; this process opens {found.dataset}."
        )
    actual = f"has data set {found.dataset} instead" if found.dataset else "has no data set"
    return StoreDataLostError(f"The store lost data set {known}: it {actual}.", hint=HINT)


# -- Stamp -----------------------------------------------------------------------------------


async def read_or_write_stamp(store: Store, identity: IdSource, *, known: str) -> tuple[int, Stamp]:
    """Return format version and stamp of the store; write the stamp if it never had one.

    `known` is the id found there before; empty the first time. Raise StoreDataLostError if the
    store has no stamp or another id, unless its data set replaces the known one. Raise
    StoreRefusedError if the stamp is unreadable.
    """
    version, dataset, replaces = await store.run(
        _STAMP, [keys.FORMAT], [FORMAT_VERSION, "ds-" + identity.token(8), known]
    )
    if known and dataset is None:
        raise lost_error(known, Stamp(""))
    if version is None or not version.isdigit() or dataset is None:
        raise StoreRefusedError(
            f"The stamp of the store (key {keys.FORMAT}) is unreadable.",
            hint="Restore the data of the store from a backup.",
        )
    found = parse_stamp([dataset, replaces])
    if known and known not in (found.dataset, *found.replaces):
        raise lost_error(known, found)
    return int(version), found


async def accept_loss(
    store: Store, identity: IdSource, *, known: str, earlier: Sequence[str]
) -> str:
    """Stamp the store with a data set that replaces the lost one, and return the new id.

    `earlier` are the ids that the lost one replaced. A second call changes nothing.
    """
    replaced = " ".join([known, *earlier][:REPLACED_MAX])
    words = await store.run(
        _ACCEPT, [keys.FORMAT], [FORMAT_VERSION, "ds-" + identity.token(8), replaced]
    )
    stamp = parse_stamp(words)
    await write_markers(store, stamp)
    return stamp.dataset


async def has_lost(store: Store, known: str) -> bool:
    """Return True if the store, or a node of a cluster, does not have the known data set."""
    words = await store.call("HMGET", keys.FORMAT, "dataset", "markers", repeatable=True)
    if words[0] is None or words[0].decode() != known:
        return True
    if words[1] is None or store.address.cluster is None:
        return False
    return any(each.dataset != known for each in await _read_markers(store))


async def write_markers(store: Store, stamp: Stamp) -> None:
    """Write the markers of a cluster once. Later, raise StoreDataLostError if one is missing.

    The stamp records the markers after all are written, so a crash before that repeats the write.
    """
    if store.address.cluster is None:
        return
    if await store.call("HGET", keys.FORMAT, "markers", repeatable=True) is not None:
        for found in await _read_markers(store):
            if found.dataset != stamp.dataset:
                raise lost_error(stamp.dataset, found)
        return
    text = str(stamp)
    commands = [("SET", key, text) for key in marker_keys()]
    for reply in await store.pipeline(commands, repeatable=True):
        if isinstance(reply, StoreError):
            raise reply
    await store.call("HSET", keys.FORMAT, "markers", MARKERS, repeatable=True)


async def _read_markers(store: Store) -> list[Stamp]:
    found = []
    for reply in await store.pipeline([("GET", key) for key in marker_keys()], repeatable=True):
        if isinstance(reply, StoreError):
            raise reply
        found.append(parse_stamp([reply]))
    return found


async def stamp_cells(store: Store, cells: int, *, default: int = 1) -> int:
    """Fix the number of transaction cells at first use, and return it.

    With `cells` 0 a new data set gets `default`, and an existing one keeps its number. Raise
    StoreRefusedError if the data set has another number.
    """
    await store.call("HSETNX", keys.FORMAT, "cells", cells or default, repeatable=True)
    found = int(await store.call("HGET", keys.FORMAT, "cells", repeatable=True))
    if cells not in (0, found):
        raise StoreRefusedError(
            f"The data set has {found} transaction cells, but transactions.cells is {cells}.",
            hint="The number is part of every transaction id and cannot change. Remove the"
            f" setting, or set transactions.cells = {found}.",
        )
    return found


async def history_reader(store: Store) -> str:
    """Return the name under which the ingest reads logs; empty if it has not registered."""
    found = await store.call("HGET", keys.FORMAT, "history", repeatable=True)
    return found.decode() if found else ""


async def register_history(store: Store, reader: str) -> None:
    """Register history under a reader name, unless it is registered under any name."""
    await store.call("HSETNX", keys.FORMAT, "history", reader, repeatable=True)


async def stamp_archive(store: Store, archive: str) -> None:
    """Fix the transaction archive of the data set by its name.

    Raise ArchiveForeignError if the data set uses another archive, because each of two archives
    would lack the transactions of the other.
    """
    await store.call("HSETNX", keys.FORMAT, "archive", archive, repeatable=True)
    found = (await store.call("HGET", keys.FORMAT, "archive", repeatable=True)).decode()
    if found != archive:
        raise ArchiveForeignError(
            f"The data set uses archive {found}, but the settings name archive {archive}.",
            hint="Use the same data directory or archive.url in all processes of a store."
            " docs/operating/archive.md explains how to change the archive.",
        )
