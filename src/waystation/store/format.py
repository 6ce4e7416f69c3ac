"""The stamp of a data set, written at first use: its format, its id, its cells, its archive.

A newer format, another number of cells, another archive, and a store that lost the data set that
was known before are refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from waystation.errors import ArchiveForeignError, StoreError, StoreRefusedError
from waystation.runtime.ids import IdSource
from waystation.store import keys
from waystation.store.client import Store
from waystation.store.data_set import (
    MARKERS,
    REPLACED_MAX,
    Stamp,
    lost_error,
    marker_keys,
    parse_stamp,
)
from waystation.store.migration import FORMAT_VERSION, migrate
from waystation.store.scripts import script

_STAMP = script("waystation.store", "stamp_dataset")
_ACCEPT = script("waystation.store", "accept_loss")


async def stamp_format(store: Store, identity: IdSource, *, known: str = "") -> str:
    """Return the id of the data set; stamp the store first if it never had one.

    `known` is the id that was found there before. StoreDataLostError if the store has no stamp or
    another id, unless that data set replaces the known one by an accepted loss; StoreRefusedError
    if a newer release wrote the data. Data of an older format is migrated.
    """
    version, dataset, replaces = await store.run(
        _STAMP, [keys.FORMAT], [FORMAT_VERSION, "ds-" + identity.token(8), known]
    )
    if known and dataset is None:
        raise lost_error(known, Stamp(""))
    if version is None or not version.isdigit() or dataset is None:
        raise StoreRefusedError(f"The store's format stamp is unreadable ({keys.FORMAT}).")
    found = parse_stamp([dataset, replaces])
    if known and known not in (found.dataset, *found.replaces):
        raise lost_error(known, found)
    await migrate(store, int(version), identity)
    await _stamp_markers(store, found)
    return found.dataset


async def accept_loss(
    store: Store, identity: IdSource, *, known: str, earlier: Sequence[str]
) -> str:
    """Give the store a data set that replaces the lost one, and return its id.

    `earlier` are ids that the lost one replaced. May be repeated: the second call changes nothing.
    """
    replaced = " ".join([known, *earlier][:REPLACED_MAX])
    words = await store.run(
        _ACCEPT, [keys.FORMAT], [FORMAT_VERSION, "ds-" + identity.token(8), replaced]
    )
    stamp = parse_stamp(words)
    await _stamp_markers(store, stamp)
    return stamp.dataset


async def has_lost(store: Store, known: str) -> bool:
    """Return whether the store, or a node of a cluster, does not have the known data set."""
    words = await store.call("HMGET", keys.FORMAT, "dataset", "markers", repeatable=True)
    if words[0] is None or words[0].decode() != known:
        return True
    if words[1] is None or store.address.cluster is None:
        return False
    return any(each.dataset != known for each in await _read_markers(store))


async def _stamp_markers(store: Store, stamp: Stamp) -> None:
    """Write the markers of a cluster, once; later, refuse a cluster where one of them is gone.

    The format key tells that all are written after they are: until then a crash repeats it.
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
    """Fix the number of cells of transactions at first use and return it.

    With `cells` 0 a new data set gets `default`, and an existing one keeps its number. Raise
    StoreRefusedError if the data set has another number than a `cells` above 0.
    """
    await store.call("HSETNX", keys.FORMAT, "cells", cells or default, repeatable=True)
    found = int(await store.call("HGET", keys.FORMAT, "cells", repeatable=True))
    if cells not in (0, found):
        raise StoreRefusedError(
            f"The data set has {found} cells of transactions; transactions.cells is {cells}.",
            hint="The number is part of every transaction id and cannot change. Remove the"
            f" setting, or set transactions.cells = {found}.",
        )
    return found


async def history_reader(store: Store) -> str:
    """Return the reader under which history holds logs; empty: none has registered."""
    found = await store.call("HGET", keys.FORMAT, "history", repeatable=True)
    return found.decode() if found else ""


async def stamp_archive(store: Store, archive: str) -> None:
    """Fixes the archive of transactions by its name; raises when they are in another one already.

    Two archives of one data set would each have states that the other is asked for.
    """
    await store.call("HSETNX", keys.FORMAT, "archive", archive, repeatable=True)
    found = (await store.call("HGET", keys.FORMAT, "archive", repeatable=True)).decode()
    if found != archive:
        raise ArchiveForeignError(
            f"The transactions of this store are in the archive {found}; this one is {archive}.",
            hint="All processes of a store need the same archive: the same data directory, or"
            " archive.url. docs/operating/archive.md tells how to change it.",
        )
