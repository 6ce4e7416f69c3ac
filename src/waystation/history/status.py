"""Status of the data pipeline in the store: one hash that every node and command reads.

The fields and their writers:

- `role`, `role_ms`: report of the node that ingests, or of any node with the role while there is no
  work, and its time.
- `rows`, `batch_…`: rows of all batches, and the last batch; written by each ingest.
- `failures`: written by the role.
- `asked`, `served`: a client that waits for the lake increments `asked`. An ingest that has read
  all logs to the ends that they had at its start sets `served` to the number that it read before.
- `ends`, `lake`, `ends_ms`: digest of these ends, id of the lake that is complete up to them, and
  the time when they were read. While logs and lake have this digest and id, there is no work.

All times are real. The time machine of test mode does not move them, because they tell whether
processes run, and commands that it does not move read them.
"""

from __future__ import annotations

import asyncio

import msgspec

from waystation.errors import IngestFailedError, PipelineOffError
from waystation.history.lease import KEYS
from waystation.store.client import Store
from waystation.store.scripts import script
from waystation.types.history import HistoryState, HistoryStatus, IngestBatch

#: Hash: status, in the slot of the lease of ingest.
KEY = "{waystation.history}:status"
#: Age of a report after which its node no longer runs the role.
REPORT_MS_MAX = 30_000
#: Time between two reads of the status while a client waits for the lake.
_WAIT_S = 0.2

_COUNT = script("waystation.history", "status_count")
_FINISH = script("waystation.history", "status_finish")
_READ = script("waystation.history", "status_read")
_REPORT = script("waystation.history", "status_report")


class RoleReport(msgspec.Struct, frozen=True, kw_only=True):
    """Report of a node about its role."""

    state: HistoryState
    lake: str
    lag: int
    error: str = ""
    hint: str = ""


class StoredStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Status for clients, and the fields by which a node sees whether there is work."""

    public: HistoryStatus
    #: Whether a process has the lease of ingest.
    leased: bool
    asked: int
    served: int
    #: Lake of the node that runs the role; empty if no node does.
    role_lake: str
    #: Digest of the ends up to which all logs were read; empty: never read.
    ends: str
    #: Id of the lake that is complete up to these ends.
    lake_id: str
    #: Age of these ends in ms; None: never read.
    ends_age_ms: int | None


_decode_report = msgspec.json.Decoder(RoleReport).decode


async def read_status(store: Store) -> StoredStatus:
    """Return the status."""
    fields, lease_ms, report_age_ms, ends_age_ms = await store.run(_READ, [KEY, KEYS["ingest"]], [])
    role, rows, failures, batch_ms, batch_rows, batch_seconds, asked, served, ends, lake = fields
    report = _decode_report(role) if role else None
    public = HistoryStatus(
        lake=report.lake if report is not None else "",
        last_batch=(
            IngestBatch(int(batch_ms), int(batch_rows), float(batch_seconds)) if batch_ms else None
        ),
        rows=int(rows or 0),
        failures=int(failures or 0),
    )
    role_lake = ""
    if report is not None and report_age_ms <= REPORT_MS_MAX:
        role_lake = report.lake
        public = msgspec.structs.replace(public, **msgspec.structs.asdict(report))
    elif lease_ms:
        # A process without the role ingests, such as `waystation history ingest --follow`.
        public = msgspec.structs.replace(public, state="running")
    return StoredStatus(
        public=public,
        leased=bool(lease_ms),
        asked=int(asked or 0),
        served=int(served or 0),
        role_lake=role_lake,
        ends=(ends or b"").decode(),
        lake_id=(lake or b"").decode(),
        ends_age_ms=ends_age_ms if ends_age_ms >= 0 else None,
    )


async def write_report(store: Store, report: RoleReport) -> None:
    """Store the report of a node."""
    await store.run(_REPORT, [KEY], [msgspec.json.encode(report)])


async def ask_for_ingest(store: Store) -> int:
    """Ask the node with the role to ingest now; return the number that `served` will reach."""
    # If the reply is lost, the second run asks once more. One ingest serves both.
    return int(await store.call("HINCRBY", KEY, "asked", 1, repeatable=True))


async def wait_for_ingest(store: Store) -> HistoryStatus:
    """Wait until the lake has everything that is in the store now; return the status.

    Raise PipelineOffError if no process ingests, and IngestFailedError if the next ingest fails.
    """
    before = await read_status(store)
    _require_pipeline(before)
    number = await ask_for_ingest(store)
    while True:
        found = await read_status(store)
        if found.served >= number:
            return found.public
        _require_pipeline(found)
        if found.public.failures > before.public.failures and found.public.error:
            raise IngestFailedError(found.public.error, hint=found.public.hint)
        await asyncio.sleep(_WAIT_S)


def _require_pipeline(status: StoredStatus) -> None:
    if status.public.state == "off":
        raise PipelineOffError("No server runs the data pipeline.")


async def finish_ingest(
    store: Store, *, served: int, ends: str, lake_id: str, age_ms: int = 0
) -> None:
    """Store that a lake is complete up to the ends with a digest, which were read `age_ms` ago."""
    await store.run(_FINISH, [KEY], [served, ends, lake_id, age_ms])


async def count_batch(store: Store, rows: int, seconds: float) -> None:
    """Count a committed batch. Raise OutcomeUnknownError if the reply is lost."""
    await store.run(_COUNT, [KEY], [rows, f"{seconds:.3f}", 0])


async def count_failure(store: Store) -> None:
    """Count a batch or a Spark process that failed."""
    await store.run(_COUNT, [KEY], [0, "0", 1])
