"""The section `[history]` of the settings."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from waystation.setting_section import Count, Seconds
from waystation.setting_section import Section as _Section

#: What gives way when a log is full of what history has not read yet: that, or who appends.
WhenFull = Literal["drop_and_count", "refuse"]
#: Whether record logs are written.
RecordLogs = Literal["full", "none"]


class HistorySettings(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """History: the lake, and the Spark that fills and reads it."""

    #: Seconds between two turns of an ingest that follows.
    every_seconds: Seconds = 60.0
    #: What a log does that is full of what history has not read: drop it and count, or refuse more.
    full: WhenFull = "drop_and_count"
    #: Folder or URL of the lake; empty: `lake` in the data directory.
    lake: str = ""
    #: Where Spark runs: `local[*]`, `spark://…`, `yarn`, `k8s://…`, or `sc://…` for Connect.
    master: str = "local[*]"
    #: Memory of Spark's driver, and of each executor.
    memory: Annotated[str, Meta(pattern=r"^[1-9][0-9]*[mg]$")] = "2g"
    #: Whether stations write down what becomes of transactions and deliveries: `full` or `none`,
    #: which is counted, so that an audit knows; messages are in their topics all the same.
    record: RecordLogs = "full"
    #: Rows that are read and committed at a time.
    round_rows: Count = 4_000_000
    #: Whether a station ingests while it runs, in a process of its own.
    run: bool = False
    #: Further settings of Spark by name; they win over ours.
    spark: dict[str, str] = {}  # noqa: RUF012 (each gets its own)
    #: Whether Spark shows its pages while a job runs, on this machine alone.
    ui: bool = False
    #: Hours for which files stay that no table needs any more; longer than any query or round.
    vacuum_hours: Count = 168
