"""Audit: prove from a lake snapshot that nothing was lost, doubled or overtaken.

With a store, the audit ingests the logs first. Messages and transactions without an end in the lake
must be in the store or the archive. If a look-up does not find one, the audit ingests again: the
message or transaction is lost unless its end is among the new entries.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import SparkSession

from waystation.errors import LogDamagedError
from waystation.history.audit.channels import check_channels
from waystation.history.audit.completeness import check_offsets, entry_position
from waystation.history.audit.deliveries import check_messages, check_repeated_ids
from waystation.history.audit.findings import EXAMPLES_MAX, Finding, Findings
from waystation.history.audit.live_state import Live
from waystation.history.audit.pools import check_pools
from waystation.history.audit.snapshot import DAMAGED, LOST, AuditTables
from waystation.history.audit.transactions import check_transactions
from waystation.history.lake.schema import EXPIRED
from waystation.history.lake.table import Lake
from waystation.history.offsets import OffsetRange


def audit(
    spark: SparkSession,
    lake: Lake,
    *,
    live: Live | None = None,
    ingest: Callable[[], object] | None = None,
    archived_before_ms: int = 0,
    on_phase: Callable[[str], None] | None = None,
) -> Findings:
    """Audit a lake; with `live` and `ingest`, also against the store.

    Transactions that ended before `archived_before_ms` must be in the archive. Call `on_phase` with
    the name of each phase when it starts.
    """
    findings = Findings()

    def begin(phase: str) -> None:
        if on_phase is not None:
            on_phase(phase)

    begin("ingest")
    if ingest is not None:
        ingest()
    dataset = live.dataset() if live is not None else ""
    unrecorded = live.unrecorded() if live is not None else {}
    tables = AuditTables(spark, lake, dataset, unrecorded=unrecorded.keys())

    def renew() -> AuditTables:
        assert ingest is not None, "only an audit with ingest passes this function on"
        ingest()
        return AuditTables(spark, lake, dataset, unrecorded=unrecorded.keys())

    later = renew if ingest is not None else None
    _note_gaps(tables, findings)
    _check_damage(tables, live, findings)
    for (log, partition), facts in sorted(unrecorded.items()):
        findings.note(f"{log}/{partition}: {facts:,} not recorded, as settings say.")
    for (log, partition), entries in sorted(live.unread().items() if live is not None else ()):
        findings.note(
            f"{log}/{partition}: {entries:,} entries were dropped before a reader of history had"
            " registered."
        )
    begin("offsets")
    check_offsets(tables, live, findings)
    begin("messages")
    check_messages(tables, live, later, findings)
    check_repeated_ids(tables, live, findings)
    begin("channels")
    check_channels(tables, live, later, findings)
    begin("pools")
    check_pools(tables, live, later, findings)
    begin("transactions")
    check_transactions(tables, live, later, findings, archived_before_ms=archived_before_ms)
    return findings


def _check_damage(tables: AuditTables, live: Live | None, findings: Findings) -> None:
    """Report each range that is missing from a log, as ingest found it or as the store has it now.

    Entries that were ingested before they were removed are in the lake, but a subscription that had
    not read them by then never delivers them.
    """
    holes: list[OffsetRange] = [gap for gap in tables.gaps if gap.cause == DAMAGED]
    holes += live.holes() if live is not None else []
    merged: list[OffsetRange] = []
    for hole in sorted(holes, key=lambda each: (each.log, each.partition, each.start)):
        if merged and merged[-1].key == hole.key and hole.start <= merged[-1].end:
            before = merged.pop()
            end = max(before.end, hole.end)
            merged.append(OffsetRange(hole.log, hole.partition, before.start, end))
        else:
            merged.append(hole)
    findings.add(
        LogDamagedError.code,
        len(merged),
        [
            Finding(
                check=LogDamagedError.code,
                subject=hole.key,
                id="",
                position=entry_position(hole.log, hole.partition, hole.start),
                text=f"Offsets {hole.start} to {hole.end - 1} are missing from the log, and"
                " retention did not remove them.",
            )
            for hole in merged[:EXAMPLES_MAX]
        ],
    )


def _note_gaps(tables: AuditTables, findings: Findings) -> None:
    """Note the ranges that the audit cannot check."""
    explanations = {
        "policy": "not recorded, as its topic says",
        "trimmed": "gone before it was read",
        EXPIRED: "deleted after history.keep_days",
        LOST: "lost by the store after it was read; marked as lost, and not checked",
    }
    for dataset in tables.lost_datasets:
        findings.note(
            f"The store lost data set {dataset}, and an operator accepted that;"
            " its rows in the lake are kept and not checked."
        )
    counted: dict[tuple[str, str], int] = {}
    for gap in (*tables.gaps, *tables.lost):
        if gap.cause == DAMAGED:
            continue  # `_check_damage` reports it as a finding.
        key = (gap.log, gap.cause)
        counted[key] = counted.get(key, 0) + gap.rows
    for (log, cause), rows in sorted(counted.items()):
        findings.note(f"{log}: {rows:,} {explanations.get(cause, cause)}.")
