"""The errors of history; the tree that they belong to is in `errors.py`."""

from __future__ import annotations

from waystation.errors import InvalidInputError, SettingsError, WaystationError


class HistoryError(WaystationError):
    """Root of the errors of history."""

    code = "history.error"


class HistoryMissingError(SettingsError):
    """PySpark, pyarrow or deltalake is not installed; raised at start only."""

    code = "history.missing"


class NoJavaError(SettingsError):
    """Spark needs Java 17 or newer, and there is none; raised at start only."""

    code = "history.no-java"


class SourceOptionError(InvalidInputError):
    """An option of the Spark source is unknown, malformed, or has a secret in it."""

    code = "history.option-invalid"


class QueryError(InvalidInputError):
    """A query of the lake that Spark does not understand, or cannot answer."""

    code = "history.query"


class SparkStartError(HistoryError):
    """Spark does not start: its log says why."""

    code = "history.spark-start"


class SparkGoneError(HistoryError):
    """The process of Spark has ended under a job; whoever starts the job anew loses nothing."""

    code = "history.spark-gone"


class TaskFailedError(HistoryError):
    """A task of Spark has failed each time that it was tried; nothing was committed."""

    code = "history.task-failed"


class TrimmedError(HistoryError):
    """Messages were trimmed before they were read, and the reader asked to be told."""

    code = "history.trimmed"


class StoreWentBackError(HistoryError):
    """A log ends before what was read of it: the store was restored, or has lost its tail."""

    code = "history.store-went-back"


class NoStoreError(HistoryError):
    """There is no store to read, or no server has used it yet; none was created."""

    code = "history.no-store"


class OtherDataSetError(HistoryError):
    """The store has another data set than the server that was named; nothing was read."""

    code = "history.other-data-set"


class LakeRefusedError(HistoryError):
    """A table of the lake is not ours, or has another type in one of our columns."""

    code = "history.lake-refused"


class NoLakeError(LakeRefusedError):
    """There is no lake at that place; ingest creates one."""

    code = "history.no-lake"


class LakeDamagedError(HistoryError):
    """A file of the lake is missing, or is not what was written; nothing was changed."""

    code = "history.lake-damaged"


class LakeWriteError(HistoryError):
    """The lake cannot be written to: its disk is full, or it may not; nothing is half in it."""

    code = "history.lake-write"


class HistoryBusyError(HistoryError):
    """Another ingest has the lease, or has committed first; nothing was written."""

    code = "history.busy"
