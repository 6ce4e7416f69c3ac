"""What a data set is stamped with at first use: its format, its id, its cells, its archive.

A newer format, another number of cells and another archive are refused.
"""

from __future__ import annotations

from waystation.errors import ArchiveForeignError, StoreRefusedError
from waystation.ids import Identity
from waystation.store import keys
from waystation.store.client import Store
from waystation.store.scripts import script

#: Raise this with every change after which an older release would misread the data.
FORMAT_VERSION = 1

_STAMP = script("waystation.store", "stamp")


async def stamp_format(store: Store, identity: Identity) -> str:
    """Returns the id of the data set; raises when it was written by a newer release."""
    version, dataset = await store.run(
        _STAMP, [keys.FORMAT], [FORMAT_VERSION, "ds-" + identity.token(8)]
    )
    if version is None or not version.isdigit() or dataset is None:
        raise StoreRefusedError(f"The store's format stamp is unreadable ({keys.FORMAT}).")
    if int(version) > FORMAT_VERSION:
        raise StoreRefusedError(
            f"The data has format {int(version)}; this release knows {FORMAT_VERSION}.",
            hint="Use the release that wrote it, or a newer one.",
        )
    return str(dataset.decode())


async def stamp_cells(store: Store, cells: int) -> None:
    """Fixes the number of cells of transactions; raises when it is fixed already, and another."""
    await store.call("HSETNX", keys.FORMAT, "cells", cells, repeatable=True)
    found = int(await store.call("HGET", keys.FORMAT, "cells", repeatable=True))
    if found != cells:
        raise StoreRefusedError(
            f"The data has {found} cells of transactions; transactions.cells says {cells}.",
            hint=f"Ids depend on that number. Set transactions.cells = {found}.",
        )


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
