"""The sections `[transactions]`, `[archive]` and `[webhooks]` of the settings."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from waystation.setting_section import Count, Seconds
from waystation.setting_section import Section as _Section


class TransactionSettings(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Transactions: the code that is run, and how it is run."""

    #: The app whose steps this process runs, `module:name`; `built-in`: our own steps alone; empty:
    #: none.
    app: str = ""
    #: States that this process takes to the archive at a time; 0: it does not archive.
    archive_batch: Annotated[int, Meta(ge=0, le=10_000)] = 1000
    #: How long what is complete, or asleep, stays before it may be archived.
    archive_delay_seconds: Seconds = 60.0
    #: What others wait after `archive_role_seconds`, for what the one before may have under way.
    archive_grace_seconds: Annotated[float, Meta(gt=0, le=3600)] = 5.0
    #: Between two batches, when little is due.
    archive_pause_idle_seconds: Annotated[float, Meta(gt=0, le=3600)] = 1.0
    #: Between two batches.
    archive_pause_seconds: Annotated[float, Meta(ge=0, le=3600)] = 0.0
    #: How long one process archives before another may.
    archive_role_seconds: Annotated[float, Meta(ge=1, le=3600)] = 60.0
    #: How long the store keeps what the archive has, too, since it was last asked for.
    cache_seconds: Seconds = 300.0
    #: What a cancel, or a deadline that has passed, leaves a step that runs.
    cancel_grace_seconds: Seconds = 30.0
    #: Units of atomicity that primaries of a cluster can share; fixed when the data set is created.
    #: 0: the number that the data set has; 16 for a new one.
    cells: Annotated[int, Meta(ge=0, le=65536)] = 0
    #: Pipelines that may call each other at one time, by Child and Parallel together; a step that
    #: calls one more fails with `transaction.tree-too-deep`.
    depth_max: Annotated[int, Meta(ge=1, le=100)] = 32
    #: Descendants at all levels that one Parallel of a transaction without a parent may have; a
    #: step that asks for more fails with `transaction.tree-too-large`.
    descendants_max: Annotated[int, Meta(ge=1, le=10_000_000)] = 100_000
    #: How long the external id of what is complete stays taken.
    external_id_seconds: Seconds = 172_800.0
    #: What a stopping process leaves steps that run; what has not ended then runs elsewhere.
    grace_seconds: Seconds = 5.0
    #: The node group whose queues this process serves.
    group: Annotated[str, Meta(pattern=r"^[0-9a-z][0-9a-z_-]{0,62}$")] = "master"
    #: What is claimed is another's, if its worker was not heard for this long.
    lease_seconds: Annotated[float, Meta(ge=1, le=3600)] = 10.0
    #: What is due and in the archive is loaded by another, if it was not loaded for this long.
    load_pause_seconds: Annotated[float, Meta(ge=1, le=60)] = 30.0
    #: Claimed ahead of those that run, so that no worker waits for the store.
    prefetch: Annotated[int, Meta(ge=0, le=10_000)] = 200
    #: Load the app anew when one of its files changes; `dev` says yes.
    reload: bool = False
    #: How often a step that runs alone may take its process down; once more ends its transaction.
    rescues_max: Count = 3
    #: Larger states are refused: data, outputs and journal of a transaction together.
    state_bytes_max: Annotated[int, Meta(ge=1024, le=8_388_608)] = 1_048_576
    #: The most that a step can ask for by its `timeout`; one that asks for nothing has 180 s.
    step_seconds_max: Seconds = 3600.0
    #: Steps that run at a time.
    workers: Annotated[int, Meta(ge=1, le=10_000)] = 100


class ArchiveSettings(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The database that keeps what has left the store."""

    #: Days for which it keeps what has ended; 0: for ever.
    retention_days: Annotated[float, Meta(ge=0, le=36500)] = 0
    #: `postgresql://…`; empty = a file in the data directory.
    url: str = ""


class WebhookSettings(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Replies of transactions: webhooks, and messages of channels and topics."""

    #: All attempts, the first included; then it is given up.
    attempts: Annotated[int, Meta(ge=1, le=1000)] = 8
    #: How long a URL is left alone that has failed too often.
    disable_seconds: Seconds = 300.0
    #: Failures in a row of one URL, over all processes, that make it rest; 0: never.
    fail_limit: Annotated[int, Meta(ge=0)] = 10
    #: The time in which they count.
    fail_period_seconds: Seconds = 120.0
    #: The wait before the second attempt.
    first_wait_seconds: Annotated[float, Meta(ge=0, le=86400)] = 5.0
    #: Each wait is this much longer.
    multiplier: Annotated[float, Meta(ge=1, le=100)] = 2.0
    #: While all workers are busy; 0: until one is free.
    pause_busy_seconds: Annotated[float, Meta(ge=0, le=60)] = 0.0
    #: How long a process sleeps at most without a hint that something has come.
    pause_idle_seconds: Annotated[float, Meta(gt=0, le=60)] = 10.0
    #: Between two claims for one receiver, at least.
    pause_seconds: Annotated[float, Meta(ge=0, le=60)] = 0.0
    #: A file with secrets that requests are signed with, one in a line; empty: they are not signed.
    secret_file: str = ""
    #: What one attempt may take.
    timeout_seconds: Annotated[float, Meta(gt=0, le=600)] = 30.0
    #: The longest wait between two attempts.
    wait_seconds_max: Annotated[float, Meta(gt=0, le=2592000)] = 3600.0
    #: Attempts that this process has under way at a time; 0: it sends none.
    workers: Annotated[int, Meta(ge=0, le=10_000)] = 100
