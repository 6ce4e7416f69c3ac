"""Leases of history: one job of a kind at a time, so that no work is done for nothing.

They are no condition of being right: of two that bring the same rows, the lake refuses one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from waystation.errors import HistoryBusyError
from waystation.runtime.ids import IdSource, RandomIds
from waystation.store.address import parse_address
from waystation.store.client import Store
from waystation.store.leases import LeaseRenewer, Leases

Job = Literal["ingest", "audit", "refresh", "forget"]

#: Each has its own: an audit and a refresh go on beside an ingest that follows the logs.
KEYS: dict[Job, str] = {
    "ingest": "{waystation.history}:lease",
    "audit": "{waystation.history.audit}:lease",
    "refresh": "{waystation.history.lake.rollups}:lease",
    # Not that of ingest, which a server holds as long as its Spark process runs.
    "forget": "{waystation.history.forget}:lease",
}
_STOP = "Wait until it has ended, or stop it."
_HINTS: dict[Job, str] = {
    "ingest": "If a server runs the data pipeline, wait with `waystation history status --wait`.",
    "audit": _STOP,
    "refresh": _STOP,
    "forget": _STOP,
}


@contextmanager
def history_lease(
    url: str,
    job: Job = "ingest",
    *,
    identity: IdSource | None = None,
    waiting: Callable[[], bool] | None = None,
) -> Iterator[None]:
    """Holds the lease for the length of the block; HistoryBusyError while another does.

    `waiting` is called between two tries, and says whether there is to be another.
    """
    owner = (identity or RandomIds()).token(16)
    with asyncio.Runner() as runner:
        store = Store(parse_address(url))
        renewer = LeaseRenewer(store.address)
        try:
            leases = Leases(store, renewer, owner=owner)
            lease = runner.run(leases.acquire(KEYS[job]))
            while lease is None and waiting is not None and waiting():
                lease = runner.run(leases.acquire(KEYS[job]))
            if lease is None:
                raise HistoryBusyError(f"Another {job} is at work.", hint=_HINTS[job])
            try:
                yield
            finally:
                runner.run(lease.release())
        finally:
            runner.run(store.close())
            renewer.close()
