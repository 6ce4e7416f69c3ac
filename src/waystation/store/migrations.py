"""Migrations of the store: change a data set to the current format, one step per version.

`STEPS` has a step for each version that this release can migrate. The first node that opens an
older data set acquires a lease and runs the steps in order; other nodes wait. After each step the
stamp gets the new version, under the epoch of the lease. A crash repeats the current step.

A step must therefore leave the same data when it runs twice, and when two nodes run it
concurrently, because a node that was suspended may lose its lease during a step. A step walks the
keys with `Store.scan` and changes each key with one script. The databases have their own
migrations, and the lake is ingested again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from waystation.errors import StoreRefusedError
from waystation.runtime.ids import IdSource
from waystation.runtime.logging import logger
from waystation.store import keys
from waystation.store.client import Store
from waystation.store.dataset import FORMAT_VERSION
from waystation.store.leases import LEASE_MS, Lease, LeaseRenewer, Leases
from waystation.store.scripts import script

_log = logger("store")
_ADVANCE = script("waystation.store", "migrate")

#: Changes all data from the previous format version to the one under which the step is listed.
Step = Callable[[Store], Awaitable[None]]

STEPS: Mapping[int, Step] = {}

_WAIT_SECONDS = 0.2
#: Killed processes of an older release stay registered for ten seconds.
_ABSENCE_SECONDS_MAX = 15.0


async def migrate(
    store: Store,
    found: int,
    identity: IdSource,
    *,
    newest: int = FORMAT_VERSION,
    steps: Mapping[int, Step] = STEPS,
    absence_seconds_max: float = _ABSENCE_SECONDS_MAX,
    lease_ms: int = LEASE_MS,
) -> None:
    """Migrate the data set from version `found` to `newest`, or wait until another node has.

    Raise StoreRefusedError if the data is newer, if a step is missing, or if processes of the older
    release are still running after `absence_seconds_max`.
    """
    if found > newest:
        raise StoreRefusedError(
            f"The data has format {found}, but this release supports only up to {newest}.",
            hint="Use the release that wrote the data, or a newer one.",
        )
    missing = [number for number in range(found + 1, newest + 1) if number not in steps]
    if missing:
        raise StoreRefusedError(
            f"The data has format {found}, and this release cannot migrate it to format"
            f" {missing[0]}.",
            hint="Open it with an intermediate release first (docs/operating/upgrading.md).",
        )
    if found == newest:
        return
    renewer = LeaseRenewer(store.address, test_mode=store.test_mode)
    leases = Leases(store, renewer, owner=identity.token(16), lease_ms=lease_ms)
    try:
        while (found := await _format(store)) < newest:
            lease = await leases.acquire(keys.MIGRATION)
            if lease is None:
                await asyncio.sleep(_WAIT_SECONDS)
                continue
            try:
                await _wait_for_absence(store, found, absence_seconds_max)
                await _run(store, lease, newest, steps)
            finally:
                await lease.release()
    finally:
        renewer.close()


async def _run(store: Store, lease: Lease, newest: int, steps: Mapping[int, Step]) -> None:
    """Run the remaining steps while this node owns the lease."""
    while (found := await _format(store)) < newest and not lease.lost:
        number = found + 1
        _log.info("migration started", format=number)
        await steps[number](store)
        advanced = await store.run(
            _ADVANCE, [keys.FORMAT, keys.MIGRATION], [found, number, lease.epoch]
        )
        _log.info("migration completed", format=number, advanced=bool(advanced))
        if not advanced:
            # Another node owns the lease and runs the remaining steps.
            return


async def _wait_for_absence(store: Store, found: int, seconds_max: float) -> None:
    """Wait until no process of an older release uses the store.

    Raise StoreRefusedError if one still does after `seconds_max`.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds_max
    while count := await store.call("ZCARD", keys.PROCESSES, repeatable=True):
        if loop.time() >= until:
            raise StoreRefusedError(
                f"The data has format {found}, and {count} processes still use it.",
                hint="Stop all processes of the older release, then start this one.",
            )
        await asyncio.sleep(_WAIT_SECONDS)


async def _format(store: Store) -> int:
    return int(await store.call("HGET", keys.FORMAT, "version", repeatable=True))
