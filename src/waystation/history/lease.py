"""Leases of jobs on the lake: one job of a kind at a time.

A lease saves work and is not needed for correctness: if two ingests commit the same offsets, Delta
rejects the second commit.
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

#: Lease of each job. An audit and a refresh can run in parallel with `ingest --follow`.
KEYS: dict[Job, str] = {
    "ingest": "{waystation.history}:lease",
    "audit": "{waystation.history.audit}:lease",
    "refresh": "{waystation.history.lake.rollups}:lease",
    # Separate from the lease of ingest, which a server keeps while its Spark process runs.
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
    retry: Callable[[], bool] | None = None,
) -> Iterator[None]:
    """Hold the lease of a job for the length of the block.

    Raise HistoryBusyError if another process has the lease. With `retry`, call it after each failed
    attempt instead, which can wait; raise the error if it returns False.
    """
    owner = (identity or RandomIds()).token(16)
    with asyncio.Runner() as runner:
        store = Store(parse_address(url))
        renewer = LeaseRenewer(store.address)
        try:
            leases = Leases(store, renewer, owner=owner)
            lease = runner.run(leases.acquire(KEYS[job]))
            while lease is None and retry is not None and retry():
                lease = runner.run(leases.acquire(KEYS[job]))
            if lease is None:
                raise HistoryBusyError(f"Another {job} is running.", hint=_HINTS[job])
            try:
                yield
            finally:
                runner.run(lease.release())
        finally:
            runner.run(store.close())
            renewer.close()
