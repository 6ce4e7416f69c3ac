"""Following: ingest again and again, until it is told to stop.

What fails is told and tried again, with growing pauses: history that is late is no reason to end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from waystation.errors import BusyError, HistoryError, LogError, SparkGoneError, StoreError
from waystation.history.ingest.job import IngestJob
from waystation.history.jobs import IngestProgress
from waystation.runtime.logging import logger

_log = logger("history")
_PAUSES_MAX = 10

#: What ends by itself: another ingest, a store or a disk that is away.
PASSING = (HistoryError, StoreError, BusyError, LogError, OSError)


class Turn(msgspec.Struct, frozen=True):
    """What came of one turn; a line of JSON for whoever has started the process."""

    ingested: IngestProgress
    #: Why it did not come to its end; empty if it did.
    problem: str = ""


def follow(
    ingest: IngestJob,
    *,
    every_seconds: float,
    stop: threading.Event,
    tell: Callable[[Turn], None],
    on_reading: Callable[[int, int], None] = lambda read, total: None,
) -> None:
    """Takes turns until `stop` is set: then it ends after the round that it is in.

    SparkGoneError when there is no Spark any more: that comes back with a new process alone.
    """
    failures = 0
    while not stop.is_set():
        so_far = IngestProgress()

        def note(now: IngestProgress) -> None:
            nonlocal so_far
            so_far = now

        try:
            tell(Turn(ingest.run(note, on_reading=on_reading, stopping=stop.is_set)))
            failures = 0
        except SparkGoneError:
            raise
        except PASSING as error:
            failures += 1
            _log.warning("ingest did not come to its end", error=error, failures=failures)
            tell(Turn(so_far, str(error)))
        stop.wait(every_seconds * min(1 + failures, _PAUSES_MAX))
