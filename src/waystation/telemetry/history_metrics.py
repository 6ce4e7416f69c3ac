"""Metrics of the history role, told by the station that has it; the others tell zero."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

from waystation.runtime.metrics import registry

rows = Counter(
    "waystation_history_rows", "Rows that were brought into the lake.", registry=registry
)
malformed = Counter(
    "waystation_history_malformed_rows", "Rows of what could not be read.", registry=registry
)
gaps = Counter(
    "waystation_history_gap_rows",
    "Entries that are not in the lake, by cause (trimmed, damaged, policy).",
    ["cause"],
    registry=registry,
)
lost = Counter(
    "waystation_history_lost_rows",
    "Rows of what the store has lost since they were read.",
    registry=registry,
)
rounds = Counter(
    "waystation_history_rounds", "Rounds of ingest that were committed.", registry=registry
)
failures = Counter(
    "waystation_history_failures",
    "Turns of ingest that did not come to their end.",
    registry=registry,
)
lag_rows = Gauge(
    "waystation_history_lag_rows",
    "Entries that were still to be read after the last turn.",
    registry=registry,
)
lag_seconds = Gauge(
    "waystation_history_lag_seconds",
    "Seconds since history was up to date; 0 without the role.",
    registry=registry,
)
last_batch_rows = Gauge(
    "waystation_history_last_batch_rows",
    "Rows of the last ingest of this node that wrote rows.",
    registry=registry,
)
last_batch_seconds = Gauge(
    "waystation_history_last_batch_timestamp_seconds",
    "Unix time of the end of the last ingest of this node that wrote rows; 0: none.",
    registry=registry,
)
