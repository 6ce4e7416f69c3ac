"""Metrics of the parts that do not declare them beside the code that counts them yet.

Labels come from fixed sets of words.
"""

from __future__ import annotations

from prometheus_client import Counter, Gauge

from waystation.runtime.metrics import (
    CONTENT_TYPE,
    count_family,
    exposition,
    histogram,
    registry,
)
from waystation.telemetry import history_metrics

__all__ = ["CONTENT_TYPE", "exposition", "history_metrics", "registry"]

delivery_attempts = count_family(
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
deliverer_attempts = count_family(
    "waystation_deliverer_attempts",
    "Messages of agents that were sent, by what follows (done, retry, failed); dead: given up.",
    label="result",
)
relay_requests = count_family(
    "waystation_relay_requests",
    "Requests and frames that the doors of a relay answered, by door (http, ws, status).",
    label="door status",
)
transaction_claims = count_family(
    "waystation_transaction_claims",
    "Claims of this process's worker, by outcome (work, empty, failed).",
    label="outcome",
)
transactions_claimed = count_family(
    "waystation_transactions_claimed", "Transactions that they brought."
).of()
transactions_held = Gauge(
    "waystation_transactions_held",
    "Transactions that this process holds: those that run, and those claimed ahead.",
    registry=registry,
)
transaction_steps = count_family(
    "waystation_transaction_steps",
    "Calls of steps that have ended, by outcome (success, failed, aborted, internal-error, timeout,"
    " retry, waiting, child, parallel).",
    label="outcome",
)
transaction_step_seconds = histogram(
    "waystation_transaction_step_seconds",
    "Time that a call of a step took; in whole milliseconds.",
    *(0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0, 3600.0),
)
transaction_commits = count_family(
    "waystation_transaction_commits",
    "Moves that were sent to the store, by its verdict; refused: another holds the transaction.",
    label="outcome",
)
callbacks = count_family(
    "waystation_callbacks",
    "Callbacks of steps that were posted to, by outcome (done, used, unknown, invalid).",
    label="outcome",
)
replies = count_family(
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
transaction_due = count_family(
    "waystation_transaction_due",
    "Transactions that were due, by what was done (woken, rescued, expired, swept).",
    label="outcome",
)
transaction_due_lag = histogram(
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
subscription_attempts = count_family(
    "waystation_subscription_attempts",
    "Requests to endpoints of subscriptions that have ended, by result (done, again, dead;"
    " release: as if it had not been made).",
    label="subscription result",
)
subscription_doubles = count_family(
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
pool_enqueued = count_family(
    "waystation_pool_enqueued",
    "Messages that were to be enqueued, by outcome (added, duplicate, full).",
    label="pool outcome",
)
pool_acked = count_family(
    "waystation_pool_acked",
    "Messages that workers have acknowledged, by outcome (done, known, lost).",
    label="pool outcome",
)
pool_nacked = count_family(
    "waystation_pool_nacked",
    "Messages that workers have given back, by outcome (done, dead, known, lost).",
    label="pool outcome",
)
pool_evicted = count_family(
    "waystation_pool_evicted", "Workers that a sweep found stale.", label="pool"
)
pool_moved_keys = count_family(
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

archive_rows = count_family(
    "waystation_archive_rows",
    "States that were taken to the archive, by what it did (applied, known, refused).",
    label="outcome",
)
archive_batch_seconds = histogram(
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
loads = count_family(
    "waystation_loads",
    "States that were to come back from the archive, by outcome (restored, woken, cached, again,"
    " lost, unknown, alive, foreign, no-room).",
    label="outcome",
)
load_seconds = histogram(
    "waystation_load_seconds",
    "Time that a load of one or many of them took.",
    *(0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0),
)
