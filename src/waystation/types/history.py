"""Public types of history."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

#: State of the data pipeline. `off`: no node runs it. `not_installed`: PySpark or Java is missing.
#: `idle`: no work. `starting`: Spark starts. `running`: it ingests. `failing`: the last batch
#: failed and will be retried.
HistoryState = Literal["off", "not_installed", "idle", "starting", "running", "failing"]


class IngestBatch(Struct, frozen=True):
    """A micro-batch that ingest committed to the lake."""

    #: Time of its end in ms.
    ended_ms: int
    rows: int
    #: Duration of the batch.
    seconds: float


class HistoryStatus(Struct, frozen=True, kw_only=True):
    """Status of the data pipeline, the same for all nodes of a store."""

    state: HistoryState = "off"
    #: Folder or URL of the lake; empty if no node has run the pipeline yet.
    lake: str = ""
    #: Messages and records in the store that the lake lacks. None: unknown.
    lag: int | None = None
    #: Last batch that wrote rows; None: none yet.
    last_batch: IngestBatch | None = None
    #: Rows of all batches.
    rows: int = 0
    #: Batches and Spark processes that failed.
    failures: int = 0
    #: Cause of the state `not_installed` or `failing`.
    error: str = ""
    #: Remedy of the error.
    hint: str = ""
