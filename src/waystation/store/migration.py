"""Migrations of a store: bring a data set of an older format up to date, one step per format.

`STEPS` has a step for each format that this release can come from. The node that opens an older
data set first takes a lease and runs the steps in order; others that open meanwhile wait. After
each step the format key gets the new number, and only from the number before it and only under the
epoch of the lease. A crash repeats the step that was under way.

A step must therefore leave the same when it runs twice, and when two nodes run it at once, because
a node that stood still may lose its lease in the middle. It walks with `Store.scan`, some keys at a
time, and changes each with one script. Databases of the catalogue and the archive have migrations
of their own (`database/migrations.py`); the lake is ingested anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from waystation.errors import StoreRefusedError
from waystation.runtime.ids import IdSource
from waystation.runtime.logging import logger
from waystation.store import keys
from waystation.store.client import Store
from waystation.store.heartbeat import Heartbeat
from waystation.store.leases import LEASE_MS, Lease, Leases
from waystation.store.scripts import script

_log = logger("store")
_ADVANCE = script("waystation.store", "migrate")

#: Changes all data from the format before to the one that it stands under.
Step = Callable[[Store], Awaitable[None]]

#: Raise this with every change after which an older release would misread the data, and add a step.
FORMAT_VERSION = 1
STEPS: Mapping[int, Step] = {}

_WAIT_SECONDS = 0.2
#: Processes of an older release that were killed are listed for ten seconds.
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
    """Bring the data set from format `found` to `newest`, or wait until another node has.

    StoreRefusedError if the data is newer, if a step is missing, and while processes that know the
    older format are at work.
    """
    if found > newest:
        raise StoreRefusedError(
            f"The data has format {found}; this release knows {newest}.",
            hint="Use the release that wrote it, or a newer one.",
        )
    missing = [number for number in range(found + 1, newest + 1) if number not in steps]
    if missing:
        raise StoreRefusedError(
            f"The data has format {found}, and this release cannot bring it to format"
            f" {missing[0]}.",
            hint="Open it first with a release between the two; docs/operating/upgrading.md.",
        )
    if found == newest:
        return
    heartbeat = Heartbeat(store.address, test_mode=store.test_mode)
    leases = Leases(store, heartbeat, owner=identity.token(16), lease_ms=lease_ms)
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
        await asyncio.to_thread(heartbeat.close)


async def _run(store: Store, lease: Lease, newest: int, steps: Mapping[int, Step]) -> None:
    """Run the steps that are left, as long as the lease is ours."""
    while (found := await _format(store)) < newest and not lease.lost:
        number = found + 1
        _log.info("migration begun", format=number)
        await steps[number](store)
        advanced = await store.run(
            _ADVANCE, [keys.FORMAT, keys.MIGRATION], [found, number, lease.epoch]
        )
        _log.info("migration ended", format=number, advanced=bool(advanced))
        if not advanced:
            # Another node holds the lease: it runs the steps that are left.
            return


async def _wait_for_absence(store: Store, found: int, seconds_max: float) -> None:
    """Wait until no process that knows the older format is at work; they register as they start."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds_max
    while count := await store.call("ZCARD", keys.PROCESSES, repeatable=True):
        if loop.time() >= until:
            raise StoreRefusedError(
                f"The data has format {found}, and {count} processes are at work on it.",
                hint="Stop all processes of the older release, then start this one.",
            )
        await asyncio.sleep(_WAIT_SECONDS)


async def _format(store: Store) -> int:
    return int(await store.call("HGET", keys.FORMAT, "version", repeatable=True))
