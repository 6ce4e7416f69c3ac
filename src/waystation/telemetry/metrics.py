"""Every metric of the process but those of history. Labels come from fixed sets of words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy

from prometheus_client import Counter, Gauge, Metric
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest

from waystation.telemetry import history_metrics
from waystation.telemetry.counts import Counts
from waystation.telemetry.measures import Durations, Measure, Measures
from waystation.telemetry.registry import registry

__all__ = ["CONTENT_TYPE", "exposition", "history_metrics", "registry"]

CONTENT_TYPE = CONTENT_TYPE_LATEST


def _counts(name: str, help_text: str, *, label: str = "") -> Counts:
    """Several labels have blanks between them."""
    counts = Counts(name, help_text, labels=label.split())
    registry.register(counts)
    return counts


def _durations(name: str, help_text: str, *bounds: float) -> Measure:
    durations = Durations(name, help_text, bounds=bounds)
    registry.register(durations)
    return durations.measure


#: Requests and their times, by route.
http = Measures()
registry.register(http)
store_memory_used = Gauge(
    "waystation_store_memory_used_bytes",
    "Memory that the fullest server of the store uses.",
    registry=registry,
)
store_memory_limit = Gauge(
    "waystation_store_memory_limit_bytes",
    "Memory that the fullest server of the store may use; 0 without a limit.",
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
delivery_unrecorded = Counter(
    "waystation_delivery_unrecorded",
    "Outgoing requests that are missing in history: its log took nothing.",
    registry=registry,
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
deliverer_attempts = _counts(
    "waystation_deliverer_attempts",
    "Messages of agents that were sent, by what follows (done, retry, failed); dead: given up.",
    label="result",
)
relay_requests = _counts(
    "waystation_relay_requests",
    "Requests and frames that the doors of a relay answered, by door (http, ws, status).",
    label="door status",
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
callbacks = _counts(
    "waystation_callbacks",
    "Callbacks of steps that were posted to, by outcome (done, used, unknown, invalid).",
    label="outcome",
)
replies = _counts(
    "waystation_replies",
    "Attempts to tell of a transaction, by kind (webhook, channel, topic), event (complete,"
    " progress, status) and what followed (done, retry, failed, disable).",
    label="kind event verdict",
)
transaction_waiters = Gauge(
    "waystation_transaction_waiters",
    "Requests that wait for the end of a transaction, or for its progress.",
    registry=registry,
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

#: Labels of subscriptions are bounded by `subscriptions.tally`.
subscription_attempts = _counts(
    "waystation_subscription_attempts",
    "Requests to endpoints of subscriptions that have ended, by result (done, again, dead;"
    " release: as if it had not been made).",
    label="subscription result",
)
subscription_doubles = _counts(
    "waystation_subscription_doubles",
    "Results that came for what had been settled before.",
    label="subscription",
)
#: Of the shards that this process delivers, as its last look found them.
subscription_shards = Gauge(
    "waystation_subscription_shards",
    "Shards that this process delivers, by state.",
    ["state"],
    registry=registry,
)
subscription_figures = {
    name: Gauge(
        f"waystation_subscription_{name}",
        help_text,
        ["subscription", "shard"],
        registry=registry,
    )
    for name, help_text in (
        ("lag_messages", "Messages of the topic that were not attempted yet, or are under way."),
        ("oldest_seconds", "Age of the oldest of them."),
        ("oldest_failure_seconds", "How long ago the oldest parked head or dead letter failed."),
        ("retrying_groups", "Groups that are retrying or redriving."),
        ("parked_groups", "Groups that wait for an operator."),
        ("retry_messages", "Messages in retry."),
        ("dead_messages", "Dead letters."),
        ("retry_bytes", "Bytes in retry."),
        ("dead_bytes", "Bytes of dead letters."),
        ("in_flight", "Requests under way."),
    )
}

#: Labels of pools are bounded by `pools.tally`.
pool_enqueued = _counts(
    "waystation_pool_enqueued",
    "Messages that were to be enqueued, by outcome (added, duplicate, full).",
    label="pool outcome",
)
pool_acked = _counts(
    "waystation_pool_acked",
    "Messages that workers have acknowledged, by outcome (done, known, lost).",
    label="pool outcome",
)
pool_nacked = _counts(
    "waystation_pool_nacked",
    "Messages that workers have given back, by outcome (done, dead, known, lost).",
    label="pool outcome",
)
pool_evicted = _counts("waystation_pool_evicted", "Workers that a sweep found stale.", label="pool")
pool_moved_keys = _counts(
    "waystation_pool_moved_keys",
    "Keys that this process moved from workers that are stale, drain or leave.",
    label="pool",
)
#: Of all pools, told by the node that has the lease of upkeep, as its last pass found them.
pool_workers = Gauge(
    "waystation_pool_workers", "Workers, by state.", ["pool", "state"], registry=registry
)
pool_figures = {
    name: Gauge(f"waystation_pool_{name}", help_text, ["pool"], registry=registry)
    for name, help_text in (
        ("pending", "Messages that are not settled."),
        ("keys", "Recipient keys that are known."),
        ("oldest_seconds", "How long the oldest has waited that a worker could take."),
        ("dead_letters", "Messages whose attempts are used up."),
    )
}

archive_rows = _counts(
    "waystation_archive_rows",
    "States that were taken to the archive, by what it did (applied, known, refused).",
    label="outcome",
)
archive_batch_seconds = _durations(
    "waystation_archive_batch_seconds",
    "Time that the archive took to write a batch.",
    *(0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0),
)
#: These three are told by the node that has the lease of upkeep; the others tell zero.
archive_waiting = Gauge(
    "waystation_archive_waiting",
    "States that are scheduled to be archived, due or not.",
    registry=registry,
)
archive_oldest = Gauge(
    "waystation_archive_oldest_seconds",
    "How late the first of them is.",
    registry=registry,
)
archive_set_aside = Gauge(
    "waystation_archive_set_aside",
    "States that the archive has refused; they are tried again, by the hour at most.",
    registry=registry,
)
loads = _counts(
    "waystation_loads",
    "States that were to come back from the archive, by outcome (restored, woken, cached, again,"
    " lost, unknown, alive, foreign, no-room).",
    label="outcome",
)
load_seconds = _durations(
    "waystation_load_seconds",
    "Time that a load of one or many of them took.",
    *(0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0),
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


#: Labels whose values are names of a project's things, with the project before a dot.
_NAME_LABELS = ("pool", "subscription")


class _ProjectMetrics:
    """The samples of the registry that are labelled with a thing of one project."""

    def __init__(self, project: str, *, owns_bare_names: bool) -> None:
        self._prefix = f"{project}."
        self._owns_bare_names = owns_bare_names

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics that have such samples, with these alone."""
        for metric in registry.collect():
            own = [each for each in metric.samples if self._is_own(each.labels)]
            if own:
                found = copy(metric)
                found.samples = own
                yield found

    def _is_own(self, labels: Mapping[str, str]) -> bool:
        found = [labels[name] for name in _NAME_LABELS if labels.get(name)]
        return any(
            each.startswith(self._prefix) or (self._owns_bare_names and "." not in each)
            for each in found
        )


def exposition(project: str = "", *, owns_bare_names: bool = False) -> bytes:
    """Return metrics in OpenMetrics text: all, or those of one project's pools and subscriptions.

    Metrics of the whole process tell about all projects, so they are not among those of one.
    `owns_bare_names`: labels without a project belong to this one, the default project.
    """
    source = _ProjectMetrics(project, owns_bare_names=owns_bare_names) if project else registry
    text: bytes = generate_latest(source)  # type: ignore[no-untyped-call]
    return text
