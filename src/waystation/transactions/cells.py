"""The cells of a data set: how many there are, and the terms that their scripts work on."""

from __future__ import annotations

import msgspec

from waystation.errors import SettingsError
from waystation.logs import Logs, Retention
from waystation.logs.protocol import FullPolicy
from waystation.store import Store
from waystation.store.format import stamp_cells
from waystation.store.pacing import for_each
from waystation.transactions.names import CELLS_MAX, LOG

#: What a record log keeps until history reads it.
LOG_BYTES_MAX = 256 * 1_048_576
#: Ids of one script call; a loop in a script is never longer.
BATCH_MAX = 100


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What scripts work on; those that change a transaction are told the first three first."""

    dataset: str
    #: How long what is complete stays before it may be archived.
    archive_delay_ms: int
    #: How long the external id of what is complete stays taken.
    external_id_ms: int
    #: How long a state stays in the store that the archive has, too.
    cache_ms: int = 300_000
    #: How long nobody else loads what was given to somebody to load.
    load_ms: int = 30_000

    @property
    def argument(self) -> str:
        """As the first argument of a script; the include `record` reads it."""
        return f"{self.dataset} {self.archive_delay_ms} {self.external_id_ms}"


async def open_cells(
    store: Store, logs: Logs, cells: int, *, full: FullPolicy = "drop_and_count"
) -> None:
    """Makes the cells usable, as often as it is called; refuses another number than the first.

    `full` says what a record log does that is full of what history has not read: it drops its
    oldest, or nothing is started any more until history has caught up.
    """
    if not 1 <= cells <= CELLS_MAX:
        raise SettingsError(f"transactions.cells is {cells}; it can be 1 to {CELLS_MAX}.")
    await stamp_cells(store, cells)
    retention = Retention(max_bytes=LOG_BYTES_MAX, policy=full)

    async def retain(cell: int) -> None:
        await logs.retain(LOG, cell, retention)

    if not await logs.create(LOG, cells, retention):
        await for_each(range(cells), retain)
