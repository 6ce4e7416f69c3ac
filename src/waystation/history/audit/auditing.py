"""The course of an audit.

With the store: what the logs have now is ingested first, so that all up to there is in the lake.
What has no end in it must be alive, and is looked up. What is not found either has ended since:
then its end is in what is ingested after the look-up. Anything else is lost.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import SparkSession

from waystation.history.audit.findings import Findings
from waystation.history.audit.live import Live
from waystation.history.audit.messages import check_messages
from waystation.history.audit.offsets import check_offsets
from waystation.history.audit.tables import LOST, AuditTables
from waystation.history.audit.transactions import check_transactions
from waystation.history.lake import Lake


def audit(
    spark: SparkSession,
    lake: Lake,
    *,
    live: Live | None = None,
    ingest: Callable[[], object] | None = None,
    archived_before_ms: int = 0,
    on_part: Callable[[str], None] | None = None,
) -> Findings:
    """Checks a lake; with `live` and `ingest`, against what is in the store.

    Transactions that ended before `archived_before_ms` have to be in the archive. `on_part` is
    called with the name of each part as it begins, for whoever shows how far it is.
    """
    findings = Findings()

    def begin(part: str) -> None:
        if on_part is not None:
            on_part(part)

    begin("ingest")
    if ingest is not None:
        ingest()
    dataset = live.dataset() if live is not None else ""
    unrecorded = live.unrecorded() if live is not None else {}
    tables = AuditTables(spark, lake, dataset, unrecorded=unrecorded.keys())

    def renew() -> AuditTables:
        assert ingest is not None, "only asked for with it"
        ingest()
        return AuditTables(spark, lake, dataset, unrecorded=unrecorded.keys())

    later = renew if ingest is not None else None
    _note_gaps(tables, findings)
    for (log, partition), facts in sorted(unrecorded.items()):
        findings.note(f"{log}/{partition}: {facts:,} not recorded, as settings say.")
    begin("offsets")
    check_offsets(tables, live, findings)
    begin("messages")
    check_messages(tables, live, later, findings)
    begin("transactions")
    check_transactions(tables, live, later, findings, archived_before_ms=archived_before_ms)
    return findings


def _note_gaps(tables: AuditTables, findings: Findings) -> None:
    """What nobody can say anything about."""
    told = {
        "policy": "not recorded, as its topic says",
        "trimmed": "gone before it was read",
        LOST: "lost by the store after it was read; marked as lost, and not checked",
    }
    counted: dict[tuple[str, str], int] = {}
    for gap in (*tables.gaps, *tables.lost):
        key = (gap.span.log, gap.cause)
        counted[key] = counted.get(key, 0) + gap.span.rows
    for (log, cause), rows in sorted(counted.items()):
        findings.note(f"{log}: {rows:,} {told.get(cause, cause)}.")
