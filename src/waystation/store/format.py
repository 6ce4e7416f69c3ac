"""The format version of a data set: stamped at first use, newer ones are refused."""

from __future__ import annotations

from waystation.errors import StoreRefusedError
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
