"""Every metric of the process, in one place. Labels come from fixed sets, never from callers."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.process_collector import ProcessCollector

from waystation.telemetry.counts import Counts
from waystation.telemetry.measures import Measures

CONTENT_TYPE = CONTENT_TYPE_LATEST
registry = CollectorRegistry()
ProcessCollector(registry=registry)


def _counts(name: str, help_text: str, *, label: str = "") -> Counts:
    counts = Counts(name, help_text, label=label)
    registry.register(counts)
    return counts


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
