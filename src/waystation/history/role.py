"""The history role of a node: ingest into the lake while messages and records arrive.

The role reads the ends of all logs about once a second. When they have moved, it takes the lease of
ingest and starts an ingest process, which it ends after `history.idle_seconds` without work. Of
several nodes with the role, the one with the lease ingests, and the others wait. A failure never
affects the node: the role reports it and retries with back-off.
"""

from __future__ import annotations

import asyncio
import contextlib

from waystation.config import Config
from waystation.errors import (
    HistoryMissingError,
    NoJavaError,
    SparkStartError,
    StoreError,
    WaystationError,
)
from waystation.history.jobs import IngestProgress, JobEnded, JobFailure
from waystation.history.lake.identity import read_lake_id
from waystation.history.lease import KEYS
from waystation.history.log_ends import Offsets, ends_digest, read_ends, read_holds
from waystation.history.log_reader import DamageReports
from waystation.history.packages import require_packages
from waystation.history.process import IngestProcess, JobFailed
from waystation.history.status import (
    RoleReport,
    StoredStatus,
    count_failure,
    finish_ingest,
    read_status,
    write_report,
)
from waystation.logs.streams import StreamLogs
from waystation.runtime.backoff import Backoff
from waystation.runtime.clock import Clock
from waystation.runtime.ids import IdSource
from waystation.runtime.service import Service, Wakeup
from waystation.store.client import Store
from waystation.store.keys import FORMAT
from waystation.store.leases import Lease, LeaseRenewer, Leases
from waystation.store.opening import OpenStore
from waystation.telemetry import history_metrics
from waystation.types.history import HistoryState, HistoryStatus

#: Shortest time between two reads of the ends.
LOOK_S = 1.0
#: Share of the time that reads of the ends may take, or else they are less frequent.
_LOOK_SHARE = 0.02
#: Longest pause because of this share, so that a busy machine does not delay the first ingest. A
#: read that takes longer is followed by a pause of its own length.
_PAUSE_S_MAX = 5.0
#: Time after which an unchanged report is stored again, so that other nodes know that this node
#: still runs.
_REPORT_S = 10.0
_RETRY_S_FIRST, _RETRY_S_MAX = 1.0, 300.0
#: Warn if history is late by more than this many ingests.
_LATE_INGESTS = 10
_NOT_INSTALLED = (HistoryMissingError.code, NoJavaError.code)


class HistoryRole(Service):
    """Keeps the lake of a store up to date, with one ingest process at a time.

    The mutable state is the last read of the ends, the offsets that are known to be ingested, the
    lease and the process. Lease and status have real times in test mode too, because commands that
    the time machine does not move use them.
    """

    #: Longer than `END_S`, the time that the process has to end.
    grace_s = 8.0

    def __init__(
        self,
        settings: Config,
        opened: OpenStore,
        logs: StreamLogs,
        *,
        clock: Clock,
        identity: IdSource,
    ) -> None:
        super().__init__("history", clock=clock)
        self._settings = settings
        self._store, renewer = opened.store, opened.renewer
        #: Closes what the role has opened for itself.
        self._closing = contextlib.AsyncExitStack()
        if self._store.test_mode:
            self._store, renewer = Store(opened.store.address), LeaseRenewer(opened.store.address)
            self._closing.push_async_callback(self._store.close)
            self._closing.callback(renewer.close)
        self._logs = logs
        self._leases = Leases(self._store, renewer, owner=identity.token(16))
        self._closing.callback(self._leases.close)
        self._lease: Lease | None = None
        self._process: IngestProcess | None = None
        self._state: HistoryState = "idle"
        #: Failure since the last ingest that succeeded.
        self._failure: JobFailed | None = None
        self._ends: Offsets = {}
        self._damage = DamageReports()
        self._dataset = opened.dataset
        #: Log ends up to which the lake is complete, as far as this node knows, and its id.
        self._ingested: Offsets = {}
        self._lake_id = ""
        #: Estimate of these ends from the retention holds, until this node knows them.
        self._held: Offsets | None = None
        self._is_pending = False
        #: Requests of clients: their number, how many were served, and how many there were at the
        #: start of the last attempt.
        self._asked = self._served = self._attempted = 0
        # No limit of a wait, because a pause after a failure can take minutes.
        self._work = Wakeup()
        self._backoff = Backoff(first_s=_RETRY_S_FIRST, max_s=_RETRY_S_MAX)
        self._status = HistoryStatus(state="idle", lake=settings.public_lake)
        self._reported: RoleReport | None = None
        self._reported_s = 0.0
        self._current_s = clock.uptime_s()

    @property
    def pid(self) -> int | None:
        """Process id of the ingest process; None without a process."""
        return None if self._process is None else self._process.pid

    @property
    def state(self) -> HistoryState:
        """State of the role on this node."""
        return self._state

    @property
    def status(self) -> HistoryStatus:
        """Status of the data pipeline when this node has last read it, about a second ago."""
        return self._status

    @property
    def notes(self) -> list[str]:
        """Warnings for the operator. The node stays ready, because history may be late.

        Without the error, which names projects, topics and paths, because readiness is public.
        """
        if self._failure is not None:
            code = self._failure.failure.code
            return [f"The data pipeline fails ({code}): `waystation history status` shows why."]
        late_s = self.clock.uptime_s() - self._current_s
        if late_s > _LATE_INGESTS * self._settings.history.every_seconds:
            return [f"The lake was up to date {late_s:.0f} s ago."]
        return []

    async def on_start(self) -> None:
        """Raise HistoryMissingError if a package of history is not installed."""
        try:
            require_packages()
        except HistoryMissingError:
            await self._closing.aclose()
            raise
        history_metrics.lag_seconds.set_function(lambda: self.clock.uptime_s() - self._current_s)

    async def run(self) -> None:
        """Read the ends repeatedly, and ingest when they have moved."""
        self.spawn(self.repeat(self._poll_ends, every_s=LOOK_S))
        self.spawn(self._end_process())
        await self.repeat(self._ingest, every_s=LOOK_S, wakeup=self._work)

    async def on_stop(self) -> None:
        """Release the lease for the next node."""
        if self._lease is not None:
            await self._lease.release()
        await self._closing.aclose()

    # -- Pending work ------------------------------------------------------------------------

    async def _poll_ends(self) -> float:
        """Read the ends; return the pause until the next read."""
        begun_s = self.clock.uptime_s()
        try:
            await self._refresh_status()
        except Exception as error:
            # Otherwise the status would say that no node runs the role.
            if isinstance(error, WaystationError):
                failure = JobFailure(error.code, error.message, error.hint)
            else:
                failure = JobFailure("history.error", f"{type(error).__name__}: {error}")
            with contextlib.suppress(StoreError):
                await self._report(await read_status(self._store), failure)
            raise
        took_s = self.clock.uptime_s() - begun_s
        return max(LOOK_S, min(took_s / _LOOK_SHARE, max(took_s, _PAUSE_S_MAX)))

    async def _refresh_status(self) -> None:
        """Read the ends of the logs, and find out whether there is work."""
        # First the status: an ingest that ends in between makes the status older than the ends.
        status = await read_status(self._store)
        looked_s = self.clock.uptime_s()
        dataset = await self._store.call("HGET", FORMAT, "dataset", repeatable=True)
        # In a thread, because a folder of another machine can be slow.
        lake_id = await asyncio.to_thread(read_lake_id, self._settings.lake_place)
        ends = await read_ends(self._logs, self._damage)
        if self._held is None:
            # History holds the last entry that it has read.
            holds = await read_holds(self._store, ends)
            self._held = {partition: offset + 1 for partition, offset in holds.items() if offset}
        self._ends, self._dataset = ends, (dataset or b"").decode()
        if lake_id != self._lake_id:
            # The node knows nothing of the lake, because it was created, moved or replaced.
            self._lake_id, self._ingested = lake_id, {}
        if not lake_id:
            self._held = {}  # The holds are those of another lake.
        is_current = (status.lake_id == lake_id and status.ends == ends_digest(ends)) or all(
            end == self._ingested.get(partition) for partition, end in ends.items()
        )
        if is_current:
            self._ingested = ends
            self._current_s = looked_s
            if self._failure is not None and self._lease is None:
                # Another node or command ingested since the failure of this one.
                self._recover()
        elif status.lake_id == lake_id and status.ends_age_ms is not None:
            self._current_s = max(self._current_s, looked_s - status.ends_age_ms / 1000)
        served = status.served
        if is_current and status.asked > served:
            # The lake has what the client waits for, so that Spark need not start.
            served = status.asked
            await finish_ingest(self._store, served=served, ends=ends_digest(ends), lake_id=lake_id)
        self._status = status.public
        self._served = max(self._served, served)
        was_pending = self._is_pending
        self._is_pending = not is_current or status.asked > self._served
        if status.asked > self._asked or (self._is_pending and not was_pending):
            # A client that waits for the lake also ends the pause after a failure.
            self._work.set()
        self._asked = max(self._asked, status.asked)
        history_metrics.lag_rows.set(self._lag(status))
        await self._report(status)

    def _lag(self, status: StoredStatus) -> int:
        """Return how many entries the lake lacks."""
        if self._lease is None and status.leased and status.public.lag is not None:
            # The node that ingests has stored its figure.
            return status.public.lag
        ingested = self._ingested or self._held or {}
        return sum(
            max(0, end - ingested.get(partition, 0)) for partition, end in self._ends.items()
        )

    async def _report(self, status: StoredStatus, look_failure: JobFailure | None = None) -> None:
        """Store what this node knows, unless another node ingests.

        A failure of the last read of the ends counts only if no ingest has failed.
        """
        if self._lease is None and self._is_pending and status.leased:
            return
        failure = self._failure.failure if self._failure is not None else look_failure
        report = RoleReport(
            state=self._state if self._failure is not None or failure is None else "failing",
            lake=self._settings.public_lake,
            lag=self._lag(status),
            error=failure.error if failure is not None else "",
            hint=failure.hint if failure is not None else "",
        )
        now_s = self.clock.uptime_s()
        if report != self._reported or now_s - self._reported_s > _REPORT_S:
            await write_report(self._store, report)
            self._reported, self._reported_s = report, now_s

    # -- Ingest ------------------------------------------------------------------------------

    async def _ingest(self) -> float:
        """Ingest until there is no work; return the pause until the next attempt."""
        if not self._is_pending:
            return LOOK_S
        self._lease = await self._leases.acquire(KEYS["ingest"])
        if self._lease is None:
            return LOOK_S
        self._attempted = self._asked
        try:
            await self._run_process(self._lease)
        except JobFailed as error:
            if self.stopping:
                return 0.0
            return await self._fail_process(error)
        except OSError as error:
            failure = JobFailure(
                SparkStartError.code, f"The ingest process does not start: {error}."
            )
            return await self._fail_process(JobFailed(failure))
        finally:
            lease, self._lease = self._lease, None
            with contextlib.suppress(StoreError):
                await lease.release()
        return LOOK_S

    async def _run_process(self, lease: Lease) -> None:
        """Run an ingest process until it has had no work for `history.idle_seconds`."""
        self._enter("starting")
        async with IngestProcess(self._settings) as process:
            self._process = process
            try:
                await process.started()
                self._enter("idle")
                while await self._is_wanted(lease):
                    await self._request(process)
            finally:
                self._process = None
                self._enter("idle")
        self._log.info("ingest process ended")

    async def _is_wanted(self, lease: Lease) -> bool:
        """Wait for work; return False if no work comes for `history.idle_seconds`."""
        idle_until_s = self.clock.uptime_s() + self._settings.history.idle_seconds
        while not self.stopping and not lease.lost:
            if self._is_pending:
                return True
            if self.clock.uptime_s() > idle_until_s:
                return False
            self._work.clear()
            await self._work.wait(LOOK_S)
        return False

    async def _request(self, process: IngestProcess) -> None:
        """Make the process ingest once, then pause until the next ingest is due."""
        begun_s = self.clock.uptime_s()
        due_s = begun_s + self._settings.history.every_seconds
        # The ingest reads the logs at least up to these ends.
        ends, self._attempted = self._ends, self._asked
        self._enter("running")
        process.request(self._dataset)
        try:
            while not isinstance(event := await process.progress(), JobEnded):
                pass
        except JobFailed as error:
            if error.failure.is_over:
                raise
            due_s = self.clock.uptime_s() + await self._fail(error)
        else:
            _count(event.ingested, self.clock.now_ms())
            self._ingested, self._lake_id = ends, event.lake_id
            self._current_s = max(self._current_s, begun_s)
            self._served = max(self._served, self._attempted)
            self._recover()
            # The loop that reads the ends reports it if the store does not answer now.
            with contextlib.suppress(StoreError):
                await self._refresh_status()
        # After a failure too, only a request that this attempt has not seen ends the pause.
        while (
            not self.stopping and self.clock.uptime_s() < due_s and self._asked <= self._attempted
        ):
            self._work.clear()
            await self._work.wait(min(LOOK_S, due_s - self.clock.uptime_s()))

    def _enter(self, state: HistoryState) -> None:
        """Change the state. After a failure it stays until an ingest has succeeded."""
        if self._failure is None:
            self._state = state

    def _recover(self) -> None:
        """Forget the failure, because an ingest has succeeded."""
        self._failure = None
        self._enter("idle")
        self._backoff.reset()

    async def _fail_process(self, error: JobFailed) -> float:
        """Report the failure of a process; return the pause until the start of the next one."""
        if self._asked <= self._attempted:
            # Otherwise a request that this attempt has seen would end the pause.
            self._work.clear()
        return await self._fail(error)

    async def _fail(self, error: JobFailed) -> float:
        """Report a failure; return the pause until the next attempt."""
        self._failure = error
        is_missing = error.failure.code in _NOT_INSTALLED
        self._state = "not_installed" if is_missing else "failing"
        pause_s = self._backoff.next_pause_s()
        self._log.warning(
            "ingest failed",
            code=error.failure.code,
            reason=str(error),
            failures=self._backoff.failures,
            retry_s=round(pause_s, 1),
        )
        history_metrics.failures.inc()
        with contextlib.suppress(StoreError):
            await count_failure(self._store)
        return pause_s

    async def _end_process(self) -> None:
        """End the process when the service stops, so that `run` can end."""
        await self._stop_asked.wait()
        self._work.set()
        if self._process is not None:
            await self._process.end()


def _count(ingested: IngestProgress, ended_ms: int) -> None:
    """Add an ingest to the metrics of this node."""
    if ingested.rows:
        history_metrics.last_batch_rows.set(ingested.rows)
        history_metrics.last_batch_seconds.set(ended_ms / 1000)
    history_metrics.rows.inc(ingested.rows)
    history_metrics.malformed.inc(ingested.malformed)
    history_metrics.lost.inc(ingested.lost_rows)
    history_metrics.rounds.inc(ingested.rounds)
    gaps = {
        "trimmed": ingested.gap_rows,
        "damaged": ingested.damaged_rows,
        "policy": ingested.withheld_rows,
    }
    for cause, rows in gaps.items():
        history_metrics.gaps.labels(cause).inc(rows)
