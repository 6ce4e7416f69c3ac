"""Repeated ingests: the child process of the history role, and the loop of `ingest --follow`.

    python -m waystation.history.jobs       settings from the environment

The process ingests on request. The role writes one line to standard input for each ingest that it
wants, `ingest` and the id of its data set, and reads events, one JSON object per line, from
standard output. The process ends when its standard input ends, so that it does not outlive a node
that was killed. The Java process of Spark ends in the same way with this process.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from io import FileIO
from queue import SimpleQueue
from typing import IO, TYPE_CHECKING

import msgspec

from waystation.config import Config
from waystation.config_sources import load_config
from waystation.errors import (
    BusyError,
    HistoryBusyError,
    HistoryError,
    LogError,
    SparkGoneError,
    StoreError,
    WaystationError,
)
from waystation.runtime.backoff import Backoff
from waystation.runtime.data_files import tighten
from waystation.runtime.logging import configure_logging, logger

if TYPE_CHECKING:
    from waystation.history.ingest.job import IngestJob

_log = logger("history")
#: Time for the batch in progress after standard input has ended. Then the process ends without it,
#: and the next one repeats the batch.
_LAST_BATCH_S = 20.0
#: Longest error and hint of an event. The role reads lines of at most `process.EVENT_BYTES_MAX`.
_ERROR_CHARACTERS_MAX = 10_000
#: Attempts of an ingest while other processes commit to the same tables, and the pauses between.
_ATTEMPTS_MAX = 20
_PAUSE_S_FIRST, _PAUSE_S_MAX = 0.1, 5.0
#: Longest pause of `run_on_trigger` after failures, in intervals of the trigger.
_INTERVALS_MAX = 10
#: Errors after which a later ingest can succeed: another ingest committed first, or the store or
#: the disk was unavailable.
RETRIED_ERRORS = (HistoryError, StoreError, BusyError, LogError, OSError)


class IngestProgress(msgspec.Struct):
    """Counts of an ingest."""

    rows: int = 0
    malformed: int = 0
    #: Entries that retention removed before they were read.
    gap_rows: int = 0
    #: Entries that are missing from their logs, and that retention did not remove.
    damaged_rows: int = 0
    #: Messages of topics, and calls of channels and pools, that `record` none withholds.
    withheld_rows: int = 0
    #: Rows of entries that the store has lost since they were read.
    lost_rows: int = 0
    rounds: int = 0
    #: Entries that were read, and those of the ends at the start that are left to read.
    read: int = 0
    left: int = 0
    #: Files that compaction replaced, and files that vacuum deleted.
    compacted_files: int = 0
    deleted_files: int = 0
    #: Rows that were deleted because they are older than `history.keep_days`.
    expired_rows: int = 0


class TriggeredIngest(msgspec.Struct, frozen=True):
    """Outcome of one ingest of `run_on_trigger`; `ingest --follow --json` prints it as a line."""

    ingested: IngestProgress
    #: Message of the error that ended the ingest early; empty if it succeeded.
    problem: str = ""


class JobStarted(msgspec.Struct, frozen=True, tag="started"):
    """Spark runs, and the process waits for requests."""

    spark: str


class JobReading(msgspec.Struct, frozen=True, tag="reading"):
    """Progress of an ingest in entries of logs."""

    read: int
    total: int


class JobEnded(msgspec.Struct, frozen=True, tag="ended"):
    """An ingest has read all logs to the ends that they had at its start."""

    ingested: IngestProgress
    #: Id of the lake at its end.
    lake_id: str = ""


class JobFailure(msgspec.Struct, frozen=True, tag="failed"):
    """An ingest failed, or the process ends because Spark does not run."""

    code: str
    error: str
    hint: str = ""
    #: Whether the process has ended or is ending.
    is_over: bool = False


JobEvent = JobStarted | JobReading | JobEnded | JobFailure
Send = Callable[[JobEvent], None]


def main() -> int:
    """Serve requests until standard input ends; return the exit code."""
    settings = load_config(environment=os.environ).config
    configure_logging(format=settings.log.format, level=settings.log.level)
    requests = JobRequests()
    with _take_stdout() as events:

        def send(event: JobEvent) -> None:
            events.write(msgspec.json.encode(event) + b"\n")
            events.flush()

        threading.Thread(target=requests.read, daemon=True).start()
        try:
            _serve(settings, requests, send)
        except WaystationError as error:
            send(msgspec.structs.replace(_failed(error), is_over=True))
            return 1
    return 0


def _take_stdout() -> IO[bytes]:
    """Return a stream to the role, and redirect all other standard output to standard error."""
    # The duplicate is not inherited, so that it closes when this process ends, whatever Spark does.
    events = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return events


class JobRequests:
    """Requests of the role, which a thread reads from standard input."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[str | None] = SimpleQueue()
        self._ended = threading.Event()
        #: Set when Spark runs.
        self.started = threading.Event()

    def read(self) -> None:
        """Read requests; when standard input ends, end the process."""
        # Without a buffer: Python aborts at its exit if a thread waits in the buffer of stdin.
        for line in FileIO(sys.stdin.fileno(), closefd=False):
            self._queue.put(line.decode().removeprefix("ingest").strip())
        self._ended.set()
        self._queue.put(None)
        if self.started.is_set():
            threading.Event().wait(_LAST_BATCH_S)
        # Only this interrupts the start of Spark, or a long batch.
        os._exit(1)

    @property
    def ended(self) -> bool:
        """Whether standard input has ended."""
        return self._ended.is_set()

    def next(self) -> str | None:
        """Wait for a request and return its data set; None if there will not be another."""
        dataset = self._queue.get()
        return None if self.ended else dataset

    def pause(self, seconds: float) -> None:
        """Wait; return early when standard input ends."""
        self._ended.wait(seconds)


def _serve(settings: Config, requests: JobRequests, send: Send) -> None:
    # Import here, because the role imports this module without Spark.
    from waystation.history.ingest.job import ingest_job  # noqa: PLC0415
    from waystation.history.lake.table import Lake  # noqa: PLC0415
    from waystation.history.session import running_session, session_plan  # noqa: PLC0415
    from waystation.history.store_access import store_access  # noqa: PLC0415

    if not settings.history.lake:
        # A lake elsewhere may be shared; its operator decides who reads it. Spark and its workers
        # inherit the umask, also where the folder existed and others could read it.
        os.umask(0o077)
        tighten([settings.data_dir / "lake"])
    with store_access(settings) as access, running_session(session_plan(settings)) as spark:
        requests.started.set()
        send(JobStarted(spark.version))
        ingest = ingest_job(spark, Lake(settings.lake_place), access, settings.history)
        while (dataset := requests.next()) is not None:
            event = _ingest(ingest, requests, dataset, send)
            if not requests.ended:
                send(event)


def _ingest(ingest: IngestJob, requests: JobRequests, dataset: str, send: Send) -> JobEvent:
    def run() -> IngestProgress:
        return ingest.run(
            on_reading=lambda read, total: send(JobReading(read, total)),
            stopping=lambda: requests.ended,
            expected=dataset,
        )

    try:
        done = retry_busy(run, requests)
    except SparkGoneError:
        raise  # Only a new process can start Spark again.
    except RETRIED_ERRORS as error:
        _log.warning("ingest failed", error=error)
        return _failed(error)
    return JobEnded(done, ingest.lake_id)


def retry_busy(run: Callable[[], IngestProgress], requests: JobRequests) -> IngestProgress:
    """Repeat an ingest while other processes, such as an audit, commit to the same tables first.

    This is no failure, because each commit of another process brings the lake closer to the ends.
    Raise HistoryBusyError after many attempts, or if standard input has ended.
    """
    backoff = Backoff(first_s=_PAUSE_S_FIRST, max_s=_PAUSE_S_MAX)
    while True:
        try:
            return run()
        except HistoryBusyError:
            pause_s = backoff.next_pause_s()
            if requests.ended or backoff.failures >= _ATTEMPTS_MAX:
                raise
            requests.pause(pause_s)


def run_on_trigger(
    ingest: IngestJob,
    *,
    every_seconds: float,
    stop: threading.Event,
    report: Callable[[TriggeredIngest], None],
    on_reading: Callable[[int, int], None] = lambda read, total: None,
) -> None:
    """Ingest every `every_seconds` until `stop` is set; then return after the micro-batch.

    Report each ingest. After a failure, pause for one more interval per consecutive failure. Raise
    SparkGoneError, because only a new process can start Spark again.
    """
    failures = 0
    while not stop.is_set():
        progress = IngestProgress()

        def on_progress(now: IngestProgress) -> None:
            nonlocal progress
            progress = now

        try:
            done = ingest.run(on_progress, on_reading=on_reading, stopping=stop.is_set)
            report(TriggeredIngest(done))
            failures = 0
        except SparkGoneError:
            raise
        except RETRIED_ERRORS as error:
            failures += 1
            _log.warning("ingest failed", error=error, failures=failures)
            report(TriggeredIngest(progress, str(error)))
        stop.wait(every_seconds * min(1 + failures, _INTERVALS_MAX))


def _failed(error: Exception) -> JobFailure:
    if isinstance(error, WaystationError):
        return JobFailure(error.code, _cut(error.message), _cut(error.hint))
    return JobFailure("history.error", _cut(f"{type(error).__name__}: {error}"))


def _cut(text: str) -> str:
    """Return the start of a text, because an error of Spark can have pages of plans."""
    return text[:_ERROR_CHARACTERS_MAX]


if __name__ == "__main__":
    sys.exit(main())
