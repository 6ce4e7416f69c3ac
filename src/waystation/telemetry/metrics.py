"""Every metric of the process, in one place. Labels come from fixed sets, never from callers."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.process_collector import ProcessCollector

CONTENT_TYPE = CONTENT_TYPE_LATEST
registry = CollectorRegistry()
ProcessCollector(registry=registry)

http_requests = Counter(
    "waystation_http_requests",
    "Requests answered, by route template and status.",
    ["method", "route", "status"],
    registry=registry,
)
http_seconds = Histogram(
    "waystation_http_request_seconds",
    "Time from the first byte of a request to its reply; long polls wait on purpose.",
    ["route"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5, 30),
    registry=registry,
)
http_in_flight = Gauge(
    "waystation_http_requests_in_flight", "Requests that are being answered.", registry=registry
)
http_shed = Counter(
    "waystation_http_requests_shed",
    "Requests refused because a bound was reached.",
    registry=registry,
)
channel_messages = Counter(
    "waystation_channel_messages",
    "Messages published, by outcome (accepted, duplicate, refused).",
    ["outcome"],
    registry=registry,
)
channel_fetched = Counter(
    "waystation_channel_messages_fetched", "Messages handed to subscribers.", registry=registry
)
channel_lost = Counter(
    "waystation_channel_messages_lost",
    "Messages that expired before a subscriber fetched them.",
    registry=registry,
)
channel_polls_waiting = Gauge(
    "waystation_channel_polls_waiting", "Long polls that wait for a message.", registry=registry
)
store_calls = Counter("waystation_store_calls", "Calls sent to the store.", registry=registry)
store_writes = Counter(
    "waystation_store_writes", "Writes that carried them; calls share writes.", registry=registry
)
store_reconnects = Counter(
    "waystation_store_reconnects", "Connections to the store that were lost.", registry=registry
)


def exposition() -> bytes:
    """All metrics in OpenMetrics text."""
    text: bytes = generate_latest(registry)  # type: ignore[no-untyped-call]
    return text
