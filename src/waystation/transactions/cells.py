"""The cells of a data set: how many there are, and the terms that their scripts work on."""

from __future__ import annotations

import msgspec

from waystation.errors import SettingsError
from waystation.logs.protocol import Logs, record_retention
from waystation.runtime.tasks import for_each
from waystation.store.client import Store
from waystation.store.dataset import stamp_cells
from waystation.transactions.names import CELLS_MAX, LOG
from waystation.types.common import FullPolicy

#: What the record logs of all cells keep until history reads them, once its reader has registered.
LOG_BYTES_MAX = 256 * 1_048_576
#: Cells of a new data set whose settings name no number: as many primaries can share its work.
CELLS_DEFAULT = 16
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
) -> int:
    """Create the cells of a new data set, or open those of an existing one; return their number.

    `cells` 0 takes the number of the data set, or `CELLS_DEFAULT` for a new one. `full` is the
    policy of a record log that is full of entries which history has not read: drop the oldest, or
    refuse starts until history has caught up. Calls can be repeated.
    """
    if not 0 <= cells <= CELLS_MAX:
        raise SettingsError(f"transactions.cells is {cells}; it must be between 0 and {CELLS_MAX}.")
    cells = await stamp_cells(store, cells, default=CELLS_DEFAULT)
    retention = record_retention(LOG_BYTES_MAX, full, logs=cells)

    async def retain(cell: int) -> None:
        await logs.set_retention(LOG, cell, retention)

    if not await logs.create(LOG, cells, retention):
        await for_each(range(cells), retain)
    return cells
