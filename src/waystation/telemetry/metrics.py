"""Every metric of the process, in one place. Labels come from fixed sets, never from callers."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.process_collector import ProcessCollector

from waystation.telemetry.counts import Counts
from waystation.telemetry.measures import Durations, Measure, Measures

CONTENT_TYPE = CONTENT_TYPE_LATEST
registry = CollectorRegistry()
ProcessCollector(registry=registry)


def _counts(name: str, help_text: str, *, label: str = "") -> Counts:
    counts = Counts(name, help_text, label=label)
    registry.register(counts)
    return counts


def _durations(name: str, help_text: str, *bounds: float) -> Measure:
    durations = Durations(name, help_text, bounds=bounds)
    registry.register(durations)
    return durations.measure


#: Requests and their times, by route.
http = Measures()
registry.register(http)
http_in_flight = Gauge(
    "waystation_http_requests_in_flight", "Requests that are being answered.", registry=registry
)
http_shed = Counter(
    "waystation_http_requests_shed",
    "Requests refused because a bound was reached.",
    registry=registry,
)
channel_messages = _counts(
    "waystation_channel_messages",
    "Messages published, by outcome (accepted, duplicate, refused).",
    label="outcome",
)
channel_fetched = _counts(
    "waystation_channel_messages_fetched", "Messages handed to subscribers."
).of()
channel_lost = Counter(
    "waystation_channel_messages_lost",
    "Messages that expired before a subscriber fetched them.",
    registry=registry,
)
channel_polls_waiting = Gauge(
    "waystation_channel_polls_waiting", "Long polls that wait for a message.", registry=registry
)
channel_streams = Gauge(
    "waystation_channel_streams",
    "Live streams that are open, by kind (events, socket).",
    ["kind"],
    registry=registry,
)
delivery_attempts = _counts(
    "waystation_delivery_attempts",
    "Outgoing requests, by what follows (done, retry, failed, disable).",
    label="result",
)
delivery_given_up = Counter(
    "waystation_delivery_given_up", "Deliveries that went to a failed list.", registry=registry
)
delivery_dropped = Counter(
    "waystation_delivery_dropped", "Deliveries that found no room.", registry=registry
)
delivery_waiting = Gauge(
    "waystation_delivery_waiting",
    "Deliveries that wait or are under way, in the lanes that this process works on.",
    registry=registry,
)
delivery_failed = Gauge(
    "waystation_delivery_failed",
    "Deliveries in failed lists, of the lanes that this process works on.",
    registry=registry,
)
store_calls = _counts("waystation_store_calls", "Calls sent to the store.").of()
store_writes = _counts(
    "waystation_store_writes", "Writes that carried them; calls share writes."
).of()
store_reconnects = Counter(
    "waystation_store_reconnects", "Connections to the store that were lost.", registry=registry
)
topic_messages_over_limit = _counts(
    "waystation_topic_messages_over_limit",
    "Messages over their topic's limit, by its mode (enforced: refused; shadow: admitted).",
    label="mode",
)
topic_bytes_over_limit = _counts(
    "waystation_topic_bytes_over_limit", "Their bytes, by the limit's mode.", label="mode"
)
topic_limit_failures = _counts(
    "waystation_topic_limit_failures", "Requests admitted because a limit could not be computed."
).of()

transaction_claims = _counts(
    "waystation_transaction_claims",
    "Claims of this process's worker, by outcome (work, empty, failed).",
    label="outcome",
)
transactions_claimed = _counts(
    "waystation_transactions_claimed", "Transactions that they brought."
).of()
transactions_held = Gauge(
    "waystation_transactions_held",
    "Transactions that this process holds: those that run, and those claimed ahead.",
    registry=registry,
)
transaction_steps = _counts(
    "waystation_transaction_steps",
    "Calls of steps that have ended, by outcome (success, failed, aborted, internal-error, timeout,"
    " retry, waiting, child, parallel).",
    label="outcome",
)
transaction_step_seconds = _durations(
    "waystation_transaction_step_seconds",
    "Time that a call of a step took; in whole milliseconds.",
    *(0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0, 3600.0),
)
transaction_commits = _counts(
    "waystation_transaction_commits",
    "Moves that were sent to the store, by its verdict; refused: another holds the transaction.",
    label="outcome",
)
transaction_due = _counts(
    "waystation_transaction_due",
    "Transactions that were due, by what was done (woken, rescued, expired, swept).",
    label="outcome",
)
transaction_due_lag = _durations(
    "waystation_transaction_due_lag_seconds",
    "How late the timekeeper found what was due the longest, at each look that found something.",
    *(0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0, 300.0, 3600.0),
)
#: Told by the node that has the lease of upkeep; the others tell zero.
transactions_sleeping = Gauge(
    "waystation_transactions_sleeping",
    "Transactions that sleep, wait for a switch, or are scheduled.",
    registry=registry,
)

#: Of logs: told by the node that has the lease of upkeep, as its last pass found them; the others
#: tell zero.
log_bytes = Gauge("waystation_log_bytes", "Bytes of messages in all logs.", registry=registry)
log_dropped = Gauge(
    "waystation_log_dropped_messages",
    "Messages in all logs that were dropped although a reader needed them.",
    registry=registry,
)
log_trimmed = Counter(
    "waystation_log_trimmed_messages", "Messages that upkeep has removed.", registry=registry
)
log_warned = Gauge(
    "waystation_log_partitions_warned",
    "Partitions whose needed bytes come near their limit, by what happens there (policy).",
    labelnames=("policy",),
    registry=registry,
)


def exposition() -> bytes:
    """All metrics in OpenMetrics text."""
    text: bytes = generate_latest(registry)  # type: ignore[no-untyped-call]
    return text
